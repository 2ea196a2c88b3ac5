"""Handle JoinGroup requests: decide which members may join and under which id, and start or continue the rebalance.

In Kafka, these are the methods ``classicGroupJoin…`` of ``GroupMetadataManager``, with the same error codes.
"""

from __future__ import annotations

import asyncio

import attrs

from consumer_coord.broker.classic_group import (
    UNKNOWN_MEMBER_ID,
    GroupMember,
    GroupMetadata,
    GroupState,
    generate_member_id,
    join_error,
)
from consumer_coord.broker.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from consumer_coord.broker.consumer_group.context import Coordination
from consumer_coord.broker.group_store import response_error
from consumer_coord.broker.purgatory import complete
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.shard import Shard
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import JoinGroupRequest, JoinGroupResponse

#: The first version of JoinGroup in which a new dynamic member must rejoin with the id that the broker assigned (KIP-394).
KNOWN_MEMBER_ID_REQUIRED_FROM = 4
#: The first version of JoinGroup whose response lets a returning static leader skip the assignment (KIP-814).
_SKIP_ASSIGNMENT_FROM = 9


#: Receives the response to a JoinGroup, immediately or when the join phase ends.
Waiter = asyncio.Future[JoinGroupResponse]


@attrs.frozen(eq=False)
class _Attempt:
    """A JoinGroup for a group."""

    context: RequestContext
    shard: Shard
    group: GroupMetadata
    request: JoinGroupRequest
    waiter: Waiter

    def refuse(self, error_code: int, member_id: str = UNKNOWN_MEMBER_ID) -> None:
        complete(self.waiter, join_error(error_code, member_id))

    def update(self, member: GroupMember) -> None:
        request = self.request
        timeout_ms = rebalance_timeout_ms(self.context, request)
        self.group.update_member(member, tuple(request.protocols), timeout_ms, request.session_timeout_ms, self.waiter)


class Joining:
    """Serves JoinGroup requests."""

    def __init__(self, coordination: Coordination) -> None:
        self._with = coordination
        self._rebalance = coordination.rebalance

    def join(self, context: RequestContext, shard: Shard, request: JoinGroupRequest, waiter: Waiter) -> None:
        """Handle a JoinGroup; ``waiter`` receives the response, perhaps much later."""
        group = shard.groups.get(request.group_id)
        if group is None and request.member_id != UNKNOWN_MEMBER_ID:
            return complete(waiter, join_error(error_codes.UNKNOWN_MEMBER_ID, request.member_id))
        if group is not None:
            return self._join_group(_Attempt(context, shard, group, request, waiter))
        group = shard.groups[request.group_id] = GroupMetadata(request.group_id)
        attempt = _Attempt(context, shard, group, request, waiter)
        self._store_new_group(attempt)
        if shard.groups.get(request.group_id) is group:
            self._join_group(attempt)
        return None

    def _store_new_group(self, attempt: _Attempt) -> None:
        shard, group = attempt.shard, attempt.group

        def stored(append_error: int) -> None:
            if append_error == error_codes.NONE or shard.groups.get(group.group_id) is not group:
                return
            # The append failed, and a group must not exist without its record in the log. So remove the group; members that
            # have joined the group must join again.
            self._rebalance.unload(group)
            del shard.groups[group.group_id]
            attempt.refuse(response_error(append_error))

        self._with.store.store_group(shard, group, {}, stored)

    def _join_group(self, attempt: _Attempt) -> None:
        group, request = attempt.group, attempt.request
        member_id = request.member_id
        if not self._accepts(group, member_id):
            self._rebalance.remove_pending_member(group, member_id)
            return attempt.refuse(error_codes.GROUP_MAX_SIZE_REACHED)
        if not group.supports_protocols(request.protocol_type, request.protocols):
            return attempt.refuse(error_codes.INCONSISTENT_GROUP_PROTOCOL, member_id)
        if member_id == UNKNOWN_MEMBER_ID:
            return self._join_new(attempt)
        if member_id in group.pending_join_members:
            if request.group_instance_id is not None:
                # A pending member cannot be static. In this case, Kafka's coordinator throws an exception, so Kafka responds
                # UNKNOWN_SERVER_ERROR.
                return attempt.refuse(error_codes.UNKNOWN_SERVER_ERROR)
            return self._add_member(attempt, member_id)
        error_code = group.validate_member(member_id, request.group_instance_id)
        if error_code != error_codes.NONE:
            return attempt.refuse(error_code, member_id)
        return self._rejoin(attempt, group.members[member_id])

    def _accepts(self, group: GroupMetadata, member_id: str) -> bool:
        """Return whether ``group.max.size`` leaves room for this member."""
        if group.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Count only the members that have rejoined. So a group that is too large rejects the members that rejoin last.
            joined = member is not None and member.awaiting_join is not None
            return joined or group.awaiting_join_count < self._with.config.group_max_size
        return member is not None or len(group.members) < self._with.config.group_max_size

    def _join_new(self, attempt: _Attempt) -> None:
        group, request = attempt.group, attempt.request
        instance_id = request.group_instance_id
        new_member_id = generate_member_id(self._with.random, attempt.context.client_id, instance_id)
        if instance_id is not None:
            old_member_id = group.static_members.get(instance_id)
            if old_member_id is not None:
                return self._replace_static(attempt, instance_id, old_member_id, new_member_id)
        elif attempt.context.api_version >= KNOWN_MEMBER_ID_REQUIRED_FROM:
            self._rebalance.add_pending_member(attempt.shard, group, new_member_id, request.session_timeout_ms)
            return attempt.refuse(error_codes.MEMBER_ID_REQUIRED, new_member_id)
        return self._add_member(attempt, new_member_id)

    def _add_member(self, attempt: _Attempt, member_id: str) -> None:
        context, shard, group, request = attempt.context, attempt.shard, attempt.group, attempt.request
        self._with.purgatory.cancel(group.pending_join_members.get(member_id))
        member = GroupMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=context.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms(context, request),
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(request.protocols),
            is_new=True,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, attempt.waiter)
        # While a new member waits for its JoinGroup response, it cannot send heartbeats, and its connection does not show
        # whether the client has ended.
        self._rebalance.reschedule_heartbeat(shard, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(shard, group, f"member {member_id} is new; reason: {request.reason}")

    def _rejoin(self, attempt: _Attempt, member: GroupMember) -> None:
        group, request = attempt.group, attempt.request
        unchanged = member.protocols == tuple(request.protocols)
        leads = group.leader_id == member.member_id
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The member did not receive the response to its first JoinGroup, so send the response again.
            return attempt.waiter.set_result(group.join_response(member))
        if group.state is GroupState.STABLE and unchanged and not leads:
            # Only the leader may want a rebalance although its subscription is unchanged. An unchanged follower does not cause
            # a rebalance.
            return attempt.waiter.set_result(group.join_response(member))
        if group.state is GroupState.EMPTY:
            return attempt.refuse(error_codes.UNKNOWN_MEMBER_ID, member.member_id)
        superseded = member.awaiting_join
        attempt.update(member)
        if superseded is not None:
            # The member sent JoinGroup again on another connection. No client reads the response to the first JoinGroup, but
            # the first JoinGroup must not wait forever.
            complete(superseded, join_error(error_codes.REBALANCE_IN_PROGRESS, member.member_id))
        reason = f"member {member.member_id} joins again; reason: {request.reason}"
        return self._rebalance.prepare_or_complete(attempt.shard, group, reason)

    # -- static members

    def _replace_static(self, attempt: _Attempt, instance_id: str, old_member_id: str, new_member_id: str) -> None:
        shard, group = attempt.shard, attempt.group
        old_leader_id = group.leader_id
        old = group.members[old_member_id]
        self._with.purgatory.cancel(old.heartbeat)
        member = group.replace_static_member(instance_id, old_member_id, new_member_id)
        self._rebalance.reschedule_heartbeat(shard, group, member)
        attempt.update(member)
        if group.state is GroupState.PREPARING_REBALANCE:
            return self._rebalance.maybe_complete_join(shard, group)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            return self._store_replacement(attempt, old, member, old_leader_id)
        # The leader may be computing a plan with the old member id, in which the new member id would get no partitions. So
        # rebalance.
        return self._rebalance.prepare(shard, group, f"static member {instance_id} returned as {new_member_id}")

    def _store_replacement(self, attempt: _Attempt, old: GroupMember, member: GroupMember, old_leader_id: str | None) -> None:
        """Give a static member that returned to a stable group its former assignment, without a rebalance."""
        group = attempt.group

        def stored(append_error: int) -> None:
            if append_error != error_codes.NONE:
                return self._take_replacement_back(attempt, old, member, old_leader_id, append_error)
            if attempt.context.api_version >= _SKIP_ASSIGNMENT_FROM:
                response = attrs.evolve(group.join_response(member), skip_assignment=group.leader_id == member.member_id)
            else:
                # A client with an older version would compute a plan if the response named this member as the leader. So name
                # the former leader.
                response = group.join_response(member, old_leader_id)
            group.complete_join(member, response)
            return None

        assignments = {member.member_id: member.assignment for member in group.members.values()}
        self._with.store.store_group(attempt.shard, group, assignments, stored)

    def _take_replacement_back(
        self, attempt: _Attempt, old: GroupMember, member: GroupMember, old_leader_id: str | None, append_error: int
    ) -> None:
        group = attempt.group
        if member.group_instance_id is not None and group.members.get(member.member_id) is member:
            self._with.purgatory.cancel(member.heartbeat)
            group.update_member(member, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms, None)
            restored = group.replace_static_member(member.group_instance_id, member.member_id, old.member_id)
            self._rebalance.reschedule_heartbeat(attempt.shard, group, restored)
        complete(
            attempt.waiter,
            JoinGroupResponse(
                error_code=response_error(append_error),
                generation_id=group.generation_id,
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                leader=old_leader_id or "",
            ),
        )


def rebalance_timeout_ms(context: RequestContext, request: JoinGroupRequest) -> int:
    """Return the rebalance timeout. Version 0 has only the session timeout, which is also the rebalance timeout."""
    return request.session_timeout_ms if context.api_version == 0 else request.rebalance_timeout_ms
