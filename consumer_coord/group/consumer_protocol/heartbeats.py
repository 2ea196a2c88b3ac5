"""A member of a group of the consumer protocol (KIP-848).

Theory of operation
-------------------

*The driver.* One background task, :meth:`ConsumerMember._drive`, sends ConsumerGroupHeartbeat, one at a time: at the
coordinator's interval, and at once when there is a change to report (``schedule.py``, ``heartbeat_contents.py``). The first
heartbeat has epoch 0 and joins the group. The last heartbeat has epoch -1 and leaves the group (-2 for a static member that may
return).

*Reconciliation.* The broker assigns the partitions. A response carries the target only if the target has changed. The member
resolves the topic ids (``reconciliation.py``) and publishes the target; the application applies the difference at its polls. A
heartbeat that no longer names revoked partitions acknowledges the revocation, and the broker then assigns these partitions to
other members. No heartbeat waits for the application.

*States* (``states.py``)::

    JOINING -> RECONCILING -> ACKNOWLEDGING -> STABLE       a new target: back to RECONCILING
    FENCED -> JOINING                                       the coordinator refused the epoch: the partitions are lost
    PREPARE_LEAVING -> LEAVING -> UNSUBSCRIBED              the application revokes everything, then the member leaves
    LEAVING -> STALE -> JOINING                             the poll interval expired; the next poll joins again

Invariants that any change must keep:

1. **A response applies only to the membership that sent its request** (``Epochs.era``). For example: a heartbeat is in flight;
   the poll interval expires, and the member leaves; the response arrives last and must not bring back the old epoch.
2. **A revoked partition is acknowledged only when its commits have completed** (``_acknowledge``), because the next owner
   starts at the committed offset. Until then, heartbeats name the partition as owned.
3. **The member assumes that the broker has received a field only if a response confirmed it.** A heartbeat omits fields
   unchanged since the last confirmed heartbeat. After an error or a lost response, the next heartbeat carries all fields.
4. **A fenced member loses its partitions before it joins again**, and joins with epoch 0 under the same member id.
5. **The lease counts from the sending of a heartbeat**, never from the arrival of its response. While the member has partitions
   to revoke, the lease ends at the rebalance timeout at the latest (``group/lease.py``).
6. **The application only counts its polls.** If the count does not change for ``max.poll.interval.ms``, the member leaves. The
   member joins again at the next poll.
7. **A member that prepares to leave acknowledges no revocation**, so that a static member's partitions wait for its return.

This module runs on one event loop, except for methods that are marked as thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import (
    CoordinatorError,
    FencedError,
    MalformedMessageError,
    RequestTimedOutError,
    RetriableError,
    UnsupportedVersionError,
)
from consumer_coord.group.commits import CommitLane
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.consumer_protocol import error_steps as answers
from consumer_coord.group.consumer_protocol import requests
from consumer_coord.group.consumer_protocol.epochs import Epochs
from consumer_coord.group.consumer_protocol.heartbeat_contents import HeartbeatContents
from consumer_coord.group.consumer_protocol.leaving import send_leave_heartbeat
from consumer_coord.group.consumer_protocol.reconciliation import Holdings, has_revoked
from consumer_coord.group.consumer_protocol.requests import HeartbeatFields
from consumer_coord.group.consumer_protocol.schedule import Schedule
from consumer_coord.group.consumer_protocol.session import Session
from consumer_coord.group.consumer_protocol.states import Event, State, after
from consumer_coord.group.consumer_protocol.waits_for_poll import PollMarks
from consumer_coord.group.error_steps import Step
from consumer_coord.group.generation import Generation
from consumer_coord.group.lease import Lease
from consumer_coord.group.max_poll_interval import PollWatch
from consumer_coord.group.member_context import MemberContext
from consumer_coord.group.subscription import NOTHING, TopicSubscription
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Backoff, Deadline, Pace
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatResponse

_HEARTBEAT = "ConsumerGroupHeartbeat"

#: First and largest delay, in milliseconds, before the retry of a join that the coordinator refused with UNKNOWN_SERVER_ERROR.
_REFUSED_MS = 1_000
_REFUSED_MAX_MS = 30_000


@attrs.frozen
class _Sent:
    """A heartbeat that was sent."""

    says: HeartbeatFields
    broker: Broker
    joins: bool
    #: When it was sent, by :func:`~consumer_coord.environment.now` and by the lease's clock.
    started: float
    sent: float


class ConsumerMember:
    """The consumer protocol (:class:`~consumer_coord.group.protocol.GroupProtocol`)."""

    is_leader = False

    def __init__(self, context: MemberContext) -> None:
        config, cluster = context.config, context.cluster
        self._with = context
        self._state = State.UNSUBSCRIBED
        self._subscription: TopicSubscription = NOTHING
        self._epochs = Epochs()
        #: True while the coordinator may know this member: from the first heartbeat with epoch 0 until the leave heartbeat.
        self._asked = False
        self._holdings = Holdings(context)
        self._speaking = HeartbeatContents(config, cluster, context.watch)
        self._asking = False
        self._marks = PollMarks()
        #: True while the member unsubscribes or closes; during this time no rebalance completes.
        self._ending = False
        self._joins_again = False
        self._assigned_at = 0.0
        self._polls = PollWatch(context)
        self._peers = context.peers.of_consumer_protocol
        self._schedule = Schedule(self._peers.add(self), self._peers.beat_at)
        #: Limits the rate of heartbeats that do not wait for the interval, regardless of the brokers' responses.
        self._pace = Pace(40, 20)
        self._join_pace = Pace(10, 4)
        #: The backoff for joins to a classic group. During the group's first rebalance, each attempt to join fails and makes
        #: all members join again. So longer delays let the members finish.
        self._after_refusal = Backoff(_REFUSED_MS, _REFUSED_MAX_MS, cluster.backoff.random)
        self._driver: asyncio.Task[None] | None = None
        self._former_driver: asyncio.Task[None] | None = None
        self._acknowledging: asyncio.Task[None] | None = None
        self._session = Session(context, self._schedule.interval_s * 1000)
        self.lease: Lease = self._session.lease
        self.commits: CommitLane = CommitLane(context, self)
        self.offsets: CommittedOffsets = CommittedOffsets(context, self)

    # -- read from any thread --------------------------------------------------------------------------------------------

    @property
    def generation_state(self) -> Generation:
        """The member id, and the member epoch as its generation; the epoch is -1 outside the group."""
        return self._epochs.present

    @property
    def state(self) -> State:
        """The member's state."""
        return self._state

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription."""
        return bool(self._subscription)

    @property
    def joined(self) -> bool:
        """True when the coordinator knows that the member owns all partitions of its target."""
        return self._state is State.STABLE

    @property
    def rebalancing(self) -> bool:
        """True while the owned partitions are about to change."""
        return self._state.rebalancing

    # -- for the other members of the process ----------------------------------------------------------------------------

    @property
    def member_epoch(self) -> int:
        """The member epoch; -1 outside the group."""
        return self._epochs.present.generation_id

    @property
    def expects_more(self) -> bool:
        """True for some time after the member joined or received partitions, while more partitions may follow."""
        return self._schedule.expecting

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Send early heartbeats, because the assignment may have changed."""
        if self._state.in_group:
            self._schedule.early(after_ms)
            self._with.signal.fire()

    # -- the application's calls -----------------------------------------------------------------------------------------

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Subscribe; a heartbeat reports the subscription at once."""
        self._marks.leaving_at = None
        if subscription != self._subscription:
            self._subscription = subscription
            self._speaking.subscribe(subscription)
            self._with.application.failures.subscription_changed()
            self._polls.restart()
        self._join()

    def _join(self) -> None:
        #: A member that is leaving joins again only after it has left.
        self._joins_again = self._state is State.LEAVING
        if self._state is State.UNSUBSCRIBED and self._subscription:
            self._go(Event.SUBSCRIBED)
        self._start()
        self._with.signal.fire()

    def unsubscribe(self, deadline: Deadline) -> Coroutine[Any, Any, None]:
        """End the subscription; the returned coroutine finishes commits, and leaves the group."""
        self._subscription = NOTHING
        # This member will not receive another epoch, so a commit must not wait for another epoch.
        self._ending = True
        return self._unsubscribe(deadline)

    async def _unsubscribe(self, deadline: Deadline) -> None:
        try:
            await self._stop()
            self._with.signal.fire()
            await self.commits.drained(deadline)
        finally:
            self._ending = False
        await self._leave("the consumer unsubscribed from all topics", deadline)
        if self._subscription:
            # The application subscribed again during the wait.
            self._join()
        else:
            self.lease.not_needed()
            self._speaking.subscribe(NOTHING)

    def rejoin(self, reason: str) -> None:
        """Send a complete heartbeat at once. Only the broker assigns, so no member can force another assignment."""
        self._with.log.info("rejoin: %s", reason)
        self._speaking.everything = True
        self.beat_early((0,))
        self._join()

    def released(self, partitions: frozenset[TopicPartition]) -> None:
        """Acknowledge revoked partitions after their commits have completed, unless the member is about to leave."""
        if partitions and self._state.in_group and not self._marks.leaving:
            self._begin_acknowledging()

    def _begin_acknowledging(self) -> None:
        if self._holdings.unacknowledged and (self._acknowledging is None or self._acknowledging.done()):
            self._acknowledging = self._with.tasks.spawn(self._acknowledge(), "acknowledge")

    def prepare_to_leave(self, polls: int) -> None:
        """Prepare to leave: acknowledge no revoked partitions, so that a static member keeps them."""
        self._marks.leaving_at = polls
        self._with.application.look_again()
        if self._state.in_group and self._state is not State.PREPARE_LEAVING:
            self._go(Event.LEAVE)

    async def hold_joins(self, polls: int) -> Generation:
        """Keep the epoch: send no heartbeat until the next poll, but for at most half the session timeout; return the epoch."""
        half = Deadline.after(self._with.config.rebalance_timeout_ms / 2)
        self._marks.hold(polls, now() + half.within(self._session.timeout_ms / 2) / 1000)
        self._with.application.look_again()
        await self._with.signal.until(lambda: not self._asking or self.lease.clock() >= self.lease.until, half)
        return self._epochs.lost if self._with.assignment.any_lost else self._epochs.present

    def polled(self, polls: int) -> bool:
        """Record a poll, which ends the waits for a poll; return True if the member waits for a later poll. Thread-safe."""
        if self._marks.polled(polls):
            self._with.application.call(self._with.signal.fire)
        return self._marks.waiting

    def metadata_changed(self) -> None:
        """Resolve topic ids of the target that were unknown before, and match the pattern again."""
        if self._holdings.waits and self._state.in_group:
            self._take_target(new=False)
        self._with.signal.fire()

    # -- the heartbeats --------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Send heartbeats whenever they are due; this is the background task."""
        retries = 0
        if self._former_driver is not None:
            await asyncio.wait({self._former_driver})
        while True:
            await self._with.signal.until(*self._next_look())
            self._come_back()
            if not self._state.heartbeats or (self._marks.leaving and not self._state.in_group):
                continue
            if self._polls.expired and self._state is not State.PREPARE_LEAVING:
                await self.poll_interval_exceeded()
                continue
            if self._send_at() > now():
                continue
            try:
                await self._heartbeat()
                self._with.link.accepted(_HEARTBEAT)
                retries = 0
            except (RetriableError, MalformedMessageError) as error:
                self._speaking.everything = True
                self._note_obstacle(str(error))
                refused = isinstance(error, RetriableError) and error.code == codes.UNKNOWN_SERVER_ERROR
                refused = refused and self._state is State.JOINING
                self._schedule.failed((self._after_refusal if refused else self._with.cluster.backoff).ms(retries))
                retries += 1
            except CoordinatorError as error:
                if self._state.in_group and self._with.link.excuses(error, _HEARTBEAT):
                    self._speaking.everything = True
                else:
                    await self._fail(error)
                # An application that polls in a tight loop despite errors must not cause a storm of requests.
                self._schedule.failed(self._with.cluster.backoff.ms(retries))
                retries += 1

    def _next_look(self) -> tuple[Callable[[], bool], Deadline | None]:
        changes = self._schedule.changes
        due = self._send_at()
        if self._state.heartbeats:
            due = min(due, now() + self._polls.look_s)

        def look() -> bool:
            return self._schedule.changes != changes or self._comes_back() or now() >= self._send_at()

        return look, None if math.isinf(due) else Deadline(due)

    def _send_at(self) -> float:
        """Return when to send the next heartbeat, by the loop's clock."""
        if not self._state.heartbeats or (self._marks.leaving and not self._state.in_group):
            return math.inf
        due = self._schedule.at(urgent=self._urgent())
        if self._marks.held_at is not None and self._marks.held_at == self._with.application.polls:
            due = max(due, self._marks.held_until)
        return due

    def _urgent(self) -> bool:
        """Return whether the next heartbeat must not wait for the interval."""
        if self._state.urgent:
            return True
        if self._state is State.PREPARE_LEAVING:
            return False
        return self._speaking.has_news(self._holdings.owned)

    async def _heartbeat(self) -> None:
        """Send one heartbeat and apply its response; raise a retriable error if there is no response."""
        context, era = self._with, self._epochs.era
        joins = self._state is State.JOINING
        broker = await context.link.find(Deadline.after(self._session.timeout_ms))
        await (self._join_pace if joins else self._pace).turn()
        if era != self._epochs.era or not self._state.heartbeats:
            return
        said: list[HeartbeatFields] = []
        epoch = requests.JOIN_EPOCH if joins else self.member_epoch
        request = self._speaking.heartbeat(epoch, self._holdings.owned, said)
        started, sent = now(), self.lease.clock()
        if joins:
            self.lease.joins()
            self._asked = True
        self._schedule.sends()
        self._asking = True
        try:
            answer = await context.link.ask(broker, request, timeout_ms=self._session.quick_ms)
        except MalformedMessageError as error:
            context.link.forget(broker, str(error))
            raise RetriableError(str(error)) from error
        except UnsupportedVersionError as error:
            raise answers.fatal(codes.UNSUPPORTED_VERSION, group_id=context.config.group_id, detail=str(error)) from error
        finally:
            self._asking = False
            context.signal.fire()
        if era == self._epochs.era:
            context.metrics.record("heartbeat", (now() - started) * 1000)
            self._take(answer, _Sent(said[0], broker, joins, started, sent))

    def _take(self, answer: ConsumerGroupHeartbeatResponse, request: _Sent) -> None:
        """Apply a response; raise an exception if the response has an error."""
        code, joins = answer.error_code, request.joins
        step = answers.step_for(code, joins=joins)
        said = f"ConsumerGroupHeartbeat was answered with {codes.error_name(code)}"
        detail = answer.error_message
        if not detail and joins and code == codes.UNKNOWN_SERVER_ERROR:
            detail = answers.WHY_NOT_CONVERTED
        if detail:
            said = f"{said}: {detail}"
        if step is Step.CONTINUE:
            if answer.member_epoch <= requests.JOIN_EPOCH:
                raise RetriableError(f"ConsumerGroupHeartbeat was answered with epoch {answer.member_epoch}")
            self._go_on(answer, request)
            return
        if code == codes.INVALID_REGULAR_EXPRESSION and self._speaking.resolve_here():
            self._with.log.warning("the pattern is resolved by this client: %s", said)
        elif step is Step.LOSE_GENERATION:
            self._refused(said)
            return
        elif step is Step.FAIL:
            raise answers.fatal(code, group_id=self._with.config.group_id, detail=answer.error_message or "")
        elif step is Step.REDISCOVER:
            self._with.link.forget(request.broker, said)
        raise RetriableError(said, code=code)

    def _go_on(self, answer: ConsumerGroupHeartbeatResponse, request: _Sent) -> None:
        context, holdings, joins = self._with, self._holdings, request.joins
        freed = has_revoked(self._speaking.reported.owned, request.says.owned)
        self._speaking.acknowledged(request.says)
        self._speaking.member_id = answer.member_id or self._speaking.member_id
        assignor = context.config.group_remote_assignor
        self._epochs.received(Generation(answer.member_epoch, self._speaking.member_id, assignor))
        if joins:
            context.metrics.record("join", (now() - request.started) * 1000)
            self._schedule.joined(answer.heartbeat_interval_ms)
            self._session.joined(answer.heartbeat_interval_ms, request.broker, request.sent)
        else:
            self._schedule.answered(request.started, answer.heartbeat_interval_ms)
        context.metrics.last_heartbeat_at = now()
        is_news = False
        if answer.assignment is not None:
            is_news = holdings.follow((row.topic_id, row.partitions) for row in answer.assignment.topic_partitions)
        if joins or is_news:
            self._take_target(new=joins)
        else:
            self._advance()
        self.lease.heartbeat_answered(request.sent, rebalancing=holdings.to_revoke)
        self._peers.received_epoch(answer.member_epoch, joined=joins)
        if freed:
            self._peers.freed(self)
        if joins or (is_news and not holdings.to_revoke):
            # More partitions may follow after other members have revoked them, or after the coordinator has computed the
            # target.
            self._schedule.expect_more(self._peers.expecting + 1)
            if is_news:
                # Other members have revoked partitions for this member, and may have revoked partitions for its peers, too.
                self._peers.freed(self)
        context.application.failures.clear_obstacle()
        context.signal.fire()

    def _take_target(self, *, new: bool) -> None:
        """Publish the target to the application."""
        context = self._with
        if self._holdings.resolve(self.member_epoch, new=new):
            if self._state is not State.PREPARE_LEAVING:
                if not self._state.rebalancing or new:
                    self._assigned_at = now()
                self._go(Event.ASSIGNED)
            context.application.look_again()
            change = context.assignment.change()
            if change.revoked or change.added or change.lost:
                # If the application has no change to apply, do not wake it: it sees the new target after its current wait.
                context.application.call_attention()
        self._advance()

    def _advance(self) -> None:
        """Advance the state as far as the owned partitions permit."""
        if self._state is State.RECONCILING and not self._holdings.to_revoke:
            self._go(Event.RECONCILED)
        if self._state is State.ACKNOWLEDGING and self._speaking.reported.owned == self._holdings.owned:
            self._go(Event.ACKNOWLEDGED)
            self._with.metrics.record("rebalance", (now() - self._assigned_at) * 1000)
            self._with.metrics.last_rebalance_at = now()
        self._with.signal.fire()

    async def _acknowledge(self) -> None:
        """Acknowledge revoked partitions to the group after their commits have completed."""
        while self._holdings.unacknowledged:
            era, gone = self._epochs.era, self._holdings.unacknowledged
            # Limit the wait, because the group waits for this acknowledgement, and losing the membership is worse than losing a
            # commit.
            limit_ms = min(self._with.config.rebalance_timeout_ms, self._session.timeout_ms)
            await self.commits.drained(Deadline.after(limit_ms), gone)
            if era != self._epochs.era or self._state is State.PREPARE_LEAVING:
                return
            self._holdings.acknowledged(gone)
            if self._holdings.waits:
                self._take_target(new=False)
            else:
                self._advance()

    # -- losing, failing, rejoining --------------------------------------------------------------------------------------

    def _refused(self, why: str) -> None:
        """Lose all partitions, because the coordinator does not know this member, and join again."""
        self._go(Event.REFUSED)
        self._lose(why)
        if self._state is State.FENCED:
            self._go(Event.LOST)

    def _lose(self, why: str, *, on_purpose: bool = False) -> None:
        context = self._with
        level = logging.WARNING if context.assignment.held and not on_purpose else logging.INFO
        context.log.log(level, "out of the group: %s", why)
        self._epochs.lose()
        self._speaking.forgotten()
        self._schedule.calm()
        self.lease.lost()
        if self._holdings.lost():
            context.metrics.record("partition-lost")
        context.application.call_attention()

    async def _fail(self, error: CoordinatorError) -> None:
        """Raise a fatal error in the application's next poll, and leave the group, so that this member does not delay it."""
        was_member = self._epochs.present.generation_id >= 0
        self._failed(error)
        # After FencedError, another process with this instance id is the member, so this process must not send a leave
        # heartbeat.
        if was_member and not isinstance(error, FencedError):
            await self._send_leave_heartbeat(Deadline.after(self._with.config.request_timeout_ms), for_good=True)
        self._with.application.failures.set(error)

    def _failed(self, error: CoordinatorError) -> None:
        self._with.log.error("%s", error)
        self._go(Event.FAILED)
        self._lose(str(error))

    async def poll_interval_exceeded(self) -> None:
        """Leave because the application did not poll for ``max.poll.interval.ms``; join again at its next poll."""
        context = self._with
        self._polls.report()
        self._marks.parked_at = context.application.polls
        self._go(Event.POLL_EXPIRED)
        self._lose("consumer poll timeout has expired", on_purpose=True)
        try:
            await self._send_leave_heartbeat(Deadline.after(context.config.request_timeout_ms), for_good=False)
        finally:
            self._go(Event.PARKED)
            context.application.call_attention()

    def _comes_back(self) -> bool:
        """Return whether the member can return from STALE, FATAL or PREPARE_LEAVING, because the application polled again."""
        if self._state is State.STALE:
            return not self._marks.leaving and self._marks.parked_at != self._with.application.polls
        if self._state is State.FATAL:
            return not self._marks.leaving and self._with.application.failures.current is None and self.subscribed
        return self._state is State.PREPARE_LEAVING and not self._marks.leaving and not self._ending

    def _come_back(self) -> None:
        if self._comes_back():
            self._marks.parked_at = None
            self._go(Event.POLLED)
            self._polls.restart()
            if self._state is State.RECONCILING:
                # The application may have revoked partitions while it prepared to leave, so acknowledge these revocations now.
                self._begin_acknowledging()
                self._with.application.call_attention()
                self._advance()

    # -- for commits and offset fetches ----------------------------------------------------------------------------------

    @property
    def fetches_as(self) -> Generation:
        """The member id and epoch to send in OffsetFetch, whose response then shows if the group has removed this member."""
        return self._epochs.present

    async def wait_for_sync(self, deadline: Deadline) -> None:
        """Wait until a heartbeat response contains the current epoch."""
        application = self._with.application
        if not await self._with.signal.until(
            lambda: self._epochs.doubted is None or application.failures.final or self._ending, deadline
        ):
            raise RequestTimedOutError("timed out waiting for a heartbeat response with the current member epoch")
        if self._ending:
            raise RequestTimedOutError("the member leaves before the rebalance has completed")

    def membership_refused(self, used: Generation, code: int, request: str) -> None:
        """Apply the error of a rejected commit or offset fetch to the membership, if ``used`` is still the current epoch."""
        if self._epochs.present is not used or used.generation_id < 0:
            return
        if code == codes.STALE_MEMBER_EPOCH:
            self._epochs.doubted = used
            self._speaking.everything = True
            self.beat_early((0,))
        elif code == codes.FENCED_INSTANCE_ID:
            error = answers.fatal(code, group_id=self._with.config.group_id, detail="", request=request)
            # Do not start a task that leaves the group: each partition of a response may have this error, so this line may run
            # many times.
            self._failed(error)
            self._with.application.failures.set(error)
        else:
            self._refused(f"{request} was refused with {codes.error_name(code)}")

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def leave(self, reason: str, deadline: Deadline) -> None:
        """Leave, and join again only after :meth:`subscribe` or :meth:`rejoin`."""
        await self._stop()
        await self._leave(reason, deadline)

    async def close(self, deadline: Deadline, *, leave_group: bool | None) -> None:
        """Finish commits, leave the group or stay in it, and stop.

        As in Java, a static member always says that it is away (epoch -2), unless it leaves for good.
        """
        self._ending = True
        await self._stop()
        self._with.signal.fire()
        await self.commits.close(deadline)
        self.offsets.close()
        if leave_group is not False or self._with.config.group_instance_id is not None:
            await self._leave("the consumer is being closed", deadline, for_good=leave_group is True)
        self.lease.close()
        self._peers.remove(self)

    def crash(self) -> Coroutine[Any, Any, None]:
        """End the subscription after a crash of a background task; the returned coroutine leaves the group."""
        self._subscription = NOTHING
        return self._crash()

    async def _crash(self) -> None:
        await self._stop()
        await self._leave("the client crashed", Deadline.after(self._with.config.request_timeout_ms))

    async def _leave(self, reason: str, deadline: Deadline, *, for_good: bool = False) -> None:
        # If an earlier leave is still in progress, because its caller did not wait, let it finish instead of leaving twice.
        await self._with.signal.until(lambda: self._state is not State.LEAVING, deadline)
        if self._state in (State.UNSUBSCRIBED, State.LEAVING):
            return
        if self._state is not State.PREPARE_LEAVING:
            self._go(Event.LEAVE)
        self._marks.leaving_at = self._marks.parked_at = None
        self._lose(reason, on_purpose=True)
        if self._state is State.PREPARE_LEAVING:
            self._go(Event.REVOKED)
        try:
            await self._send_leave_heartbeat(deadline, for_good=for_good)
        finally:
            self._go(Event.LEFT)
            self._with.signal.fire()
        if self._joins_again and not self._ending:
            self._join()

    async def _send_leave_heartbeat(self, deadline: Deadline, *, for_good: bool) -> None:
        if self._asked:
            self._asked = False
            await send_leave_heartbeat(self._with, self._speaking.member_id, deadline, for_good=for_good)

    # -- its task --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = self._with.tasks.spawn(self._drive(), "heartbeat")

    async def _stop(self) -> None:
        if self._driver is not None:
            # Clear the field before the wait, so that another driver can start even if this wait is cancelled.
            self._former_driver, self._driver = self._driver, None
            self._former_driver.cancel()
            await asyncio.wait({self._former_driver})
            self._former_driver = None

    def _go(self, event: Event) -> None:
        before, self._state = self._state, after(self._state, event)
        if self._state.rebalancing and not before.rebalancing:
            # From now on, the application waits for changes of the group instead of messages.
            self._with.application.look_again()
        if self._state is not before:
            self._with.log.step("CGRPJOINSTATE", "changed join state %s -> %s", before.value, self._state.value)

    def _note_obstacle(self, what: str) -> None:
        wanted = self.subscribed and not self._state.in_group
        self._with.application.failures.note_obstacle(what, wanted=wanted)
