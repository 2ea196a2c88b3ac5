"""One member's standing in its group: generation, heartbeats, what answers ask for, leaving.

This is the half of the coordinator that Java calls ``AbstractCoordinator``; ``rebalancing.py`` goes through the sequence of
a rebalance on top of it.  Everything here runs on one event loop, except what is marked as thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import (
    ClosedError,
    CoordinatorError,
    FatalError,
    FencedError,
    MalformedMessageError,
    PollIntervalExceededError,
    RequestTimedOutError,
    RetriableError,
)
from consumer_coord.group import requests
from consumer_coord.group.answers import HEARTBEAT, Step, fatal, step_for
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.discovery import CoordinatorLookup
from consumer_coord.group.failures import Failures, copy_of
from consumer_coord.group.generation import NO_GENERATION, Generation
from consumer_coord.group.heartbeat import Heartbeat
from consumer_coord.group.lease import Lease
from consumer_coord.group.leaving import leave_group
from consumer_coord.group.member_log import MemberLog
from consumer_coord.group.membership import MemberState
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.poll_times import PollTimes
from consumer_coord.group.process_mates.peers import Peers
from consumer_coord.group.subscription import NOTHING
from consumer_coord.group.waiting import AbandonedError, WaitingRequest
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata
from consumer_coord.printable import get_logger
from consumer_coord.retry import Deadline
from consumer_coord.signals import Signal
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import JoinGroupRequest, SyncGroupRequest

#: Limit for waiting for the first JoinGroup's answer when leaving.
MEMBER_ID_MS = 200


#: Java waits this much longer than the rebalance timeout for a JoinGroup's answer (``JOIN_GROUP_TIMEOUT_LAPSE``).
_JOIN_LAPSE_MS = 5_000

#: From this version on a JoinGroup without a member id is answered at once, with an id (KIP-394).
_MEMBER_ID_REQUIRED_VERSION = 4

#: A heartbeat tells of a JoinGroup or SyncGroup that was sent a heartbeat interval before, and so much at the least.
_ARRIVED_MS = 1_000


class Superseded(Exception):
    """The membership was reset, or the subscription ended, while a step waited: start over."""


class GroupMember:
    """What :class:`~consumer_coord.group.coordinator.ConsumerCoordinator` is to its coordinator and to its application."""

    def __init__(self, config: CoordinatorConfig, cluster: ClusterClient) -> None:
        self.config = config
        self.cluster = cluster
        #: What the group wants this member to hold, and what the application holds.
        self.assignment = AssignmentState()
        #: The application counts its polls here, from its own thread.
        self.polls = 0
        #: True when the application has something to look at: a change, a failure.  Read from any thread.
        self.attention = False
        #: Set with it, for an application that waits for nothing else.
        self.bell = threading.Event()
        #: Wakes the application up, from any thread; an application on the loop has something else here.
        self.ring: Callable[[], object] = self.bell.set
        self._loop = asyncio.get_running_loop()
        #: The loop's clock, in seconds; any thread may read it.
        self.clock = self._loop.time
        #: The clock of :attr:`lease_until`, in seconds, suspension of the machine included; any thread may read it.
        self.lease_clock = cluster.environment.lease_clock or self._loop.time
        #: Records of held partitions may be handed out while ``lease_clock()`` is below this; any thread may read it.
        self.lease_until = math.inf
        self._metrics = Metrics(self._loop.time)
        self._metrics.gauge("assigned-partitions", lambda: float(len(self.assignment.held)))
        self._generation = NO_GENERATION
        #: The last generation that was lost.
        self._lost_generation = NO_GENERATION
        self._state = MemberState.UNJOINED
        self._is_leader = False
        self._joining = False
        self._waiting = WaitingRequest()
        #: The generation for which a heartbeat was answered ILLEGAL_GENERATION although JoinGroup still waits.
        self._overtaken: Generation | None = None
        self._subscription = NOTHING
        self._rejoin_reason: str | None = None
        #: The count of polls when the application was found not to poll; None while it does.
        self._parked_at: int | None = None
        #: The count of polls when the application began to leave; None when it does not.
        self._leaving_at: int | None = None
        #: The count of polls when a transaction began to hold joins; None while there is none.
        self._held_at: int | None = None
        self._released: set[TopicPartition] = set()
        self._signal = Signal()
        self._failures = Failures(config.group_id, config.default_api_timeout_ms, self._call_attention)
        self._log = MemberLog(get_logger(__name__), self)
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The group's members in this process; they wake each other.
        peers = cluster.groups.get(config.group_id)
        if peers is None:
            peers = Peers(CoordinatorLookup(config.group_id, cluster, self._quick_ms))
            cluster.groups[config.group_id] = peers
        self._peers = peers
        self._lookup = self._peers.lookup
        self._heartbeat = Heartbeat(
            self,
            self._metrics,
            interval_ms=config.heartbeat_interval_ms,
            session_timeout_ms=config.session_timeout_ms,
            max_poll_interval_ms=config.max_poll_interval_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            first_beat=self._peers.add(self),
            in_company=self._peers.beat_at,
        )
        self._lease = Lease(
            self.lease_clock,
            enabled=config.group_lease_enable,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            publish=self._publish_lease,
            in_use=lambda: bool(self.assignment.held),
            on_suspended=self._on_suspended,
            on_resumed=self._on_resumed,
        )
        self._metrics.gauge("lease-suspended-seconds-total", lambda: self._lease.suspended_s)
        self._closed = False
        #: True while it is being closed: no rebalance will complete any more.
        self._ending = False

    @property
    def _quick_ms(self) -> float:
        """How long an answer may take that the session depends on: so another try, on a new connection, is in time."""
        return min(self.config.request_timeout_ms, self.config.session_timeout_ms / 2)

    @property
    def group_id(self) -> str:
        """The group."""
        return self.config.group_id

    @property
    def group_instance_id(self) -> str | None:
        """The static member's name (KIP-345), None for a dynamic member."""
        return self.config.group_instance_id

    @property
    def generation_state(self) -> Generation:
        """Generation id, member id and agreed assignor, as one value; thread-safe."""
        return self._generation

    @property
    def generation(self) -> int:
        """The generation id, -1 outside the group; thread-safe."""
        return self._generation.generation_id

    @property
    def member_id(self) -> str:
        """The member id that the coordinator gave, empty before; thread-safe."""
        return self._generation.member_id

    @property
    def state(self) -> MemberState:
        """Where this member stands; thread-safe."""
        return self._state

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription; thread-safe."""
        return bool(self._subscription)

    @property
    def is_leader(self) -> bool:
        """True while this member leads the group; thread-safe."""
        return self._is_leader

    @property
    def rebalancing(self) -> bool:
        """True from the moment a join is known to be needed until its sync is answered; thread-safe."""
        return self._rejoin_reason is not None or self._state in (
            MemberState.PREPARING_REBALANCE,
            MemberState.COMPLETING_REBALANCE,
        )

    @property
    def syncing(self) -> bool:
        """True while the answer to SyncGroup is awaited."""
        return self._state is MemberState.COMPLETING_REBALANCE

    @property
    def failures(self) -> Failures:
        """What the application hears of; thread-safe."""
        return self._failures

    @property
    def obstacle(self) -> str:
        """What stands in the way of joining, empty when nothing is known to; thread-safe."""
        return self._failures.obstacle

    @property
    def metadata(self) -> Metadata:
        """The cluster's metadata as last seen; thread-safe."""
        return self.cluster.metadata

    def metrics(self) -> Mapping[str, float]:
        """Counters and timings under the Java client's names; see ``metrics.py``."""
        return self._metrics.snapshot()

    @property
    def poll_times(self) -> PollTimes:
        """Where the application's thread tells of its polls."""
        return self._metrics.polls

    def called_back(self, kind: str, began: float) -> None:
        """A callback of the application was called at ``began``, of the loop's clock, and ends now; on its own thread."""
        self._metrics.record(f"partition-{kind}-latency", (self.clock() - began) * 1000)

    # -- what the application hears --------------------------------------------------------------------------------------

    def polled(self, *, looks: bool = False) -> None:
        """The application polled (``looks``: and looks at the assignment next); raises what was noted; thread-safe."""
        self.polls += 1
        if self.attention:
            self._attend(looks)

    def _attend(self, looks: bool) -> None:
        # First the flag and then the look: what the loop notes in between is seen by the next poll.
        self.attention = False
        if self._held_at is not None and self._held_at != self.polls:
            # This is the poll that joins were held for.
            self._held_at = None
            self._call(self._signal.fire)
        if self._leaving_at is not None and self._leaving_at != self.polls:
            # It did not leave after all.
            self._leaving_at = None
            self._call(self._signal.fire)
        failure = self._failures.take()
        if failure is None and self._parked_at is None and self._held_at is None:
            if not looks:
                self.attention = not self.assignment.settled
            return
        self.attention = True
        self._call(self._signal.fire)
        if failure is not None:
            raise copy_of(failure)

    def request_rejoin(self, reason: str) -> None:
        """Note that a join is needed; the driver does it."""
        if self._rejoin_reason is None:
            self._log.info("rejoin: %s", reason)
            self._rejoin_reason = reason
        self._signal.fire()

    # -- the lease -------------------------------------------------------------------------------------------------------

    def _publish_lease(self, until: float) -> None:
        self.lease_until = until

    def _on_suspended(self) -> None:
        self._metrics.record("lease-suspended")
        self._log.warning(
            "the coordinator may count this member no more: records are handed out again when it answers a heartbeat"
        )
        self._signal.fire()

    def _on_resumed(self, suspended_s: float | None) -> None:
        if suspended_s is not None:
            self._log.info("the coordinator still counts this member: records are handed out again, after %.1f s", suspended_s)
        self.rouse()

    # -- what answers ask for --------------------------------------------------------------------------------------------

    def _take(self, step: Step, code: int, request: str, broker: Broker, detail: str = "") -> None:
        """Do what an error code asks for; raises unless all is well."""
        if step is Step.GO_ON:
            return
        name = codes.error_name(code)
        if step is Step.REDISCOVER:
            self.coordinator_gone(broker, f"{request}: {name}")
        elif step in (Step.LOSE_GENERATION, Step.LOSE_MEMBERSHIP):
            self._lose(f"{request} was answered with {name}", keep_member_id=step is Step.LOSE_GENERATION)
        elif step is Step.REJOIN:
            raise Superseded(f"{request}: {name}")
        elif step is Step.FAIL:
            raise fatal(code, group_id=self.group_id, request=request, detail=detail)
        raise RetriableError(f"{request}: {name}", code=code)

    def _lose(self, why: str, *, keep_member_id: bool = False, on_purpose: bool = False) -> None:
        """The generation is gone: the partitions are lost, and the group has to be joined anew."""
        level = logging.WARNING if self.assignment.held and not on_purpose else logging.INFO
        self._log.log(level, "out of the group: %s", why)
        if self._generation.generation_id >= 0:
            self._lost_generation = self._generation
        self._generation = Generation(member_id=self._generation.member_id) if keep_member_id else NO_GENERATION
        self._is_leader = False
        self._lease.lost()
        self._waiting.abandon(why)
        self._released.clear()
        if self._state is not MemberState.UNJOINED:
            self._set_state(MemberState.UNJOINED)
        if self.assignment.lose():
            self._metrics.record("partition-lost")
        self._call_attention()
        if self._subscription:
            self.request_rejoin(why)

    async def _fail(self, error: CoordinatorError) -> None:
        """Nobody can retry this: tell the application, and do not stand in the group's way meanwhile."""
        self._log.error("%s", error)
        if isinstance(error, FencedError):
            # The other holder of the instance id is the member now: nothing of ours may leave it.
            self._lose(str(error))
        elif self._generation.has_member_id:
            await self._leave(str(error), Deadline.after(self.config.request_timeout_ms), static_too=True)
        self.request_rejoin("after a failure")
        self._failures.set(error)

    def _check_not_superseded(self, before: Generation) -> None:
        if self._generation is not before or self._closed:
            raise Superseded

    # -- for heartbeat.py ------------------------------------------------------------------------------------------------

    @property
    def heartbeats_wanted(self) -> bool:
        """True in a generation; also while JoinGroup waits on its own connection, to prove the lease of what is held."""
        return self._generation.generation_id >= 0

    @property
    def joining(self) -> bool:
        """True while JoinGroup waits."""
        return self._joining

    async def send_heartbeat(self) -> None:
        """One heartbeat, and what its answer asks for; raises a retriable error when it was not heard."""
        used = self._generation
        try:
            broker = await self.find_coordinator(Deadline.after(self.config.session_timeout_ms))
            sent = self.lease_clock()
            # What waits since then the coordinator has got before this heartbeat.
            after_wait = self._waiting.sent_before(max(_ARRIVED_MS, self.config.heartbeat_interval_ms))
            answer = await self.ask_coordinator(
                broker,
                requests.heartbeat(self.config, used),
                timeout_ms=self._quick_ms,
            )
        except MalformedMessageError as error:
            self.coordinator_gone(broker, str(error))
            raise RetriableError(str(error)) from error
        except FatalError as error:
            # Refused on the way: the right to use the group was taken away, a certificate ran out.
            if self._generation is used:
                await self._fail(error)
            return
        if self._generation is not used:
            return
        code = answer.error_code
        step = step_for(HEARTBEAT, code)
        if step in (Step.GO_ON, Step.REJOIN):
            self._lease.heartbeat_answered(sent, rebalancing=step is Step.REJOIN)
        if after_wait:
            self._check_wait(step, used, broker)
        if step is Step.REJOIN:
            self._peers.rebalance(used.generation_id)
        elif self._joining and (not after_wait or step is Step.LOSE_GENERATION):
            # The join travels on another connection and overtook this heartbeat: the generation it was sent for may have
            # ended in good order, and what has to be known JoinGroup's own answer will tell.
            return
        elif step is Step.FAIL:
            await self._fail(fatal(code, group_id=self.group_id, request="Heartbeat"))
        else:
            try:
                self._take(step, code, "Heartbeat", broker)
            except RetriableError:
                if step in (Step.REDISCOVER, Step.BACK_OFF):
                    raise

    def _check_wait(self, step: Step, used: Generation, broker: Broker) -> None:
        """Abandon a JoinGroup or SyncGroup that the answer of a later heartbeat shows to wait for nothing."""
        waiting = self._waiting
        if waiting.broker is None:
            return
        if waiting.broker != broker or step is Step.REDISCOVER:
            waiting.abandon(f"{waiting.broker.address} is not the coordinator any more")
        elif self._joining and step is Step.GO_ON:
            # It would tell of a rebalance, or have answered.
            waiting.abandon(f"{broker.address} has not got JoinGroup: its connection is dead")
        elif self._joining and step is Step.LOSE_GENERATION:
            # The join phase is over.  At the first time its answer may be under way.
            if self._overtaken is used:
                waiting.abandon(f"JoinGroup's answer from {broker.address} was lost")
            self._overtaken = used
        elif not self._joining and step is Step.REJOIN:
            # It fails all SyncGroups when it begins another rebalance.
            waiting.abandon(f"{broker.address} has not got SyncGroup, and rebalances again")

    def session_expired(self) -> None:
        """No heartbeat was answered for ``session.timeout.ms``: the coordinator may be elsewhere."""
        if self._lookup.coordinator is not None:
            self.coordinator_gone(self._lookup.coordinator, "no heartbeat was answered for session.timeout.ms")

    async def poll_interval_exceeded(self) -> None:
        """The application did not poll for ``max.poll.interval.ms``: leave, and join again at its next poll."""
        self._log.warning(
            "the application did not poll for max.poll.interval.ms=%d: leaving the group. Process smaller batches, or raise"
            " the setting",
            self.config.max_poll_interval_ms,
        )
        self._parked_at = self.polls
        self._failures.note(PollIntervalExceededError(f"no poll for {self.config.max_poll_interval_ms} ms: joining again"))
        await self._leave(
            "consumer poll timeout has expired", Deadline.after(self.config.request_timeout_ms), static_too=False
        )
        self.request_rejoin("the application polled again after max.poll.interval.ms")
        self._call_attention()

    def look_again(self) -> None:
        """Something changed that the driver may be waiting for."""
        self._signal.fire()

    def beat_early(self, after_ms: Sequence[int]) -> None:
        """Ask the coordinator this soon whether the group rebalances."""
        self._heartbeat.early(after_ms)

    # -- for offsets.py --------------------------------------------------------------------------------------------------

    async def find_coordinator(self, deadline: Deadline) -> Broker:
        """The coordinator, looked up if need be, until ``deadline``."""
        return await self._lookup.find(deadline, self)

    async def ask_coordinator(
        self, broker: Broker, message: Any, *, timeout_ms: float, patience_ms: float | None = None
    ) -> Any:
        """One request to the coordinator; a broken connection forgets it, a caller out of patience does not."""
        patience = None if patience_ms is None else Deadline.after(patience_ms)
        try:
            return await self.cluster.request(broker, message, timeout_ms=timeout_ms, patience_ms=patience_ms)
        except RetriableError as error:
            if patience is None or not patience.passed:
                self.coordinator_gone(broker, str(error))
            raise

    async def ask_and_wait(self, broker: Broker, message: JoinGroupRequest | SyncGroupRequest) -> Any:
        """JoinGroup or SyncGroup, which the coordinator answers when the group is ready or the rebalance timeout is over.

        It is sent again on another connection once a session, because the coordinator may not have got it.
        """
        config, before = self.config, self._generation
        limit_ms = max(config.request_timeout_ms, config.rebalance_timeout_ms + _JOIN_LAPSE_MS)
        again_ms: float | None = config.session_timeout_ms
        if not before.has_member_id and config.group_instance_id is None:
            # An old broker makes another member of each JoinGroup without an id; a newer one answers at once.
            version = self.cluster.version_spoken(broker, JoinGroupRequest)
            at_once = version is not None and version >= _MEMBER_ID_REQUIRED_VERSION
            again_ms = config.request_timeout_ms if at_once else None
        self._joining = isinstance(message, JoinGroupRequest)
        try:
            return await self._waiting.ask(
                broker,
                lambda timeout_ms: self.cluster.request(broker, message, timeout_ms=timeout_ms, waits=True),
                Deadline.after(limit_ms),
                again_ms,
            )
        except AbandonedError:
            self._check_not_superseded(before)
            raise
        except RetriableError as error:
            self.coordinator_gone(broker, str(error))
            raise
        finally:
            self._joining = False

    def coordinator_gone(self, broker: Broker, why: str) -> None:
        """Look the coordinator up again before the next request."""
        self.note_obstacle(why)
        self._lookup.gone(broker, why)

    async def wait_for_sync(self, deadline: Deadline) -> None:
        """Wait until a rebalance that is under way, or that the group demands, was synced; offsets.py resends then."""
        if not await self._signal.until(
            lambda: (self._state is MemberState.STABLE and not self.rebalancing)
            or self._generation.generation_id < 0
            or self._failures.final
            or self._ending,
            deadline,
        ):
            raise RequestTimedOutError("the rebalance did not complete in time")
        if self._ending:
            raise RequestTimedOutError("the member leaves before the rebalance has completed")

    def membership_refused(self, used: Generation, code: int, request: str) -> None:
        """A commit was refused: take in what that says about the membership, if it is still the one used."""
        if self._generation is not used or used.generation_id < 0:
            return
        step = step_for(HEARTBEAT, code)
        if step is Step.REJOIN:
            if not self.rebalancing:
                self.request_rejoin(f"{request}: {codes.error_name(code)}")
        elif step in (Step.LOSE_GENERATION, Step.LOSE_MEMBERSHIP):
            self._lose(f"{request} was refused with {codes.error_name(code)}", keep_member_id=step is Step.LOSE_GENERATION)
        elif step is Step.FAIL:
            error = fatal(code, group_id=self.group_id, request=request)
            self._spawn(self._fail(error), "fail")

    # -- leaving, and small things ---------------------------------------------------------------------------------------

    async def _leave(self, reason: str, deadline: Deadline, *, static_too: bool = False, rejoin: bool = True) -> None:
        member = self._generation
        subscription = self._subscription
        if not rejoin:
            self._subscription = NOTHING
        try:
            self._lose(reason, on_purpose=True)
        finally:
            self._subscription = subscription
        if not member.has_member_id or (self.config.group_instance_id is not None and not static_too):
            return
        await leave_group(self, member.member_id, reason, deadline, self._log)

    async def _member_id_promised(self) -> None:
        """Before leaving: wait for a first JoinGroup's answer, as a rule a moment, because it brings the member id.

        Without the id nothing can leave, and the group would wait for the member that it promised a place (KIP-394).
        """
        if self._joining and not self._generation.has_member_id and self.config.group_instance_id is None:
            promised = Deadline.after(MEMBER_ID_MS)
            await self._signal.until(lambda: self._generation.has_member_id or not self._joining, promised)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=f"{name} of {self.group_id}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._closed:
            return
        error = task.exception()
        if error is None:
            return
        self._log.error("a background task crashed", exc_info=error)
        crash = CoordinatorError(f"the coordinator's task {task.get_name()!r} crashed: {error!r}; please report this")
        crash.__cause__ = error
        self._failures.set(crash, final=True)
        self._subscription = NOTHING
        self._spawn(self._leave("the client crashed", Deadline.after(self.config.request_timeout_ms)), "leave")

    def _set_state(self, state: MemberState) -> None:
        self._state = state

    def rouse(self) -> None:
        """Let the application's next look, or the one that it waits in, find what came up; thread-safe."""
        self.attention = True
        self.ring()

    def _call_attention(self) -> None:
        self.rouse()
        self._signal.fire()

    def _call(self, function: Callable[[], object]) -> None:
        """Run on the loop, from any thread; after the loop's end there is nobody left to tell."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def looked_up(self) -> None:
        """The brokers were asked for the coordinator, on this member's behalf."""
        self._metrics.record("coordinator-lookup")

    def note_obstacle(self, what: str) -> None:
        """Remember what stands in the way of joining."""
        settled = self._state is MemberState.STABLE and self._rejoin_reason is None
        self._failures.note_obstacle(what, wanted=bool(self._subscription) and not settled)

    def _timeout(self, timeout_ms: float | None) -> float:
        return self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline.after(self._timeout(timeout_ms))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the coordinator is closed")
