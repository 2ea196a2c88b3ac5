"""Play one simulation run: members start, faults begin and end, and the group becomes stable.

The scenario determines everything, and its seed determines every delay and id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from random import Random

import attrs

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.consumer_group.group import ConsumerGroup, ConsumerGroupState
from consumer_coord.simulation.application import MemberProcess
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.faults import Nemesis
from consumer_coord.simulation.history import History
from consumer_coord.simulation.holdings import Holding
from consumer_coord.simulation.loop import SimulationError, VirtualTimeLoop, run
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.simulation.world import JOINED_S, World
from consumer_coord.topic_partition import TopicPartition, flatten, listed
from consumer_coord.wire.embedded_protocol import decode_assignment

#: Time without a change after which the group counts as stable, in virtual seconds.
_QUIET_S = 8.0

#: Limit of a simulation run, in virtual seconds.
_MOST_S = 600.0


@attrs.frozen
class Outcome:
    """The result of a simulation run. ``violation`` is None if every rule held."""

    scenario: Scenario
    violation: Violation | None
    history: History
    virtual_s: float
    rebalances: int
    processed: int
    processed_again: int
    commits: int
    overtaken: int
    frames: int
    steps: int

    @property
    def seed(self) -> int:
        """The seed of the scenario."""
        return self.scenario.seed


class _Course:
    """The course of one simulation run, from start to end."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def play(self) -> None:
        """Run the simulation from start to end; raise :class:`Violation` when a rule is violated."""
        self.world.cluster.start()
        starts = Random(f"{self.world.scenario.seed}-starts")
        for spec in self.world.scenario.members:
            self.world.loop.call_at(starts.uniform(0, 2.5), self.world.start_member, spec)
        nemesis = Nemesis(self.world, self.world.scenario.faults)
        nemesis.begin()
        producer = self.world.loop.create_task(self._produce(), name="producer")
        try:
            await self._until(self.world.scenario.faults_end_ms / 1000)
            nemesis.heal()
            self._end_former_lives()
            self.world.cluster.settle()
            self.world.producing = False
            if not self.world.alive_count:
                self.world.start_another()
            await self._until_quiet()
            if not any(fault.kind == "swallow" for fault in self.world.scenario.faults):
                # A stable group has overcome every fault, except connections that are silently dead.
                self.world.troubled_until = self.world.loop.time()
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
        await asyncio.wait([self.world.failure], timeout=max(0.0, moment - self.world.loop.time()))
        if self.world.failure.done():
            self.world.failure.result()
        self._look_at_errors()

    async def _produce(self) -> None:
        random = Random(f"{self.world.scenario.seed}-records")
        while self.world.producing:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            for partition in self.world.cluster.partitions():
                if self.world.producing and random.random() < 0.3:
                    self.world.cluster.produce(partition, random.randint(1, 8))

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

    async def _until_quiet(self) -> None:
        """Wait until the group is stable and remains stable.

        One further rebalance is allowed: as in Kafka, if a static member is replaced between JoinGroup and SyncGroup, the group
        waits for the former member id until the end of the sync phase.
        """
        began = self.world.loop.time()
        quiet_since: float | None = None
        helped = False
        while quiet_since is None or self.world.loop.time() - quiet_since < _QUIET_S:
            disquiet = self._disquiet()
            if disquiet is not None:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = self.world.loop.time()
                self.world.history.note("world", "is quiet")
            if disquiet is not None and self.world.loop.time() - began > self.bound_s:
                raise Violation("liveness", f"not stable {self.bound_s:.0f} s after the last fault: {disquiet}")
            if not helped and self.world.loop.time() - began > _QUIET_S:
                helped = self._help_the_refused() or (disquiet is not None and self._help_the_unplanned())
            await self._until(self.world.loop.time() + 0.5)

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
        if self.world.checkers.unplanned:
            self.world.start_another()
        return self.world.checkers.unplanned

    def _disquiet(self) -> str | None:
        """Return the reason why the group does not count as stable, or None."""
        consumer_group = self.world.cluster.consumer_group(self.world.group_id)
        if consumer_group is not None:
            return self._disquiet_of(consumer_group)
        group = self.world.cluster.group(self.world.group_id)
        if group is None:
            return "the group has no coordinator"
        live = [member for member in self.world.members.values() if member.alive]
        live += [member for member in self.world.lives if member.alive and member not in live]
        if not live and group.state in (GroupState.EMPTY, GroupState.DEAD):
            # All members were stopped, killed or fenced.
            return None
        if group.state is not GroupState.STABLE:
            return f"the group is {group.state.value}"
        ids = {member.member_id for member in live}
        strangers = [name for name in group.members if name not in ids]
        if strangers or len(ids) != len(group.members) or len(ids) != len(live):
            return f"members {sorted(ids)} are running, but the group has {sorted(group.members)}"
        for member in live:
            coordinator = member.coordinator
            assert coordinator is not None
            if coordinator.generation != group.generation_id:
                return f"{member.name} is in generation {coordinator.generation}, the group in {group.generation_id}"
            leads = group.leader_id == coordinator.member_id
            unnotified = leads and group.generation_id == self.world.checkers.unled_generation
            if coordinator.protocol.is_leader != leads and not unnotified:
                leading = "not the leader" if leads else "the leader"
                return f"{member.name} believes that it is {leading}, but the leader is {group.leader_id}"
            assigned = flatten(decode_assignment(group.members[member.member_id].assignment).partitions)
            held = coordinator.assignment.held
            if coordinator.assignment.target.partitions != assigned or held != assigned:
                return f"{member.name} owns {listed(held, 1000)}, but the group assigned {listed(assigned, 1000)}"
        return self._disquiet_partitions(live)

    def _disquiet_of(self, group: ConsumerGroup) -> str | None:
        """Return the reason why a group of the consumer protocol does not count as stable, or None."""
        live = [member for member in self.world.members.values() if member.alive]
        live += [member for member in self.world.lives if member.alive and member not in live]
        if not live and group.state is ConsumerGroupState.EMPTY:
            # All members were stopped, killed or fenced.
            return None
        if group.state is not ConsumerGroupState.STABLE:
            return f"the group is {group.state.value}"
        ids = {member.member_id for member in live}
        if ids != set(group.members) or len(ids) != len(live):
            return f"members {sorted(ids)} are running, but the group has {sorted(group.members)}"
        topics = self.world.cluster.kafka.topics.by_id
        for member in live:
            coordinator = member.coordinator
            assert coordinator is not None
            known = group.members[member.member_id]
            if coordinator.generation != known.member_epoch:
                return f"{member.name} is in epoch {coordinator.generation}, but in epoch {known.member_epoch} for the group"
            assigned = frozenset(
                TopicPartition(topics[topic_id].name, number)
                for topic_id, numbers in known.assigned.items()
                if topic_id in topics
                for number in numbers
            )
            held = coordinator.assignment.held
            if held != assigned:
                return f"{member.name} owns {listed(held, 1000)}, but the group assigned {listed(assigned, 1000)}"
        return self._disquiet_partitions(live)

    def _disquiet_partitions(self, live: Sequence[MemberProcess]) -> str | None:
        checkers = self.world.checkers
        wanted = {topic for member in live for topic in self.world.topics_of(member)}
        for partition in self.world.cluster.partitions():
            holders = [holding for holding in checkers.holders(partition) if holding.owner.alive]
            if partition.topic not in wanted:
                continue
            if len(holders) != 1:
                return f"{partition} has {len(holders)} owners"
            end = self.world.cluster.end_offset(partition)
            assert end is not None
            next_offset = checkers.next_offset(holders[0])
            if self._emptied(partition, next_offset) or self._begins_at_the_end(holders[0]):
                # All remaining records were deleted, or no record exists yet, so the owner has nothing to read or to commit.
                continue
            if checkers.sought_anew(holders[0]) and next_offset == end:
                # The application chose a position at the end of the new topic, so it need not read the records before this
                # position.
                continue
            if checkers.covered(partition) != end or (end and next_offset != end):
                return f"{partition} was processed up to {checkers.covered(partition)} of {end} (next offset {next_offset})"
            member = holders[0].owner
            assert isinstance(member, MemberProcess)
            late = member.spec.commit == "revoke" or checkers.went_back(partition)
            committed = checkers.first_record(partition, checkers.committed_now(partition))
            if not late and end and committed != end and not self._emptied(partition, committed):
                return f"{partition} is committed up to {committed} of {end}"
        return None

    def _emptied(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether retention deleted all records from ``offset`` on, so that nothing remains to be read or committed."""
        return offset < self.world.cluster.log_start(partition) == self.world.cluster.end_offset(partition)

    def _begins_at_the_end(self, holding: Holding) -> bool:
        """Return whether a member that starts at the end of a log has nothing to read and nothing to commit."""
        owner = holding.owner
        assert isinstance(owner, MemberProcess)
        log_start, end = self.world.cluster.log_start(holding.partition), self.world.cluster.end_offset(holding.partition)
        checkers = self.world.checkers
        next_offset = checkers.next_offset(holding)
        assert end is not None
        if owner.reset not in ("earliest", "none") and (0 <= next_offset < log_start or next_offset > end):
            # Retention removed the position or the commit to start from, or the offset belongs to a deleted topic of the same
            # name. The member continues at the end or with the first remaining record, and no record remains yet.
            return True
        return holding.start is None and owner.reset != "earliest" and owner.spec.commit != "auto"

    def _look_at_errors(self) -> None:
        if self.world.checkers.pending is not None:
            raise self.world.checkers.pending
        if self.world.loop.errors:
            error = self.world.loop.errors[0]
            breach = Violation("crash", f"{error.get('message')}: {error.get('exception')!r}")
            breach.__cause__ = error.get("exception")
            raise breach

    async def _close_in_rebalance(self, members: Sequence[MemberProcess], random: Random) -> None:
        """Close some members at a step of a rebalance, while they have processed and uncommitted records."""
        for partition in self.world.cluster.partitions():
            self.world.cluster.produce(partition, random.randint(1, 8))
        await self._until(self.world.loop.time() + random.uniform(0.3, 2.0))
        for _ in range(random.randint(1, 3)):
            member = random.choice(members)
            if member.alive and not member.closing and self.world.members.get(member.spec.name) is member:
                self.world.close_in_rebalance(member.spec.name, random.randrange(1_000))
        await self._until(self.world.loop.time() + 3.0)

    async def _close_before_sync(self, random: Random) -> None:
        """Close a member and its leader before the leader sends SyncGroup, while records arrive."""
        closing = self.world.close_before_sync(random)
        ends = self.world.loop.time() + JOINED_S
        while not all(member.closing for member in closing) and self.world.loop.time() < ends:
            # Without new records, the leader has nothing to commit, and leaves at once.
            for holding in closing[0].holdings:
                self.world.cluster.produce(holding.partition, 1)
            await self._until(self.world.loop.time() + 0.5)
        await self._until(self.world.loop.time() + 2.0)

    async def _end(self) -> None:
        """Close all members; check that no connection, task or timer is left."""
        committing = [member for member in self.world.lives if member.alive]
        wanted = {topic for member in committing for topic in self.world.topics_of(member)}
        nothing_read = {
            partition
            for partition in self.world.cluster.partitions()
            if any(
                self._begins_at_the_end(holding) for holding in self.world.checkers.holders(partition) if holding.owner.alive
            )
        }
        farewells = Random(f"{self.world.scenario.seed}-farewells")
        # If the leader has an instance id, it closes without leaving the group, so the other members would wait for the end of
        # its session.
        static = any(member.spec.instance_id for member in committing)
        if committing and farewells.random() < 0.5 and not static:
            await self._close_in_rebalance(committing, farewells)
        departures = Random(f"{self.world.scenario.seed}-departures")
        for _ in range(departures.choice((0, 1, 2)) if not static else 0):
            await self._close_before_sync(departures)
        await self._stop_members(committing)
        self._check_commits(wanted, nothing_read)
        self._check_groups_are_empty()
        self.world.cluster.close()
        await self._until(self.world.loop.time() + 60)
        self._check_nothing_is_left()

    async def _stop_members(self, members: Sequence[MemberProcess]) -> None:
        for member in members:
            member.stop()
        began = self.world.loop.time()
        while any(not member.finished for member in members):
            if self.world.loop.time() - began > 30:
                slow = [member.name for member in members if not member.finished]
                raise Violation("liveness", f"{', '.join(slow)} did not close within 30 s\n{self.world.loop.leaks()}")
            await self._until(self.world.loop.time() + 0.5)

    def _check_commits(self, wanted: Set[str], nothing_read: Set[TopicPartition]) -> None:
        """Check that the members that closed have committed all records that they read in the topics ``wanted``."""
        for partition in self.world.cluster.partitions():
            end = self.world.cluster.end_offset(partition)
            committed = self.world.checkers.first_record(partition, self.world.checkers.committed_now(partition))
            read = self.world.checkers.covered(partition) == end
            emptied = self._emptied(partition, committed)
            late = read and committed != end and not emptied and not self.world.checkers.went_back(partition)
            late = late and partition not in nothing_read
            # If a partition was lost while the members closed, its next owner would read the remaining records again.
            if partition.topic in wanted and end and late and not self.world.checkers.lost_with_the_protocol(partition):
                raise Violation("agreement", f"all members closed, but {partition} is committed up to {committed} of {end}")

    def _check_groups_are_empty(self) -> None:
        group = self.world.cluster.group(self.world.group_id)
        if group is not None and not group.static_members and group.state is not GroupState.EMPTY:
            raise Violation("agreement", f"all members closed, but the group is {group.state.value}")
        consumer_group = self.world.cluster.consumer_group(self.world.group_id)
        if consumer_group is not None and not consumer_group.static_members and consumer_group.members:
            raise Violation("agreement", f"all members closed, but the group still has {sorted(consumer_group.members)}")

    def _check_nothing_is_left(self) -> None:
        if self.world.network.connections:
            raise Violation("leaks", f"{self.world.network.connections} connections are still open")
        leaks = self.world.loop.leaks()
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
    history, checkers = world.history, world.checkers
    if violation is not None:
        history.note("checkers", f"VIOLATION {violation}")
    return Outcome(
        scenario,
        violation,
        history,
        world.loop.time(),
        checkers.rebalances,
        checkers.processed,
        checkers.processed_again,
        checkers.commits,
        checkers.overtaken,
        world.network.frames,
        world.loop.steps,
    )
