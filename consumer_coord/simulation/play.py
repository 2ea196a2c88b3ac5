"""Play one simulation run: members start, faults begin and end, and the group becomes stable.

The scenario determines everything, and its seed determines every delay and id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from random import Random

import attrs

from consumer_coord.broker.classic_group import GroupMetadata, GroupState
from consumer_coord.broker.classic_join import RequestContext
from consumer_coord.broker.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.net.shared_clusters import forget_clusters
from consumer_coord.simulation.application import MemberProcess
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.exactly_once import ExactlyOnceRules
from consumer_coord.simulation.faults import Nemesis
from consumer_coord.simulation.history import History
from consumer_coord.simulation.holdings import Holding
from consumer_coord.simulation.loop import SimulationError, VirtualTimeLoop, run
from consumer_coord.simulation.member_spec import COMMIT_TIMEOUT_S, fresh_within_s
from consumer_coord.simulation.scenario import Fetching, Scenario
from consumer_coord.simulation.world import JOINED_S, World
from consumer_coord.simulation.wrong_answers import OFFSET_COMMIT, WRONG_ANSWERS
from consumer_coord.topic_partition import TopicPartition, flatten, listed
from consumer_coord.wire import error_codes
from consumer_coord.wire.embedded_protocol import decode_assignment
from consumer_coord.wire.messages.group import LeaveGroupRequest, MemberIdentity

#: Time without a change after which the group counts as stable, in virtual seconds.
_QUIET_S = 8.0

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


class _Course(World):
    """The course of one simulation run, from start to end."""

    async def play(self) -> None:
        """Run the simulation from start to end; raise :class:`Violation` when a rule is violated."""
        self.cluster.start()
        starts = Random(f"{self.scenario.seed}-starts")
        for spec in self.scenario.members:
            self.loop.call_at(starts.uniform(0, 2.5), self.start_member, spec)
        nemesis = Nemesis(self, self.scenario.faults)
        nemesis.begin()
        producer = self.loop.create_task(self._produce(), name="producer")
        try:
            await self._until(self.scenario.faults_end_ms / 1000)
            nemesis.heal()
            self._end_former_lives()
            self.cluster.settle()
            self.producing = False
            if not self.alive_count:
                self.start_another()
            await self._until_quiet()
            if not any(fault.kind == "swallow" for fault in self.scenario.faults):
                # A stable group has overcome every fault, except connections that are silently dead.
                self.troubled_until = self.loop.time()
            self.health.all_read(self.lives)
            await self._read_beside_wrong_answers()
            await self._end()
        finally:
            producer.cancel()

    def _end_former_lives(self) -> None:
        """Stop the first of two processes with one instance id.

        In the consumer protocol, the first process keeps the instance id while it runs.
        """
        for life in self.lives:
            if life.alive and life.spec.protocol == "consumer" and self.members.get(life.spec.name) is not life:
                life.stop()

    async def _until(self, moment: float) -> None:
        """Let time pass until ``moment``, or until a rule is violated."""
        await asyncio.wait([self.failure], timeout=max(0.0, moment - self.loop.time()))
        if self.failure.done():
            self.failure.result()
        self._look_at_errors()

    async def _produce(self) -> None:
        random = Random(f"{self.scenario.seed}-records")
        while self.producing:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            for partition in self.cluster.partitions():
                if self.producing and random.random() < 0.3:
                    self.cluster.produce(partition, random.randint(1, 8))

    @property
    def bound_s(self) -> float:
        """The time limit for the group to become stable after the last fault, in seconds.

        The limit is long enough for two of each of the following: a session timeout, a rebalance with late members, an
        abandoned request, and an application that polls late.
        """
        specs = [member.spec for member in self.lives]
        return (
            2 * max(spec.session_timeout_ms for spec in specs)
            + 2 * max(spec.rebalance_timeout_ms for spec in specs)
            + 2 * 8_000
            + 30_000
        ) / 1000

    async def _until_quiet(self) -> None:
        """Wait until the group is stable and remains stable.

        One further rebalance is allowed: as in Kafka, if a static member is replaced between JoinGroup and SyncGroup, the group
        waits for the former member id until the end of the sync phase.
        """
        began = self.loop.time()
        quiet_since: float | None = None
        helped, bound_s = False, self.bound_s
        while quiet_since is None or self.loop.time() - quiet_since < _QUIET_S:
            disquiet = self._disquiet()
            if disquiet is not None:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = self.loop.time()
                self.history.note("world", "is quiet")
            self._look_for_late_records(began)
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
        self.start_another()
        partitions, bound_s = self.cluster.partitions(), self.bound_s
        for partition in partitions:
            self.cluster.produce(partition, _RECORDS)
        if OFFSET_COMMIT in wrong.api_keys:
            # An application that commits after each record waits for each commit that has one of the other partitions.
            bound_s += len(partitions) * _RECORDS * COMMIT_TIMEOUT_S
        began = self.loop.time()
        while unread := self._unread(spared=wrong.spares):
            if self.loop.time() - began > bound_s:
                raise Violation("liveness", f"{bound_s:.0f} s of wrong answers about other partitions: {unread}")
            await self._until(self.loop.time() + 0.5)
        heal()
        await self._until_quiet()

    def _has_left_joiner(self) -> bool:
        """Return whether a classic group still has a static member that stopped while it joined for the first time.

        As in Kafka, its session is five minutes long. The end of the join phase would shorten the session, but a failed
        conversion to the consumer protocol ends every wait for a join without ending this phase.
        """
        group = self.cluster.group(self.group_id)
        live = {member.member_id for member in self.lives if member.alive}
        rows = () if group is None else group.members.values()
        return any(one.is_new and one.group_instance_id is not None and one.member_id not in live for one in rows)

    async def _remove_the_endless(self) -> None:
        """Remove ended static members whose sessions never end, as an operator does, by their instance ids.

        As in Kafka, the session of a member that is not new ends without effect while its JoinGroup waits
        (``ClassicGroupMember.hasSatisfiedHeartbeat``), and begins again with the response at the end of the join phase. But a
        failed conversion to the consumer protocol ends the wait, and nothing begins the session. Without a member that joins,
        the join phase is prolonged for ever (``completeClassicGroupJoin``).
        """
        node, group = self.cluster.coordinator_of(self.group_id), self.cluster.group(self.group_id)
        if node is None or group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        live = {member.member_id for member in self.lives if member.alive}
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
            request = LeaveGroupRequest(group_id=self.group_id, members=endless)
            await node.coordinator.leave_group(RequestContext(_LEAVE_GROUP_VERSION), request)

    def _help_the_refused(self) -> bool:
        """Make all members rejoin if the coordinator rejects the assignors of some member; return True in that case.

        As in Kafka, a coordinator that loaded the group knows only the assignor that the group had chosen. The coordinator
        rejects a member without this assignor until the other members have rejoined.
        """
        live = [member for member in self.members.values() if member.alive]
        refused = [member for member in live if member.failures and "INCONSISTENT_GROUP_PROTOCOL" in member.failures[-1]]
        for member in live if refused else ():
            member.enforce_rebalance()
        return bool(refused)

    def _help_the_unplanned(self) -> bool:
        """Start another member if the group needs a new assignment (``Checkers.unplanned``); return True in this case."""
        if self.checkers.unplanned:
            self.start_another()
        return self.checkers.unplanned

    def _disquiet(self) -> str | None:
        """Return the reason why the group does not count as stable, or None."""
        group = self.cluster.consumer_group(self.group_id) or self.cluster.group(self.group_id)
        if group is None:
            return "the group has no coordinator"
        live = [member for member in self.lives if member.alive]
        if not live and group.state.value in ("Empty", "Dead"):
            # All members were stopped, killed or fenced.
            return None
        if group.state.value != "Stable":
            return f"the group is {group.state.value}"
        ids = {member.member_id for member in live}
        if ids != set(group.members) or len(ids) != len(live):
            return f"members {sorted(ids)} are running, but the group has {sorted(group.members)}"
        for member in live:
            coordinator = member.coordinator
            assert coordinator is not None
            generation, assigned = self._known(group, member.member_id)
            held = coordinator.assignment.held
            target = coordinator.assignment.target.partitions if isinstance(group, GroupMetadata) else assigned
            if coordinator.generation != generation:
                return f"{member.name} is in generation {coordinator.generation}, but in {generation} for the group"
            if not held == target == assigned:
                return f"{member.name} owns {listed(held, 1000)}, but the group assigned {listed(assigned, 1000)}"
            if isinstance(group, GroupMetadata) and not self._agrees_on_leader(member, group):
                return f"{member.name} and the group disagree on whether it is the leader, {group.leader_id}"
        return self._unread(committed=True)

    def _agrees_on_leader(self, member: MemberProcess, group: GroupMetadata) -> bool:
        leads = group.leader_id == member.member_id
        return member.leads == leads or (leads and group.generation_id == self.checkers.unled_generation)

    def _known(self, group: GroupMetadata | ConsumerGroup, member_id: str) -> tuple[int, frozenset[TopicPartition]]:
        """Return the generation (or member epoch) and the partitions of a member, as the coordinator stores them."""
        if isinstance(group, GroupMetadata):
            return group.generation_id, flatten(decode_assignment(group.members[member_id].assignment).partitions)
        member, topics = group.members[member_id], self.cluster.kafka.topics.by_id
        assigned = {topics[topic_id].name: numbers for topic_id, numbers in member.assigned.items() if topic_id in topics}
        return member.member_epoch, flatten(assigned)

    def _unread(self, *, spared: Callable[[int], bool] = lambda _: True, committed: bool = False) -> str | None:
        """Return why a subscribed partition has no owner that has read it to its end, or None.

        ``spared`` selects partitions by their numbers. ``committed``: the owner must also have committed the end.
        """
        live = [member for member in self.lives if member.alive]
        wanted = {topic for member in live for topic in self.topics_of(member)}
        for partition in self.cluster.partitions():
            if partition.topic not in wanted or not spared(partition.partition):
                continue
            holders = [holding for holding in self.checkers.holders(partition) if holding.owner.alive]
            if len(holders) != 1:
                return f"{partition} has {len(holders)} owners"
            rules = self.handlers or self.exactly_once
            if rules is not None:
                undone = rules.left(partition, committed=committed)
                if undone is not None:
                    return undone
                continue
            owner = holders[0].owner
            assert isinstance(owner, MemberProcess)
            if self._may_stay_unread(holders[0]) or (not committed and owner.in_bounded_read):
                # A bounded read waits for the end of every partition before the application reads on in any.
                continue
            left = self._left_to_read(holders[0]) or (self._left_to_commit(holders[0]) if committed else None)
            if left is not None:
                return left
        return None

    def _may_stay_unread(self, holding: Holding) -> bool:
        checkers, partition = self.checkers, holding.partition
        end, next_offset = self._end_of(partition), checkers.next_offset(holding)
        return (
            # All remaining records were deleted, or no record exists yet, so the owner has nothing to read or to commit.
            self._emptied(partition, next_offset)
            or self._begins_at_the_end(holding)
            # The application chose a position at the end of the new topic, so it need not read the records before it.
            or (checkers.sought_anew(holding) and next_offset == end)
            or checkers.waits_at_lost_commit(holding, end)
        )

    def _left_to_read(self, holding: Holding) -> str | None:
        partition = holding.partition
        end, covered, next_offset = (
            self._end_of(partition),
            self.checkers.covered(partition),
            self.checkers.next_offset(holding),
        )
        # An application may seek to an offset that a truncation removed, which is after the end of the log.
        if covered < end or (end and next_offset != end):
            return f"{partition} was processed up to {covered} of {end} (next offset {next_offset})"
        return None

    def _look_for_late_records(self, healed: float) -> None:
        """Check that each owner delivers its next record in time, counted from the end of the faults, or from its begin.

        An application that takes its records slowly delivers something all the time. No record arrives meanwhile. Members that
        call ``process`` or have transactions deliver when their handlers allow it.
        """
        if self.handlers is not None or self.exactly_once is not None:
            return
        for partition in self.cluster.partitions():
            holders = [holding for holding in self.checkers.holders(partition) if holding.owner.alive]
            if len(holders) == 1:
                self._must_be_fresh(holders[0], healed)

    def _must_be_fresh(self, holding: Holding, healed: float) -> None:
        member, end = holding.owner, self._end_of(holding.partition)
        assert isinstance(member, MemberProcess)
        since = max(healed, holding.began, *(one.delivered_at for one in member.holdings))
        late_s, bound_s = self.loop.time() - since, fresh_within_s(member.spec, (self.scenario.fetching or Fetching()).settings)
        if late_s <= bound_s or member.in_bounded_read or self._may_stay_unread(holding):
            return
        if self.checkers.next_offset(holding) < end:
            raise Violation(
                "freshness",
                f"{member.name} has delivered {holding.partition} only up to {self.checkers.next_offset(holding)} of {end}, and"
                f" nothing for {late_s:.0f} s after the last fault and the begin of its ownership; {bound_s:.0f} s suffice",
            )

    def _left_to_commit(self, holding: Holding) -> str | None:
        member, partition = holding.owner, holding.partition
        assert isinstance(member, MemberProcess)
        late = member.spec.commit == "revoke" or self.checkers.went_back(partition)
        end, committed = self._end_of(partition), self.checkers.first_record(partition, self.checkers.committed_now(partition))
        if not late and end and committed != end and not self._emptied(partition, committed):
            return f"{partition} is committed up to {committed} of {end}"
        return None

    def _end_of(self, partition: TopicPartition) -> int:
        end = self.cluster.end_offset(partition)
        assert end is not None
        return end

    def _emptied(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether retention deleted all records from ``offset`` on, so that nothing remains to be read or committed."""
        return offset < self.cluster.log_start(partition) == self.cluster.end_offset(partition)

    def _begins_at_the_end(self, holding: Holding) -> bool:
        """Return whether a member that starts at the end of a log has nothing to read and nothing to commit."""
        owner = holding.owner
        assert isinstance(owner, MemberProcess)
        log_start, end = self.cluster.log_start(holding.partition), self._end_of(holding.partition)
        position = self.checkers.position(holding)
        if owner.reset not in ("earliest", "none") and (0 <= position < log_start or position > end):
            # Retention removed the position or the commit to start from, or the offset belongs to a deleted topic of the same
            # name. The member continues at the end or with the first remaining record, and no record remains yet.
            return True
        return holding.start is None and owner.reset != "earliest" and owner.spec.commit != "auto"

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
            if member.alive and not member.closing and self.members.get(member.spec.name) is member:
                self.close_in_rebalance(member.spec.name, random.randrange(1_000))
        await self._until(self.loop.time() + 3.0)

    async def _close_before_sync(self, random: Random) -> None:
        """Close a member and its leader before the leader sends SyncGroup, while records arrive."""
        closing = self.close_before_sync(random)
        ends = self.loop.time() + JOINED_S
        while not all(member.closing for member in closing) and self.loop.time() < ends:
            # Without new records, the leader has nothing to commit, and leaves at once.
            for holding in closing[0].holdings:
                self.cluster.produce(holding.partition, 1)
            await self._until(self.loop.time() + 0.5)
        await self._until(self.loop.time() + 2.0)

    async def _end(self) -> None:
        """Close all members; check that no connection, task or timer is left."""
        committing = [member for member in self.lives if member.alive]
        wanted = {topic for member in committing for topic in self.topics_of(member)}
        nothing_read = {
            partition
            for partition in self.cluster.partitions()
            if any(self._begins_at_the_end(holding) for holding in self.checkers.holders(partition) if holding.owner.alive)
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
        if self.exactly_once is not None:
            await self._until_transactions_end(self.exactly_once)
        self._check_metrics()
        self.cluster.close()
        await self._until(self.loop.time() + 60)
        self._check_nothing_is_left()

    async def _stop_members(self, members: Sequence[MemberProcess]) -> None:
        for member in members:
            member.stop()
        began = self.loop.time()
        while any(not member.finished for member in members):
            if self.loop.time() - began > 30:
                slow = [member.name for member in members if not member.finished]
                raise Violation("liveness", f"{', '.join(slow)} did not close within 30 s\n{self.loop.leaks()}")
            await self._until(self.loop.time() + 0.5)

    def _check_commits(self, wanted: Set[str], nothing_read: Set[TopicPartition]) -> None:
        """Check that the members that closed have committed all records that they read in the topics ``wanted``."""
        for partition in self.cluster.partitions():
            if self.exactly_once is not None:
                # What is not committed is not processed.
                continue
            if self.handlers is not None:
                left = self.handlers.uncommitted(partition)
                lost = self.checkers.lost_with_the_protocol(partition, processing=True)
                if left is not None and partition.topic in wanted and not lost:
                    raise Violation("agreement", f"all members closed, but {left}")
                continue
            end = self.cluster.end_offset(partition)
            committed = self.checkers.first_record(partition, self.checkers.committed_now(partition))
            read = self.checkers.covered(partition) == end
            emptied = self._emptied(partition, committed)
            late = read and committed != end and not emptied and not self.checkers.went_back(partition)
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
        group = self.cluster.group(self.group_id)
        if group is not None and not group.static_members and group.state is not GroupState.EMPTY:
            raise Violation("agreement", f"all members closed, but the group is {group.state.value}")
        consumer_group = self.cluster.consumer_group(self.group_id)
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
        if self.network.connections:
            raise Violation("leaks", f"{self.network.connections} connections are still open")
        leaks = self.loop.leaks()
        left = [task for task in leaks.tasks if not task.startswith("producer")]
        if left:
            raise Violation("leaks", "tasks remain:\n" + "\n".join(left))
        if leaks.timers:
            raise Violation("leaks", "timers remain:\n" + "\n".join(leaks.timers))


def play(scenario: Scenario) -> Outcome:
    """Play one scenario to the end, or until a rule is violated."""
    world: _Course | None = None
    violation: Violation | None = None

    async def main() -> None:
        nonlocal world
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        world = _Course(loop, scenario)
        await world.play()

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
        frames=world.network.frames,
        steps=world.loop.steps,
        handled=0 if world.handlers is None else world.handlers.handled,
        handled_again=0 if world.handlers is None else world.handlers.again,
        transacted=0 if world.exactly_once is None else world.exactly_once.processed,
        aborted=0 if world.exactly_once is None else world.exactly_once.aborted,
        **{name: getattr(checkers, name) for name in counted},
    )
    return Outcome(scenario, violation, history, figures, world.reach.features)
