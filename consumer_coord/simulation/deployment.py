"""Measure the effect of churn (a rolling deploy, a scale-out, failures) on a group with a given assignor, in virtual time.

The members are production coordinators. Several members may run in one process, and then share the process's connections and
metadata. The brokers are production code, too. Only the churn causes failures. A member counts as the owner of a partition
while its application can read the partition: until the application has revoked the partition, or died.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs

from consumer_coord.assignor_loading import load_assignors
from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.group.apply_changes import Holder, apply_changes
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.simulation.loop import SimulationError, VirtualTimeLoop, run
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.virtual_kafka import VirtualKafka
from consumer_coord.topic_partition import TopicPartition, grouped
from consumer_coord.wire import offsets_topic

CHURNS = {
    "none": "nothing happens",
    "deploy": "the processes close and start again, one after the other",
    "scale-out": "the number of members increases by half",
    "rack-loss": "all members of one rack are killed",
    "loss": "one member in a hundred (at least one) fails silently",
}

#: The topics if the flag --topics is missing.
_TOPICS = "topic:100"
#: Time limit for the group to become stable after a phase, in virtual seconds. A longer phase raises an error.
_MOST_S = 1_800.0
#: Number of different moments in the polling interval at which the members of one process poll.
_TURNS = 20


@attrs.frozen(kw_only=True)
class Deployment:
    """A group and its churn."""

    members: int
    topics: Mapping[str, int]
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    churn: str = "deploy"
    members_per_process: int = 1
    racks: int = 3
    static: bool = False
    brokers: int = 3
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    poll_every_ms: int = 500
    callback_ms: int = 0
    restart_ms: int = 5_000
    seed: int = 1


@attrs.frozen
class Ownership:
    """The period in which one member owns one partition, in virtual seconds. ``to`` is None if the run ended first."""

    partition: int
    member: int
    since: float
    to: float | None


@attrs.frozen
class Phase:
    """A part of the run, with its figures.

    ``moved`` counts how often a member became the owner of a partition whose last owner was another member. A partition that
    moves to another member and back counts twice.
    """

    name: str
    began_s: float
    stable_s: float
    rebalances: int
    moved: int
    interruptions: int
    unowned_partition_s: float
    longest_unowned_s: float
    least: int
    most: int


@attrs.frozen
class DeploymentResult:
    """The result of a run."""

    deployment: Deployment
    partitions: tuple[str, ...]
    members: tuple[str, ...]
    phases: tuple[Phase, ...]
    ownerships: tuple[Ownership, ...]
    #: (virtual seconds, generation, members) of each completed rebalance.
    rebalances: tuple[tuple[float, int, int], ...]
    ended_s: float
    requests: int
    real_s: float

    def figures(self) -> dict[str, object]:
        """Return the contents of the JSON file: all figures, but not the ownership of each partition over time."""
        return {
            "deployment": attrs.asdict(self.deployment),
            "phases": [attrs.asdict(phase) for phase in self.phases],
            "rebalances": [
                {"at_s": round(at, 3), "generation": generation, "members": members}
                for at, generation, members in self.rebalances
            ],
            "virtual_s": round(self.ended_s, 3),
            "requests": self.requests,
            "real_s": round(self.real_s, 2),
        }


class _Application(Holder):
    """The application of one member. The application records which partitions it reads."""

    def __init__(self, group: ChurnedGroup, number: int) -> None:
        self._group = group
        self._number = number

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self.revoked(partitions)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Record the end of the ownership after the duration of a callback, because the application may read until then."""
        if self._group.deployment.callback_ms:
            await asyncio.sleep(self._group.deployment.callback_ms / 1000)
        self._group.release(self._number, partitions)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._group.accept(self._number, partitions)


class _Host:
    """A process, with one or more members."""

    def __init__(self, group: ChurnedGroup, number: int, members: Sequence[int], life: int) -> None:
        self.number = number
        self.members = members
        self.life = life
        self.rack = f"rack-{number % group.deployment.racks}"
        self.process = Process.on(group.loop, f"host-{number}" if life == 1 else f"host-{number}.{life}")
        self.coordinators: dict[int, ConsumerCoordinator] = {}
        self.closing = False
        self.ended = False
        #: Members that failed silently.
        self.gone: set[int] = set()
        #: Member -> the future on which its application waits until a poll finds an event.
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._group = group
        self.process.create_task(self._main(), name=self.process.name)

    @property
    def alive(self) -> bool:
        return not self.process.dead and not self.ended

    @property
    def present(self) -> Sequence[int]:
        """The members of this process that are in the group or will join it."""
        return [number for number in self.members if number not in self.gone] if self.alive else []

    async def _main(self) -> None:
        group, deployment = self._group, self._group.deployment
        random = Random(f"{deployment.seed}-host-{self.number}-{self.life}")
        await asyncio.sleep(random.uniform(0, 1))
        client = group.kafka.client(self.process, random)
        for number in self.members:
            self.coordinators[number] = ConsumerCoordinator(
                group.member_config(number, self.rack), client, [copy.copy(assignor) for assignor in group.assignors]
            )
            self.coordinators[number].subscribe(deployment.topics)
        members = [self.process.create_task(self._attend(number), name=f"member-{number}") for number in self.members]
        await self._poll(random)
        await asyncio.gather(*members)
        await client.close()
        self.ended = True

    async def _poll(self, random: Random) -> None:
        """Poll for every member at the member's moment in the polling interval; wake the members whose poll found an event.

        Most polls find nothing. A coroutine and a timer for each poll would take a fifth of the running time of a large group.
        """
        turns: list[list[int]] = [[] for _ in range(min(_TURNS, len(self.members)))]
        for number in self.members:
            random.choice(turns).append(number)
        pause_s = self._group.deployment.poll_every_ms / 1000 / len(turns)
        await asyncio.sleep(pause_s * random.random())
        polling = set(self.members)
        while polling:
            for turn in turns:
                for number in turn:
                    coordinator = self.coordinators[number]
                    coordinator.application.polls += 1
                    if coordinator.application.attention or self._ends(number):
                        waiting = self._waiting.pop(number, None)
                        if waiting is not None:
                            waiting.set_result(None)
                        if self._ends(number):
                            polling.discard(number)
                await asyncio.sleep(pause_s)

    def _ends(self, number: int) -> bool:
        return self.closing or number in self.gone

    async def _attend(self, number: int) -> None:
        """Run one member's application: react each time when a poll has found an event."""
        group = self._group
        coordinator = self.coordinators[number]
        application = _Application(group, number)
        while not self._ends(number):
            try:
                coordinator.application.record_poll()
            except CoordinatorError as error:
                group.fail(number, error)
                return
            await apply_changes(coordinator, application)
            if not self._ends(number):
                self._waiting[number] = asyncio.get_running_loop().create_future()
                await self._waiting[number]
        if number in self.gone:
            group.release(number, coordinator.assignment.held)
        else:
            await apply_changes(coordinator, application, leaving=True)
        await coordinator.close(leave_group=False if number in self.gone else None)


class ChurnedGroup:
    """A run of a deployment: the group, its processes, and the records of who owned what."""

    def __init__(self, loop: VirtualTimeLoop, deployment: Deployment) -> None:
        self.loop = loop
        self.deployment = deployment
        self.kafka = VirtualKafka(
            loop,
            deployment.seed,
            config=BrokerConfig(offsets_topic_num_partitions=1, group_min_session_timeout_ms=1_000),
            brokers=deployment.brokers,
            topics=deployment.topics,
            racks=[f"rack-{number % deployment.racks}" for number in range(deployment.brokers)],
            on_record=self._on_record,
        )
        self.cluster = self.kafka.cluster
        self.partitions = [
            TopicPartition(topic, number) for topic, count in deployment.topics.items() for number in range(count)
        ]
        self._index = {partition: index for index, partition in enumerate(self.partitions)}
        self.owner: dict[int, tuple[int, float]] = {}
        self.ownerships: list[Ownership] = []
        self.rebalances: list[tuple[float, int, int]] = []
        self.hosts: list[_Host] = []
        self.phases: list[Phase] = []
        self._released_at: dict[int, float] = dict.fromkeys(range(len(self.partitions)), 0.0)
        self._unowned_s = 0.0
        self._longest_s = 0.0
        self._interruptions = 0
        self._moved = 0
        #: partition -> the member that owned the partition last
        self._last_owner: dict[int, int] = {}
        self.assignors = load_assignors(deployment.assignors)
        self._failed: str | None = None
        self._started = 0

    def member_config(self, number: int, rack: str) -> CoordinatorConfig:
        """Return the settings of one member."""
        deployment = self.deployment
        return CoordinatorConfig(
            group_id="group",
            group_instance_id=f"instance-{number}" if deployment.static else None,
            client_rack=rack,
            session_timeout_ms=deployment.session_timeout_ms,
            heartbeat_interval_ms=deployment.heartbeat_interval_ms,
        )

    # -- the records of the run -------------------------------------------------------------------------------------

    def _on_record(self, key: bytes, value: bytes | None, offset: int) -> None:
        if value is not None and isinstance(offsets_topic.decode_key(key), offsets_topic.GroupMetadataKey):
            stored = offsets_topic.decode_group_value(value)
            if not self.rebalances or self.rebalances[-1][1] < stored.generation:
                self.rebalances.append((self.loop.time(), stored.generation, len(stored.members)))

    def fail(self, number: int, error: CoordinatorError) -> None:
        """Record that a member failed."""
        self._failed = f"member {number} failed at {self.loop.time():.1f} s: {error}"

    def accept(self, member: int, partitions: frozenset[TopicPartition]) -> None:
        """Record that a member can read these partitions from now on."""
        moment = self.loop.time()
        for partition in partitions:
            index = self._index[partition]
            if index in self.owner:
                self._failed = f"{partition} was owned by two members at {moment:.1f} s"
            self.owner[index] = (member, moment)
            unowned_s = moment - self._released_at.pop(index, moment)
            self._unowned_s += unowned_s
            self._longest_s = max(self._longest_s, unowned_s)
            self._interruptions += 1
            self._moved += self._last_owner.get(index, member) != member
            self._last_owner[index] = member

    def release(self, member: int, partitions: frozenset[TopicPartition]) -> None:
        """Record that a member no longer reads these partitions."""
        moment = self.loop.time()
        for partition in partitions:
            index = self._index[partition]
            if self.owner.get(index, (None, 0.0))[0] == member:
                since = self.owner.pop(index)[1]
                self.ownerships.append(Ownership(index, member, since, moment))
                self._released_at[index] = moment

    # -- the course of the run --------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Form the group, apply the churn, and wait until the group is stable."""
        deployment = self.deployment
        await self.start()
        if deployment.churn != "none":
            churn = {
                "deploy": self._deploy,
                "scale-out": self._scale_out,
                "rack-loss": self._rack_loss,
                "loss": self._loss,
            }[deployment.churn]
            await self.phase(deployment.churn, churn())

    async def start(self) -> None:
        """Form the group, as the first phase."""
        await self.phase("start", self._start_members(self.deployment.members))

    async def _start_members(self, count: int) -> None:
        self._start_hosts(count)

    def _start_hosts(self, count: int) -> None:
        """Start the processes of ``count`` further members."""
        per_process = self.deployment.members_per_process
        for first in range(self._started, self._started + count, per_process):
            members = range(first, min(first + per_process, self._started + count))
            self.hosts.append(_Host(self, len(self.hosts), members, 1))
        self._started += count

    def scale_to(self, processes: int) -> None:
        """Begin to stop the last processes, or to start the first ones that do not run, as a Kubernetes StatefulSet does.

        A process that is started again has the members, and the static ids, that it had before.
        """
        for host in self.hosts[processes:]:
            host.closing = True
        for index, host in enumerate(self.hosts[:processes]):
            if host.closing:
                assert not host.alive, f"{host.process.name} is started again before it has stopped"
                self.hosts[index] = _Host(self, host.number, host.members, host.life + 1)
        missing = processes - len(self.hosts)
        if missing > 0:
            self._start_hosts(missing * self.deployment.members_per_process)

    async def _deploy(self) -> None:
        for index, host in enumerate(self.hosts):
            host.closing = True
            while host.alive:
                await asyncio.sleep(0.1)
            await asyncio.sleep(self.deployment.restart_ms / 1000)
            self.hosts[index] = fresh = _Host(self, host.number, host.members, host.life + 1)
            # Restart the next process only when this process is in the group, like a deploy tool that waits for readiness.
            while not all(coordinator.generation >= 0 for coordinator in fresh.coordinators.values()) or not fresh.coordinators:
                await asyncio.sleep(0.1)

    async def _scale_out(self) -> None:
        await self._start_members(max(1, self.deployment.members // 2))

    async def _rack_loss(self) -> None:
        await self._kill([host for host in self.hosts if host.rack == self.hosts[0].rack])

    async def _loss(self) -> None:
        running = [(host, number) for host in self.hosts for number in host.members]
        for host, number in Random(f"{self.deployment.seed}-loss").sample(running, math.ceil(len(running) / 100)):
            host.gone.add(number)
        # The members stop at their next poll.
        await asyncio.sleep(2 * self.deployment.poll_every_ms / 1000)

    async def _kill(self, hosts: Sequence[_Host]) -> None:
        held = grouped((member, self.partitions[index]) for index, (member, _) in self.owner.items())
        for host in hosts:
            self.kafka.kill(host.process)
            for number in host.members:
                self.release(number, frozenset(held.get(number, ())))

    async def phase(self, name: str, work: object) -> None:
        """Run a coroutine, wait until the group is stable, and record the figures of this time."""
        rebalances = len(self.rebalances)
        self._unowned_s = self._longest_s = 0.0
        self._interruptions = self._moved = 0
        began, done_at = self.loop.time(), math.inf
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # a coroutine from above
        while not task.done() or not self.stable:
            if self._failed is not None:
                raise SimulationError(self._failed)
            if self.loop.errors:
                raise SimulationError(f"{self.loop.errors[0].get('message')}: {self.loop.errors[0].get('exception')!r}")
            if task.done():
                done_at = min(done_at, self.loop.time())
            if self.loop.time() - done_at > _MOST_S:
                raise SimulationError(f"{name}: the group did not become stable within {_MOST_S:.0f} virtual seconds")
            await asyncio.sleep(0.25)
        task.result()
        loads = dict.fromkeys((number for host in self.hosts for number in host.present), 0)
        for member, _ in self.owner.values():
            loads[member] += 1
        self.phases.append(
            Phase(
                name=name,
                began_s=began,
                stable_s=self.loop.time(),
                rebalances=len(self.rebalances) - rebalances,
                moved=self._moved,
                interruptions=self._interruptions,
                unowned_partition_s=self._unowned_s,
                longest_unowned_s=self._longest_s,
                least=min(loads.values()),
                most=max(loads.values()),
            )
        )
        # Leave time between two phases.
        await asyncio.sleep(5.0)

    @property
    def stable(self) -> bool:
        """True if the group is stable, every partition has an owner, and every member knows it."""
        group = self.cluster.group("group")
        if group is None or group.state is not GroupState.STABLE or len(self.owner) != len(self.partitions):
            return False
        if any(host.closing and host.alive for host in self.hosts):
            return False
        present = [(host, number) for host in self.hosts for number in host.present]
        if len(group.members) != len(present):
            return False
        members = (host.coordinators.get(number) for host, number in present)
        return all(
            member is not None
            and not member.rebalancing
            and member.generation == group.generation_id
            and member.assignment.reconciled
            for member in members
        )


def play_deployment(
    deployment: Deployment, course: Callable[[ChurnedGroup], Awaitable[None]] = ChurnedGroup.play
) -> DeploymentResult:
    """Play a deployment, or another ``course`` of its group.

    Raise :class:`~consumer_coord.simulation.loop.SimulationError` if the group never becomes stable.
    """
    group: ChurnedGroup | None = None

    async def main() -> None:
        nonlocal group
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        group = ChurnedGroup(loop, deployment)
        group.cluster.start()
        await course(group)
        for index, (member, since) in sorted(group.owner.items()):
            group.ownerships.append(Ownership(index, member, since, None))
        for host in group.hosts:
            host.process.kill()
        group.cluster.close()

    began = time.perf_counter()
    run(main(), seed=deployment.seed)
    assert group is not None
    names = [f"member-{number}" for number in range(group._started)]
    return DeploymentResult(
        deployment,
        tuple(map(str, group.partitions)),
        tuple(names),
        tuple(group.phases),
        tuple(group.ownerships),
        tuple(group.rebalances),
        group.loop.time(),
        group.kafka.network.frames,
        time.perf_counter() - began,
    )


# -- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Add the flags of one group under churn; return their names. An omitted flag creates no attribute."""
    group = parser.add_argument_group("one group under churn", argument_default=argparse.SUPPRESS)
    group.add_argument("--members", type=int, metavar="N", help="number of members; simulates one group under churn")
    described = [
        group.add_argument("--topics", metavar="NAME:PARTITIONS,...", help=f"default: {_TOPICS}"),
        group.add_argument("--assignor", metavar="NAME", help="name, module:Class, or a list; default: cooperative-sticky"),
        group.add_argument(
            "--churn",
            choices=list(CHURNS),
            help="; ".join(f"{name}: {what}" for name, what in CHURNS.items()) + "; default: deploy",
        ),
        group.add_argument("--members-per-process", type=int, metavar="N", help="default: 1"),
        group.add_argument("--racks", type=int, metavar="N", help="default: 3"),
        group.add_argument("--static", action="store_true", help="static members (group.instance.id)"),
        group.add_argument("--session-timeout-ms", type=int, metavar="MS", help="default: 45000"),
        group.add_argument("--heartbeat-interval-ms", type=int, metavar="MS", help="default: 3000"),
        group.add_argument("--poll-every-ms", type=int, metavar="MS", help="interval of an application's polls; default: 500"),
        group.add_argument("--callback-ms", type=int, metavar="MS", help="how long a revoke callback takes; default: 0"),
        group.add_argument("--restart-ms", type=int, metavar="MS", help="how long a process takes to restart; default: 5000"),
        group.add_argument("--report", type=Path, metavar="FILE.html", help="write an HTML report with pictures"),
        group.add_argument("--json", type=Path, metavar="FILE.json", help="write the figures as JSON"),
    ]
    return frozenset(action.dest for action in described)


def parse_topics(text: str) -> dict[str, int]:
    """Parse ``orders:1200,events:300``; raise :class:`ConfigurationError`."""
    topics: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().rpartition(":")
        if not name or not count.isdigit() or int(count) < 1 or name in topics:
            raise ConfigurationError(f"--topics {text!r}: {part!r} is not NAME:PARTITIONS, such as orders:1200")
        topics[name] = int(count)
    return topics


def deployment_of(flags: Mapping[str, Any]) -> Deployment:
    """Return the deployment that the given flags describe; raise :class:`ConfigurationError` for invalid ones."""
    described = {name: flags[name] for name in attrs.fields_dict(Deployment) if name in flags}
    described["assignors"] = tuple(name.strip() for name in flags.get("assignor", "cooperative-sticky").split(","))
    load_assignors(described["assignors"])
    deployment = Deployment(**{**described, "topics": parse_topics(flags.get("topics", _TOPICS))})
    if deployment.heartbeat_interval_ms >= deployment.session_timeout_ms:
        raise ConfigurationError(
            f"--heartbeat-interval-ms {deployment.heartbeat_interval_ms} must be below"
            f" --session-timeout-ms {deployment.session_timeout_ms}"
        )
    if deployment.churn == "rack-loss" and (deployment.racks < 2 or deployment.members <= deployment.members_per_process):
        raise ConfigurationError(
            "--churn rack-loss would kill all members, because there is only one rack or one process: use at least two racks"
            " and two processes"
        )
    return deployment


def describe(result: DeploymentResult) -> str:
    """Return a few lines for the terminal."""
    lines = [
        f"{len(result.members)} members, {len(result.partitions)} partitions, {'+'.join(result.deployment.assignors)}:"
        f" {result.ended_s:.1f} virtual seconds, {result.requests} requests, {result.real_s:.1f} s"
    ]
    for phase in result.phases:
        lines.append(
            f"  {phase.name:<10} stable after {phase.stable_s - phase.began_s:7.1f} s, {phase.rebalances:>4} rebalances,"
            f" {phase.moved:>6} partitions moved, unowned {phase.unowned_partition_s:9.1f} partition-seconds"
            f" (longest {phase.longest_unowned_s:.1f} s), {phase.least} to {phase.most} partitions a member"
        )
    return "\n".join(lines)
