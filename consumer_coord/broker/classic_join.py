"""Handle JoinGroup requests: decide which members may join and under which id, and start or continue the rebalance.

In Kafka, these are the methods ``classicGroupJoin…`` of ``GroupMetadataManager``, with the same error codes.
"""

from __future__ import annotations

import asyncio
from random import Random

import attrs

from consumer_coord.broker.classic_group import (
    UNKNOWN_MEMBER_ID,
    GroupMember,
    GroupMetadata,
    GroupState,
    generate_member_id,
    join_error,
)
from consumer_coord.broker.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalance
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.group_store import GroupStore, response_error
from consumer_coord.broker.purgatory import Purgatory, complete
from consumer_coord.broker.shard import Shard
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

#: The first version of JoinGroup in which a new dynamic member must rejoin with the id that the broker assigned (KIP-394).
KNOWN_MEMBER_ID_REQUIRED_FROM = 4
#: The first version of JoinGroup whose response lets a returning static leader skip the assignment (KIP-814).
_SKIP_ASSIGNMENT_FROM = 9


@attrs.frozen
class RequestContext:
    """The sender of a request; ``client_host`` has Java's form, ``/127.0.0.1``."""

    api_version: int
    client_id: str = ""
    client_host: str = "/127.0.0.1"


#: Receives the response to a JoinGroup, immediately or when the join phase ends.
Waiter = asyncio.Future[JoinGroupResponse]


class Joining:
    """Serves JoinGroup requests."""

    def __init__(
        self, config: BrokerConfig, store: GroupStore, purgatory: Purgatory, rebalance: Rebalance, random: Random
    ) -> None:
        self._config = config
        self._store = store
        self._purgatory = purgatory
        self._rebalance = rebalance
        self._random = random

    def join(self, context: RequestContext, shard: Shard, request: JoinGroupRequest, waiter: Waiter) -> None:
        """Handle a JoinGroup; ``waiter`` receives the response, perhaps much later."""
        group = shard.groups.get(request.group_id)
        if group is None and request.member_id != UNKNOWN_MEMBER_ID:
            return _refuse(waiter, error_codes.UNKNOWN_MEMBER_ID, request.member_id)
        if group is not None:
            return self._join_group(context, shard, group, request, waiter)
        group = shard.groups[request.group_id] = GroupMetadata(request.group_id)
        self._store_new_group(shard, group, waiter)
        if shard.groups.get(request.group_id) is group:
            self._join_group(context, shard, group, request, waiter)
        return None

    def _store_new_group(self, shard: Shard, group: GroupMetadata, waiter: Waiter) -> None:
        def stored(append_error: int) -> None:
            if append_error == error_codes.NONE or shard.groups.get(group.group_id) is not group:
                return
            # The append failed, and a group must not exist without its record in the log. So remove the group; members that
            # have joined the group must join again.
            self._rebalance.unload(group)
            del shard.groups[group.group_id]
            _refuse(waiter, response_error(append_error))

        self._store.store_group(shard, group, {}, stored)

    def _join_group(
        self, context: RequestContext, shard: Shard, group: GroupMetadata, request: JoinGroupRequest, waiter: Waiter
    ) -> None:
        member_id = request.member_id
        if not self._accepts(group, member_id):
            self._rebalance.remove_pending_member(group, member_id)
            return _refuse(waiter, error_codes.GROUP_MAX_SIZE_REACHED)
        if not group.supports_protocols(request.protocol_type, request.protocols):
            return _refuse(waiter, error_codes.INCONSISTENT_GROUP_PROTOCOL, member_id)
        if member_id == UNKNOWN_MEMBER_ID:
            return self._join_new(context, shard, group, request, waiter)
        if member_id in group.pending_join_members:
            if request.group_instance_id is not None:
                # A pending member cannot be static. In this case, Kafka's coordinator throws an exception, so Kafka responds
                # UNKNOWN_SERVER_ERROR.
                return _refuse(waiter, error_codes.UNKNOWN_SERVER_ERROR, "")
            return self._add_member(context, shard, group, request, member_id, waiter)
        error_code = group.validate_member(member_id, request.group_instance_id)
        if error_code != error_codes.NONE:
            return _refuse(waiter, error_code, member_id)
        return self._rejoin(context, shard, group, group.members[member_id], request, waiter)

    def _accepts(self, group: GroupMetadata, member_id: str) -> bool:
        """Return whether ``group.max.size`` leaves room for this member."""
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Count only the members that have rejoined. So a group that is too large rejects the members that rejoin last.
            joined = member is not None and member.awaiting_join is not None
            return joined or group.awaiting_join_count < self._config.group_max_size
        return member is not None or len(group.members) < self._config.group_max_size

    def _join_new(
        self, context: RequestContext, shard: Shard, group: GroupMetadata, request: JoinGroupRequest, waiter: Waiter
    ) -> None:
        instance_id = request.group_instance_id
        new_member_id = generate_member_id(self._random, context.client_id, instance_id)
        if instance_id is not None:
            old_member_id = group.static_members.get(instance_id)
            if old_member_id is not None:
                return self._replace_static(context, shard, group, request, old_member_id, new_member_id, waiter)
        elif context.api_version >= KNOWN_MEMBER_ID_REQUIRED_FROM:
            self._rebalance.add_pending_member(shard, group, new_member_id, request.session_timeout_ms)
            return _refuse(waiter, error_codes.MEMBER_ID_REQUIRED, new_member_id)
        return self._add_member(context, shard, group, request, new_member_id, waiter)

    def _add_member(
        self,
        context: RequestContext,
        shard: Shard,
        group: GroupMetadata,
        request: JoinGroupRequest,
        member_id: str,
        waiter: Waiter,
    ) -> None:
        self._purgatory.cancel(group.pending_join_members.get(member_id))
        member = GroupMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=context.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms(context, request),
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=_protocols(request),
            is_new=True,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, waiter)
        # While a new member waits for its JoinGroup response, it cannot send heartbeats, and its connection does not show
        # whether the client has ended.
        self._rebalance.reschedule_heartbeat(shard, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(shard, group, f"member {member_id} is new; reason: {request.reason}")

    def _rejoin(
        self,
        context: RequestContext,
        shard: Shard,
        group: GroupMetadata,
        member: GroupMember,
        request: JoinGroupRequest,
        waiter: Waiter,
    ) -> None:
        unchanged = member.protocols == _protocols(request)
        leads = group.leader_id == member.member_id
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The member did not receive the response to its first JoinGroup, so send the response again.
            members = group.join_response_members() if leads else ()
            return waiter.set_result(_current_generation(group, member, members=members))
        if group.state is GroupState.STABLE and unchanged and not leads:
            # Only the leader may want a rebalance although its subscription is unchanged. An unchanged follower does not cause
            # a rebalance.
            return waiter.set_result(_current_generation(group, member))
        if group.state is GroupState.EMPTY:
            return _refuse(waiter, error_codes.UNKNOWN_MEMBER_ID, member.member_id)
        superseded = member.awaiting_join
        group.update_member(
            member, _protocols(request), rebalance_timeout_ms(context, request), request.session_timeout_ms, waiter
        )
        if superseded is not None:
            # The member sent JoinGroup again on another connection. No client reads the response to the first JoinGroup, but
            # the first JoinGroup must not wait forever.
            _refuse(superseded, error_codes.REBALANCE_IN_PROGRESS, member.member_id)
        return self._rebalance.prepare_or_complete(
            shard, group, f"member {member.member_id} joins again; reason: {request.reason}"
        )

    # -- static members

    def _replace_static(
        self,
        context: RequestContext,
        shard: Shard,
        group: GroupMetadata,
        request: JoinGroupRequest,
        old_member_id: str,
        new_member_id: str,
        waiter: Waiter,
    ) -> None:
        instance_id = request.group_instance_id
        assert instance_id is not None
        old_leader_id = group.leader_id
        old = group.members[old_member_id]
        self._purgatory.cancel(old.heartbeat)
        member = group.replace_static_member(instance_id, old_member_id, new_member_id)
        self._rebalance.reschedule_heartbeat(shard, group, member)
        group.update_member(
            member, _protocols(request), rebalance_timeout_ms(context, request), request.session_timeout_ms, waiter
        )
        if group.state is GroupState.PREPARING_REBALANCE:
            return self._rebalance.maybe_complete_join(shard, group)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            return self._store_replacement(context, shard, group, old, member, old_leader_id, waiter)
        # The leader may be computing a plan with the old member id, in which the new member id would get no partitions. So
        # rebalance.
        return self._rebalance.prepare(shard, group, f"static member {instance_id} returned as {new_member_id}")

    def _store_replacement(
        self,
        context: RequestContext,
        shard: Shard,
        group: GroupMetadata,
        old: GroupMember,
        member: GroupMember,
        old_leader_id: str | None,
        waiter: Waiter,
    ) -> None:
        """Give a static member that returned to a stable group its former assignment, without a rebalance."""

        def stored(append_error: int) -> None:
            if append_error != error_codes.NONE:
                return self._take_replacement_back(shard, group, old, member, old_leader_id, append_error, waiter)
            leads = group.leader_id == member.member_id
            if context.api_version >= _SKIP_ASSIGNMENT_FROM:
                members = group.join_response_members() if leads else ()
                response = _current_generation(group, member, members=members, skip_assignment=leads)
            else:
                # A client with an older version would compute a plan if the response named this member as the leader. So name
                # the former leader.
                response = _current_generation(group, member, leader=old_leader_id)
            group.complete_join(member, response)
            return None

        assignments = {member.member_id: member.assignment for member in group.members.values()}
        self._store.store_group(shard, group, assignments, stored)

    def _take_replacement_back(
        self,
        shard: Shard,
        group: GroupMetadata,
        old: GroupMember,
        member: GroupMember,
        old_leader_id: str | None,
        append_error: int,
        waiter: Waiter,
    ) -> None:
        if member.group_instance_id is not None and group.members.get(member.member_id) is member:
            self._purgatory.cancel(member.heartbeat)
            group.update_member(member, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms, None)
            restored = group.replace_static_member(member.group_instance_id, member.member_id, old.member_id)
            self._rebalance.reschedule_heartbeat(shard, group, restored)
        complete(
            waiter,
            JoinGroupResponse(
                error_code=response_error(append_error),
                generation_id=group.generation_id,
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                leader=old_leader_id or "",
            ),
        )


def _refuse(waiter: Waiter, error_code: int, member_id: str = UNKNOWN_MEMBER_ID) -> None:
    complete(waiter, join_error(error_code, member_id))


def _current_generation(
    group: GroupMetadata,
    member: GroupMember,
    *,
    members: tuple[JoinGroupResponseMember, ...] = (),
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader or group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=members,
    )


def rebalance_timeout_ms(context: RequestContext, request: JoinGroupRequest) -> int:
    """Return the rebalance timeout. Version 0 has only the session timeout, which is also the rebalance timeout."""
    return request.session_timeout_ms if context.api_version == 0 else request.rebalance_timeout_ms


def _protocols(request: JoinGroupRequest) -> tuple[JoinGroupRequestProtocol, ...]:
    return tuple(request.protocols)
