"""The classic group protocol of a member: the sequence of a rebalance, in Kafka's own steps.

Theory of operation
-------------------

::

    ensure_coordinator_ready -> on_join_prepare -> join_group -> perform_assignment (the leader) -> sync_group
        -> on_join_complete

*The driver.* One background task, :meth:`ClassicProtocol._drive`, runs the sequence whenever a join is needed. Heartbeats run
at the same time (``session.py``, ``heartbeat.py``), even while JoinGroup waits for its response. The state of the member is one
value, a :class:`~consumer_coord.group.classic_protocol.membership.Membership`; each step applies an event to it.

*The application.* ``on_join_complete`` publishes the target in ``context.assignment``, and never waits. At the next poll, the
application compares the target with the owned partitions, applies the difference (lost, revoked, added), and calls
:meth:`released`. The driver waits for the application in one step only, ``on_join_prepare``, in which an eager member revokes
everything, and a cooperative member revokes only the partitions of topics that it no longer subscribes to.

*Cooperative rounds.* The leader first assigns a moving partition to no member (a *withheld* partition). The owner revokes the
partition, commits, and joins again. The second round assigns the partition to the next owner. So a rebalance has two rounds,
and members continue to read all partitions that do not move.

Invariants that any change must keep:

1. **A response applies only to the generation that sent its request.** After every ``await``, compare the generation with the
   generation before the ``await`` (``check_not_superseded``). For example: JoinGroup waits; a heartbeat is answered with
   UNKNOWN_MEMBER_ID, and the partitions are lost; the response to JoinGroup arrives last and must not revive the membership.
2. **JoinGroup names the partitions that the application owns when it is sent.** A partition is omitted only after it was
   revoked and its commits have completed (``commits.drained``). If the application revokes a partition after JoinGroup was
   sent, the group still counts this member as its owner (``_named``), until another join reports the revocation.
3. **A lost partition is reported before it is delivered again.** If a JoinGroup response skips a generation number, or if it
   arrives after the lease expired and does not show whether the group still knew this member, another member may have owned the
   partitions. So this member loses the partitions before it adds them again.
4. **The lease counts from the sending of a request**, never from the arrival of its response (``group/lease.py``).
5. **Every rejoin has a reason, and no response causes a storm.** JoinGroup has a rate limit (``_join_pace``), retries have a
   backoff, and after a failure no join begins until a poll has raised the error.
6. **A member that cannot assign does not lead.** If the assignor fails or hangs, the member leaves the group before the error
   is raised.
7. **A static member that closes sends neither LeaveGroup nor a JoinGroup without its partitions**, so that the partitions wait
   for its return.

This module runs on one event loop, except for methods that are marked as thread-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from assignors.base import Assignor, RebalanceProtocol
from consumer_coord.assignor_loading import common_protocol
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, MalformedMessageError, RetriableError
from consumer_coord.group.classic_protocol import requests
from consumer_coord.group.classic_protocol.broker_assigns import BrokerAssigns, session_ms
from consumer_coord.group.classic_protocol.heartbeat import Heartbeat
from consumer_coord.group.classic_protocol.leader import Assigning, notify_assignor
from consumer_coord.group.classic_protocol.membership import Intent, JoinHold, MemberState
from consumer_coord.group.classic_protocol.session import ClassicSession
from consumer_coord.group.classic_protocol.status import MemberStatus, Superseded
from consumer_coord.group.classic_protocol.waiting_requests import WaitingRequest
from consumer_coord.group.commits import CommitLane
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.error_steps import JOIN_GROUP, SYNC_GROUP, Step, check_protocol, refused_value, step_for
from consumer_coord.group.generation import Generation
from consumer_coord.group.lease import Lease
from consumer_coord.group.member_context import MemberContext
from consumer_coord.group.subscription import NOTHING, TopicSubscription
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline, Pace
from consumer_coord.topic_partition import TopicPartition, by_topic, flatten, listed
from consumer_coord.wire.embedded_protocol import decode_assignment
from consumer_coord.wire.messages.group import JoinGroupResponse, SyncGroupRequestAssignment

_JOIN = "JoinGroup"

#: How long a leaving member waits for the response to its last JoinGroup, in milliseconds.
MEMBER_ID_MS = 200


class ClassicProtocol:
    """The classic :class:`~consumer_coord.group.protocol.GroupProtocol`: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

    def __init__(self, context: MemberContext, assignors: Sequence[Assignor]) -> None:
        """Create the member; ``assignors`` are in the order of preference.

        The rebalance protocol is the highest that all assignors support.
        """
        config = context.config
        self._assignors = tuple(assignors)
        self.rebalance_protocol: RebalanceProtocol = common_protocol(self._assignors)
        self.lease: Lease = context.make_lease(
            session_timeout_ms=config.session_timeout_ms, rebalance_timeout_ms=config.rebalance_timeout_ms
        )
        self._context = context
        self._waiting = WaitingRequest()
        #: Keeps the membership, and carries out the consequences when it changes.
        self.status: MemberStatus = MemberStatus(context, self.lease, self._waiting)
        #: Sends heartbeats, and sends JoinGroup and SyncGroup, which wait at the coordinator.
        self.session: ClassicSession = ClassicSession(context, self.status, self.lease, self._waiting)
        self._heartbeat = Heartbeat(context, self.session)
        self.commits: CommitLane = CommitLane(context, self.status)
        self.offsets: CommittedOffsets = CommittedOffsets(context, self.status)
        self._assigning = Assigning(context, self.offsets, ask=self._ask)
        #: Limits the rate of JoinGroup requests, regardless of the brokers' responses. When many members start or stop, one
        #: join may need seven JoinGroup requests.
        self._join_pace = Pace(10, 4)
        self._driver: asyncio.Task[None] | None = None
        #: Driver tasks that are being stopped.
        self._former_drivers: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._joined_topics: tuple[str, ...] = ()
        #: Version of this member's metadata, if it was older than the leader's metadata at the last assignment, otherwise -1.
        self._metadata_older_than_leader = -1
        self._broker_assigns = BrokerAssigns(context.log, self.session)
        #: Number of consecutive assignments with topics outside the subscription.
        self._mismatches = 0
        self._released_at = 0.0
        #: Time at which the leader rejoins if the owners of withheld partitions have not rejoined by then.
        self._follow_up: Deadline | None = None
        #: Partitions that the last JoinGroup named as owned. No other member gets these partitions until a later JoinGroup
        #: omits them.
        self._named: frozenset[TopicPartition] = frozenset()

    # -- state; thread-safe ------------------------------------------------------------------------------------------------

    @property
    def generation_state(self) -> Generation:
        """Generation id, member id and agreed assignor, as one value."""
        return self.status.membership.generation

    @property
    def state(self) -> MemberState:
        """The member's state in its group."""
        return self.status.membership.state

    @property
    def is_leader(self) -> bool:
        """True while this member leads the group."""
        return self.status.membership.is_leader

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription."""
        return self.status.membership.subscribed

    @property
    def joined(self) -> bool:
        """True in the group, with an assignment, if no join is needed."""
        return self.status.membership.joined

    @property
    def rebalancing(self) -> bool:
        """True from the moment a join is known to be needed until the response to SyncGroup."""
        return self.status.membership.rebalancing

    # -- the application's calls -------------------------------------------------------------------------------------------

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Subscribe and join in the background; see :class:`~consumer_coord.group.protocol.GroupProtocol`."""
        status, watch = self.status, self._context.watch
        if status.subscribed and subscription == watch.subscription:
            status.membership = status.membership.resubscribe()
            self._context.signal.fire()
            return
        status.membership = status.membership.subscribe()
        if not status.subscribed:
            # The member is being closed.
            return
        watch.subscribe(subscription)
        self._context.application.failures.subscription_changed()
        self._heartbeat.polls.restart()
        self._start()
        first = subscription.pattern and not self.generation_state.has_member_id
        status.request_rejoin("subscribed to a pattern" if first else "the subscription changed")

    def unsubscribe(self, deadline: Deadline) -> Coroutine[Any, Any, None]:
        """End the subscription, and return a coroutine that leaves the group. Commits that wait for SyncGroup fail."""
        self.status.membership = self.status.membership.unsubscribe()
        return self._unsubscribe(deadline)

    async def _unsubscribe(self, deadline: Deadline) -> None:
        status = self.status
        await self._stop_driver()
        self._context.signal.fire()
        await self.commits.drained(deadline)
        status.membership = status.membership.unsubscribed()
        # The application may have subscribed again during the wait. In this case, the member joins as a new member.
        await status.leave("the consumer unsubscribed from all topics", deadline, rejoin=True)
        if not status.subscribed:
            self.lease.not_needed()
            self._context.watch.subscribe(NOTHING)

    def rejoin(self, reason: str) -> None:
        """Request a join (``requestRejoin``)."""
        self.status.request_rejoin(reason)

    def released(self, partitions: frozenset[TopicPartition]) -> None:
        """Record revoked partitions, and in the cooperative protocol begin the second round."""
        membership = self.status.membership
        if partitions and membership.intent is Intent.SUBSCRIBED and membership.joined:
            if not self.status.released:
                self._released_at = now()
            self.status.released |= partitions
            self.rejoin("partitions were revoked")
        self._context.peers.released()

    def prepare_to_leave(self, polls: int) -> None:
        """Prevent joins before a leave: a static member keeps its partitions, so it must not join without them."""
        self.status.membership = self.status.membership.prepare_to_leave(polls)

    async def hold_joins(self, polls: int) -> Generation:
        """Delay JoinGroup until the next poll, but for at most half the rebalance timeout; return the generation.

        First wait until a join in progress has ended or the lease has expired. A generation returned after the lease has
        expired may have ended, but the broker then refuses it. If the partitions were lost since the last poll, return the lost
        generation: the broker rejects it, so this member cannot commit offsets that were read before the loss.
        """
        status = self.status
        half = Deadline.after(self._context.config.rebalance_timeout_ms / 2)
        status.membership = status.membership.hold_joins(JoinHold(polls, half.at))
        await self._context.signal.until(
            lambda: not status.membership.past_hold or self.lease.clock() >= self.lease.until, half
        )
        lost = self._context.assignment.any_lost
        return status.membership.lost_generation if lost else status.membership.generation

    def polled(self, polls: int) -> bool:
        """End a transaction's delay of joins, and join again if the application had missed ``max.poll.interval.ms``."""
        membership = self.status.membership
        if not membership.waits_for_poll:
            return False
        self._context.application.call(lambda: self._on_poll(polls))
        return membership.polled(polls).waits_for_poll

    def _on_poll(self, polls: int) -> None:
        before, membership = self.status.membership, self.status.membership.polled(polls)
        self.status.membership = membership
        if before.intent is Intent.SILENT and membership.intent is not Intent.SILENT:
            self._heartbeat.polls.restart()
        self._context.signal.fire()

    # -- the end -----------------------------------------------------------------------------------------------------------

    async def leave(self, reason: str, deadline: Deadline) -> None:
        """Leave the group (``maybeLeaveGroup``).

        Partitions that are still owned are lost; the application's next poll reports the loss.
        """
        await self._stop_driver()
        await self.status.leave(reason, deadline)
        self._start()

    async def close(self, deadline: Deadline, *, leave_group: bool | None) -> None:
        """Finish commits, leave the group or stay in it, and stop."""
        status = self.status
        status.membership = status.membership.close()
        await self._stop_driver()
        self._context.signal.fire()
        await self.commits.close(deadline)
        self.offsets.close()
        if leave_group is not False:
            await status.leave("the consumer is being closed", deadline, static_too=leave_group is True)
        status.membership = status.membership.close_completed()
        self.lease.close()
        self._context.peers.remove(self.session)
        self._context.signal.fire()

    def crash(self) -> Coroutine[Any, Any, None]:
        """End the generation and the subscription; the returned coroutine leaves the group."""
        member_id, reason = self.generation_state.member_id, "the client crashed"
        self.status.crash(reason)
        return self.status.send_leave_group(member_id, reason, Deadline.after(self._context.config.request_timeout_ms))

    # -- the sequence ----------------------------------------------------------------------------------------------------

    async def _ensure_coordinator_ready(self) -> Broker:
        """Find the coordinator if it is not known (``ensureCoordinatorReady``)."""
        context = self._context
        return await context.link.find(Deadline.after(context.config.default_api_timeout_ms))

    async def _drive(self) -> None:
        """Rebalance whenever a join is needed; this is the background task."""
        context = self._context
        backoff, note_obstacle = context.cluster.backoff, context.link.note_obstacle
        retries = failures = 0
        if self._former_drivers:
            await asyncio.wait(tuple(self._former_drivers))
        while True:
            if not await context.signal.until(self._join_wanted, self._follow_up):
                self._ask_for_follow_up()
                continue
            try:
                await self._rebalance()
                context.link.accepted(_JOIN)
                retries = failures = 0
                if self._mismatches:
                    # A leader that assigned topics outside the subscription will probably do so again, so avoid a storm of
                    # rebalances.
                    await asyncio.sleep(backoff.ms(self._mismatches - 1) / 1000)
            except Superseded as over:
                note_obstacle(str(over) or "the rebalance started again")
                continue
            except (RetriableError, MalformedMessageError) as error:
                note_obstacle(str(error))
                await asyncio.sleep(backoff.ms(retries) / 1000)
                retries += 1
            except CoordinatorError as error:
                retries = 0
                if self.generation_state.generation_id < 0 or not context.link.excuses(error, _JOIN):
                    await self.status.fail(error)
                # An application that polls in a tight loop despite errors must not cause a storm of requests.
                await asyncio.sleep(backoff.ms(failures) / 1000)
                failures += 1

    def _join_wanted(self) -> bool:
        failing = self._context.application.failures.current is not None
        return self.status.membership.join_wanted and not failing and not self._assigning.stuck

    def _ask_for_follow_up(self) -> None:
        """Rejoin as the leader if withheld partitions are still unassigned after the rebalance timeout.

        The owner may be a static member that lost its generation before it revoked the partitions. Such a member rejoins
        without a rebalance and without reporting the revocation.
        """
        self._follow_up = None
        if self.is_leader and self.joined:
            self.rejoin(f"withheld partitions: {self._assigning.withheld}; their owners have not revoked them yet")

    async def _rebalance(self) -> None:
        """Run one rebalance: prepare, join, assign, sync, complete."""
        self._follow_up = None
        status, peers, metrics = self.status, self._context.peers, self._context.metrics
        started = now()
        reason = status.membership.rejoin_reason or ""
        status.membership = status.membership.prepare()
        before = self.generation_state
        if before.generation_id < 0:
            peers.gathering.arrives(self.session)
        try:
            await self._ensure_coordinator_ready()
            status.check_not_superseded(before)
            topics = await self.on_join_prepare()
            joined = await self._join_group(topics, reason)
            current = self.generation_state
            peers.gathering.gone(self.session)
            assignments: tuple[SyncGroupRequestAssignment, ...] = ()
            if self.is_leader:
                assignments = await self.perform_assignment(joined)
            else:
                await peers.leader_first.follow(joined.generation_id, joined.leader)
            status.check_not_superseded(current)
            assignment = await self._sync_group(joined, assignments)
            self.on_join_complete(joined.generation_id, topics, assignment)
            if self.is_leader and self._assigning.withheld:
                self._follow_up = Deadline.after(self._context.config.rebalance_timeout_ms)
        except BaseException:
            peers.gathering.gone(self.session)
            status.membership = status.membership.failed(reason)
            self._context.signal.fire()
            metrics.record("failed-rebalance")
            raise
        metrics.record("rebalance", (now() - started) * 1000)
        metrics.last_rebalance_at = now()

    async def on_join_prepare(self) -> tuple[str, ...]:
        """Finish everything that must precede JoinGroup (``onJoinPrepare``); return the topics to subscribe to.

        An eager member revokes all partitions. A cooperative member revokes only partitions of topics that it no longer
        subscribes to. JoinGroup names all its other partitions as owned; partitions that must move are revoked later. When this
        method returns, the commits of the revoked partitions are complete.
        """
        context, status = self._context, self.status
        signal, config, assignment = context.signal, context.config, context.assignment
        before = self.generation_state
        if context.watch.subscription.pattern is not None:
            await context.cluster.refresh(Deadline.after(config.request_timeout_ms))
            status.check_not_superseded(before)
        topics = context.watch.topics()
        if self.rebalance_protocol is RebalanceProtocol.EAGER:
            assignment.revoke_all()
        else:
            assignment.narrow(frozenset(topics))
        await self._coalesce_releases()
        if self._must_revoke():
            context.application.call_attention()
            await signal.until(lambda: not self._must_revoke() or self.generation_state is not before)
        hold = status.membership.hold
        if hold is not None:
            await signal.until(
                lambda: not self._held() or self.generation_state is not before, Deadline(max(now(), hold.until))
            )
        status.check_not_superseded(before)
        status.membership = status.membership.join()
        gone = status.released if self.rebalance_protocol is RebalanceProtocol.COOPERATIVE else None
        # Limit the wait, because the group waits for this member, and losing the session is worse than losing a commit.
        limit_ms = min(config.rebalance_timeout_ms, config.session_timeout_ms)
        await self.commits.drained(Deadline.after(limit_ms), gone)
        status.check_not_superseded(before)
        if not status.subscribed:
            raise Superseded
        status.released.clear()
        return topics

    def _owned(self) -> Mapping[str, Sequence[int]]:
        """Return the partitions that JoinGroup names as owned.

        An eager member has revoked everything and names no partition.
        """
        assignment = self._context.assignment
        assignment.drop_revoked()
        cooperative = self.rebalance_protocol is RebalanceProtocol.COOPERATIVE
        self._named = assignment.owned() if cooperative else frozenset()
        return by_topic(self._named)

    def _must_revoke(self) -> bool:
        """Return whether the application still owns partitions that must be revoked before JoinGroup."""
        to_revoke = self._context.assignment.to_revoke
        if self.rebalance_protocol is RebalanceProtocol.EAGER:
            return bool(to_revoke)
        topics = frozenset(self._context.watch.topics())
        return any(partition.topic not in topics for partition in to_revoke)

    def _held(self) -> bool:
        return self.status.membership.held_at(self._context.application.polls, now())

    async def _coalesce_releases(self) -> None:
        """Wait briefly, so that revocations by several members of a process, or in several steps, cause only one round."""
        context = self._context
        linger_ms = context.config.release_linger_ms
        if self.rebalance_protocol is RebalanceProtocol.COOPERATIVE and self.status.released and linger_ms:
            due = Deadline(self._released_at + linger_ms / 1000)
            context.peers.lingering.add(self.session)
            try:
                await context.signal.until(lambda: not context.peers.expects_revocations(self.session.generation), due)
            finally:
                context.peers.lingering.discard(self.session)

    async def _join_group(self, topics: tuple[str, ...], reason: str) -> JoinGroupResponse:
        """Send JoinGroup until the group accepts the member (``sendJoinGroupRequest``, JoinGroupResponseHandler)."""
        answer = None
        while answer is None:
            before = self.generation_state
            started, owned, answer = await self._send_join(before, topics, reason)
        self._check_uninterrupted(before, answer, owned)
        context, status, config = self._context, self.status, self._context.config
        check_protocol("JoinGroup", config.group_id, answer, [each.name for each in self._assignors])
        context.metrics.record("join", (now() - started) * 1000)
        status.membership = status.membership.joined_as(
            Generation(answer.generation_id, answer.member_id, answer.protocol_name),
            leader=answer.leader == answer.member_id,
        )
        self.lease.session_is(session_ms(answer, config.session_timeout_ms))
        self.lease.joined(new=answer.generation_id != before.generation_id)
        if self.lease.proven_s * 1000 > config.heartbeat_interval_ms:
            # The join took a long time. Its response proves only that the session was alive when JoinGroup was sent, so send a
            # heartbeat.
            self.session.beat_early((0,))
        self._joined_topics = topics
        self._broker_assigns.joined(answer)
        context.peers.joined(answer.generation_id, started)
        self._heartbeat.session_starts()
        return answer

    async def _send_join(
        self, before: Generation, topics: tuple[str, ...], reason: str
    ) -> tuple[float, Mapping[str, Sequence[int]], JoinGroupResponse | None]:
        """Send one JoinGroup; return the time when it was sent, the partitions it named as owned, and the response.

        The response is None if the coordinator only returned a member id, which the next JoinGroup uses.
        """
        context, status, config = self._context, self.status, self._context.config
        if before.has_member_id or config.group_instance_id is not None:
            await context.peers.gathering.pass_gate(self.session)
            status.check_not_superseded(before)
        broker = await self._ensure_coordinator_ready()
        await self._join_pace.turn()
        status.check_not_superseded(before)
        started = now()
        self.lease.joins()
        named, owned = self._named, self._owned()
        if before.has_member_id:
            context.peers.joins(self.session, owns_less=before.generation_id >= 0 and bool(named - self._named))
        answer: JoinGroupResponse = await self.session.ask_and_wait(
            broker, requests.join_group(config, before, self._assignors, topics, owned, reason)
        )
        status.check_not_superseded(before)
        step = step_for(JOIN_GROUP, answer.error_code)
        if step is Step.ADOPT_MEMBER_ID:
            status.membership = status.membership.member_id_given(answer.member_id)
            self.lease.lost()
            context.metrics.record("member-id-required")
            context.signal.fire()
            if before.has_member_id or not answer.member_id:
                raise RetriableError("JoinGroup was refused again with MEMBER_ID_REQUIRED", code=answer.error_code)
            return started, owned, None
        status.take(step, answer.error_code, "JoinGroup", broker, self._detail(answer.error_code))
        return started, owned, answer

    def _check_uninterrupted(self, before: Generation, answer: JoinGroupResponse, owned: Mapping[str, Sequence[int]]) -> None:
        """Lose partitions that others may have owned between the generation ``before`` and that of the response."""
        context = self._context
        if not answer.leader and owned and self.lease.passed:
            # A group of the consumer protocol accepts an unknown member as a new member, and the response does not show this.
            # So another member may have received the owned partitions.
            why = "the response to JoinGroup came after the lease expired, and does not show whether the group knew this member"
            self.status.lose(why, keep_member_id=True)
            raise RetriableError(why)
        gap = before.generation_id >= 0 and answer.generation_id not in (before.generation_id, before.generation_id + 1)
        # In a group of the consumer protocol, which has no leader, epochs may skip numbers although a member keeps its
        # partitions.
        if gap and answer.leader:
            # Other members may have owned the partitions in a skipped generation, so the earlier ownership of the partitions
            # ends.
            context.log.warning(
                "generation %d follows generation %d: other members may have owned the partitions in between, so they are lost",
                answer.generation_id,
                before.generation_id,
            )
            if context.assignment.lose():
                context.metrics.record("partition-lost")

    async def perform_assignment(self, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        """Return every member's assignment, encoded: the leader's part (``onJoinLeader``, ``performAssignment``).

        The assignor runs in a worker thread, for at most ``assignor.timeout.ms``. Raise
        :class:`~consumer_coord.errors.AssignorError` if the assignor raises, hangs, or returns an invalid plan.
        """
        assignor = next(each for each in self._assignors if each.name == joined.protocol_name)
        return await self._assigning.run(assignor, joined)

    async def _ask(self, message: Any) -> Any:
        """Send a request to the coordinator between JoinGroup and SyncGroup; wait for at most half the session timeout."""
        broker = await self._ensure_coordinator_ready()
        config = self._context.config
        return await self._context.link.ask(
            broker, message, timeout_ms=config.request_timeout_ms, patience_ms=config.session_timeout_ms / 2
        )

    async def _sync_group(
        self, joined: JoinGroupResponse, assignments: Sequence[SyncGroupRequestAssignment]
    ) -> Mapping[str, Sequence[int]]:
        """Send SyncGroup, as the leader with all assignments; return this member's assignment (SyncGroupResponseHandler)."""
        context, status = self._context, self.status
        current = self.generation_state
        broker = await self._ensure_coordinator_ready()
        status.check_not_superseded(current)
        if self.is_leader:
            context.peers.leader_first.leader_syncs(current.generation_id)
        started, sent = now(), self.lease.clock()
        answer = await self.session.ask_and_wait(broker, requests.sync_group(context.config, current, assignments))
        status.check_not_superseded(current)
        code = answer.error_code
        self.status.take(step_for(SYNC_GROUP, code), code, "SyncGroup", broker, self._detail(code))
        check_protocol("SyncGroup", context.config.group_id, answer, (None, current.protocol_name))
        context.metrics.record("sync", (now() - started) * 1000)
        self.lease.synced(sent)
        if not answer.assignment:
            return {}
        try:
            return decode_assignment(answer.assignment).partitions
        except MalformedMessageError as error:
            raise RetriableError(f"the leader's assignment for this member is malformed: {error}") from error

    def on_join_complete(self, generation: int, topics: tuple[str, ...], assignment: Mapping[str, Sequence[int]]) -> None:
        """Publish the new target of this member (``onJoinComplete``)."""
        context = self._context
        added = {topic for topic, numbers in assignment.items() if len(numbers) and topic not in topics}
        # The leader may know a topic before this member does, so accept topics that match the pattern
        # (maybeUpdateJoinedSubscription).
        pattern = context.watch.subscription.pattern
        matching = {topic for topic in added if pattern is not None and pattern.fullmatch(topic) is not None}
        self._joined_topics = tuple(sorted({*topics, *matching}))
        self._metadata_older_than_leader = context.cluster.metadata.version if matching else -1
        if matching:
            context.cluster.refresh_soon()
        unwanted = sorted(added - matching)
        self._mismatches = self._mismatches + 1 if unwanted else 0
        self._heartbeat.session_starts()
        self.status.membership = self.status.membership.synced()
        context.peers.stable(self.session)
        if unwanted:
            context.log.warning("the leader assigned topics outside the subscription: %s", ", ".join(unwanted))
            assignment = {topic: numbers for topic, numbers in assignment.items() if topic in self._joined_topics}
        notify_assignor(self._assignors, self.generation_state.protocol_name, assignment, generation)
        context.assignment.publish(generation, flatten(assignment))
        context.log.info("assigned %s", listed(context.assignment.target.partitions))
        context.application.failures.clear_obstacle()
        context.application.look_again()
        change = context.assignment.change()
        if change.revoked or change.added or change.lost:
            # If the application has no change to apply, do not wake it: it sees the new target after its current wait, and
            # delays no other member.
            context.application.call_attention()
        self._look_for_another_round(topics, unwanted=bool(unwanted))
        context.signal.fire()

    def _look_for_another_round(self, topics: tuple[str, ...], *, unwanted: bool) -> None:
        """Rejoin if the partitions or the subscription changed during the rebalance."""
        context = self._context
        if unwanted:
            self.rejoin("the assignment has topics outside the subscription")
        if self.rebalance_protocol is RebalanceProtocol.COOPERATIVE:
            if self._named - context.assignment.owned():
                # The application never added these partitions, or revoked them after JoinGroup was sent. JoinGroup named them
                # as owned, so the leader gave them to no other member. Another JoinGroup must release these partitions.
                self.rejoin("partitions were revoked during the rebalance")
            context.peers.synced(self.session)
        self._broker_assigns.synced()
        if context.watch.topics() != topics:
            self.rejoin("the subscription changed during the rebalance")
        if not self.is_leader:
            context.watch.follow()
        self._check_metadata()

    # -- metadata --------------------------------------------------------------------------------------------------------

    def metadata_changed(self) -> None:
        """Rejoin if the pattern matches other topics, or if this member leads and partition counts or racks changed."""
        if self.state is MemberState.STABLE and self.subscribed:
            self._check_metadata()

    def _check_metadata(self) -> None:
        if self._context.cluster.metadata.version == self._metadata_older_than_leader:
            return
        reason = self._context.watch.reason_to_rejoin(self._joined_topics)
        if reason is not None:
            self.rejoin(reason)

    # -- its tasks -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        spawn = self._context.tasks.spawn
        if self._driver is None or self._driver.done():
            self._driver = spawn(self._drive(), "rebalance")
        if self._beating is None or self._beating.done():
            self._beating = spawn(self._heartbeat.run(), "heartbeat")

    async def _stop_driver(self) -> None:
        # Clear the field before the wait. A new subscription during the wait starts another driver, which first waits for the
        # end of the former driver.
        former, self._driver = self._driver, None
        if former is not None:
            self._former_drivers.add(former)
        await self._last_join_answered()
        if former is not None:
            former.cancel()
            await asyncio.wait({former})
            self._former_drivers.discard(former)

    async def _last_join_answered(self) -> None:
        """Wait briefly for the response to a JoinGroup that must not arrive after LeaveGroup.

        The response to a first JoinGroup contains the member id. Without the id the member cannot leave, and the group would
        wait for a member for which it has reserved a place (KIP-394). In a group of the consumer protocol, a JoinGroup that
        arrived after LeaveGroup would add the member again, because the two requests use different connections. A group of the
        consumer protocol responds to JoinGroup at once, so the wait is short.
        """
        status, is_first = self.status, not self.generation_state.has_member_id
        if self._context.config.group_instance_id is None and status.joining and (is_first or self._broker_assigns.active):
            await self._context.signal.until(
                lambda: not status.joining or (is_first and self.generation_state.has_member_id), Deadline.after(MEMBER_ID_MS)
            )

    def _detail(self, code: int) -> str:
        return refused_value(code, self._context.config, [each.name for each in self._assignors])
