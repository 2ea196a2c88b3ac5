"""Handle JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic members in a consumer group (KIP-848).

A classic member's generation is its member epoch. The broker responds to JoinGroup at once and names no leader, because the
broker makes the assignment. A Heartbeat response requests a rejoin if the member must revoke partitions or can receive
partitions.
"""

from __future__ import annotations

import asyncio
import struct

import attrs

from consumer_coord.broker.classic_group import CONSUMER_PROTOCOL_TYPE, UNKNOWN_MEMBER_ID, join_error
from consumer_coord.broker.consumer_group import conversion, membership
from consumer_coord.broker.consumer_group.context import Change, Coordination, write
from consumer_coord.broker.consumer_group.fencing import Fencing, TimerKind
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.heartbeat import NO_TIMEOUT, Heartbeats
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, MemberState, without_epochs
from consumer_coord.broker.consumer_group.reconciliation import Owned, Target
from consumer_coord.broker.consumer_group.subscriptions import GroupSubscription, Subscriptions
from consumer_coord.broker.errors import GroupError
from consumer_coord.broker.group_store import response_error
from consumer_coord.broker.join_group_requests import KNOWN_MEMBER_ID_REQUIRED_FROM, rebalance_timeout_ms
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.shard import Shard
from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire import embedded_protocol as consumer_protocol
from consumer_coord.wire import error_codes
from consumer_coord.wire.consumer_group_records import ClassicMemberMetadata
from consumer_coord.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ClassicMembers:
    """Serves the requests of classic members of consumer groups."""

    def __init__(
        self, coordination: Coordination, fencing: Fencing, subscriptions: Subscriptions, heartbeats: Heartbeats
    ) -> None:
        self._with = coordination
        self._fencing = fencing
        self._subscriptions = subscriptions
        self._heartbeats = heartbeats

    # -- JoinGroup

    async def join_group(
        self, context: RequestContext, shard: Shard, group: ConsumerGroup, request: JoinGroupRequest
    ) -> JoinGroupResponse:
        """Add or update a member, and respond as soon as the log has the records of this change."""
        try:
            change, response = self._join(context, shard, group, request)
        except GroupError as error:
            return join_error(error.code)
        error_code = response_error(await write(self._with.store, change))
        return join_error(error_code) if error_code else response

    def _join(
        self, context: RequestContext, shard: Shard, group: ConsumerGroup, request: JoinGroupRequest
    ) -> tuple[Change, JoinGroupResponse]:
        if self._with.config.group_consumer_migration_policy == "disabled":
            raise GroupError(error_codes.INCONSISTENT_GROUP_PROTOCOL, "group.consumer.migration.policy is disabled")
        change = Change(shard)
        instance_id = request.group_instance_id
        is_unknown = request.member_id == UNKNOWN_MEMBER_ID
        member_id = self._with.new_member_id() if is_unknown else request.member_id
        membership.check_size(group, member_id, instance_id, self._with.config.group_consumer_max_size)
        if not group.supports_classic_protocols(request.protocol_type, (one.name for one in request.protocols)):
            raise GroupError(
                error_codes.INCONSISTENT_GROUP_PROTOCOL, "the member has no protocol that all classic members offer"
            )
        if is_unknown and instance_id is None and context.api_version >= KNOWN_MEMBER_ID_REQUIRED_FROM:
            return change, join_error(error_codes.MEMBER_ID_REQUIRED, member_id)
        if instance_id is None:
            member = membership.join_dynamic(group, member_id)
        elif is_unknown:
            member = membership.join_static(group, member_id, instance_id, True, change.records)
        else:
            member = membership.static_member_of(group, member_id, instance_id)
        replaced = group.static_member(instance_id)
        subscription = _subscription(request)
        updated = _updated(member, context, request, subscription)
        of_group = self._subscriptions.update(change, group, member, updated)
        owned = self._with.image.by_id(subscription.owned_partitions)
        if (
            replaced is not None
            and replaced.classic is None
            and group.all_classic_but((replaced.member_id,))
            and conversion.can_downgrade(self._with, group, len(group.members))
        ):
            updated = self._downgrade(change, group, updated, replaced, of_group, owned)
        else:
            updated = self._heartbeats.settle(change, group, updated, of_group, owned)
            timeout_ms = rebalance_timeout_ms(context, request)
            change.after.append(lambda: self._joined(shard, group.group_id, member_id, request, timeout_ms))
        return change, JoinGroupResponse(
            member_id=member_id,
            generation_id=updated.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=_first_protocol(updated),
        )

    def _downgrade(
        self,
        change: Change,
        group: ConsumerGroup,
        updated: ConsumerGroupMember,
        replaced: ConsumerGroupMember,
        subscription: GroupSubscription,
        owned: Owned,
    ) -> ConsumerGroupMember:
        """Convert the group to a classic group, because no member of the consumer protocol remains."""
        rebalance = None
        if group.assignment_epoch < subscription.epoch:
            rebalance = "the group became classic, and its assignment is outdated"
        else:
            target = Target(group.assignment_epoch, group.target_of(replaced.member_id))
            updated = self._heartbeats.reconcile(change, group, updated, target, owned, subscription.changed)
        conversion.to_classic(self._with, group, change, joining=updated, rebalance=rebalance)
        return updated

    def _joined(self, shard: Shard, group_id: str, member_id: str, request: JoinGroupRequest, timeout_ms: int) -> None:
        self._fencing.cancel(shard, group_id, member_id, TimerKind.JOIN)
        self._fencing.schedule_session(shard, group_id, member_id, request.session_timeout_ms)
        self._fencing.schedule(shard, TimerKind.SYNC, group_id, member_id, timeout_ms)

    # -- SyncGroup and Heartbeat

    async def sync_group(self, shard: Shard, group: ConsumerGroup, request: SyncGroupRequest) -> SyncGroupResponse:
        """Respond with the partitions that the member has in its epoch."""
        try:
            member = self._classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
            offered = _first_protocol(member)
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, offered):
                raise GroupError(error_codes.INCONSISTENT_GROUP_PROTOCOL, f"the group stores {offered} for this member")
            if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                # (A member that must still revoke partitions has joined in this epoch, and will rejoin after the revocation.)
                self._require_join(shard, group, member)
                raise GroupError(error_codes.REBALANCE_IN_PROGRESS, "there is a newer target: join again")
        except GroupError as error:
            return SyncGroupResponse(error_code=error.code)
        assert member.classic is not None
        timeout_ms, metadata = member.classic.session_timeout_ms, member.classic.supported_protocols[0].metadata
        error_code = response_error(await self._unchanged(shard))
        if error_code:
            return SyncGroupResponse(error_code=error_code)
        self._fencing.cancel(shard, group.group_id, member.member_id, TimerKind.SYNC)
        self._fencing.schedule_session(shard, group.group_id, member.member_id, timeout_ms)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=conversion.encode_target(without_epochs(member.assigned), metadata, self._with.image),
        )

    def _unchanged(self, shard: Shard) -> asyncio.Future[int]:
        return write(self._with.store, Change(shard))

    async def heartbeat(self, shard: Shard, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResponse:
        """Extend the member's session; respond REBALANCE_IN_PROGRESS if the member must rejoin to change its partitions."""
        try:
            member = self._classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
        except GroupError as error:
            return HeartbeatResponse(error_code=error.code)
        assert member.classic is not None
        self._fencing.schedule_session(shard, group.group_id, member.member_id, member.classic.session_timeout_ms)
        if (
            member.member_epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_partitions(member))
        ):
            self._require_join(shard, group, member)
            return HeartbeatResponse(error_code=error_codes.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def _require_join(self, shard: Shard, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        self._fencing.schedule(shard, TimerKind.JOIN, group.group_id, member.member_id, member.rebalance_timeout_ms)

    @staticmethod
    def _classic_member(
        group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ConsumerGroupMember:
        member = membership.find(group, member_id, instance_id)
        if member.classic is None:
            raise GroupError(error_codes.UNKNOWN_MEMBER_ID, f"member {member_id} uses the consumer protocol")
        if member.member_epoch != generation_id:
            raise GroupError(
                error_codes.ILLEGAL_GENERATION,
                f"member {member_id} is in generation {member.member_epoch}, not {generation_id}",
            )
        return member

    # -- LeaveGroup

    async def leave_group(self, shard: Shard, group: ConsumerGroup, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members of either protocol, identified by member id, or (by administrators) only by instance id."""
        answers: list[MemberResponse] = []
        leaving: dict[str, ConsumerGroupMember] = {}
        for identity in request.members:
            error_code = error_codes.NONE
            try:
                member = _leaver(group, identity)
                leaving[member.member_id] = member
            except GroupError as error:
                error_code = error.code
            answers.append(left(identity, error_code))
        change = self._fencing.fence(shard, group, tuple(leaving.values()))
        error_code = response_error(await write(self._with.store, change))
        return LeaveGroupResponse(error_code=error_code, members=() if error_code else tuple(answers))


def left(identity: MemberIdentity, error_code: int) -> MemberResponse:
    """Return the result for one member in the response to LeaveGroup."""
    return MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error_code)


def _leaver(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerGroupMember:
    if identity.group_instance_id is not None and identity.member_id == UNKNOWN_MEMBER_ID:
        member = group.static_member(identity.group_instance_id)
        if member is None:
            raise GroupError(error_codes.UNKNOWN_MEMBER_ID, f"no member has the instance id {identity.group_instance_id}")
        return member
    return membership.find(group, identity.member_id, identity.group_instance_id)


def _subscription(request: JoinGroupRequest) -> consumer_protocol.Subscription:
    try:
        return consumer_protocol.decode_subscription(request.protocols[0].metadata)
    except (MalformedMessageError, struct.error) as error:
        raise GroupError(error_codes.INCONSISTENT_GROUP_PROTOCOL, f"the subscription cannot be decoded: {error}") from error


def _updated(
    member: ConsumerGroupMember,
    context: RequestContext,
    request: JoinGroupRequest,
    subscription: consumer_protocol.Subscription,
) -> ConsumerGroupMember:
    timeout_ms = rebalance_timeout_ms(context, request)
    return attrs.evolve(
        member,
        instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms,
        subscribed_topics=frozenset(subscription.topics),
        subscribed_regex="",
        client_id=context.client_id,
        client_host=context.client_host,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=conversion.classic_protocols(request.protocols),
        ),
    )


def _first_protocol(member: ConsumerGroupMember) -> str:
    assert member.classic is not None
    return member.classic.supported_protocols[0].name
