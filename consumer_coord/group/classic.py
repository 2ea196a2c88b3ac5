"""The sequence of a rebalance, in Kafka's own steps::

    ensure_coordinator_ready -> on_join_prepare -> join_group -> perform_assignment (the leader) -> sync_group
        -> on_join_complete

One background task, :meth:`RebalancingMember._drive`, goes through it whenever something asked for it.  The application is
never waited for, but where the protocol demands it: with an eager assignor it lets go of everything before the join.  What
the group wants stands in :attr:`RebalancingMember.assignment`; the application carries the difference out whenever it polls
(see ``rebalance.py``).

Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from assignors.base import Assignor, RebalanceProtocol
from consumer_coord.config import CoordinatorConfig, common_protocol
from consumer_coord.environment import now
from consumer_coord.errors import (
    AssignorError,
    CoordinatorError,
    MalformedMessageError,
    RetriableError,
)
from consumer_coord.group import requests
from consumer_coord.group.answers import JOIN_GROUP, SYNC_GROUP, Step, check_protocol, step_for
from consumer_coord.group.assigning import Assigning
from consumer_coord.group.committed_offsets import Offsets
from consumer_coord.group.generation import Generation
from consumer_coord.group.member import GroupMember, Superseded
from consumer_coord.group.membership import MemberState
from consumer_coord.group.metadata_watch import MetadataWatch
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata
from consumer_coord.retry import Deadline, Pace
from consumer_coord.topic_partition import TopicPartition, by_topic, flatten, listed
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.membership import decode_assignment
from consumer_coord.wire.messages.group import JoinGroupResponse, SyncGroupRequestAssignment


class RebalancingMember(GroupMember):
    """A member that joins its group whenever it has to (:class:`~consumer_coord.group.coordinator.ConsumerCoordinator`)."""

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
        #: Whatever brokers answer, JoinGroup goes out no more often.  When many members start or stop, seven may be needed.
        self._join_pace = Pace(10, 4)
        self._driver: asyncio.Task[None] | None = None
        #: Drivers that are being stopped.
        self._former_drivers: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._joined_topics: tuple[str, ...] = ()
        self._recreations = cluster.metadata.recreations
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

    # -- the sequence ----------------------------------------------------------------------------------------------------

    async def ensure_coordinator_ready(self, timeout_ms: float | None = None) -> Broker:
        """Find the coordinator if it is not known (``ensureCoordinatorReady``, ``lookupCoordinator``).

        Raises :class:`~consumer_coord.errors.CoordinatorNotAvailableError` after ``timeout_ms`` (by default
        ``default.api.timeout.ms``), and authorisation or authentication errors at once.
        """
        return await self.find_coordinator(self._deadline(timeout_ms))

    async def _drive(self) -> None:
        """The background: rebalance whenever something asks for it."""
        retries = failures = 0
        if self._former_drivers:
            await asyncio.wait(tuple(self._former_drivers))
        while True:
            await self._signal.until(self._join_wanted)
            try:
                await self._rebalance()
                retries = failures = 0
                if self._mismatches:
                    # A leader that gives us what we did not ask for will do so again: no storm of rebalances.
                    await asyncio.sleep(self.cluster.backoff.ms(self._mismatches - 1) / 1000)
            except Superseded as over:
                self.note_obstacle(str(over) or "the rebalance began anew")
                continue
            except (RetriableError, MalformedMessageError) as error:
                self.note_obstacle(str(error))
                await asyncio.sleep(self.cluster.backoff.ms(retries) / 1000)
                retries += 1
            except CoordinatorError as error:
                retries = 0
                await self._fail(error)
                # An application that polls in a tight loop, whatever it is told, makes no storm of requests.
                await asyncio.sleep(self.cluster.backoff.ms(failures) / 1000)
                failures += 1

    def _join_wanted(self) -> bool:
        if self._leaving_at is not None or self._failures.current is not None:
            return False
        if not self._subscription or self._rejoin_reason is None:
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
            current = self._generation
            self._peers.gathering.gone(self)
            assignments: tuple[SyncGroupRequestAssignment, ...] = ()
            if self._is_leader:
                assignments = await self.perform_assignment(joined)
            else:
                await self._peers.leader_first.follow(joined.generation_id, joined.leader)
            self._check_not_superseded(current)
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
        # The group waits for this member, and no commit is worth its session.
        limit_ms = min(self.config.rebalance_timeout_ms, self.config.session_timeout_ms)
        await self.offsets.drained(Deadline.after(limit_ms), gone)
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
            await self._join_pace.turn()
            self._check_not_superseded(before)
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
                if before.has_member_id or not answer.member_id:
                    raise RetriableError("JoinGroup: MEMBER_ID_REQUIRED, again", code=answer.error_code)
                continue
            if step is Step.GO_ON:
                break
            self._take(step, answer.error_code, "JoinGroup", broker, self._detail(answer.error_code))
        check_protocol("JoinGroup", self.group_id, answer, self._names())
        self._metrics.record("join", (now() - started) * 1000)
        self._generation = Generation(answer.generation_id, answer.member_id, answer.protocol_name)
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
        """A request to the coordinator between JoinGroup and SyncGroup: the session, and the group, wait for its answer."""
        broker = await self.ensure_coordinator_ready()
        return await self.ask_coordinator(
            broker, message, timeout_ms=self.config.request_timeout_ms, patience_ms=self.config.session_timeout_ms / 2
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
        code = answer.error_code
        self._take(step_for(SYNC_GROUP, code), code, "SyncGroup", broker, self._detail(code))
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

    # -- metadata --------------------------------------------------------------------------------------------------------

    def _on_metadata(self, metadata: Metadata) -> None:
        if metadata.recreations != self._recreations:
            # What is read of a topic that was made again begins anew: the application has to look.
            self._recreations = metadata.recreations
            self._call_attention()
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

    # -- its task -------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = self._spawn(self._drive(), "rebalance")
        if self._beating is None or self._beating.done():
            self._beating = self._spawn(self._heartbeat.run(), "heartbeat")

    async def _stop_driver(self) -> None:
        # Taken away at once: a subscription that comes while this waits starts another one, which waits for the end of this.
        former, self._driver = self._driver, None
        if former is not None:
            self._former_drivers.add(former)
        await self._member_id_promised()
        if former is not None:
            former.cancel()
            await asyncio.wait({former})
            self._former_drivers.discard(former)

    def _names(self) -> list[str]:
        return [assignor.name for assignor in self.assignors]

    def _detail(self, code: int) -> str:
        """The value of ours that a refusal is about."""
        if code == codes.INCONSISTENT_GROUP_PROTOCOL:
            return f"this member offers {', '.join(self._names())} (partition.assignment.strategy)"
        if code == codes.INVALID_SESSION_TIMEOUT:
            return f"session.timeout.ms={self.config.session_timeout_ms} here"
        if code == codes.FENCED_INSTANCE_ID:
            return f"group.instance.id={self.config.group_instance_id} here"
        return ""
