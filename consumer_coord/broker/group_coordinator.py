"""The group coordinator: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the administration of groups.

In Kafka, this is the classic ``GroupCoordinator``; the error codes are those of Kafka 4.4 (``GroupCoordinatorService``,
``GroupMetadataManager``). All code runs on one event loop, so no other code runs between two awaits. Timers belong to the
purgatory; the caller passes the clock and the random number generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

from consumer_coord.broker.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    UNKNOWN_MEMBER_ID,
    GroupMember,
    GroupMetadata,
    GroupState,
    join_error,
)
from consumer_coord.broker.classic_rebalance import Rebalance
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.assignors.python import load_server_assignors
from consumer_coord.broker.consumer_group.assignors.spec import ServerAssignor
from consumer_coord.broker.consumer_group.classic_members import ClassicMembers, left
from consumer_coord.broker.consumer_group.context import Change, Coordination, write
from consumer_coord.broker.consumer_group.describe import describe_consumer_group
from consumer_coord.broker.consumer_group.fencing import Fencing
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.heartbeat import Heartbeats
from consumer_coord.broker.consumer_group.member import MemberState
from consumer_coord.broker.consumer_group.records import group_tombstones
from consumer_coord.broker.consumer_group.subscriptions import Subscriptions
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.group_offsets import OffsetCoordinator
from consumer_coord.broker.group_settings import GroupSettings
from consumer_coord.broker.group_store import GroupStore, StoreHooks, response_error
from consumer_coord.broker.join_group_requests import Joining
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import DelayedOperation, Purgatory, complete
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.shard import Shard, ShardState
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.consumer_group import ConsumerGroupDescribeGroup
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

#: The first version of DescribeGroups that reports an unknown group as an error instead of as a dead group (KIP-1043).
_DESCRIBE_NOT_FOUND_FROM = 6


class GroupCoordinator:
    """The groups of one broker, of the classic protocol and of the consumer protocol (KIP-848)."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        random: Random,
        wall_clock_ms: Callable[[], int],
        purgatory: Purgatory,
        image: MetadataImage,
        group_settings: GroupSettings | None = None,
        hooks: StoreHooks | None = None,
    ) -> None:
        self._purgatory = purgatory
        self._store = GroupStore(config.offsets_topic_num_partitions, purgatory, wall_clock_ms, hooks or StoreHooks())
        self._rebalance = Rebalance(config, self._store, purgatory, wall_clock_ms)
        assignors = load_server_assignors(config.consumer_assignors)
        own = group_settings or GroupSettings(config)
        self._with = Coordination(config, own, self._store, purgatory, self._rebalance, image, assignors, random, wall_clock_ms)
        self._joining = Joining(self._with)
        self.offsets: OffsetCoordinator = OffsetCoordinator(self._with)
        self._fencing = Fencing(self._with)
        subscriptions = Subscriptions(self._with)
        self._consumer_heartbeats = Heartbeats(self._with, self._fencing, subscriptions)
        self._classic_members = ClassicMembers(self._with, self._fencing, subscriptions, self._consumer_heartbeats)
        self._expiry: DelayedOperation | None = None

    # -- partitions of __consumer_offsets

    def on_election(self, partition: int, log: PartitionLog, leader_epoch: int) -> None:
        """Begin to lead a partition: load its groups, and start sessions for their members."""
        if self._expiry is None:
            self._schedule_expiry()
        self._store.elect(partition, log, leader_epoch, self._loaded)

    def on_resignation(self, partition: int) -> None:
        """Stop leading a partition; respond NOT_COORDINATOR to the waiting requests of its groups."""
        shard = self._store.resign(partition)
        if shard is not None:
            for group in shard.groups.values():
                self._rebalance.unload(group)
            self._fencing.close(shard)

    def close(self) -> None:
        """Stop leading all partitions, and stop all timers."""
        for shard in self._store.shards:
            self.on_resignation(shard.partition)
        self._purgatory.cancel(self._expiry)
        self._expiry = None

    @property
    def shards(self) -> Sequence[Shard]:
        """The partitions of ``__consumer_offsets`` that this broker leads, for tests and reports."""
        return self._store.shards

    def group(self, group_id: str) -> GroupMetadata | None:
        """Return a group; None if this broker has not loaded the group. For tests and reports."""
        _, shard = self._store.shard_of(group_id)
        return None if shard is None else shard.groups.get(group_id)

    @property
    def assignors(self) -> Mapping[str, ServerAssignor]:
        """The assignors of ``group.consumer.assignors`` by name."""
        return self._with.assignors

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the consumer protocol; None if this broker has not loaded the group. For tests and reports."""
        _, shard = self._store.shard_of(group_id)
        return None if shard is None else shard.consumer_groups.get(group_id)

    def _loaded(self, shard: Shard) -> None:
        for group in tuple(shard.groups.values()):
            self._rebalance.loaded(shard, group)
        for consumer_group in shard.consumer_groups.values():
            for member in consumer_group.members.values():
                self._fencing.schedule_session(shard, consumer_group.group_id, member.member_id)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    self._fencing.schedule_rebalance(shard, consumer_group.group_id, member)

    def _schedule_expiry(self) -> None:
        self._expiry = self._purgatory.schedule(self._with.config.offsets_retention_check_interval_ms, self._expire)

    def _expire(self) -> None:
        self._schedule_expiry()
        for shard in self._store.shards:
            if shard.state is ShardState.ACTIVE:
                self.offsets.expire(shard)

    # -- JoinGroup and SyncGroup

    async def join_group(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
        """Handle a JoinGroup: respond when the join phase ends, or at once if this member cannot join."""
        config = self._with.config
        if not request.group_id:
            return join_error(error_codes.INVALID_GROUP_ID, request.member_id)
        if not (config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms):
            return join_error(error_codes.INVALID_SESSION_TIMEOUT, request.member_id)
        error_code, shard = self._store.shard_of(request.group_id)
        if shard is None:
            return join_error(error_code)
        consumer_group = shard.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            if not consumer_group.is_empty:
                return await self._classic_members.join_group(context, shard, consumer_group, request)
            if request.member_id != UNKNOWN_MEMBER_ID:
                return join_error(error_codes.UNKNOWN_MEMBER_ID, request.member_id)
            # Delete the empty consumer group, so that a classic group can replace it; its offsets remain.
            error_code = response_error(await write(self._store, Change(shard, group_tombstones(consumer_group))))
            if error_code:
                return join_error(error_code)
        waiter: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        self._joining.join(context, shard, request, waiter)
        return await waiter

    async def sync_group(self, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
        """Handle a SyncGroup: wait for the leader's assignment. Store the leader's assignment and send it to all members."""
        error_code, shard = self._find(request.group_id)
        if shard is None:
            return SyncGroupResponse(error_code=error_code)
        consumer_group = shard.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return await self._classic_members.sync_group(shard, consumer_group, request)
        group = shard.groups.get(request.group_id)
        error_code = _validate_sync(group, request)
        if error_code != error_codes.NONE or group is None:
            return SyncGroupResponse(error_code=error_code)
        member = group.members[request.member_id]
        self._rebalance.sync_received(group, member.member_id)
        if group.state is GroupState.STABLE:
            return group.sync_response(member)
        waiter: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
        superseded, member.awaiting_sync = member.awaiting_sync, waiter
        if superseded is not None:
            complete(superseded, SyncGroupResponse(error_code=error_codes.REBALANCE_IN_PROGRESS))
        if group.leader_id == member.member_id:
            self._store_assignment(shard, group, request)
        return await waiter

    def _store_assignment(self, shard: Shard, group: GroupMetadata, request: SyncGroupRequest) -> None:
        assignments = {assignment.member_id: assignment.assignment for assignment in request.assignments}

        def stored(append_error: int) -> None:
            # If a rebalance started during the append, the rebalance has already responded to all members.
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != request.generation_id:
                return
            if append_error == error_codes.NONE:
                self._rebalance.propagate_assignment(shard, group, assignments)
                group.transition_to(GroupState.STABLE, self._with.wall_clock_ms())
            else:
                self._rebalance.assignment_failed(shard, group, append_error)

        self._store.store_group(shard, group, assignments, stored)

    # -- Heartbeat and LeaveGroup

    async def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Extend the member's session; report in the response whether a rebalance is in progress."""
        error_code, shard = self._find(request.group_id)
        if error_code == error_codes.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()  # The group is loading, and will start new sessions for its members.
        if shard is None:
            return HeartbeatResponse(error_code=error_code)
        consumer_group = shard.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return await self._classic_members.heartbeat(shard, consumer_group, request)
        group = shard.groups.get(request.group_id)
        if group is None:
            return HeartbeatResponse(error_code=error_codes.UNKNOWN_MEMBER_ID)
        error_code = group.validate_member(request.member_id, request.group_instance_id)
        if error_code == error_codes.NONE and request.generation_id != group.generation_id:
            error_code = error_codes.ILLEGAL_GENERATION
        if error_code != error_codes.NONE:
            return HeartbeatResponse(error_code=error_code)
        self._rebalance.reschedule_heartbeat(shard, group, group.members[request.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return HeartbeatResponse(error_code=error_codes.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    async def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members, by member id or (by administrators) only by instance id; return a result for each member."""
        error_code, shard = self._find(request.group_id)
        if shard is None:
            return LeaveGroupResponse(error_code=error_code)
        consumer_group = shard.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return await self._classic_members.leave_group(shard, consumer_group, request)
        group = shard.groups.get(request.group_id)
        if group is None:
            members = tuple(left(identity, error_codes.UNKNOWN_MEMBER_ID) for identity in request.members)
            return LeaveGroupResponse(members=members)
        responses = tuple(left(identity, self._leave(group, identity)) for identity in request.members)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._after_leaving(shard, group, responses, lambda append_error: complete(done, append_error))
        error_code = response_error(await done)
        return LeaveGroupResponse(error_code=error_code, members=() if error_code else responses)

    def _leave(self, group: GroupMetadata, identity: MemberIdentity) -> int:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID:
            if instance_id is None or instance_id not in group.static_members:
                return error_codes.UNKNOWN_MEMBER_ID
            member_id = group.static_members[instance_id]
        elif member_id in group.pending_join_members:
            self._rebalance.remove_pending_member(group, member_id)
            return error_codes.NONE
        else:
            error_code = group.validate_member(member_id, instance_id)
            if error_code != error_codes.NONE:
                return error_code
        self._rebalance.remove_member(group, group.members[member_id])
        return error_codes.NONE

    def _after_leaving(
        self, shard: Shard, group: GroupMetadata, responses: Sequence[MemberResponse], done: Callable[[int], None]
    ) -> None:
        """Rebalance without the members that left, and call ``done``: at once, or after the append if no member remains."""
        if all(response.error_code for response in responses):
            return done(error_codes.NONE)
        if group.can_rebalance and group.state is not GroupState.EMPTY:
            self._rebalance.prepare(shard, group, "members left", done)
        else:
            self._rebalance.maybe_complete_join(shard, group, done)
        return None

    # -- the consumer protocol

    async def consumer_group_heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle a ConsumerGroupHeartbeat: a member of the consumer protocol joins, stays or leaves."""
        return await self._consumer_heartbeats.heartbeat(context, request)

    async def consumer_group_describe(self, group_ids: Sequence[str]) -> tuple[ConsumerGroupDescribeGroup, ...]:
        """Describe groups of the consumer protocol."""
        return tuple(self._describe_consumer_group(group_id) for group_id in group_ids)

    def _describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeGroup:
        error_code, shard = self._find(group_id)
        if shard is None:
            return ConsumerGroupDescribeGroup(group_id=group_id, error_code=error_code)
        group = shard.consumer_groups.get(group_id)
        if group is None:
            return ConsumerGroupDescribeGroup(
                group_id=group_id,
                error_code=error_codes.GROUP_ID_NOT_FOUND,
                error_message=(
                    f"Group {group_id} is not a consumer group." if group_id in shard.groups else f"Group {group_id} not found."
                ),
            )
        return describe_consumer_group(group, self._with)

    # -- administration

    async def describe_groups(self, context: RequestContext, group_ids: Sequence[str]) -> tuple[DescribedGroup, ...]:
        """Describe classic groups. A group that does not exist is reported as dead."""
        return tuple(self._describe(context, group_id) for group_id in group_ids)

    def _describe(self, context: RequestContext, group_id: str) -> DescribedGroup:
        error_code, shard = self._store.shard_of(group_id)
        if shard is None:
            return DescribedGroup(group_id=group_id, error_code=error_code)
        group = shard.groups.get(group_id)
        if group is None:
            if context.api_version < _DESCRIBE_NOT_FOUND_FROM:
                return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
            return DescribedGroup(
                group_id=group_id,
                group_state=GroupState.DEAD.value,
                error_code=error_codes.GROUP_ID_NOT_FOUND,
                error_message=(
                    f"Group {group_id} is not a classic group."
                    if group_id in shard.consumer_groups
                    else f"Group {group_id} not found."
                ),
            )
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=tuple(_describe_member(member, protocol) for member in group.members.values()),
        )

    async def list_groups(self, states: Sequence[str], types: Sequence[str]) -> tuple[int, tuple[ListedGroup, ...]]:
        """Return (error code, groups of this broker), filtered by states and types, whose case does not matter."""
        if any(shard.state is ShardState.LOADING for shard in self._store.shards):
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS, ()
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        return error_codes.NONE, tuple(
            listed
            for shard in self._store.shards
            for listed in map(_listed, shard.all_groups())
            if (not wanted_states or listed.group_state.lower() in wanted_states)
            and (not wanted_types or listed.group_type.lower() in wanted_types)
        )

    async def delete_groups(self, group_ids: Sequence[str]) -> tuple[DeletableGroupResult, ...]:
        """Delete groups that have no members, and their offsets."""
        return tuple(
            [DeletableGroupResult(group_id=group_id, error_code=await self._delete_group(group_id)) for group_id in group_ids]
        )

    async def _delete_group(self, group_id: str) -> int:
        error_code, shard = self._store.shard_of(group_id)
        if shard is None:
            return error_code
        group = shard.group_of(group_id)
        if group is None:
            return error_codes.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return error_codes.NON_EMPTY_GROUP
        return await self.offsets.delete_group(shard, group)

    def _find(self, group_id: str) -> tuple[int, Shard | None]:
        if not group_id:
            return error_codes.INVALID_GROUP_ID, None
        return self._store.shard_of(group_id)


def _listed(group: GroupMetadata | ConsumerGroup) -> ListedGroup:
    is_classic = isinstance(group, GroupMetadata)
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=(group.protocol_type or "") if isinstance(group, GroupMetadata) else CONSUMER_PROTOCOL_TYPE,
        group_state=group.state.value,
        group_type="classic" if is_classic else "consumer",
    )


def _validate_sync(group: GroupMetadata | None, request: SyncGroupRequest) -> int:
    if group is None or group.state is GroupState.EMPTY:
        return error_codes.UNKNOWN_MEMBER_ID
    error_code = group.validate_member(request.member_id, request.group_instance_id)
    if error_code != error_codes.NONE:
        return error_code
    if request.generation_id != group.generation_id:
        return error_codes.ILLEGAL_GENERATION
    if _inconsistent(request.protocol_type, group.protocol_type) or _inconsistent(request.protocol_name, group.protocol_name):
        return error_codes.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return error_codes.REBALANCE_IN_PROGRESS
    return error_codes.NONE


def _inconsistent(given: str | None, known: str | None) -> bool:
    return given is not None and known is not None and given != known


def _describe_member(member: GroupMember, protocol_name: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol_name is None else member.metadata(protocol_name),
        member_assignment=member.assignment,
    )
