"""One history: a cluster, members, records, faults, and after the last fault the wait until all is quiet.

Everything about it comes from one seed: what the group is like (:class:`Scenario`), what goes wrong
(:mod:`consumer_coord.simulation.faults`), and every delay and id.  Each purpose has a generator of its own, so a
fault that is left out does not change what the others draw.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from random import Random

import attrs

import assignors
from assignors.base import Assignor
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.group import GroupState
from consumer_coord.simulation.application import MemberProcess
from consumer_coord.simulation.checkers import Checkers, Stint, Violation
from consumer_coord.simulation.cluster import SimulatedCluster
from consumer_coord.simulation.faults import Fault, Nemesis, draw, draw_swallows, draw_trims
from consumer_coord.simulation.history import History
from consumer_coord.simulation.loop import SimulationError, VirtualTimeLoop, run
from consumer_coord.simulation.member_spec import MemberSpec
from consumer_coord.simulation.network import NetworkConfig, SimulatedNetwork
from consumer_coord.topic_partition import flatten, listed
from consumer_coord.wire.codec import decode_request_header, decode_response
from consumer_coord.wire.membership import decode_assignment, decode_subscription
from consumer_coord.wire.messages.group import JoinGroupResponse

_JOIN_GROUP = 11

#: The lists of assignors that members of one group may have; in a pair, new lives have the second (a rolling upgrade).
ASSIGNOR_LISTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("cooperative-sticky",), ("cooperative-sticky",)),
    (("cooperative-sticky",), ("cooperative-sticky",)),
    (("cooperative-sticky",), ("cooperative-sticky",)),
    (("range",), ("range",)),
    (("roundrobin",), ("roundrobin",)),
    (("sticky",), ("sticky",)),
    (("range",), ("range", "cooperative-sticky")),
    (("range", "cooperative-sticky"), ("cooperative-sticky",)),
    (("sticky",), ("cooperative-sticky", "sticky")),
    (("cooperative-sticky", "sticky"), ("cooperative-sticky",)),
)

_ASSIGNORS: Mapping[str, type[Assignor]] = {
    "range": assignors.RangeAssignor,
    "roundrobin": assignors.RoundRobinAssignor,
    "sticky": assignors.StickyAssignor,
    "cooperative-sticky": assignors.CooperativeStickyAssignor,
}


@attrs.frozen(kw_only=True)
class Scenario:
    """What one history is made of; equal scenarios have equal histories."""

    seed: int
    members: tuple[MemberSpec, ...]
    #: What members have that start later, or again.
    later_assignors: tuple[str, ...]
    topics: Mapping[str, int]
    brokers: int
    faults: tuple[Fault, ...]
    faults_end_ms: int
    initial_rebalance_delay_ms: int
    latency_ms: float


def draw_scenario(seed: int, *, members: int | None = None, faults: int | None = None, faults_end_ms: int = 55_000) -> Scenario:
    """The scenario of a seed.  ``members`` and ``faults`` fix what the seed would choose (``faults=0``: none at all)."""
    random = Random(f"{seed}-scenario")
    topics = {f"topic-{index}": random.randint(1, 12) for index in range(random.randint(1, 3))}
    names = tuple(topics)
    count = random.randint(2, 12) if members is None else members
    lists = random.choice(ASSIGNOR_LISTS)
    session_ms = random.choice((6_000, 10_000, 15_000))
    # At least what a member needs: a heartbeat to hear of it, a poll to notice, a callback, and some delay.
    rebalance_ms = random.choice((10_000, 15_000, 30_000))
    static = random.choice((0.0, 0.0, 0.5, 1.0))
    patterns = random.choice((0.0, 0.0, 0.3))
    specs = []
    for number in range(count):
        is_static = random.random() < static
        wanted = names if random.random() < 0.7 else tuple(random.sample(names, random.randint(1, len(names))))
        specs.append(
            MemberSpec(
                name=f"member-{number + 1}",
                topics=tuple(sorted(wanted)),
                # Not for static members: one that comes back with a changed subscription gets its old assignment without
                # a rebalance (Kafka's rule), so a topic that appeared meanwhile might have no owner.
                pattern="topic-.*" if random.random() < patterns and not is_static else None,
                assignors=lists[random.random() < 0.3],
                instance_id=f"instance-{number + 1}" if is_static else None,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=session_ms // 3,
                rebalance_timeout_ms=rebalance_ms,
                max_poll_interval_ms=random.choice((8_000, 20_000, 60_000)),
                poll_every_ms=random.choice((150, 400, 1_000)),
                batch=random.choice((5, 20, 100)),
                commit=random.choice(("sync", "async", "interval", "revoke")),
                commit_every_ms=random.choice((500, 2_000, 5_000)),
                callback_ms=random.choice((0, 0, 0, 50, 500)),
            )
        )
    drawn = draw(
        random,
        count=random.randint(3, 12) if faults is None else faults,
        churn=0 if faults == 0 else random.randint(3, 6),
        begin_ms=3_000,
        end_ms=faults_end_ms,
    )
    if faults != 0:
        specs = _unruly(Random(f"{seed}-applications"), specs)
        trims = draw_trims(Random(f"{seed}-trims"), begin_ms=3_000, end_ms=faults_end_ms)
        drawn = tuple(sorted((*drawn, *trims), key=lambda fault: fault.at_ms))
        swallows = draw_swallows(Random(f"{seed}-swallows"), begin_ms=3_000, end_ms=faults_end_ms)
        drawn = tuple(sorted((*drawn, *swallows), key=lambda fault: fault.at_ms))
    return Scenario(
        seed=seed,
        members=tuple(specs),
        later_assignors=lists[1],
        topics=topics,
        brokers=random.choice((1, 3, 3, 3)),
        faults=drawn,
        faults_end_ms=faults_end_ms,
        initial_rebalance_delay_ms=random.choice((0, 0, 500, 3_000)),
        latency_ms=random.choice((0.5, 2.0, 10.0)),
    )


def _unruly(random: Random, specs: Sequence[MemberSpec]) -> list[MemberSpec]:
    """What applications do beside polling, committing and reading in good order: in a third of the histories nothing."""
    if random.random() < 0.33:
        return list(specs)
    per_mille = random.choice((10, 50, 150, 400))
    reset = random.choice(("earliest", "earliest", "earliest", "latest", "none", "by_duration:PT1S"))
    return [
        attrs.evolve(
            spec,
            unruly=random.choice((0, per_mille, per_mille)),
            reset=reset,
            commit=random.choice((spec.commit, "auto", "auto", "store", "all", "later")),
            poll_timeout_ms=random.choice((0, 0, 20, 500, 3_000, 12_000)),
            waits_for_all=random.random() < 0.3,
            batch=random.choice((spec.batch, 1)),
            call_ms=random.choice((0.0, 1.0, 20.0)),
            eof=random.random() < 0.2,
            close_ms=random.choice((5_000, 500, 1_500)),
        )
        for spec in specs
    ]


def to_json(scenario: Scenario) -> str:
    """A scenario as text, to keep one that failed: a seed means another history when the drawing changes."""
    return json.dumps(attrs.asdict(scenario), indent=1)


def from_json(text: str) -> Scenario:
    """The scenario that :func:`to_json` wrote."""
    data = json.loads(text)
    specs = [
        MemberSpec(**{**spec, "topics": tuple(spec["topics"]), "assignors": tuple(spec["assignors"])})
        for spec in data.pop("members")
    ]
    faults = tuple(Fault(**fault) for fault in data.pop("faults"))
    later = tuple(data.pop("later_assignors"))
    return Scenario(members=tuple(specs), faults=faults, later_assignors=later, **data)


@attrs.frozen
class Outcome:
    """How a history went.  ``violation`` is None if every rule held."""

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
        """The seed."""
        return self.scenario.seed


class World:
    """Everything of one history; made on its loop."""

    group_id = "group"

    def __init__(self, loop: VirtualTimeLoop, scenario: Scenario) -> None:
        self.loop = loop
        self.scenario = scenario
        self.history = History(loop.time)
        self.network = SimulatedNetwork(
            loop, Random(f"{scenario.seed}-network"), NetworkConfig(latency_ms=scenario.latency_ms)
        )
        self.checkers = Checkers(self.group_id, loop.time, self.history, lambda: self.network.serving)
        self.network.on_answer = self._on_answer
        self.network.on_request = self._on_request
        self.cluster = SimulatedCluster(
            loop,
            self.network,
            Random(f"{scenario.seed}-brokers"),
            config=BrokerConfig(
                group_min_session_timeout_ms=1_000,
                group_initial_rebalance_delay_ms=scenario.initial_rebalance_delay_ms,
                offsets_topic_num_partitions=3,
                auto_create_topics_enable=False,
            ),
            brokers=scenario.brokers,
            topics=scenario.topics,
            on_record=self.checkers.on_record,
        )
        #: name -> its present life.
        self.members: dict[str, MemberProcess] = {}
        self.failure: asyncio.Future[None] = loop.create_future()
        self.producing = True
        self._lives: dict[str, int] = {}
        self._all: list[MemberProcess] = []
        self._random = Random(f"{scenario.seed}-world")
        self._topics = list(scenario.topics)

    # -- members ----------------------------------------------------------------------------------------------------

    @property
    def alive_count(self) -> int:
        """Members that run and mean to go on."""
        return sum(member.alive and not member.closing for member in self.members.values())

    def start_member(self, spec: MemberSpec) -> None:
        """Start a member, or the next life of one."""
        life = self._lives[spec.name] = self._lives.get(spec.name, 0) + 1
        random = Random(f"{self.scenario.seed}-{spec.name}-{life}")
        member = MemberProcess(self, spec, [_ASSIGNORS[name]() for name in spec.assignors], life, random)
        self.members[spec.name] = member
        self._all.append(member)
        member.start()

    def start_another(self) -> None:
        """One more member, like one of the first."""
        model = self._random.choice(self.scenario.members)
        name = f"member-{len(self._lives) + 1}"
        self.start_member(
            attrs.evolve(
                model,
                name=name,
                instance_id=model.instance_id and f"instance-of-{name}",
                assignors=self.scenario.later_assignors,
            )
        )

    def start_again(self, name: str) -> None:
        """The next life of a member, perhaps with a newer list of assignors."""
        former = self.members[name].spec
        topics = self._subscription_in_group(former.instance_id) or former.topics
        self.start_member(attrs.evolve(former, assignors=self.scenario.later_assignors, topics=topics))

    def _subscription_in_group(self, instance_id: str | None) -> tuple[str, ...]:
        """What the group knows of a static member: it comes back as it was, see :func:`draw_scenario` on patterns."""
        group = self.cluster.group(self.group_id)
        member_id = None if group is None or instance_id is None else group.static_members.get(instance_id)
        if group is None or member_id is None:
            return ()
        return tuple(decode_subscription(group.members[member_id].protocols[0].metadata).topics)

    # -- topics -----------------------------------------------------------------------------------------------------

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Those that were ever there."""
        return tuple(self._topics)

    def create_topic(self, partitions: int) -> None:
        """A topic that was not there before."""
        name = f"topic-{len(self._topics)}"
        self._topics.append(name)
        self.cluster.kafka.create_topic(name, partitions)
        self.history.note("world", f"created {name} with {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        """A topic goes, with everything known about it."""
        gone = [partition for partition in self.cluster.partitions() if partition.topic == name]
        self.cluster.kafka.delete_topic(name)
        for partition in gone:
            self.checkers.forget(partition)

    # -- findings ---------------------------------------------------------------------------------------------------

    def fail(self, breach: Violation) -> None:
        """A rule was broken: the history ends here."""
        self.history.note("checkers", f"VIOLATION {breach}")
        if not self.failure.done():
            self.failure.set_exception(breach)

    def crashed(self, who: str, error: BaseException) -> None:
        """Somebody raised what nobody expected."""
        breach = Violation("crash", f"{who}: {type(error).__name__}: {error}")
        breach.__cause__ = error
        self.fail(breach)

    def _on_request(self, client: str) -> None:
        try:
            self.checkers.on_request(client)
        except Violation as breach:
            self.fail(breach)

    @property
    def calm(self) -> bool:
        """True after the last fault: applications do as they should."""
        return not self.producing

    def _on_answer(self, client: str, server: str, request: bytes, answer: bytes) -> None:
        if int.from_bytes(request[:2], "big") == _JOIN_GROUP:
            header = decode_request_header(request)
            response = decode_response(JoinGroupResponse, header.version, answer)[1]
            if response.error_code == 0:
                self.history.note(server, f"{client} joined generation {response.generation_id} as {response.member_id}")
                try:
                    self.checkers.on_joined(response.member_id, response.generation_id)
                except Violation as breach:
                    self.fail(breach)

    # -- the course of it -------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """From start to end; raises :class:`Violation`."""
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
            self.producing = False
            if not self.alive_count:
                self.start_another()
            await self._settle()
            await self._end()
        finally:
            producer.cancel()

    async def _until(self, moment: float) -> None:
        """Let time pass, unless a rule is broken before."""
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
        """Within this many seconds after the last fault the group must be quiet: what is in the way may be one session,
        one rebalance of stragglers, a request that is given up, and an application that polls late, each twice."""
        specs = [member.spec for member in self._all]
        return (
            2 * max(spec.session_timeout_ms for spec in specs)
            + 2 * max(spec.rebalance_timeout_ms for spec in specs)
            + 2 * 8_000
            + 30_000
        ) / 1000

    async def _settle(self) -> None:
        """Wait until all is quiet, and stays so.

        A last rebalance after the first quiet is no breach: as in Kafka, a static member that was replaced between its
        join and its sync is waited for under its former id, and missed when the sync phase ends.
        """
        began = self.loop.time()
        quiet_since: float | None = None
        helped = False
        while quiet_since is None or self.loop.time() - quiet_since < _QUIET_S:
            disquiet = self._disquiet()
            if disquiet is not None:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = self.loop.time()
                self.history.note("world", "is quiet")
            if disquiet is not None and self.loop.time() - began > self.bound_s:
                raise Violation("liveness", f"not quiet {self.bound_s:.0f} s after the last fault: {disquiet}")
            if not helped and self.loop.time() - began > _QUIET_S:
                helped = self._help_the_refused()
            await self._until(self.loop.time() + 0.5)

    def _help_the_refused(self) -> bool:
        """Let the members rejoin once if another one is refused for its assignors; True if one was.

        As in Kafka, a coordinator that loaded the group knows of each member only the assignor that the group had agreed
        on, and refuses a member that offers only another one until the others have joined again.
        """
        live = [member for member in self.members.values() if member.alive]
        refused = [member for member in live if member.failures and "INCONSISTENT_GROUP_PROTOCOL" in member.failures[-1]]
        for member in live if refused else ():
            member.enforce_rebalance()
        return bool(refused)

    def _disquiet(self) -> str | None:
        """What is not as it must be when nothing happens any more."""
        group = self.cluster.group(self.group_id)
        if group is None:
            return "the group has no coordinator"
        live = [member for member in self.members.values() if member.alive]
        live += [member for member in self._all if member.alive and member not in live]
        if group.state is not GroupState.STABLE:
            return f"the group is {group.state.value}"
        ids = {member.member_id for member in live}
        strangers = [name for name in group.members if name not in ids]
        if strangers or len(ids) != len(group.members) or len(ids) != len(live):
            return f"members {sorted(ids)} run, the group has {sorted(group.members)}"
        for member in live:
            coordinator = member.coordinator
            assert coordinator is not None
            if coordinator.generation != group.generation_id:
                return f"{member.name} is in generation {coordinator.generation}, the group in {group.generation_id}"
            if coordinator.protocol.is_leader != (group.leader_id == coordinator.member_id):
                return f"{member.name} takes itself for the leader: {coordinator.protocol.is_leader}"
            assigned = flatten(decode_assignment(group.members[member.member_id].assignment).partitions)
            held = coordinator.assignment.held
            if coordinator.assignment.target.partitions != assigned or held != assigned:
                return f"{member.name} holds {listed(held, 1000)}, the group gave it {listed(assigned, 1000)}"
        return self._disquiet_partitions(live)

    def _disquiet_partitions(self, live: Sequence[MemberProcess]) -> str | None:
        checkers = self.checkers
        wanted = {topic for member in live for topic in self._topics_of(member)}
        for partition in self.cluster.partitions():
            holders = [stint for stint in checkers.holders(partition) if stint.owner.alive]
            if partition.topic not in wanted:
                continue
            if len(holders) != 1:
                return f"{partition} has {len(holders)} owners"
            end = self.cluster.end_offset(partition)
            assert end is not None
            if self._begins_at_the_end(holders[0]):
                continue
            stands = checkers.committed_now(partition) if holders[0].start is None else holders[0].position
            if checkers.covered(partition) != end or (end and stands != end):
                return f"{partition} was processed up to {checkers.covered(partition)} of {end} ({stands})"
            member = holders[0].owner
            assert isinstance(member, MemberProcess)
            late = member.spec.commit == "revoke" or checkers.went_back(partition)
            if not late and end and checkers.committed_now(partition) != end:
                return f"{partition} is committed up to {checkers.committed_now(partition)} of {end}"
        return None

    def _begins_at_the_end(self, stint: Stint) -> bool:
        """Whether there is nothing to read and nothing to commit for a member that begins at the end of a log."""
        owner = stint.owner
        assert isinstance(owner, MemberProcess)
        return stint.start is None and owner.reset != "earliest" and owner.spec.commit != "auto"

    def _topics_of(self, member: MemberProcess) -> Sequence[str]:
        if member.spec.pattern is not None:
            return [topic for topic in self._topics if topic in self.cluster.kafka.topics.by_name]
        return member.subscription

    def _look_at_errors(self) -> None:
        if self.checkers.pending is not None:
            raise self.checkers.pending
        if self.loop.errors:
            error = self.loop.errors[0]
            breach = Violation("crash", f"{error.get('message')}: {error.get('exception')!r}")
            breach.__cause__ = error.get("exception")
            raise breach

    async def _end(self) -> None:
        """Everybody closes; nothing may be left."""
        committing = [member for member in self._all if member.alive]
        wanted = {topic for member in committing for topic in self._topics_of(member)}
        for member in committing:
            member.stop()
        began = self.loop.time()
        while any(not member.finished for member in committing):
            if self.loop.time() - began > 30:
                slow = [member.name for member in committing if not member.finished]
                raise Violation("liveness", f"{', '.join(slow)} did not close within 30 s\n{self.loop.leaks()}")
            await self._until(self.loop.time() + 0.5)
        for partition in self.cluster.partitions():
            end = self.cluster.end_offset(partition)
            committed = self.checkers.committed_now(partition)
            read = self.checkers.covered(partition) == end
            if partition.topic in wanted and end and read and committed != end and not self.checkers.went_back(partition):
                raise Violation("agreement", f"all closed, and {partition} is committed up to {committed} of {end}")
        group = self.cluster.group(self.group_id)
        if group is not None and not group.static_members and group.state is not GroupState.EMPTY:
            raise Violation("agreement", f"all closed, and the group is {group.state.value}")
        self.cluster.close()
        await self._until(self.loop.time() + 60)
        if self.network.connections:
            raise Violation("leaks", f"{self.network.connections} connections are left open")
        leaks = self.loop.leaks()
        left = [task for task in leaks.tasks if not task.startswith("producer")]
        if left:
            raise Violation("leaks", "tasks are left:\n" + "\n".join(left))
        if leaks.timers:
            raise Violation("leaks", "timers are left:\n" + "\n".join(leaks.timers))


#: All is quiet when nothing changed for so long.
_QUIET_S = 8.0

#: No history is longer than this, in virtual seconds.
_MOST_S = 600.0


def play(scenario: Scenario) -> Outcome:
    """Play one scenario to its end, or to the first breach of a rule."""
    world: World | None = None
    violation: Violation | None = None

    async def main() -> None:
        nonlocal world
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        world = World(loop, scenario)
        await world.play()

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
