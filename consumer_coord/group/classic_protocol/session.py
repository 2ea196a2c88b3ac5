"""A classic member's session with its coordinator: requests that wait there, heartbeats, and what their answers say.

It is what the heartbeat task asks (:class:`~consumer_coord.group.classic_protocol.heartbeat.Heart`), and what this member
is to the other members of its process (:class:`~consumer_coord.group.process_peers.peers.Peer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import CoordinatorError, MalformedMessageError, RetriableError
from consumer_coord.group.classic_protocol import requests
from consumer_coord.group.classic_protocol.heartbeat import Heartbeat
from consumer_coord.group.classic_protocol.membership import MemberState
from consumer_coord.group.classic_protocol.status import MemberStatus
from consumer_coord.group.classic_protocol.waiting import AbandonedError, WaitingRequest
from consumer_coord.group.error_steps import HEARTBEAT, Step, fatal, step_for
from consumer_coord.group.generation import Generation
from consumer_coord.group.lease import Lease
from consumer_coord.group.protocol import MemberContext
from consumer_coord.net.group_requests import offset_fetch, offsets_in
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import JoinGroupRequest, SyncGroupRequest

#: A heartbeat's answer tells of a JoinGroup or SyncGroup that was sent a heartbeat interval before, and so much at the least.
_ARRIVED_MS = 1_000

#: Java waits this much longer than the rebalance timeout for a JoinGroup's answer (``JOIN_GROUP_TIMEOUT_LAPSE``).
_JOIN_LAPSE_MS = 5_000

_NOT_LOADED = (codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)

#: From this version on a JoinGroup without a member id is answered at once, with an id (KIP-394).
_MEMBER_ID_REQUIRED_VERSION = 4


def answer_in_time_ms(request_timeout_ms: float, session_timeout_ms: float) -> float:
    """How long an answer may take that the session depends on: so another try, on a new connection, is in time."""
    return min(request_timeout_ms, session_timeout_ms / 2)


def _most_intervals(config: CoordinatorConfig) -> int:
    """How many heartbeat intervals a member may be silent while others of its process hear of rebalances for it.

    Three heartbeats a session are Kafka's advice.  A static member that was replaced hears of it by its own heartbeat alone,
    and must hear soon.
    """
    if config.group_instance_id is not None:
        return 1
    return max(1, config.session_timeout_ms // 3 // config.heartbeat_interval_ms)


@attrs.frozen
class _Answered:
    """The answer to a heartbeat.  ``sent``: when it was sent, of the lease's clock."""

    code: int
    step: Step
    broker: Broker
    sent: float
    #: The coordinator has got the JoinGroup or SyncGroup that waits before this heartbeat.
    after_wait: bool


class ClassicSession:
    """Heartbeats of one member."""

    def __init__(self, context: MemberContext, standing: MemberStatus, lease: Lease, waiting: WaitingRequest) -> None:
        self._context = context
        self._standing = standing
        self._lease = lease
        self._waiting = waiting
        self.assignment = context.assignment
        #: The generation for which a heartbeat was answered ILLEGAL_GENERATION although JoinGroup still waits.
        self._overtaken: Generation | None = None
        config, peers = context.config, context.peers
        self.heartbeat = Heartbeat(
            self,
            context.metrics,
            interval_ms=config.heartbeat_interval_ms,
            session_timeout_ms=config.session_timeout_ms,
            max_poll_interval_ms=config.max_poll_interval_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            rhythm=peers.add(self, _most_intervals(config)),
        )

    # -- what it is to the heartbeat task, and to the members of the process ---------------------------------------------------

    @property
    def generation_state(self) -> Generation:
        """Generation id, member id and agreed assignor."""
        return self._standing.membership.generation

    @property
    def generation(self) -> int:
        """The generation id, -1 outside the group."""
        return self._standing.membership.generation.generation_id

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave, empty before."""
        return self._standing.membership.generation.member_id

    @property
    def heartbeats_wanted(self) -> bool:
        """True in a generation."""
        return self._standing.membership.heartbeats_wanted

    def response_due_at(self, moment: float) -> None:
        """The coordinator is asked then."""
        self._context.application.response_due_at = moment

    @property
    def joining(self) -> bool:
        """True while JoinGroup waits."""
        return self._standing.joining

    @property
    def ending(self) -> bool:
        """True while the member leaves: last commits may wait for the coordinator, and nothing is polled any more."""
        return self._standing.membership.ending

    @property
    def rebalancing(self) -> bool:
        """True while a join is needed or under way."""
        return self._standing.rebalancing

    @property
    def syncing(self) -> bool:
        """True while the answer to SyncGroup is awaited."""
        return self._standing.membership.state is MemberState.COMPLETING_REBALANCE

    @property
    def polls(self) -> int:
        """How often the application has polled."""
        return self._context.application.polls

    def request_rejoin(self, reason: str) -> None:
        """A join is needed."""
        self._standing.request_rejoin(reason)

    def look_again(self) -> None:
        """Something changed that the driver may be waiting for."""
        self._context.signal.fire()

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Ask the coordinator this soon whether the group rebalances."""
        self.heartbeat.early(after_ms)

    async def ask_and_wait(self, broker: Broker, message: JoinGroupRequest | SyncGroupRequest) -> Any:
        """JoinGroup or SyncGroup, which the coordinator answers when the group is ready or the rebalance timeout is over.

        It is sent again on another connection once a session, because the coordinator may not have got it.
        """
        config, cluster, before = self._context.config, self._context.cluster, self._standing.membership.generation
        limit_ms = max(config.request_timeout_ms, config.rebalance_timeout_ms + _JOIN_LAPSE_MS)
        again_ms: float | None = config.session_timeout_ms
        if not before.has_member_id and config.group_instance_id is None:
            # An old broker makes another member of each JoinGroup without an id; a newer one answers at once.
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
            self._standing.check_not_superseded(before)
            raise
        except RetriableError as error:
            self._context.link.forget(broker, str(error))
            raise
        self._context.link.show_answer(message, answer)
        return answer

    # -- heartbeats ------------------------------------------------------------------------------------------------------------

    async def send_heartbeat(self) -> None:
        """Send one heartbeat and do what its answer asks for; raise a retriable error when there was no answer."""
        standing, used = self._standing, self._standing.membership.generation
        try:
            answered = await self._ask_heartbeat(used)
        except MalformedMessageError as error:
            if self._context.link.coordinator is not None:
                self._context.link.forget(self._context.link.coordinator, str(error))
            raise RetriableError(str(error)) from error
        except RetriableError:
            raise
        except CoordinatorError as error:
            # Refused on the way: the right to use the group was taken away, a certificate ran out, or any other code.
            if standing.membership.generation is used:
                await standing.fail(error)
            return
        if standing.membership.generation is used:
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
        standing, step, broker = self._standing, answered.step, answered.broker
        if step in (Step.GO_ON, Step.REJOIN):
            self._lease.heartbeat_answered(answered.sent, rebalancing=step is Step.REJOIN)
        if answered.after_wait:
            self._check_wait(step, used, broker)
        if step is Step.REJOIN:
            self._context.peers.rebalance(used.generation_id)
        elif standing.joining and (not answered.after_wait or step is Step.LOSE_GENERATION):
            # The join travels on another connection and overtook this heartbeat: the generation it was sent for may have
            # ended in good order, and the answer to JoinGroup reports what has to be known.
            return
        elif step is Step.FAIL:
            await standing.fail(fatal(answered.code, group_id=self._context.config.group_id, request="Heartbeat"))
        else:
            try:
                standing.take(step, answered.code, "Heartbeat", broker)
            except RetriableError:
                if step in (Step.REDISCOVER, Step.BACK_OFF):
                    raise

    async def _check_loaded(self, broker: Broker) -> None:
        """Raise a retriable error while a coordinator loads its groups: then it tells no offsets.

        But it answers any classic Heartbeat without an error, also that of a member whose generation is over.  While the lease
        lasts that does no harm, because nothing can have dropped the member yet.  Once it has passed, only the answer of a
        coordinator that is loaded counts.
        """
        owned = self.assignment.owned()
        if not owned:
            return
        config, link = self._context.config, self._context.link
        timeout_ms = answer_in_time_ms(config.request_timeout_ms, config.session_timeout_ms)
        answer = await link.ask(broker, offset_fetch(config.group_id, [min(owned)]), timeout_ms=timeout_ms)
        whole, offsets = offsets_in(answer)
        for code in (whole, *(row.error_code for row in offsets)):
            if code in _NOT_LOADED:
                self._standing.take(step_for(HEARTBEAT, code), code, "OffsetFetch", broker)

    def _check_wait(self, step: Step, used: Generation, broker: Broker) -> None:
        """Abandon a JoinGroup or SyncGroup that the answer of a later heartbeat shows to wait for nothing."""
        waiting, joining = self._waiting, self._standing.joining
        if waiting.broker is None:
            return
        if waiting.broker != broker or step is Step.REDISCOVER:
            waiting.abandon(f"{waiting.broker.address} is not the coordinator any more")
        elif joining and step is Step.GO_ON:
            # It would tell of a rebalance, or have answered.
            waiting.abandon(f"{broker.address} has not got JoinGroup: its connection is dead")
        elif joining and step is Step.LOSE_GENERATION:
            # The join phase is over.  At the first time its answer may be under way.
            if self._overtaken is used:
                waiting.abandon(f"JoinGroup's answer from {broker.address} was lost")
            self._overtaken = used
        elif not joining and step is Step.REJOIN:
            # It fails all SyncGroups when it begins another rebalance.
            waiting.abandon(f"{broker.address} has not got SyncGroup, and rebalances again")

    def session_expired(self) -> None:
        """No heartbeat was answered for ``session.timeout.ms``: the coordinator may be elsewhere."""
        coordinator = self._context.link.coordinator
        if coordinator is not None:
            self._context.link.forget(coordinator, "no heartbeat was answered for session.timeout.ms")

    async def poll_interval_exceeded(self) -> None:
        """The application did not poll for ``max.poll.interval.ms``: leave, and join again at its next poll."""
        config, standing = self._context.config, self._standing
        self._context.log.warning(
            "the application did not poll for max.poll.interval.ms=%d: leaving the group. Process smaller batches, or raise"
            " the setting",
            config.max_poll_interval_ms,
        )
        self._context.application.failures.note_poll_interval(config.max_poll_interval_ms)
        member_id, reason = self.member_id, "consumer poll timeout has expired"
        standing.poll_timeout(self.polls, reason)
        await standing.say_goodbye(member_id, reason, Deadline.after(config.request_timeout_ms))
