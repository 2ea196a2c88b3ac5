"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete, offsets in transactions, and the expiry of offsets.

In Kafka, this is ``OffsetMetadataManager``. While the group has members, commits are fenced by generation and member id; a
group without members accepts all commits. A commit becomes effective when its records are in the log; if the append fails, the
commit has no effect.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterable, Sequence

import attrs

from consumer_coord.broker.classic_group import CONSUMER_PROTOCOL_TYPE, UNKNOWN_MEMBER_ID, GroupMetadata, GroupState
from consumer_coord.broker.committed import StoredOffset
from consumer_coord.broker.consumer_group.context import Coordination
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.offset_checks import check_commit, check_fetch
from consumer_coord.broker.consumer_group.records import encode, group_tombstones
from consumer_coord.broker.group_store import response_error
from consumer_coord.broker.purgatory import complete
from consumer_coord.broker.shard import Shard, ShardState
from consumer_coord.wire import error_codes, offsets_topic
from consumer_coord.wire.offsets_topic import OffsetCommitValue
from consumer_coord.wire.schema import ZERO_UUID

#: The first version of OffsetCommit that reports a missing group as GROUP_ID_NOT_FOUND.
_COMMIT_NOT_FOUND_FROM = 9
#: The first version of TxnOffsetCommit that reports a missing group as GROUP_ID_NOT_FOUND, and a stale member epoch as such.
_TXN_COMMIT_ERRORS_FROM = 6
#: The retention time in an OffsetCommit that leaves the retention to the broker's settings.
DEFAULT_RETENTION_TIME_MS = -1


@attrs.frozen
class Commit:
    """A partition of an OffsetCommit or TxnOffsetCommit, of any version."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: uuid.UUID = ZERO_UUID


@attrs.frozen
class Committer:
    """The sender of a commit: a member with its generation, or a client outside of the group (generation -1, no member id)."""

    group_id: str
    generation_id: int = -1
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    retention_time_ms: int = DEFAULT_RETENTION_TIME_MS


#: A commit of one partition, and its error code.
CommitResult = tuple[Commit, int]


class OffsetCoordinator:
    """The offsets of the groups of one broker."""

    def __init__(self, coordination: Coordination) -> None:
        self._with = coordination
        self._store = coordination.store

    # -- commits

    async def commit(
        self, api_version: int, committer: Committer, commits: Sequence[Commit], *producer: int
    ) -> list[CommitResult]:
        """Store offsets; return an error code for each partition, in the order of ``commits``.

        ``api_version`` is a version of OffsetCommit, or with ``producer`` (id and epoch) a version of TxnOffsetCommit. The
        offsets of a transaction become effective when it commits.
        """
        error_code, shard = self._store.shard_of(committer.group_id)
        if shard is None:
            return [(commit, error_code) for commit in commits]
        group = shard.group_of(committer.group_id)
        error_code = self._check(group, api_version, committer, commits, transactional=bool(producer))
        if error_code != error_codes.NONE:
            return [(commit, error_code) for commit in commits]
        in_session = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)
        if not producer and isinstance(group, GroupMetadata) and group.state in in_session:
            self._with.rebalance.reschedule_heartbeat(shard, group, group.members[committer.member_id])
        return await self._append(shard, committer, commits, *producer)

    def _check(
        self,
        group: GroupMetadata | ConsumerGroup | None,
        api_version: int,
        committer: Committer,
        commits: Sequence[Commit],
        *,
        transactional: bool,
    ) -> int:
        if not isinstance(group, ConsumerGroup):
            return _validate_commit(group, api_version, committer, transactional=transactional)
        return check_commit(
            group,
            api_version,
            committer.member_id,
            committer.group_instance_id,
            committer.generation_id,
            ((commit.topic_id, commit.partition) for commit in commits if self._has_room(commit)),
            transactional=transactional,
            assignment_epochs=bool(self._with.config.group_consumer_assignment_epochs_enable),
        )

    def _has_room(self, commit: Commit) -> bool:
        return commit.metadata is None or len(commit.metadata) <= self._with.config.offset_metadata_max_bytes

    def end_transaction(
        self, partition: int, producer_id: int, producer_epoch: int, committed: bool, coordinator_epoch: int = 0
    ) -> bool:
        """End a transaction: write its marker to a partition of ``__consumer_offsets``, and apply its offsets.

        Return False, without an effect, while the partition is loading, or an append to it is not acknowledged. Raise
        :class:`~consumer_coord.broker.errors.AppendError` if the marker cannot be written.
        """
        shard = next((one for one in self._store.shards if one.partition == partition), None)
        if shard is None or shard.state is not ShardState.ACTIVE or shard.appending:
            return False
        self._store.append_marker(shard, producer_id, producer_epoch, committed, coordinator_epoch)
        for group in shard.all_groups():
            group.offsets.end_transaction(producer_id, committed)
        return True

    async def _append(
        self,
        shard: Shard,
        committer: Committer,
        commits: Sequence[Commit],
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> list[CommitResult]:
        now_ms = self._with.wall_clock_ms()
        expire_ms = -1 if committer.retention_time_ms == DEFAULT_RETENTION_TIME_MS else now_ms + committer.retention_time_ms
        accepted = [
            (one, OffsetCommitValue(one.offset, one.leader_epoch, one.metadata or "", now_ms, expire_ms, one.topic_id))
            for one in commits
            if self._has_room(one)
        ]
        error_code = error_codes.NONE
        if accepted:
            if shard.group_of(committer.group_id) is None:
                # The first commit creates a simple group.
                shard.groups[committer.group_id] = GroupMetadata(committer.group_id)
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            def appended(append_error: int, base_offset: int) -> None:
                # During the append, the group may have changed its protocol, or the group may have been removed.
                group = shard.group_of(committer.group_id)
                if append_error == error_codes.NONE:
                    if group is None:
                        group = shard.groups[committer.group_id] = GroupMetadata(committer.group_id)
                    for record_offset, (commit, value) in enumerate(accepted, base_offset):
                        group.offsets.put(commit.topic, commit.partition, StoredOffset(value, record_offset), producer_id)
                elif isinstance(group, GroupMetadata) and group.is_simple and not group.generation_id and not group.offsets:
                    shard.groups.pop(group.group_id, None)
                complete(done, append_error)

            records = [
                (_key(committer.group_id, commit), offsets_topic.encode_offset_value(value)) for commit, value in accepted
            ]
            self._store.append(shard, records, appended, producer_id, producer_epoch)
            error_code = response_error(await done)
        stored = {id(commit) for commit, _ in accepted}
        return [(commit, error_code if id(commit) in stored else error_codes.OFFSET_METADATA_TOO_LARGE) for commit in commits]

    # -- fetches

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[int, list[tuple[str, int, OffsetCommitValue | int]]]:
        """Return (error code, for each partition its offset or an error code); the code is 0 if the partition has no offset.

        If ``partitions`` is None, return all offsets of the group. Members of the consumer protocol pass their member id and
        epoch.
        """
        error_code, shard = self._store.shard_of(group_id)
        if shard is None:
            return error_code, []
        group = shard.group_of(group_id)
        if isinstance(group, ConsumerGroup):
            error_code = check_fetch(group, member_id, member_epoch)
            if error_code:
                return error_code, []
        if partitions is None:
            committed = () if group is None else group.offsets.topics()
            partitions = ((topic, partition) for topic, offsets in committed for partition in offsets)
        return error_codes.NONE, [
            (topic, partition, _fetched(group, topic, partition, require_stable)) for topic, partition in partitions
        ]

    # -- deletion

    async def delete(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> tuple[int, list[tuple[str, int, int]]]:
        """Delete offsets of topics that no member subscribes to; return (error code, partitions with error codes)."""
        if not group_id:
            return error_codes.INVALID_GROUP_ID, []
        error_code, shard = self._store.shard_of(group_id)
        if shard is None:
            return error_code, []
        group = shard.group_of(group_id)
        if group is None:
            return error_codes.GROUP_ID_NOT_FOUND, []
        if isinstance(group, GroupMetadata) and not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return error_codes.NON_EMPTY_GROUP, []
        results, doomed = [], []
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                results.append((topic, partition, error_codes.GROUP_SUBSCRIBED_TO_TOPIC))
                continue
            results.append((topic, partition, error_codes.NONE))
            if group.offsets.get(topic, partition) is not None or group.offsets.has_pending(topic, partition):
                doomed.append((topic, partition))
        error_code = await self._append_tombstones(shard, group, doomed, with_group=False)
        return (error_code, []) if error_code else (error_codes.NONE, results)

    async def delete_group(self, shard: Shard, group: GroupMetadata | ConsumerGroup) -> int:
        """Delete an empty group and all its offsets; return an error code."""
        return await self._append_tombstones(shard, group, list(group.offsets.partitions()), with_group=True)

    def delete_topic(self, topics: Sequence[str]) -> None:
        """Delete all committed offsets of topics that were deleted."""
        for shard in self._store.shards:
            for group in shard.all_groups():
                doomed = [(topic, partition) for topic, partition in group.offsets.partitions() if topic in topics]
                self._tombstones(shard, group, doomed, with_group=False)

    async def _append_tombstones(
        self, shard: Shard, group: GroupMetadata | ConsumerGroup, doomed: Sequence[tuple[str, int]], with_group: bool
    ) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tombstones(shard, group, doomed, with_group, lambda error_code: complete(done, error_code))
        return response_error(await done)

    def _tombstones(
        self,
        shard: Shard,
        group: GroupMetadata | ConsumerGroup,
        doomed: Sequence[tuple[str, int]],
        with_group: bool,
        done: Callable[[int], None] = lambda _: None,
    ) -> None:
        records: list[tuple[bytes, bytes | None]] = [
            (_key(group.group_id, Commit(topic, partition, -1)), None) for topic, partition in doomed
        ]
        if with_group and isinstance(group, ConsumerGroup):
            records += map(encode, group_tombstones(group))
        elif with_group:
            records.append((offsets_topic.encode_group_key(offsets_topic.GroupMetadataKey(group.group_id)), None))

        def appended(append_error: int, _: int) -> None:
            if append_error == error_codes.NONE:
                for topic, partition in doomed:
                    group.offsets.remove(topic, partition)
                if with_group:
                    self._forget(shard, group)
            done(append_error)

        if records:
            self._store.append(shard, records, appended)
        else:
            done(error_codes.NONE)

    def _forget(self, shard: Shard, group: GroupMetadata | ConsumerGroup) -> None:
        """Remove a group after its tombstone was written, unless a member has joined since then."""
        if isinstance(group, ConsumerGroup):
            if group.is_empty and shard.consumer_groups.get(group.group_id) is group:
                del shard.consumer_groups[group.group_id]
        elif group.state is GroupState.EMPTY:
            self._with.rebalance.cancel_timers(group)
            group.transition_to(GroupState.DEAD, self._with.wall_clock_ms())
            if shard.groups.get(group.group_id) is group:
                del shard.groups[group.group_id]
                shard.stored_groups.pop(group.group_id, None)

    # -- expiry

    def expire(self, shard: Shard) -> None:
        """Delete expired offsets, and empty groups without offsets (``cleanupGroupMetadata``)."""
        now_ms = self._with.wall_clock_ms()
        retention_ms = self._with.config.offsets_retention_minutes * 60_000
        for group in shard.all_groups():
            doomed = []
            survivors = len(group.offsets.open_transactions)
            for topic, offsets in group.offsets.topics():
                subscribed = group.is_subscribed_to(topic)
                for partition, offset in offsets.items():
                    is_kept = subscribed or group.offsets.has_pending(topic, partition)
                    if is_kept or now_ms < _expires_at_ms(group, offset.value, retention_ms):
                        survivors += 1
                    else:
                        doomed.append((topic, partition))
            self._tombstones(shard, group, doomed, with_group=not survivors and group.is_empty)


def _validate_commit(group: GroupMetadata | None, api_version: int, committer: Committer, *, transactional: bool) -> int:
    """Return 0 if a commit is valid, otherwise the error code (``validateOffsetCommit``)."""
    if group is None:
        if committer.generation_id < 0:
            return error_codes.NONE  # The commit creates a simple group.
        if api_version >= (_TXN_COMMIT_ERRORS_FROM if transactional else _COMMIT_NOT_FOUND_FROM):
            return error_codes.GROUP_ID_NOT_FOUND
        return error_codes.ILLEGAL_GENERATION
    if committer.generation_id < 0 and group.state is GroupState.EMPTY:
        return error_codes.NONE
    if committer.generation_id >= 0 or committer.member_id or committer.group_instance_id is not None:
        error_code = group.validate_member(committer.member_id, committer.group_instance_id)
        if error_code != error_codes.NONE:
            return error_code
        if committer.generation_id != group.generation_id:
            return error_codes.ILLEGAL_GENERATION
    elif not transactional and group.state is not GroupState.EMPTY:
        return error_codes.UNKNOWN_MEMBER_ID
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return error_codes.REBALANCE_IN_PROGRESS
    return error_codes.NONE


def _fetched(
    group: GroupMetadata | ConsumerGroup | None, topic: str, partition: int, require_stable: bool
) -> OffsetCommitValue | int:
    if group is None:
        return error_codes.NONE
    if require_stable and group.offsets.has_pending(topic, partition):
        return error_codes.UNSTABLE_OFFSET_COMMIT
    offset = group.offsets.get(topic, partition)
    return error_codes.NONE if offset is None else offset.value


def _key(group_id: str, commit: Commit) -> bytes:
    return offsets_topic.encode_offset_key(offsets_topic.OffsetCommitKey(group_id, commit.topic, commit.partition))


def _expires_at_ms(group: GroupMetadata | ConsumerGroup, offset: OffsetCommitValue, retention_ms: int) -> float:
    """Return when an offset of a topic without subscribers expires; infinity if no offset of the group may expire now."""
    since_ms = offset.commit_timestamp_ms
    if isinstance(group, GroupMetadata) and group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            since_ms = since_ms if group.state_timestamp_ms is None else group.state_timestamp_ms
        elif (
            group.state is not GroupState.STABLE
            or group.protocol_type != CONSUMER_PROTOCOL_TYPE
            or group.subscribed_topics() is None
        ):
            return math.inf
    return since_ms + retention_ms if offset.expire_timestamp_ms == -1 else offset.expire_timestamp_ms
