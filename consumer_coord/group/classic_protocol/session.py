"""A classic member's session with its coordinator: waiting requests, heartbeats, and their responses.

``heartbeat.py`` decides when heartbeats are sent. The other members of the process see :class:`ClassicSession` as a
:class:`~consumer_coord.group.process_peers.peers.Peer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError, MalformedMessageError, RetriableError
from consumer_coord.final_errors import fatal
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.classic_protocol import requests
from consumer_coord.group.classic_protocol.membership import Membership, MemberState
from consumer_coord.group.classic_protocol.status import MemberStatus
from consumer_coord.group.classic_protocol.waiting_requests import AbandonedError, WaitingRequest
from consumer_coord.group.error_steps import HEARTBEAT, Step, step_for
from consumer_coord.group.generation import Generation
from consumer_coord.group.heartbeat_clock import HeartbeatClock, answer_in_time_ms
from consumer_coord.group.lease import Lease
from consumer_coord.group.member_context import MemberContext
from consumer_coord.net.group_requests import offset_fetch, offsets_in
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import JoinGroupRequest, SyncGroupRequest

#: The response to a heartbeat shows whether the coordinator received a JoinGroup or SyncGroup only if the JoinGroup or
#: SyncGroup is older than this time, in milliseconds, and older than the heartbeat interval.
_ARRIVED_MS = 1_000

#: How long Java waits for a JoinGroup response beyond the rebalance timeout, in milliseconds (``JOIN_GROUP_TIMEOUT_LAPSE``).
_JOIN_LAPSE_MS = 5_000

_HEARTBEAT = "Heartbeat"

_NOT_LOADED = (codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)

#: Maximum number of pending early heartbeats, in addition to the number that the last call of ``HeartbeatClock.early``
#: scheduled.
_MOST_EARLY = 10

#: From this version of JoinGroup on, the coordinator immediately returns a new id to a member without an id (KIP-394).
_MEMBER_ID_REQUIRED_VERSION = 4


@attrs.frozen
class _Answered:
    """The response to a heartbeat that was sent at time ``sent`` of the lease's clock."""

    code: int
    step: Step
    broker: Broker
    sent: float
    #: True if the coordinator must have received the waiting JoinGroup or SyncGroup before this heartbeat.
    after_wait: bool


class ClassicSession:
    """The heartbeats and the waiting requests of one member."""

    def __init__(self, context: MemberContext, status: MemberStatus, lease: Lease, waiting: WaitingRequest) -> None:
        self._context = context
        self._status = status
        self._lease = lease
        self._waiting = waiting
        self.assignment: AssignmentState = context.assignment
        #: The generation for which a heartbeat was answered with ILLEGAL_GENERATION while JoinGroup still waits.
        self._overtaken: Generation | None = None
        self.clock: HeartbeatClock = HeartbeatClock(_MOST_EARLY)

    # -- interface to the heartbeat task and the members of the process --------------------------------------------------------

    @property
    def generation_state(self) -> Generation:
        """Generation id, member id and agreed assignor."""
        return self._status.membership.generation

    @property
    def generation(self) -> int:
        """The generation id, -1 outside the group."""
        return self._status.membership.generation.generation_id

    @property
    def member_id(self) -> str:
        """The member id that the coordinator assigned; empty before the coordinator assigned an id."""
        return self._status.membership.generation.member_id

    @property
    def membership(self) -> Membership:
        """The member's relation to its group."""
        return self._status.membership

    @property
    def joining(self) -> bool:
        """True while JoinGroup waits."""
        return self._status.joining

    @property
    def rebalancing(self) -> bool:
        """True while a join is needed or in progress."""
        return self._status.rebalancing

    @property
    def syncing(self) -> bool:
        """True while a SyncGroup response is pending."""
        return self._status.membership.state is MemberState.COMPLETING_REBALANCE

    def request_rejoin(self, reason: str) -> None:
        """Request a join."""
        self._status.request_rejoin(reason)

    def look_again(self) -> None:
        """Wake the driver after a change that it may wait for."""
        self._context.signal.fire()

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Send early heartbeats to learn whether the group rebalances."""
        self.clock.early(after_ms)

    async def ask_and_wait(self, broker: Broker, message: JoinGroupRequest | SyncGroupRequest) -> Any:
        """Send JoinGroup or SyncGroup, and wait until the group is ready or the rebalance timeout has passed.

        Once per session, the request is sent again on another connection, because the coordinator may not have received it.
        """
        config, cluster, before = self._context.config, self._context.cluster, self._status.membership.generation
        limit_ms = max(config.request_timeout_ms, config.rebalance_timeout_ms + _JOIN_LAPSE_MS)
        again_ms: float | None = config.session_timeout_ms
        if not before.has_member_id and config.group_instance_id is None:
            # An old broker creates another member for each JoinGroup without an id, so do not send it again. A newer broker
            # responds immediately, so a short timeout is enough.
            version = cluster.version_spoken(broker, JoinGroupRequest)
            at_once = version is not None and version >= _MEMBER_ID_REQUIRED_VERSION
            again_ms = config.request_timeout_ms if at_once else None
        try:
            answer = await self._waiting.ask(
                broker,
                lambda timeout_ms: cluster.request(broker, message, timeout_ms=timeout_ms, waits=True),
                Deadline.after(limit_ms),
                again_ms,
            )
        except AbandonedError:
            self._status.check_not_superseded(before)
            raise
        except RetriableError as error:
            self._context.link.forget(broker, str(error))
            raise
        self._context.link.show_answer(message, answer)
        return answer

    # -- heartbeats ------------------------------------------------------------------------------------------------------------

    async def send_heartbeat(self) -> None:
        """Send one heartbeat and apply its response; raise a retriable error if there is no response."""
        status, used = self._status, self._status.membership.generation
        try:
            answered = await self._ask_heartbeat(used)
        except MalformedMessageError as error:
            if self._context.link.coordinator is not None:
                self._context.link.forget(self._context.link.coordinator, str(error))
            raise RetriableError(str(error)) from error
        except RetriableError:
            raise
        except CoordinatorError as error:
            # A fatal error of the request: for example, the right to use the group was removed, or a certificate expired.
            if status.membership.generation is used:
                await self._refused(error)
            return
        if status.membership.generation is used:
            await self._take_heartbeat(used, answered)

    async def _ask_heartbeat(self, used: Generation) -> _Answered:
        context, config = self._context, self._context.config
        broker = await context.link.find(Deadline.after(config.session_timeout_ms))
        if self._lease.enabled and self._lease.passed:
            await self._check_loaded(broker)
        sent = self._lease.clock()
        after_wait = self._waiting.sent_before(max(_ARRIVED_MS, config.heartbeat_interval_ms))
        answer = await context.link.ask(
            broker,
            requests.heartbeat(config, used),
            timeout_ms=answer_in_time_ms(config.request_timeout_ms, config.session_timeout_ms),
        )
        return _Answered(answer.error_code, step_for(HEARTBEAT, answer.error_code), broker, sent, after_wait)

    async def _take_heartbeat(self, used: Generation, answered: _Answered) -> None:
        status, step, broker = self._status, answered.step, answered.broker
        if step in (Step.CONTINUE, Step.REJOIN):
            self._context.link.accepted(_HEARTBEAT)
            self._lease.heartbeat_answered(answered.sent, rebalancing=step is Step.REJOIN)
        if answered.after_wait:
            self._check_wait(step, used, broker)
        if step is Step.REJOIN:
            self._context.peers.rebalance(used.generation_id)
        elif status.joining and (not answered.after_wait or step is Step.LOSE_GENERATION):
            # JoinGroup uses another connection and overtook this heartbeat. The heartbeat's generation may have ended normally,
            # and the response to JoinGroup will show this.
            return
        elif step is Step.FAIL:
            await self._refused(fatal(answered.code, group_id=self._context.config.group_id, request=_HEARTBEAT))
        else:
            try:
                status.take(step, answered.code, _HEARTBEAT, broker)
            except RetriableError:
                if step in (Step.REDISCOVER, Step.BACK_OFF):
                    raise

    async def _refused(self, error: CoordinatorError) -> None:
        """Leave the group after a fatal error; raise a retriable error if fresh credentials may be accepted."""
        if self._context.link.excuses(error, _HEARTBEAT):
            raise RetriableError(str(error), code=error.code) from error
        await self._status.fail(error)

    async def _check_loaded(self, broker: Broker) -> None:
        """Raise a retriable error if the coordinator is still loading its groups, which only a request for offsets shows.

        A loading coordinator responds to any classic Heartbeat without an error, also for a member whose generation has ended.
        During the lease this is harmless, because no coordinator can have dropped the member yet. After the lease has expired,
        only the response of a loaded coordinator proves the membership.
        """
        owned = self.assignment.owned()
        if not owned:
            return
        config, link = self._context.config, self._context.link
        timeout_ms = answer_in_time_ms(config.request_timeout_ms, config.session_timeout_ms)
        answer = await link.ask(broker, offset_fetch(config.group_id, [min(owned)]), timeout_ms=timeout_ms)
        whole, offsets = offsets_in(answer, config.group_id, self._context.cluster.answers, broker)
        for code in (whole, *(row.error_code for row in offsets)):
            if code in _NOT_LOADED:
                self._status.take(step_for(HEARTBEAT, code), code, "OffsetFetch", broker)

    def _check_wait(self, step: Step, used: Generation, broker: Broker) -> None:
        """Abandon a JoinGroup or SyncGroup if the response to a later heartbeat shows that the wait is useless."""
        waiting, joining = self._waiting, self._status.joining
        if waiting.broker is None:
            return
        if waiting.broker != broker or step is Step.REDISCOVER:
            waiting.abandon(f"{waiting.broker.address} is no longer the coordinator")
        elif joining and step is Step.CONTINUE:
            # If the coordinator had received JoinGroup, it would report a rebalance in heartbeat responses, or would have
            # responded to JoinGroup.
            waiting.abandon(f"{broker.address} did not receive JoinGroup: the request's connection is dead")
        elif joining and step is Step.LOSE_GENERATION:
            # The join phase has ended. After the first such response, the JoinGroup response may still be in flight.
            if self._overtaken is used:
                waiting.abandon(f"the response to JoinGroup from {broker.address} was lost")
            self._overtaken = used
        elif not joining and step is Step.REJOIN:
            # A coordinator that begins another rebalance fails every SyncGroup that it has received, so it has not received the
            # waiting SyncGroup.
            waiting.abandon(f"{broker.address} did not receive SyncGroup, and rebalances again")

    def session_expired(self) -> None:
        """Look up the coordinator again, because no heartbeat was answered for ``session.timeout.ms``."""
        coordinator = self._context.link.coordinator
        if coordinator is not None:
            self._context.link.forget(coordinator, "no heartbeat was answered for session.timeout.ms")

    async def poll_interval_exceeded(self) -> None:
        """Leave because the application did not poll for ``max.poll.interval.ms``; join again at its next poll."""
        config, status = self._context.config, self._status
        member_id, reason = self.member_id, "consumer poll timeout has expired"
        status.poll_timeout(self._context.application.polls, reason)
        await status.send_leave_group(member_id, reason, Deadline.after(config.request_timeout_ms))
