"""The steps of a rebalance: prepare, wait for JoinGroup requests, start the generation, wait for SyncGroup requests.

In Kafka's ``GroupMetadataManager``, these steps are the methods ``prepareRebalance``,
``tryCompleteInitialRebalanceElseSchedule``, ``completeClassicGroupJoin``, ``schedulePendingSync``, ``propagateAssignment`` and
the expiry of heartbeats. The requests that start these steps are in ``join_group_requests`` and ``group_coordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from consumer_coord.broker.classic_group import GroupMember, GroupMetadata, GroupState, join_error
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.group_store import GroupStore, response_error
from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.shard import Shard
from consumer_coord.log_text import get_logger
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import SyncGroupResponse

logger: Final = get_logger(__name__)

#: Replaces the session timeout while a new member waits for its JoinGroup response, because the member cannot send heartbeats
#: (NewMemberJoinTimeoutMs). In milliseconds.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


def _ignore(_: int) -> None:
    """Ignore the outcome of an append, because nothing depends on the outcome."""


class Rebalance:
    """Runs the rebalances of groups. Its only state is the timers that it starts."""

    def __init__(self, config: BrokerConfig, store: GroupStore, purgatory: Purgatory, wall_clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._store = store
        self._purgatory = purgatory
        self._wall_clock_ms = wall_clock_ms

    # -- the join phase

    def prepare_or_complete(self, shard: Shard, group: GroupMetadata, reason: str) -> None:
        """Start a rebalance, or if the group is already in the join phase and all members have joined, end this phase."""
        if group.can_rebalance:
            self.prepare(shard, group, reason)
        else:
            self.maybe_complete_join(shard, group)

    def prepare(self, shard: Shard, group: GroupMetadata, reason: str, done: Callable[[int], None] = _ignore) -> None:
        """Change to PreparingRebalance.

        Members that wait for an assignment receive REBALANCE_IN_PROGRESS and rejoin. For ``done``, see :meth:`complete_join`.
        """
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.propagate_assignment(shard, group, {}, error_codes.REBALANCE_IN_PROGRESS)
        self._remove_sync_expiration(group)
        initial = group.state is GroupState.EMPTY
        if initial:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._schedule_initial_join(shard, group, delay_ms, remaining_ms)
        group.transition_to(GroupState.PREPARING_REBALANCE, self._wall_clock_ms())
        logger.debug("preparing to rebalance group %s, generation %d: %s", group.group_id, group.generation_id, reason)
        if not initial and group.all_members_joined:
            return self.complete_join(shard, group, done)
        if not initial:
            self._schedule_join(shard, group)
        return done(error_codes.NONE)

    def maybe_complete_join(self, shard: Shard, group: GroupMetadata, done: Callable[[int], None] = _ignore) -> None:
        """End the join phase if all members have joined; an initial rebalance always waits for its delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_members_joined
        ):
            return self.complete_join(shard, group, done)
        return done(error_codes.NONE)

    def complete_join(self, shard: Shard, group: GroupMetadata, done: Callable[[int], None] = _ignore) -> None:
        """End the join phase: drop members that did not join, choose the protocol, and respond to all members that joined.

        Call ``done`` with an error code. If the generation is empty, first append its record; otherwise, call ``done`` at once.
        """
        self._purgatory.cancel(group.join_operation)
        group.join_operation = None
        for member in [m for m in group.members.values() if m.awaiting_join is None and m.group_instance_id is None]:
            group.remove(member.member_id)
            self._purgatory.cancel(member.heartbeat)
        if group.state is GroupState.DEAD:
            return done(error_codes.NONE)
        if not group.elect_joined_leader() and group.members:
            # Only static members remain, and no member joined: keep the members until their sessions expire.
            self._schedule_join(shard, group)
            return done(error_codes.NONE)
        group.init_next_generation(self._wall_clock_ms())
        if group.state is GroupState.EMPTY:
            # A failed append does no harm: the previous generation in the log has no live members, so its members expire after
            # a reload.
            return self._store.store_group(shard, group, {}, done)
        for member in group.members.values():
            group.complete_join(member, group.join_response(member))
            self.reschedule_heartbeat(shard, group, member)
            member.is_new = False
            group.pending_sync_members[member.member_id] = None
        generation_id = group.generation_id
        group.sync_operation = self._purgatory.schedule(
            group.rebalance_timeout_ms, lambda: self._expire_pending_sync(shard, group, generation_id)
        )
        return done(error_codes.NONE)

    def _schedule_join(self, shard: Shard, group: GroupMetadata) -> None:
        self._purgatory.cancel(group.join_operation)
        group.join_operation = self._purgatory.schedule(group.rebalance_timeout_ms, lambda: self.complete_join(shard, group))

    def _schedule_initial_join(self, shard: Shard, group: GroupMetadata, delay_ms: int, remaining_ms: int) -> None:
        def extend_or_complete() -> None:
            if group.new_member_added and remaining_ms:
                group.new_member_added = False
                next_delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
                self._schedule_initial_join(shard, group, next_delay_ms, max(remaining_ms - delay_ms, 0))
            else:
                self.complete_join(shard, group)

        self._purgatory.cancel(group.join_operation)
        group.join_operation = self._purgatory.schedule(delay_ms, extend_or_complete)

    # -- the sync phase

    def sync_received(self, group: GroupMetadata, member_id: str) -> None:
        """Record a member's SyncGroup. After the last SyncGroup, cancel the timer that removes members without a SyncGroup."""
        group.pending_sync_members.pop(member_id, None)
        if not group.pending_sync_members:
            self._purgatory.cancel(group.sync_operation)
            group.sync_operation = None

    def propagate_assignment(
        self, shard: Shard, group: GroupMetadata, assignments: Mapping[str, bytes], error_code: int = error_codes.NONE
    ) -> None:
        """Set each member's part of the assignment, which may be empty; send this part, or an error, in SyncGroup responses."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        for member in group.members.values():
            response = SyncGroupResponse(error_code=error_code) if error_code else group.sync_response(member)
            if group.complete_sync(member, response):
                # If the session timer expired during the wait, the expiry was ignored. So start a new timer now.
                self.reschedule_heartbeat(shard, group, member)

    def _remove_sync_expiration(self, group: GroupMetadata) -> None:
        group.pending_sync_members.clear()
        self._purgatory.cancel(group.sync_operation)
        group.sync_operation = None

    def _expire_pending_sync(self, shard: Shard, group: GroupMetadata, generation_id: int) -> None:
        if generation_id != group.generation_id or not group.pending_sync_members:
            return
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            late: Sequence[str] = tuple(group.pending_sync_members)
            for member_id in late:
                # A static member may have been replaced. As in Kafka, its former member id is still in the set.
                member = group.members.get(member_id)
                if member is not None:
                    self._purgatory.cancel(member.heartbeat)
                group.remove(member_id)
            self.prepare(shard, group, f"{len(late)} members did not send SyncGroup in time")

    # -- sessions

    def reschedule_heartbeat(
        self, shard: Shard, group: GroupMetadata, member: GroupMember, timeout_ms: int | None = None
    ) -> None:
        """Restart the member's session, with ``timeout_ms`` or (if None) with the member's session timeout."""
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        if member.heartbeat is not None and member.heartbeat.pending:
            self._purgatory.put_off(member.heartbeat, delay_ms)
        else:
            member.heartbeat = self._purgatory.schedule(delay_ms, lambda: self._expire_heartbeat(shard, group, member))

    def add_pending_member(self, shard: Shard, group: GroupMetadata, member_id: str, session_timeout_ms: int) -> None:
        """Wait until the client that received a new member id joins; after its session timeout, stop waiting."""
        group.pending_join_members[member_id] = self._purgatory.schedule(
            session_timeout_ms, lambda: self._expire_pending_member(shard, group, member_id)
        )

    def remove_pending_member(self, group: GroupMetadata, member_id: str) -> None:
        """Stop waiting for a pending member."""
        self._purgatory.cancel(group.pending_join_members.get(member_id))
        group.remove(member_id)

    def remove_member(self, group: GroupMetadata, member: GroupMember) -> None:
        """Remove a member; its waiting JoinGroup receives UNKNOWN_MEMBER_ID, so that the member can rejoin.

        A waiting SyncGroup of the member receives the same error. (Kafka does not respond to this SyncGroup.)
        """
        self._purgatory.cancel(member.heartbeat)
        group.complete_join(member, join_error(error_codes.UNKNOWN_MEMBER_ID))
        group.complete_sync(member, SyncGroupResponse(error_code=error_codes.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)

    def _expire_pending_member(self, shard: Shard, group: GroupMetadata, member_id: str) -> None:
        if group.state is GroupState.DEAD or member_id not in group.pending_join_members:
            return
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_members_joined:
            self.complete_join(shard, group)

    def _expire_heartbeat(self, shard: Shard, group: GroupMetadata, member: GroupMember) -> None:
        if (
            group.state is GroupState.DEAD
            or group.members.get(member.member_id) is not member
            or member.has_satisfied_heartbeat
        ):
            return
        logger.debug("member %s of group %s failed: no heartbeat", member.member_id, group.group_id)
        self.remove_member(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_or_complete(shard, group, f"member {member.member_id} sent no heartbeat")
        elif group.state is GroupState.PREPARING_REBALANCE and group.all_members_joined:
            self.complete_join(shard, group)

    # -- unloading and loading

    def unload(self, group: GroupMetadata) -> None:
        """Unload a group that another broker coordinates now; respond NOT_COORDINATOR to all waiting requests."""
        group.transition_to(GroupState.DEAD, self._wall_clock_ms())
        self.cancel_timers(group)
        for member in group.members.values():
            group.complete_join(member, join_error(error_codes.NOT_COORDINATOR, member.member_id))
            group.complete_sync(member, SyncGroupResponse(error_code=error_codes.NOT_COORDINATOR))

    def cancel_timers(self, group: GroupMetadata) -> None:
        """Cancel all timers of this group."""
        for operation in (group.join_operation, group.sync_operation, *group.pending_join_members.values()):
            self._purgatory.cancel(operation)
        for member in group.members.values():
            self._purgatory.cancel(member.heartbeat)

    def loaded(self, shard: Shard, group: GroupMetadata) -> None:
        """Start sessions for the members of a group that was read from the log; rebalance if the group has too many members."""
        for member in group.members.values():
            self.reschedule_heartbeat(shard, group, member)
        if len(group.members) > self._config.group_max_size:
            self.prepare(shard, group, f"loaded with {len(group.members)} members, more than group.max.size")

    def assignment_failed(self, shard: Shard, group: GroupMetadata, append_error: int) -> None:
        """Respond with an error to all members, and rebalance, because the leader's assignment could not be stored."""
        error_code = response_error(append_error)
        self.propagate_assignment(shard, group, {}, error_code)
        self.prepare_or_complete(shard, group, f"{error_codes.error_name(error_code)}: the assignment could not be stored")
