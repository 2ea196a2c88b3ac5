"""Play one simulation run: members start, faults begin and end, and the group becomes stable.

The scenario determines everything, and its seed determines every delay and id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from random import Random

import attrs

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.net.shared_clusters import forget_clusters
from consumer_coord.simulation.alone import overcome_within_s
from consumer_coord.simulation.application import CALM, MemberProcess
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.exactly_once import ExactlyOnceRules
from consumer_coord.simulation.faults import Nemesis
from consumer_coord.simulation.history import History
from consumer_coord.simulation.idle import CALMS_DOWN_S, COUNTED_S, IdleRequests
from consumer_coord.simulation.loop import SimulationError, VirtualTimeLoop, run
from consumer_coord.simulation.member_spec import COMMIT_TIMEOUT_S, METADATA_MAX_AGE_MS
from consumer_coord.simulation.reader_by_hand import ReaderByHand
from consumer_coord.simulation.scenario import Fault, Scenario
from consumer_coord.simulation.stability import Stability
from consumer_coord.simulation.world import JOINED_S, World
from consumer_coord.simulation.wrong_answers import OFFSET_COMMIT, WRONG_ANSWERS
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import LeaveGroupRequest, MemberIdentity

#: Time without a change after which the group counts as stable, in virtual seconds.
_QUIET_S = 8.0

#: The same after a change that happens alone.
_OVERCOME_S = 2.0

#: A coordinator looks for transactions that timed out within this time, in seconds.
_ABORTED_S = 15.0

#: A member asks again after these answers to pushed metrics.
_MAY_BE_REFUSED = frozenset({error_codes.UNKNOWN_SUBSCRIPTION_ID, error_codes.THROTTLING_QUOTA_EXCEEDED})

#: The number of records of each partition that are read beside wrong answers about others.
_RECORDS = 3

#: The version of LeaveGroup with which operators remove members by their instance ids.
_LEAVE_GROUP_VERSION = 5

#: Limit of a simulation run, in virtual seconds.
_MOST_S = 600.0


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of a simulation run, small enough to pass between processes."""

    seed: int
    failed: bool
    members: int
    faults: int
    virtual_s: float
    rebalances: int
    processed: int
    processed_again: int
    commits: int
    overtaken: int
    frames: int
    steps: int
    #: Records that handlers of ``process`` have done, and of these again after a loss.
    handled: int = 0
    handled_again: int = 0
    #: Records that committed transactions have processed, and transactions that were aborted.
    transacted: int = 0
    aborted: int = 0


@attrs.frozen
class Outcome:
    """The result of a simulation run. ``violation`` is None if every rule held."""

    scenario: Scenario
    violation: Violation | None
    history: History
    figures: Figures
    #: What the run reached; see :class:`~consumer_coord.simulation.reach.Reach`.
    reached: frozenset[int]


class _Course:
    """The course of one simulation run, from start to end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stage = world.stage
        self.stability = Stability(world)
        self.loop = world.loop
        self.scenario = world.scenario
        self.cluster = world.cluster
        self.checkers = world.checkers
        self.history = world.history

    async def play(self) -> None:
        """Run the simulation from start to end; raise :class:`Violation` when a rule is violated."""
        self.cluster.start()
        starts = Random(f"{self.scenario.seed}-starts")
        for spec in self.scenario.members:
            self.loop.call_at(starts.uniform(0, 2.5), self.world.start_member, spec)
        nemesis = Nemesis(self.world, self.scenario.faults)
        nemesis.begin()
        producer = self.loop.create_task(self._produce(), name="producer")
        try:
            await self._until(self.scenario.faults_end_ms / 1000)
            nemesis.heal()
            self._end_former_lives()
            self.cluster.settle()
            self.stage.producing = False
            if not self.world.alive_count:
                self.world.start_another()
            await self._until_quiet()
            self._has_overcome()
            await self._read_beside_wrong_answers()
            if self.scenario.calm_calls:
                await self._call_in_calm()
            for change in self.scenario.alone:
                await self._overcome(change)
            if self.scenario.idle:
                await self._be_idle()
            await self._end()
        finally:
            producer.cancel()

    def _end_former_lives(self) -> None:
        """Stop the first of two processes with one instance id.

        In the consumer protocol, the first process keeps the instance id while it runs.
        """
        for life in self.world.lives:
            if life.alive and life.spec.protocol == "consumer" and self.world.members.get(life.spec.name) is not life:
                life.stop()

    async def _until(self, moment: float) -> None:
        """Let time pass until ``moment``, or until a rule is violated."""
        await asyncio.wait([self.stage.failure], timeout=max(0.0, moment - self.loop.time()))
        if self.stage.failure.done():
            self.stage.failure.result()
        self._look_at_errors()

    async def _produce(self) -> None:
        random = Random(f"{self.scenario.seed}-records")
        while self.stage.producing:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            for partition in self.cluster.partitions():
                if self.stage.producing and random.random() < 0.3:
                    self.cluster.produce(partition, random.randint(1, 8))

    @property
    def bound_s(self) -> float:
        """The time limit for the group to become stable after the last fault, in seconds.

        The limit is long enough for two of each of the following: a session timeout, a rebalance with late members, an
        abandoned request, and an application that polls late.
        """
        specs = [member.spec for member in self.world.lives]
        return (
            2 * max(spec.session_timeout_ms for spec in specs)
            + 2 * max(spec.rebalance_timeout_ms for spec in specs)
            + 2 * 8_000
            + 30_000
        ) / 1000

    async def _overcome(self, change: Fault) -> None:
        """Change one thing in the stable group, and wait until the group has overcome it."""
        for partition in self.cluster.partitions():
            self.cluster.produce(partition, _RECORDS)
        nemesis = Nemesis(self.world, (attrs.evolve(change, at_ms=int(self.loop.time() * 1000)),))
        nemesis.begin()
        await self._until(self.loop.time() + change.for_ms / 1000 + 0.1)
        nemesis.heal()
        self.cluster.settle()
        specs = [member.spec for member in self.world.lives if member.alive]
        await self._until_quiet(overcome_within_s(change, specs, self.scenario), quiet_s=_OVERCOME_S)
        self._has_overcome()

    async def _be_idle(self) -> None:
        """Let time pass without any event, and count what the members send."""
        await self._until(self.loop.time() + CALMS_DOWN_S)
        if self.stage.calm_since() > self.loop.time():
            # A connection that is silently dead may yet be noticed.
            return
        requests = self.world.idle_requests = IdleRequests()
        await self._until(self.loop.time() + COUNTED_S)
        self.world.idle_requests = None
        live = [member for member in self.world.lives if member.alive and not member.leaves and member.process.is_steady]
        there = self.cluster.kafka.topics.by_name
        for member in live:
            # Whether a topic is there that was not is asked about every second.
            awaits_topics = any(topic not in there for topic in self.world.topics_of(member))
            requests.check(member, None if awaits_topics else METADATA_MAX_AGE_MS / 1000)

    def _has_overcome(self) -> None:
        """Note that the stable group has overcome every fault, except connections that are silently dead."""
        if not self.scenario.has_dead_connections:
            self.stage.troubled_until = self.loop.time()
        self.world.health.all_read(self.world.lives)

    async def _until_quiet(self, bound_s: float | None = None, quiet_s: float = _QUIET_S) -> None:
        """Wait until the group is stable and remains stable for ``quiet_s``.

        One further rebalance is allowed: as in Kafka, if a static member is replaced between JoinGroup and SyncGroup, the group
        waits for the former member id until the end of the sync phase.
        """
        began = self.loop.time()
        quiet_since: float | None = None
        helped, bound_s = False, self.bound_s if bound_s is None else bound_s
        while quiet_since is None or self.loop.time() - quiet_since < quiet_s:
            disquiet = self.stability.disquiet()
            if disquiet is not None:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = self.loop.time()
                self.history.note("world", "is quiet")
            self.stability.look_for_late_records(began)
            if self._has_left_joiner():
                bound_s = self.bound_s + NEW_MEMBER_JOIN_TIMEOUT_MS / 1000
            if disquiet is not None and self.loop.time() - began > bound_s:
                raise Violation("liveness", f"not stable {bound_s:.0f} s after the last fault: {disquiet}")
            if disquiet is not None and self.loop.time() - began > _QUIET_S:
                await self._remove_the_endless()
            if not helped and self.loop.time() - began > _QUIET_S:
                helped = self._help_the_refused() or (disquiet is not None and self._help_the_unplanned())
            await self._until(self.loop.time() + 0.5)

    async def _read_beside_wrong_answers(self) -> None:
        """Check that wrong answers about some partitions delay no other, if the scenario has such a fault.

        Another member starts, so that partitions change owners and their offsets are looked up.
        """
        fault = next((one for one in reversed(self.scenario.faults) if one.kind in WRONG_ANSWERS), None)
        if fault is None:
            return
        wrong = WRONG_ANSWERS[fault.kind](fault.value)
        self.history.note("nemesis", f"{fault.kind} until every other partition is read")
        heal = self.cluster.answer_wrongly(wrong)
        self.world.start_another()
        partitions, bound_s = self.cluster.partitions(), self.bound_s
        for partition in partitions:
            self.cluster.produce(partition, _RECORDS)
        if OFFSET_COMMIT in wrong.api_keys:
            # An application that commits after each record waits for each commit that has one of the other partitions.
            bound_s += len(partitions) * _RECORDS * COMMIT_TIMEOUT_S
        began = self.loop.time()
        while unread := self.stability.unread(spared=wrong.spares):
            if self.loop.time() - began > bound_s:
                raise Violation("liveness", f"{bound_s:.0f} s of wrong answers about other partitions: {unread}")
            await self._until(self.loop.time() + 0.5)
        heal()
        await self._until_quiet()

    async def _call_in_calm(self) -> None:
        """Let other tasks of some members call while no fault delays anything, so that each call must end at once."""
        random = Random(f"{self.scenario.seed}-calm")
        for partition in self.cluster.partitions():
            self.cluster.produce(partition, random.randint(1, 8))
        live = [member for member in self.world.members.values() if member.alive and not member.closing]
        for member in random.sample(live, min(len(live), 3)):
            await self._until(self.loop.time() + random.uniform(0.3, 1.5))
            what = random.choice(CALM)
            self.history.note("world", f"{member.name} is to call in calm: {what}")
            member.call_beside(what)
        await self._until(self.loop.time() + 2.0)
        await self._until_quiet()

    def _has_left_joiner(self) -> bool:
        """Return whether a classic group still has a static member that stopped while it joined for the first time.

        As in Kafka, its session is five minutes long. The end of the join phase would shorten the session, but a failed
        conversion to the consumer protocol ends every wait for a join without ending this phase.
        """
        group = self.cluster.group(self.stage.group_id)
        live = {member.member_id for member in self.world.lives if member.alive}
        rows = () if group is None else group.members.values()
        return any(one.is_new and one.group_instance_id is not None and one.member_id not in live for one in rows)

    async def _remove_the_endless(self) -> None:
        """Remove ended static members whose sessions never end, as an operator does, by their instance ids.

        As in Kafka, the session of a member that is not new ends without effect while its JoinGroup waits
        (``ClassicGroupMember.hasSatisfiedHeartbeat``), and begins again with the response at the end of the join phase. But a
        failed conversion to the consumer protocol ends the wait, and nothing begins the session. Without a member that joins,
        the join phase is prolonged for ever (``completeClassicGroupJoin``).
        """
        node, group = self.cluster.coordinator_of(self.stage.group_id), self.cluster.group(self.stage.group_id)
        if node is None or group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        live = {member.member_id for member in self.world.lives if member.alive}
        endless = [
            MemberIdentity(member_id="", group_instance_id=one.group_instance_id)
            for one in group.members.values()
            if one.group_instance_id is not None
            and one.member_id not in live
            and one.awaiting_join is None
            and not (one.heartbeat is not None and one.heartbeat.pending)
        ]
        if endless:
            self.history.note("world", f"an operator removes {', '.join(str(one.group_instance_id) for one in endless)}")
            request = LeaveGroupRequest(group_id=self.stage.group_id, members=endless)
            await node.coordinator.leave_group(RequestContext(_LEAVE_GROUP_VERSION), request)

    def _help_the_refused(self) -> bool:
        """Make all members rejoin if the coordinator rejects the assignors of some member; return True in that case.

        As in Kafka, a coordinator that loaded the group knows only the assignor that the group had chosen. The coordinator
        rejects a member without this assignor until the other members have rejoined.
        """
        live = [member for member in self.world.members.values() if member.alive]
        refused = [member for member in live if member.failures and "INCONSISTENT_GROUP_PROTOCOL" in member.failures[-1]]
        for member in live if refused else ():
            member.enforce_rebalance()
        return bool(refused)

    def _help_the_unplanned(self) -> bool:
        """Start another member if the group needs a new assignment (``Checkers.unplanned``); return True in this case."""
        if self.checkers.unplanned:
            self.world.start_another()
        return self.checkers.unplanned

    def _look_at_errors(self) -> None:
        if self.checkers.pending is not None:
            raise self.checkers.pending
        if self.loop.errors:
            error = self.loop.errors[0]
            breach = Violation("crash", f"{error.get('message')}: {error.get('exception')!r}")
            breach.__cause__ = error.get("exception")
            raise breach

    async def _close_in_rebalance(self, members: Sequence[MemberProcess], random: Random) -> None:
        """Close some members at a step of a rebalance, while they have processed and uncommitted records."""
        for partition in self.cluster.partitions():
            self.cluster.produce(partition, random.randint(1, 8))
        await self._until(self.loop.time() + random.uniform(0.3, 2.0))
        for _ in range(random.randint(1, 3)):
            member = random.choice(members)
            if member.alive and not member.closing and self.world.members.get(member.spec.name) is member:
                self.world.close_in_rebalance(member.spec.name, random.randrange(1_000))
        await self._until(self.loop.time() + 3.0)

    async def _close_before_sync(self, random: Random) -> None:
        """Close a member and its leader before the leader sends SyncGroup, while records arrive."""
        closing = self.world.close_before_sync(random)
        ends = self.loop.time() + JOINED_S
        while not all(member.closing for member in closing) and self.loop.time() < ends:
            # Without new records, the leader has nothing to commit, and leaves at once.
            for holding in closing[0].holdings:
                self.cluster.produce(holding.partition, 1)
            await self._until(self.loop.time() + 0.5)
        await self._until(self.loop.time() + 2.0)

    async def _end(self) -> None:
        """Close all members; check that no connection, task or timer is left."""
        committing = [member for member in self.world.lives if member.alive]
        wanted = {topic for member in committing for topic in self.world.topics_of(member)}
        nothing_read = {
            partition
            for partition in self.cluster.partitions()
            if any(
                self.stability.begins_at_the_end(holding) for holding in self.checkers.holders(partition) if holding.owner.alive
            )
        }
        farewells = Random(f"{self.scenario.seed}-farewells")
        # If the leader has an instance id, it closes without leaving the group, so the other members would wait for the end of
        # its session.
        static = any(member.spec.instance_id for member in committing)
        if committing and farewells.random() < 0.5 and not static:
            await self._close_in_rebalance(committing, farewells)
        departures = Random(f"{self.scenario.seed}-departures")
        for _ in range(departures.choice((0, 1, 2)) if not static else 0):
            await self._close_before_sync(departures)
        await self._stop_members(committing)
        self._check_commits(wanted, nothing_read)
        self._check_groups_are_empty()
        if self.stage.exactly_once is not None:
            await self._until_transactions_end(self.stage.exactly_once)
        self._check_metrics()
        self.cluster.close()
        await self._until(self.loop.time() + 60)
        self._check_nothing_is_left()

    async def _stop_members(self, members: Sequence[MemberProcess]) -> None:
        closing: Sequence[MemberProcess | ReaderByHand] = (*members, *self.world.readers)
        for one in closing:
            one.stop()
        began = self.loop.time()
        while any(not one.finished for one in closing):
            if self.loop.time() - began > 30:
                slow = [one.name for one in closing if not one.finished]
                raise Violation("liveness", f"{', '.join(slow)} did not close within 30 s\n{self.loop.leaks()}")
            await self._until(self.loop.time() + 0.5)

    def _check_commits(self, wanted: Set[str], nothing_read: Set[TopicPartition]) -> None:
        """Check that the members that closed have committed all records that they read in the topics ``wanted``."""
        for partition in self.cluster.partitions():
            if self.stage.exactly_once is not None:
                # What is not committed is not processed.
                continue
            if self.stage.handlers is not None:
                left = self.stage.handlers.uncommitted(partition)
                lost = self.checkers.lost_with_the_protocol(partition, processing=True)
                if left is not None and partition.topic in wanted and not lost:
                    raise Violation("agreement", f"all members closed, but {left}")
                continue
            end = self.cluster.end_offset(partition)
            committed = self.checkers.first_record(partition, self.checkers.committed_now(partition))
            read = self.checkers.covered(partition) == end
            emptied = self.stability.emptied(partition, committed)
            late = read and committed != end and not emptied and not self.checkers.went_back(partition)
            late = late and not self.checkers.is_committed_past(partition, end or 0)
            late = late and partition not in nothing_read and committed < self.checkers.finished(partition)
            # If a partition was lost while the members closed, its next owner would read the remaining records again.
            if partition.topic in wanted and end and late and not self.checkers.lost_with_the_protocol(partition):
                raise Violation("agreement", f"all members closed, but {partition} is committed up to {committed} of {end}")

    async def _until_transactions_end(self, rules: ExactlyOnceRules) -> None:
        """Wait until the coordinators have aborted what killed processes left open, and check all transactions."""
        began, bound_s = (
            self.loop.time(),
            max(spec.transaction_timeout_ms for spec in self.scenario.members) / 1000 + _ABORTED_S,
        )
        while rules.is_any_open and self.loop.time() - began < bound_s:
            await self._until(self.loop.time() + 1)
        rules.check_all()

    def _check_groups_are_empty(self) -> None:
        group = self.cluster.group(self.stage.group_id)
        if group is not None and not group.static_members and group.state is not GroupState.EMPTY:
            raise Violation("agreement", f"all members closed, but the group is {group.state.value}")
        consumer_group = self.cluster.consumer_group(self.stage.group_id)
        if consumer_group is not None and not consumer_group.static_members and consumer_group.members:
            raise Violation("agreement", f"all members closed, but the group still has {sorted(consumer_group.members)}")

    def _check_metrics(self) -> None:
        """Check that no member pushed anything that a broker must refuse, such as a push after the last one."""
        refused = self.cluster.kafka.client_metrics.refusals - _MAY_BE_REFUSED
        if refused:
            raise Violation(
                "metrics", f"the brokers refused pushed metrics with {sorted(map(error_codes.error_name, refused))}"
            )

    def _check_nothing_is_left(self) -> None:
        if self.stage.network.connections:
            raise Violation("leaks", f"{self.stage.network.connections} connections are still open")
        leaks = self.loop.leaks()
        left = [task for task in leaks.tasks if not task.startswith("producer")]
        if left:
            raise Violation("leaks", "tasks remain:\n" + "\n".join(left))
        if leaks.timers:
            raise Violation("leaks", "timers remain:\n" + "\n".join(leaks.timers))


def play(scenario: Scenario) -> Outcome:
    """Play one scenario to the end, or until a rule is violated."""
    world: World | None = None
    violation: Violation | None = None

    async def main() -> None:
        nonlocal world
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        world = World(loop, scenario)
        await _Course(world).play()

    try:
        run(main(), seed=scenario.seed, max_time_s=_MOST_S)
    except Violation as breach:
        violation = breach
    except SimulationError as error:
        violation = Violation("liveness", str(error))
    assert world is not None
    for process in world.loop.processes:
        forget_clusters(process)
    history, checkers = world.history, world.checkers
    if violation is not None:
        history.note("checkers", f"VIOLATION {violation}")
    counted = ("rebalances", "processed", "processed_again", "commits", "overtaken")
    figures = Figures(
        seed=scenario.seed,
        failed=violation is not None,
        members=len(scenario.members),
        faults=len(scenario.faults),
        virtual_s=world.loop.time(),
        frames=world.stage.network.frames,
        steps=world.loop.steps,
        handled=0 if world.stage.handlers is None else world.stage.handlers.handled,
        handled_again=0 if world.stage.handlers is None else world.stage.handlers.again,
        transacted=0 if world.stage.exactly_once is None else world.stage.exactly_once.processed,
        aborted=0 if world.stage.exactly_once is None else world.stage.exactly_once.aborted,
        **{name: getattr(checkers, name) for name in counted},
    )
    return Outcome(scenario, violation, history, figures, world.stage.reach.features)
