"""The status of a member of a classic group, and the consequences of its changes.

:class:`MemberStatus` keeps the :class:`~consumer_coord.group.classic_protocol.membership.Membership` and carries out the
consequences of its events: lost partitions, the end of a lease, an abandoned request, a notification of the application.
"""

from __future__ import annotations

import logging

from consumer_coord.errors import CoordinatorError, FencedError, RequestTimedOutError, RetriableError
from consumer_coord.final_errors import fatal
from consumer_coord.group.classic_protocol.leaving import leave_group
from consumer_coord.group.classic_protocol.membership import Intent, Membership, MemberState
from consumer_coord.group.classic_protocol.waiting_requests import WaitingRequest
from consumer_coord.group.error_steps import HEARTBEAT, Step, step_for
from consumer_coord.group.generation import NO_GENERATION, Generation
from consumer_coord.group.lease import Lease
from consumer_coord.group.member_context import MemberContext
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes


class Superseded(Exception):
    """Raised in a step of a rebalance if the membership was reset or the subscription ended during a wait; start again."""


class MemberStatus:
    """The membership of one member; also the :class:`~consumer_coord.group.commits.CommitMembership` for its commits."""

    def __init__(self, context: MemberContext, lease: Lease, waiting: WaitingRequest) -> None:
        self._membership = Membership()
        #: Partitions that the application revoked, and whose revocation no JoinGroup has reported yet.
        self.released: set[TopicPartition] = set()
        self._context = context
        self._lease = lease
        self._waiting = waiting

    @property
    def membership(self) -> Membership:
        """The membership. Every event replaces this value; any thread may read it."""
        return self._membership

    @membership.setter
    def membership(self, membership: Membership) -> None:
        before, self._membership = self._membership, membership
        if membership.rebalancing and not before.rebalancing:
            # From now on, the application waits for changes of the group instead of messages.
            self._context.application.look_again()
        if self._context.log.steps is None:
            return
        now = membership
        if (before.state, before.intent) != (now.state, now.intent):
            self._context.log.step(
                "CGRPJOINSTATE", "changed join state %s -> %s (%s)", before.state.value, now.state.value, now.intent.value
            )

    @property
    def generation_state(self) -> Generation:
        """Generation id, member id and agreed assignor, as one value."""
        return self.membership.generation

    @property
    def rebalancing(self) -> bool:
        """True from the moment a join is known to be needed until the response to SyncGroup."""
        return self.membership.rebalancing

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription."""
        return self.membership.subscribed

    @property
    def joining(self) -> bool:
        """True while JoinGroup waits at the coordinator."""
        return self._waiting.active and self.membership.state is MemberState.PREPARING_REBALANCE

    def check_not_superseded(self, before: Generation) -> None:
        """Raise :class:`Superseded` unless ``before`` is still the generation."""
        if self.membership.generation is not before or self.membership.closed:
            raise Superseded

    # -- events with consequences for others -------------------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        """Record that a join is needed, so that the driver joins."""
        before, self.membership = self.membership, self.membership.rejoin(reason)
        if self.membership.rejoin_reason != before.rejoin_reason:
            self._context.log.info("rejoin: %s", reason)
        self._context.signal.fire()

    def lose(self, why: str, *, keep_member_id: bool = False) -> None:
        """Lose the generation and its partitions; the member must join the group again."""
        self._without_generation(self.membership.lose(why, keep_member_id=keep_member_id), why, on_purpose=False)

    def poll_timeout(self, polls: int, why: str) -> None:
        """Lose the generation because the application did not poll; the member joins again at the next poll."""
        self._without_generation(self.membership.poll_timeout(polls, why), why, on_purpose=True)

    def crash(self, why: str) -> None:
        """Lose the generation and end the subscription, after a crash."""
        self._without_generation(self.membership.crash(), why, on_purpose=True)

    def _without_generation(self, membership: Membership, why: str, *, on_purpose: bool) -> None:
        context = self._context
        level = logging.WARNING if context.assignment.held and not on_purpose else logging.INFO
        context.log.log(level, "out of the group: %s", why)
        rejoins = self.membership.rejoin_reason is None and membership.rejoin_reason is not None
        self.membership = membership
        self._lease.lost()
        self._waiting.abandon(why)
        self.released.clear()
        if context.assignment.lose():
            context.metrics.record("partition-lost")
        if rejoins:
            context.log.info("rejoin: %s", why)
        context.application.call_attention()

    async def leave(self, reason: str, deadline: Deadline, *, static_too: bool = False, rejoin: bool = False) -> None:
        """Leave the group; if ``rejoin`` is True and there is a subscription, join it again.

        A static member's session stays on the broker, unless ``static_too``.
        """
        member_id = self.membership.generation.member_id
        membership = self.membership.lose(reason) if rejoin else self.membership.leave()
        self._without_generation(membership, reason, on_purpose=True)
        await self.send_leave_group(member_id, reason, deadline, static_too=static_too)

    async def send_leave_group(self, member_id: str, reason: str, deadline: Deadline, *, static_too: bool = False) -> None:
        """Send LeaveGroup for ``member_id``, the former id of this member."""
        if member_id and (static_too or self._context.config.group_instance_id is None):
            await leave_group(self._context, member_id, reason, deadline)

    async def fail(self, error: CoordinatorError) -> None:
        """Raise a fatal error in the application's next poll, and leave the group, so that this member does not delay it."""
        self._context.log.error("%s", error)
        if isinstance(error, FencedError):
            # Another process with this instance id is the member now, so this process must not send LeaveGroup for that member.
            self.lose(str(error))
        elif self.membership.generation.has_member_id:
            limit = Deadline.after(self._context.config.request_timeout_ms)
            await self.leave(str(error), limit, static_too=True, rejoin=True)
        self.request_rejoin("after a failure")
        self._context.application.failures.set(error)

    # -- steps after responses -----------------------------------------------------------------------------------------------

    def take(self, step: Step, code: int, request: str, broker: Broker, detail: str = "") -> None:
        """Apply the step of an error code; raise an exception if there is an error (any step but ``CONTINUE``)."""
        if step is Step.CONTINUE:
            return
        name = codes.error_name(code)
        if step is Step.REDISCOVER:
            self._context.link.forget(broker, f"{request}: {name}")
        elif step in (Step.LOSE_GENERATION, Step.LOSE_MEMBERSHIP):
            self.lose(f"{request} was answered with {name}", keep_member_id=step is Step.LOSE_GENERATION)
        elif step is Step.REJOIN:
            raise Superseded(f"{request}: {name}")
        elif step is Step.FAIL:
            raise fatal(code, group_id=self._context.config.group_id, request=request, detail=detail)
        raise RetriableError(f"{request}: {name}", code=code)

    @property
    def fetches_as(self) -> Generation:
        """Return no member, because OffsetFetch of the classic protocol does not name a member."""
        return NO_GENERATION

    async def wait_for_sync(self, deadline: Deadline) -> None:
        """Wait for the end of a rebalance that is required or in progress, so that commits can be sent again.

        The join of a member that is about to leave may end without a sync. The group then prepares another rebalance, and
        accepts commits of this member's generation until all members have joined.
        """
        failures = self._context.application.failures

        def over() -> bool:
            now = self.membership
            leaves = now.intent is Intent.ABOUT_TO_LEAVE and not now.will_sync
            return now.joined or not now.heartbeats_wanted or failures.final or now.ending or leaves

        if not await self._context.signal.until(over, deadline):
            raise RequestTimedOutError("the rebalance did not complete in time")
        if self.membership.ending:
            raise RequestTimedOutError("the member leaves before the rebalance has completed")

    def membership_refused(self, used: Generation, code: int, request: str) -> None:
        """Apply the error of a rejected commit to the membership, if ``used`` is still the current generation."""
        if self.membership.generation is not used or used.generation_id < 0:
            return
        step = step_for(HEARTBEAT, code)
        if step is Step.REJOIN:
            if not self.rebalancing:
                self.request_rejoin(f"{request}: {codes.error_name(code)}")
        elif step in (Step.LOSE_GENERATION, Step.LOSE_MEMBERSHIP):
            self.lose(f"{request} was refused with {codes.error_name(code)}", keep_member_id=step is Step.LOSE_GENERATION)
        elif step is Step.FAIL:
            error = fatal(code, group_id=self._context.config.group_id, request=request)
            self._context.tasks.spawn(self.fail(error), "fail")
