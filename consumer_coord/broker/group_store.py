"""Store groups and offsets as records of ``__consumer_offsets``: write before a response, read when a partition is loaded.

In Kafka, this is part of ``GroupMetadataManager`` before 4.0 (``storeGroup``, ``onElection``, ``onResignation``), and of the
replay of records in 4.x. A broker leads some partitions of the topic; each partition is a :class:`Shard` with the groups whose
ids hash to this partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from consumer_coord.broker.classic_group import GroupMember, GroupMetadata, GroupState
from consumer_coord.broker.committed import StoredOffset
from consumer_coord.broker.consumer_group import records as consumer_records
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.java_hash import partition_for
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.record_batch import Record
from consumer_coord.broker.shard import Appended, LoadReport, PendingAppend, Shard, ShardState
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.log_text import get_logger
from consumer_coord.wire import consumer_group_records, error_codes, offsets_topic
from consumer_coord.wire.messages.group import JoinGroupRequestProtocol

logger: Final = get_logger(__name__)

GROUP_METADATA_TOPIC = "__consumer_offsets"

#: A partition of ``__consumer_offsets`` is compacted when its size exceeds twice its last compacted size plus this number of
#: bytes.
_COMPACT_AT = 32 << 20

#: Error code of an append -> error code for the member (``appendGroupMetadataErrorToResponseError``).
_APPEND_ERRORS: Mapping[int, int] = {
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_ENOUGH_REPLICAS: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.REQUEST_TIMED_OUT: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_LEADER_OR_FOLLOWER: error_codes.NOT_COORDINATOR,
    error_codes.KAFKA_STORAGE_ERROR: error_codes.NOT_COORDINATOR,
    error_codes.MESSAGE_TOO_LARGE: error_codes.UNKNOWN_SERVER_ERROR,
    error_codes.RECORD_LIST_TOO_LARGE: error_codes.UNKNOWN_SERVER_ERROR,
    error_codes.INVALID_FETCH_SIZE: error_codes.UNKNOWN_SERVER_ERROR,
}


def response_error(append_error: int) -> int:
    """Return the error code for the client after an append failed with ``append_error``."""
    return _APPEND_ERRORS.get(append_error, append_error)


@attrs.frozen
class StoreHooks:
    """Hooks for a simulation or a test.

    ``append_error(partition)`` returns Kafka's error code to make an append fail, or 0. ``append_delay_ms(partition)`` returns
    the delay of an append's acknowledgement, which replication would cause. ``loading_delay_ms(partition)`` is the time for
    which a partition responds COORDINATOR_LOAD_IN_PROGRESS.
    """

    append_error: Callable[[int], int] = lambda _: error_codes.NONE
    append_delay_ms: Callable[[int], int] = lambda _: 0
    loading_delay_ms: Callable[[int], int] = lambda _: 0


class GroupStore:
    """The partitions of ``__consumer_offsets`` that one broker leads."""

    def __init__(self, partitions: int, purgatory: Purgatory, wall_clock_ms: Callable[[], int], hooks: StoreHooks) -> None:
        self._partitions = partitions
        self._purgatory = purgatory
        self._wall_clock_ms = wall_clock_ms
        self._hooks = hooks
        self._shards: dict[int, Shard] = {}
        self._appends = 0

    # -- finding

    def shard_of(self, group_id: str) -> tuple[int, Shard | None]:
        """Return (0, the active shard of a group), or (error code, None) if this broker cannot serve the group at present."""
        shard = self._shards.get(partition_for(group_id, self._partitions))
        if shard is None:
            return error_codes.NOT_COORDINATOR, None
        if shard.state is ShardState.LOADING:
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS, None
        return error_codes.NONE, shard

    @property
    def shards(self) -> Sequence[Shard]:
        """All partitions that this broker leads, including those being loaded."""
        return tuple(self._shards.values())

    # -- appending

    def append(
        self,
        shard: Shard,
        records: Sequence[tuple[bytes, bytes | None]],
        appended: Appended,
        producer_id: int = -1,
        producer_epoch: int = -1,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Write records to the log, then call ``appended``: at once, unless the hooks delay the acknowledgement.

        If the records are in the log, always call ``written`` at once, so that the next requests see the changes.
        """
        error_code = self._hooks.append_error(shard.partition)
        base_offset = -1
        if error_code == error_codes.NONE:
            try:
                base_offset = shard.log.append_records(
                    records, self._wall_clock_ms(), shard.leader_epoch, producer_id, producer_epoch
                )
            except AppendError as error:
                error_code = error.code
        if error_code == error_codes.NONE and written is not None:
            written()
        delay_ms = self._hooks.append_delay_ms(shard.partition)
        if not delay_ms and not shard.appending:
            appended(error_code, base_offset)
            return self._maybe_compact(shard)
        return self._append_later(shard, appended, error_code, base_offset, delay_ms)

    def when_appended(self, shard: Shard, appended: Appended) -> None:
        """Call ``appended`` after all appends in progress have ended; at once if no append is in progress."""
        if shard.appending:
            self._append_later(shard, appended, error_codes.NONE, -1, 0)
        else:
            appended(error_codes.NONE, -1)

    def _append_later(self, shard: Shard, appended: Appended, error_code: int, base_offset: int, delay_ms: int) -> None:
        # Appends end in the order in which they began, because records are replicated in order.
        self._appends += 1
        number = self._appends

        def end() -> None:
            del shard.appending[number]
            appended(error_code, base_offset)

        pending = list(shard.appending.values())
        not_before = pending[-1].operation.deadline if pending else 0.0
        operation = self._purgatory.schedule(delay_ms, end, not_before=not_before)
        shard.appending[number] = PendingAppend(appended, operation)

    def append_marker(
        self, shard: Shard, producer_id: int, producer_epoch: int, committed: bool, coordinator_epoch: int
    ) -> None:
        """Write the marker that ends a transaction; raise :class:`~consumer_coord.broker.errors.AppendError` on failure."""
        shard.log.append_marker(
            self._wall_clock_ms(), shard.leader_epoch, producer_id, producer_epoch, committed, coordinator_epoch
        )

    def store_group(
        self, shard: Shard, group: GroupMetadata, assignments: Mapping[str, bytes], done: Callable[[int], None]
    ) -> None:
        """Write a group's current generation with the given assignments; call ``done`` with the log's error code."""
        key, data = group_record(group, assignments)

        def appended(error_code: int, _: int) -> None:
            if error_code == error_codes.NONE:
                shard.stored_groups[group.group_id] = data
            done(error_code)

        self.append(shard, [(key, data)], appended)

    def _maybe_compact(self, shard: Shard) -> None:
        """Append the current state of a large log's groups again, and delete all earlier records.

        Kafka's log cleaner keeps this topic small. The embedded broker cannot rewrite a log, but it can delete the beginning of
        a log. Open transactions delay the compaction, because their offsets must stay before later offsets.
        """
        if shard.log.size < max(shard.compact_at, _COMPACT_AT) or shard.appending:
            return
        if any(group.offsets.open_transactions for group in shard.all_groups()):
            return
        start = shard.log.end_offset
        try:
            for group in shard.all_groups():
                records, placed = _snapshot(shard, group)
                if records:
                    base_offset = shard.log.append_records(records, self._wall_clock_ms(), shard.leader_epoch)
                    group.offsets.moved(placed, base_offset)
        except AppendError as error:
            logger.warning("partition %d of %s was not compacted: %s", shard.partition, GROUP_METADATA_TOPIC, error)
            return
        shard.log.delete_before(start)
        # Compact again when the log has grown by its present size plus ``_COMPACT_AT`` bytes.
        shard.compact_at = 2 * shard.log.size + _COMPACT_AT

    # -- loading and unloading

    def elect(self, partition: int, log: PartitionLog, leader_epoch: int, loaded: Callable[[Shard], None]) -> None:
        """Begin to lead a partition: read its groups, then call ``loaded``."""
        shard = Shard(partition, log, leader_epoch)
        self._shards[partition] = shard

        def load() -> None:
            if shard.state is ShardState.LOADING:
                shard.report = replay(log.records(), shard)
                shard.state = ShardState.ACTIVE
                _log_report(shard)
                loaded(shard)

        delay_ms = self._hooks.loading_delay_ms(partition)
        if delay_ms:
            self._purgatory.schedule(delay_ms, load)
        else:
            load()

    def resign(self, partition: int) -> Shard | None:
        """Stop leading a partition; return its shard, so that the caller can respond to the waiting requests."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.state = ShardState.UNLOADED
            for pending in tuple(shard.appending.values()):
                self._purgatory.cancel(pending.operation)
                pending.appended(error_codes.NOT_LEADER_OR_FOLLOWER, -1)
            shard.appending.clear()
        return shard


def _snapshot(
    shard: Shard, group: GroupMetadata | ConsumerGroup
) -> tuple[list[tuple[bytes | None, bytes | None]], list[tuple[str, int, int]]]:
    """Return the records of a group's current state, and (topic, partition, index in the records) of its offsets."""
    records: list[tuple[bytes | None, bytes | None]] = []
    if isinstance(group, ConsumerGroup):
        records += map(consumer_records.encode, consumer_records.whole_group(group))
    elif group.group_id in shard.stored_groups:
        key = offsets_topic.encode_group_key(offsets_topic.GroupMetadataKey(group.group_id))
        records.append((key, shard.stored_groups[group.group_id]))
    placed = []
    for topic, partitions in group.offsets.topics():
        for partition, offset in partitions.items():
            placed.append((topic, partition, len(records)))
            offset_key = offsets_topic.OffsetCommitKey(group.group_id, topic, partition)
            records.append((offsets_topic.encode_offset_key(offset_key), offsets_topic.encode_offset_value(offset.value)))
    return records, placed


def group_record(group: GroupMetadata, assignments: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """Return the record of a classic group's current generation with the given assignments."""
    value = offsets_topic.GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp_ms=-1 if group.state_timestamp_ms is None else group.state_timestamp_ms,
        members=tuple(
            offsets_topic.MemberMetadata(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=assignments.get(member.member_id, b""),
                group_instance_id=member.group_instance_id,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
            )
            for member in group.members.values()
        ),
    )
    key = offsets_topic.encode_group_key(offsets_topic.GroupMetadataKey(group.group_id))
    return key, offsets_topic.encode_group_value(value)


def replay(records: Iterator[Record | MalformedMessageError], shard: Shard) -> LoadReport:
    """Load the groups and offsets in a partition's records into its shard.

    Records that are corrupt, of a future version, or of another protocol are skipped and counted.
    """
    count = foreign = corrupt = future = 0
    for record in records:
        count += 1
        if isinstance(record, MalformedMessageError):
            corrupt += 1
            continue
        try:
            foreign += not _replay_record(shard, record)
        except (MalformedMessageError, UnsupportedVersionError) as error:
            is_corrupt = isinstance(error, MalformedMessageError)
            corrupt += is_corrupt
            future += not is_corrupt
            what = "corrupt record" if is_corrupt else "record of a future version"
            place = f"{record.offset} of {GROUP_METADATA_TOPIC}-{shard.partition}"
            logger.warning("skipped a %s at offset %s: %s", what, place, error)
    for group in shard.consumer_groups.values():
        group.recount_partitions()
    return LoadReport(count, foreign, corrupt, future)


def _replay_record(shard: Shard, record: Record) -> bool:
    """Apply one record; return whether its type is known."""
    if record.control:
        for group in shard.all_groups():
            group.offsets.end_transaction(record.producer_id, record.committed)
        return True
    if record.key is None:
        raise MalformedMessageError("the record has no key")
    key = offsets_topic.decode_key(record.key)
    if isinstance(key, offsets_topic.OffsetCommitKey):
        _replay_offset(shard, key, record)
    elif isinstance(key, offsets_topic.GroupMetadataKey):
        _replay_group(shard, key.group, record.value)
        shard.stored_groups.pop(key.group, None)
        if record.value is not None:
            shard.stored_groups[key.group] = record.value
    elif key.version in consumer_group_records.TYPES:
        _replay_consumer_group(shard, consumer_group_records.decode_key(record.key), record.value)
    else:
        return False
    return True


def _replay_consumer_group(shard: Shard, key: consumer_group_records.Key, data: bytes | None) -> None:
    value = None if data is None else consumer_group_records.decode_value(key, data)
    shard.apply((key, value))
    group = shard.consumer_groups.get(key.group_id)
    if group is not None and isinstance(key, consumer_group_records.ConsumerGroupPartitionMetadataKey):
        group.has_partition_metadata = data is not None


def _replay_offset(shard: Shard, key: offsets_topic.OffsetCommitKey, record: Record) -> None:
    group = shard.group_of(key.group)
    if record.value is None:
        if group is not None:
            group.offsets.remove(key.topic, key.partition)
        return
    offset = StoredOffset(offsets_topic.decode_offset_value(record.value), record.offset)
    if group is None:
        group = shard.groups[key.group] = GroupMetadata(key.group)
    group.offsets.put(key.topic, key.partition, offset, record.producer_id if record.transactional else -1)


def _replay_group(shard: Shard, group_id: str, data: bytes | None) -> None:
    groups = shard.groups
    offsets = groups[group_id].offsets if group_id in groups else None
    if data is None:
        groups.pop(group_id, None)
        if offsets:
            # After compaction, offsets may precede the tombstone of their group. So remove the group, but keep its offsets.
            groups[group_id] = GroupMetadata(group_id, offsets=offsets)
        return
    value = offsets_topic.decode_group_value(data)
    if value.members and value.protocol is None:
        raise MalformedMessageError(f"group {group_id} has members but no protocol")
    former = shard.consumer_groups.pop(group_id, None)
    if former is not None:
        # The tombstones of the former group are before this record, unless compaction removed them.
        offsets = former.offsets
    group = GroupMetadata(
        group_id,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        state_timestamp_ms=None if value.current_state_timestamp_ms == -1 else value.current_state_timestamp_ms,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        generation_id=value.generation,
        leader_id=value.leader,
    )
    if offsets is not None:
        group.offsets = offsets
    for stored in value.members:
        if stored.member_id in group.members or stored.group_instance_id in group.static_members:
            raise MalformedMessageError(f"member {stored.member_id} is in group {group_id} twice")
        group.add(
            GroupMember(
                member_id=stored.member_id,
                group_instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=(
                    stored.session_timeout_ms if stored.rebalance_timeout_ms == -1 else stored.rebalance_timeout_ms
                ),
                session_timeout_ms=stored.session_timeout_ms,
                protocol_type=value.protocol_type,
                protocols=(JoinGroupRequestProtocol(name=value.protocol or "", metadata=stored.subscription),),
                assignment=stored.assignment,
            )
        )
    if group.members and group.leader_id not in group.members:
        group.leader_id = next(iter(group.members))
    group.remember_subscriptions()
    groups[group_id] = group


def _log_report(shard: Shard) -> None:
    report = shard.report
    level = logging.WARNING if report.corrupt or report.future else logging.DEBUG
    logger.log(
        level,
        "loaded %d groups from partition %d of %s: %d records, of which %d of other protocols, %d corrupt and %d of a"
        " future version were skipped",
        len(shard.groups),
        shard.partition,
        GROUP_METADATA_TOPIC,
        report.records,
        report.foreign,
        report.corrupt,
        report.future,
    )
