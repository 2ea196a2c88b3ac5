"""The consumer coordinator: one member of one group, from finding the coordinator to leaving.

One background task, :meth:`ConsumerCoordinator._drive`, goes through the sequence of a rebalance in Kafka's own steps::

    ensure_coordinator_ready -> on_join_prepare -> join_group -> perform_assignment (the leader) -> sync_group
        -> on_join_complete

whenever something asked for it.  The application is never waited for, but where the protocol demands it: with an eager
assignor it lets go of everything before the join.  What the group wants stands in :attr:`ConsumerCoordinator.assignment`;
the application carries the difference out whenever it polls (see ``rebalance.py``).

Everything here runs on one event loop, except what is marked as thread-safe.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assignors.base import Assignor, RebalanceProtocol
from consumer_coord import requests
from consumer_coord.answers import JOIN_GROUP, SYNC_GROUP, Step, check_protocol, step_for
from consumer_coord.assigning import FIGURES_TIMEOUT_MS, Assigning
from consumer_coord.config import CoordinatorConfig, common_protocol
from consumer_coord.environment import now
from consumer_coord.errors import (
    AssignorError,
    CoordinatorError,
    FatalError,
    MalformedMessageError,
    RequestTimedOutError,
    RetriableError,
)
from consumer_coord.group_member import GroupMember, Superseded
from consumer_coord.list_offsets import ListedOffset, list_offsets
from consumer_coord.member_state import (
    Generation,
    MemberState,
)
from consumer_coord.metadata import Broker, Metadata
from consumer_coord.metadata_watch import MetadataWatch
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import CommitResult, OffsetAndMetadata, Offsets
from consumer_coord.rebalance import Target
from consumer_coord.retry import Deadline
from consumer_coord.subscription import NOTHING, TopicSubscription, to_pattern, to_topics
from consumer_coord.topic_partition import TopicPartition, by_topic, flatten, listed
from consumer_coord.wire.membership import decode_assignment
from consumer_coord.wire.messages.group import JoinGroupResponse, SyncGroupRequestAssignment


class ConsumerCoordinator(GroupMember):
    """One member of a consumer group.  Make it on the loop that it will live on.

    ``assignors`` come in the order of preference; the rebalance protocol is the highest that all of them support.
    Errors of the background surface in :meth:`polled` and in whoever waits.
    """

    def __init__(self, config: CoordinatorConfig, cluster: ClusterClient, assignors: Sequence[Assignor]) -> None:
        super().__init__(config, cluster)
        self.assignors = tuple(assignors)
        self.protocol = common_protocol(self.assignors)
        self.offsets = Offsets(
            config.group_id,
            self,
            self.assignment,
            cluster.backoff,
            self._metrics,
            request_timeout_ms=config.request_timeout_ms,
            spawn=self._spawn,
        )
        self._watch = MetadataWatch(
            cluster, config.group_id, exclude_internal=config.exclude_internal_topics, on_change=self._on_metadata
        )
        self._assigning = Assigning(
            config,
            cluster,
            self._watch,
            self.offsets,
            self._metrics,
            self._log,
            ask=self._ask,
            on_return=self._signal.fire,
        )
        self._leaving = False
        self._driver: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._joined_topics: tuple[str, ...] = ()
        #: The version of metadata that the leader was ahead of, -1 if it was not.
        self._outrun = -1
        #: How many assignments in a row had topics outside the subscription.
        self._mismatches = 0
        self._held_until = 0.0
        #: True from the moment a join cannot be held any more until its sync is answered.
        self._past_hold = False
        self._released_at = 0.0
        #: What the last JoinGroup named as owned: nobody else gets it until a later one leaves it out.
        self._named: frozenset[TopicPartition] = frozenset()

    # -- what the application says ---------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to named topics, instead of what was subscribed to before."""
        self._subscribe(to_topics(topics))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to every topic whose whole name matches, now and later (Java's ``subscribe(Pattern)``)."""
        self._subscribe(to_pattern(pattern))

    def _subscribe(self, subscription: TopicSubscription) -> None:
        self._check_open()
        if subscription == self._subscription:
            return
        self._subscription = subscription
        self._leaving = False
        self._watch.subscribe(subscription)
        self._failures.went_on()
        self._heartbeat.poll_restarts()
        self._start()
        if not subscription.pattern or self._generation.has_member_id:
            self.request_rejoin("the subscription changed")
        else:
            self.request_rejoin("subscribed to a pattern")

    async def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """End the subscription and leave the group; the application has let go of its partitions before."""
        if self._subscription:
            self._subscription = NOTHING
            self._rejoin_reason = None
            # A commit that waits for a sync waits for nothing now.
            self._ending = True
            try:
                await self._stop_driver()
                self._signal.fire()
                await self.offsets.drained(self._deadline(timeout_ms))
            finally:
                self._ending = False
            await self._leave("the consumer unsubscribed from all topics", self._deadline(timeout_ms))
            self._lease.not_needed()
            self._watch.subscribe(NOTHING)

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        """The application gave these partitions up (revoked, or lost); thread-safe."""
        self.gave_up(self.assignment.let_go(partitions))

    def gave_up(self, partitions: frozenset[TopicPartition]) -> None:
        """These are held no more, and the group has to hear of it; thread-safe."""
        self._call(lambda: self._on_released(partitions))

    def prepare_to_leave(self) -> None:
        """The application is about to give everything up and to close or unsubscribe: no join for that; thread-safe.

        A static member's place is kept for its return with the partitions it had, so it must not join without them.
        """
        self._call(lambda: setattr(self, "_leaving", True))

    def _on_released(self, released: frozenset[TopicPartition]) -> None:
        if released and not self._leaving and self._state is MemberState.STABLE and self._rejoin_reason is None:
            if not self._released:
                self._released_at = now()
            self._released |= released
            self.request_rejoin("partitions were given up")
        self._peers.released()

    async def hold_joins(self) -> Generation:
        """A transaction is about to send its offsets: send no JoinGroup until the next poll, at most half the rebalance
        timeout, and return the generation that fences what the application holds (KIP-447).

        A join that is already under way is waited for.  When the partitions were lost since the last poll the generation
        is the lost one, which the broker refuses: what was read under it is not this member's to commit.
        """
        half = Deadline.after(self.config.rebalance_timeout_ms / 2)
        self._held_at, self._held_until = self.polls, half.at
        self.attention = True
        await self._signal.until(lambda: not self._past_hold, half)
        return self._lost_generation if self.assignment.any_lost else self._generation

    def enforce_rebalance(self, reason: str = "") -> None:
        """Rejoin although nothing demands it (KIP-568), with a reason for the broker's log (KIP-800)."""
        self._check_open()
        self.request_rejoin(reason or "rebalance enforced by user")

    # -- the sequence ----------------------------------------------------------------------------------------------------

    async def ensure_coordinator_ready(self, timeout_ms: float | None = None) -> Broker:
        """Find the coordinator if it is not known (``ensureCoordinatorReady``, ``lookupCoordinator``).

        Raises :class:`~consumer_coord.errors.CoordinatorNotAvailableError` after ``timeout_ms`` (by default
        ``default.api.timeout.ms``), and authorisation or authentication errors at once.
        """
        return await self.find_coordinator(self._deadline(timeout_ms))

    async def join_group_if_needed(self, timeout_ms: float | None = None) -> Target:
        """Wait until this member is in the group with an assignment, or has something to let go of first.

        Returns the target.  Raises what failed in the background, or
        :class:`~consumer_coord.errors.RequestTimedOutError` with what stands in the way; then the join goes on, and
        another call waits for the same one.
        """
        self._check_open()
        if not self._subscription:
            raise FatalError("subscribe first: without topics there is nothing to join for")
        deadline = self._deadline(timeout_ms)
        self.polled()

        def done() -> bool:
            return (
                self._failures.current is not None
                or (self._state is MemberState.STABLE and self._rejoin_reason is None)
                or bool(self.assignment.to_revoke)
                or bool(self.assignment.change().lost)
            )

        if not await self._signal.until(done, deadline):
            self.polled()
            raise RequestTimedOutError(
                f"group {self.group_id!r} was not joined in time ({self._state.value}"
                + (f"; {self._failures.obstacle})" if self._failures.obstacle else ")")
            )
        self.polled()
        return self.assignment.target

    async def _drive(self) -> None:
        """The background: rebalance whenever something asks for it."""
        retries = 0
        while True:
            await self._signal.until(self._join_wanted)
            try:
                await self._rebalance()
                retries = 0
                if self._mismatches:
                    # A leader that gives us what we did not ask for will do so again: no storm of rebalances.
                    await asyncio.sleep(self.cluster.backoff.ms(self._mismatches - 1) / 1000)
            except Superseded:
                continue
            except (RetriableError, MalformedMessageError) as error:
                self.note_obstacle(str(error))
                await asyncio.sleep(self.cluster.backoff.ms(retries) / 1000)
                retries += 1
            except CoordinatorError as error:
                retries = 0
                await self._fail(error)

    def _join_wanted(self) -> bool:
        if self._leaving or not self._subscription or self._failures.current is not None or self._rejoin_reason is None:
            return False
        if self._assigning.stuck:
            return False
        if self._parked_at is not None:
            if self.polls == self._parked_at:
                return False
            self._parked_at = None
            self._heartbeat.poll_restarts()
        return True

    async def _rebalance(self) -> None:
        """One pass: prepare, join, assign, sync, complete."""
        started = now()
        reason = self._rejoin_reason or ""
        self._rejoin_reason = None
        self._set_state(MemberState.PREPARING_REBALANCE)
        before = self._generation
        if before.generation_id < 0:
            self._peers.gathering.arrives(self)
        try:
            await self.ensure_coordinator_ready()
            self._check_not_superseded(before)
            topics = await self.on_join_prepare()
            joined = await self._join_group(topics, reason)
            self._peers.gathering.gone(self)
            assignments: tuple[SyncGroupRequestAssignment, ...] = ()
            if self._is_leader:
                assignments = await self.perform_assignment(joined)
            else:
                await self._peers.leader_first.follow(joined.generation_id, joined.leader)
            assignment = await self._sync_group(joined, assignments)
            self.on_join_complete(joined.generation_id, topics, assignment)
        except BaseException:
            self._peers.gathering.gone(self)
            self._past_hold = False
            self._signal.fire()
            if self._state is not MemberState.UNJOINED:
                self._set_state(MemberState.UNJOINED)
            self._rejoin_reason = self._rejoin_reason or reason
            self._metrics.record("failed-rebalance")
            raise
        latency_ms = (now() - started) * 1000
        self._metrics.record("rebalance", latency_ms)
        self._metrics.last_rebalance_at = now()

    async def on_join_prepare(self) -> tuple[str, ...]:
        """What has to be over before JoinGroup goes out (``onJoinPrepare``); returns the topics to ask for.

        Eager: everything was let go of.  Cooperative: only partitions of topics no longer subscribed; what else must
        move is named as owned and let go of later.  Commits of what is given up have been answered.
        """
        before = self._generation
        if self._subscription.pattern is not None:
            await self.cluster.refresh(Deadline.after(self.config.request_timeout_ms))
            self._check_not_superseded(before)
        topics = self._watch.topics()
        if self.protocol is RebalanceProtocol.EAGER:
            self.assignment.revoke_all()
        else:
            self.assignment.narrow(frozenset(topics))
        await self._coalesce_releases()
        if self._must_let_go():
            self._call_attention()
            await self._signal.until(lambda: not self._must_let_go() or self._generation is not before)
        await self._signal.until(lambda: not self._joins_held() or self._generation is not before, self._hold_deadline())
        self._held_at = None
        self._past_hold = True
        gone = self._released if self.protocol is RebalanceProtocol.COOPERATIVE else None
        await self.offsets.drained(Deadline.after(self.config.rebalance_timeout_ms), gone)
        self._check_not_superseded(before)
        if not self._subscription:
            raise Superseded
        self._released.clear()
        return topics

    def _owned(self) -> Mapping[str, Sequence[int]]:
        """What JoinGroup names as owned: an eager member has given up everything."""
        self.assignment.given_up()
        self._named = self.assignment.owned() if self.protocol is RebalanceProtocol.COOPERATIVE else frozenset()
        return by_topic(self._named)

    def _must_let_go(self) -> bool:
        if self.protocol is RebalanceProtocol.EAGER:
            return bool(self.assignment.to_revoke)
        topics = frozenset(self._watch.topics())
        return any(partition.topic not in topics for partition in self.assignment.to_revoke)

    def _joins_held(self) -> bool:
        return self._held_at is not None and self._held_at == self.polls and now() < self._held_until

    def _hold_deadline(self) -> Deadline | None:
        return None if self._held_at is None else Deadline(max(now(), self._held_until))

    async def _coalesce_releases(self) -> None:
        """Several slow owners in one process, or one owner in several steps, shall not cause as many rounds."""
        linger_ms = self.config.release_linger_ms
        if self.protocol is RebalanceProtocol.COOPERATIVE and self._released and linger_ms:
            due = Deadline(self._released_at + linger_ms / 1000)
            self._peers.lingering.add(self)
            try:
                await self._signal.until(lambda: not self._peers.more_to_let_go(self.generation), due)
            finally:
                self._peers.lingering.discard(self)

    async def _join_group(self, topics: tuple[str, ...], reason: str) -> JoinGroupResponse:
        """Send JoinGroup until the group took us in (``sendJoinGroupRequest``, JoinGroupResponseHandler)."""
        while True:
            before = self._generation
            if self._generation.has_member_id or self.config.group_instance_id is not None:
                await self._peers.gathering.pass_gate(self)
                self._check_not_superseded(before)
            broker = await self.ensure_coordinator_ready()
            started = now()
            self._lease.joins()
            named, owned = self._named, self._owned()
            if self._generation.has_member_id:
                self._peers.joins(self, owns_less=self._generation.generation_id >= 0 and bool(named - self._named))
            answer: JoinGroupResponse = await self.ask_and_wait(
                broker, requests.join_group(self.config, self._generation, self.assignors, topics, owned, reason)
            )
            self._check_not_superseded(before)
            step = step_for(JOIN_GROUP, answer.error_code)
            if step is Step.ADOPT_MEMBER_ID:
                self._generation = Generation(member_id=answer.member_id)
                self._lease.lost()
                self._metrics.record("member-id-required")
                self._signal.fire()
                continue
            if step is Step.GO_ON:
                break
            self._take(step, answer.error_code, "JoinGroup", broker, self._offered())
        check_protocol("JoinGroup", self.group_id, answer, self._names())
        self._metrics.record("join", (now() - started) * 1000)
        self._generation = Generation(answer.generation_id, answer.member_id, answer.protocol_name)
        self._failures.went_on()
        self._lease.joined(anew=answer.generation_id != before.generation_id)
        if self._lease.proven_s * 1000 > self.config.heartbeat_interval_ms:
            # The join took long: its end proves less than a heartbeat does.
            self.beat_early((0,))
        self._joined_topics = topics
        self._is_leader = answer.leader == answer.member_id
        self._peers.joined(answer.generation_id, started)
        self._set_state(MemberState.COMPLETING_REBALANCE)
        self._heartbeat.session_starts()
        return answer

    async def perform_assignment(self, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        """The leader's part (``onJoinLeader``, ``performAssignment``): everybody's assignment, encoded.

        The assignor runs in a worker thread, at most ``assignor.timeout.ms``.  Raises
        :class:`~consumer_coord.errors.AssignorError` when it raises, hangs, or returns a plan that must not be sent.
        """
        assignor = next(each for each in self.assignors if each.name == joined.protocol_name)
        return await self._assigning.run(assignor, joined)

    async def _ask(self, message: Any) -> Any:
        """A request to the coordinator on the way from join to sync, for a moment only."""
        broker = await self.ensure_coordinator_ready()
        return await self.ask_coordinator(
            broker, message, timeout_ms=self.config.request_timeout_ms, patience_ms=FIGURES_TIMEOUT_MS
        )

    async def _sync_group(
        self, joined: JoinGroupResponse, assignments: Sequence[SyncGroupRequestAssignment]
    ) -> Mapping[str, Sequence[int]]:
        """Send SyncGroup, the leader's with everybody's assignment, and wait for our own (SyncGroupResponseHandler)."""
        current = self._generation
        broker = await self.ensure_coordinator_ready()
        self._check_not_superseded(current)
        if self._is_leader:
            self._peers.leader_first.leader_syncs(current.generation_id)
        started, sent = now(), self.lease_clock()
        answer = await self.ask_and_wait(broker, requests.sync_group(self.config, current, assignments))
        self._check_not_superseded(current)
        self._take(step_for(SYNC_GROUP, answer.error_code), answer.error_code, "SyncGroup", broker, self._offered())
        check_protocol("SyncGroup", self.group_id, answer, (None, current.protocol_name))
        self._metrics.record("sync", (now() - started) * 1000)
        self._lease.synced(sent)
        if not answer.assignment:
            return {}
        try:
            return decode_assignment(answer.assignment).partitions
        except MalformedMessageError as error:
            raise RetriableError(f"the leader's assignment for this member is malformed: {error}") from error

    def on_join_complete(
        self, generation: int, topics: tuple[str, ...], assignment: Mapping[str, Sequence[int]]
    ) -> None:
        """Publish what the group wants this member to hold (``onJoinComplete``)."""
        added = {topic for topic, numbers in assignment.items() if len(numbers) and topic not in topics}
        # The leader may know of a topic before we do: what matches the pattern is welcome (maybeUpdateJoinedSubscription).
        pattern = self._subscription.pattern
        matching = {topic for topic in added if pattern is not None and pattern.fullmatch(topic) is not None}
        self._joined_topics = tuple(sorted({*topics, *matching}))
        self._outrun = self.metadata.version if matching else -1
        if matching:
            self.cluster.refresh_soon()
        unwanted = sorted(added - matching)
        self._mismatches = self._mismatches + 1 if unwanted else 0
        self._heartbeat.session_starts()
        self._past_hold = False
        self._set_state(MemberState.STABLE)
        self._peers.stable(self)
        if unwanted:
            self._log.warning("the leader assigned topics that were not asked for: %s", ", ".join(unwanted))
            assignment = {topic: numbers for topic, numbers in assignment.items() if topic in self._joined_topics}
        for assignor in self.assignors:
            if assignor.name == self._generation.protocol_name:
                try:
                    assignor.on_assignment(assignment, generation)
                except Exception as error:
                    raise AssignorError(f"assignor {assignor.name!r} raised in on_assignment: {error!r}") from error
        self.assignment.publish(generation, flatten(assignment))
        self._log.info("assigned %s", listed(self.assignment.target.partitions))
        self._failures.went_on()
        self.attention = True
        change = self.assignment.change()
        if change.revoked or change.added or change.lost:
            # Who has nothing to do finds that out at the end of its slice, and does not get in the way of those who have.
            self._call_attention()
        if unwanted:
            self.request_rejoin("the assignment has topics outside the subscription")
        if self.protocol is RebalanceProtocol.COOPERATIVE:
            if self._named - self.assignment.owned():
                # Named as owned, so nobody has it now: it was never taken up, or was let go of while this join was under
                # way.  The group has to hear that it is free.
                self.request_rejoin("partitions were given up during the rebalance")
            self._peers.synced(self)
        if self._watch.topics() != topics:
            self.request_rejoin("the subscription changed during the rebalance")
        if not self._is_leader:
            self._watch.follow()
        self._check_metadata()
        self._signal.fire()

    # -- offsets ---------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float | None = None,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> CommitResult:
        """Commit positions with our generation; for each partition None, or why not.  See ``offsets.py``."""
        limit = self._timeout(timeout_ms)
        return await self.offsets.commit(offsets, timeout_ms=limit, ownerships=ownerships, topic_ids=topic_ids)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        return await self.offsets.committed(partitions, timeout_ms=self._timeout(timeout_ms))

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Offsets by time: partition -> milliseconds since 1970, or LATEST or EARLIEST of ``list_offsets.py``."""
        return await list_offsets(self.cluster, wanted, self._deadline(timeout_ms), read_committed=read_committed)

    # -- metadata --------------------------------------------------------------------------------------------------------

    def _on_metadata(self, metadata: Metadata) -> None:
        if not self._subscription or self._closed:
            return
        if self._failures.current is None:
            missing = self._watch.missing(self.config.default_api_timeout_ms)
            if missing is not None:
                self._failures.set(missing)
        if self._state is MemberState.STABLE:
            self._check_metadata()

    def _check_metadata(self) -> None:
        if self.metadata.version == self._outrun:
            return
        reason = self._watch.reason_to_rejoin(self._joined_topics)
        if reason is not None:
            self.request_rejoin(reason)

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def leave_group(self, reason: str = "", timeout_ms: float | None = None) -> None:
        """Leave (``maybeLeaveGroup``); a static member stays in the group until its session ends.

        What the application still holds is lost.  Its next poll finds that, and the group is joined again only by
        :meth:`subscribe` or :meth:`enforce_rebalance`.
        """
        await self._stop_driver()
        self._rejoin_reason = None
        await self._leave(reason or "leave_group was called", self._deadline(timeout_ms), rejoin=False)
        self._start()

    async def close(self, timeout_ms: float | None = None, *, leave: bool = True) -> None:
        """Finish commits, leave, and end every task; idempotent.  All of it within ``timeout_ms``.

        The application lets go of its partitions before (and commits what it wants committed).
        """
        if self._closed:
            return
        deadline = self._deadline(timeout_ms)
        self._rejoin_reason = None
        self._ending = True
        await self._stop_driver()
        self._signal.fire()
        await self.offsets.close(deadline)
        if leave:
            await self._leave("the consumer is being closed", deadline, rejoin=False)
        self._closed = True
        self._lease.close()
        self._peers.remove(self)
        self._watch.close()
        tasks = [task for task in (*self._tasks, self._beating) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._signal.fire()

    async def leave_at_exit(self, timeout_ms: float) -> None:
        """Leave over a connection that is open, or not at all: at interpreter exit nothing may wait for a look-up."""
        broker = self._lookup.coordinator
        if self._closed or broker is None or self.cluster.open_connection(broker) is None:
            return
        await self.close(timeout_ms)

    def _start(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = self._spawn(self._drive(), "rebalance")
        if self._beating is None or self._beating.done():
            self._beating = self._spawn(self._heartbeat.run(), "heartbeat")

    async def _stop_driver(self) -> None:
        await self._member_id_promised()
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
            self._driver = None

    def _names(self) -> list[str]:
        return [assignor.name for assignor in self.assignors]

    def _offered(self) -> str:
        return f"this member offers {', '.join(self._names())} (partition.assignment.strategy)"
