"""A member's application: it polls, carries out what the group wants, reads, processes, and commits.

One :class:`MemberProcess` is one life of one member: a process with the production client in it.  What it does is what a
careful consumer does, and it tells the checkers about each step.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

import attrs

from assignors.base import Assignor
from consumer_coord.config import CoordinatorConfig
from consumer_coord.coordinator import ConsumerCoordinator
from consumer_coord.environment import Environment, RunBlocking
from consumer_coord.errors import AssignorError, CoordinatorError, FencedError
from consumer_coord.net.cluster import ClusterClient, ClusterConfig
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.rebalance import Change
from consumer_coord.simulation.checkers import Stint, Violation
from consumer_coord.simulation.process import Process
from consumer_coord.topic_partition import TopicPartition, listed

if TYPE_CHECKING:
    from consumer_coord.simulation.scenario import World


@attrs.frozen(kw_only=True)
class MemberSpec:
    """What one member is like.  ``commit`` is ``sync``, ``async``, ``interval`` or ``revoke`` (only when it must)."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 10_000
    max_poll_interval_ms: int = 30_000
    poll_every_ms: int = 300
    batch: int = 20
    commit: str = "interval"
    commit_every_ms: int = 2_000
    callback_ms: int = 0


class Inline(RunBlocking):
    """The assignor runs inline: a simulation has no threads."""

    def __call__(self, function, /):  # type: ignore[no-untyped-def]  # the protocol says the types
        """Run it now; the answer is ready."""
        return asyncio.get_running_loop().run_in_executor(None, function)


def client_config(bootstrap: Sequence[tuple[str, int]], name: str) -> ClusterConfig:
    """Connections as a member of the simulation has them: impatient, so that a minute holds many attempts."""
    return ClusterConfig(
        bootstrap_servers=tuple(bootstrap),
        client_id=name,
        software_version="0",
        request_timeout_ms=8_000,
        connection_setup_timeout_ms=5_000,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1_000,
        metadata_max_age_ms=10_000,
    )


class MemberProcess:
    """One life of a member, from its start to its end by close, kill, or a fatal error."""

    def __init__(self, world: World, spec: MemberSpec, assignors: Sequence[Assignor], life: int, random: Random) -> None:
        self.spec = spec
        self.name = spec.name if life == 1 else f"{spec.name}.{life}"
        self.process = Process.on(world.loop, self.name)
        self.coordinator: ConsumerCoordinator | None = None
        self.finished = False
        self.closing = False
        self.subscription: tuple[str, ...] = spec.topics
        #: Milliseconds that processing takes more, just now, and until when the application does not poll at all.
        self.slow_ms = 0
        self.absent_until = 0.0
        self.failures: list[str] = []
        self._world = world
        self._random = random
        self._assignors = assignors
        self._stints: dict[TopicPartition, Stint] = {}
        self._committed_at = 0.0
        self._asked: list[asyncio.Task[None]] = []
        self._ended = world.loop.create_future()

    # -- for checkers -----------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Its process runs, or stands still."""
        return not self.process.dead and not self.finished

    @property
    def member_id(self) -> str:
        """What the group calls it."""
        return "" if self.coordinator is None else self.coordinator.member_id

    @property
    def generation(self) -> int:
        """The generation it knows."""
        return -1 if self.coordinator is None else self.coordinator.generation

    def holds(self, partition: TopicPartition) -> bool:
        """Held, and not lost."""
        return self.coordinator is not None and self.coordinator.assignment.ownership(partition) is not None

    @property
    def stints(self) -> Iterable[Stint]:
        """What it holds now."""
        return tuple(self._stints.values())

    # -- from outside -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        self._world.history.note(self.name, f"starts, {self._describe()}")
        self.process.create_task(self._guarded(self._main()), name=self.name)

    def stop(self) -> None:
        """Ask it to close in an orderly way."""
        self.closing = True

    def kill(self) -> None:
        """SIGKILL."""
        if not self.alive:
            return
        self.process.kill()
        self._world.network.vanish(self.process)
        self._world.history.note(self.name, "killed")
        for partition in sorted(self._stints):
            self._world.checkers.ends(self._stints[partition], "killed")
        self._stints.clear()

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Let it subscribe to something else."""
        self._in_process(self._subscribe, topics)

    def commit_now(self) -> None:
        """Let it commit its positions at this very moment, whatever it is doing."""

        def begin() -> None:
            self._asked = [task for task in self._asked if not task.done()]
            self._asked.append(asyncio.get_running_loop().create_task(self._guarded(self._commit(self._positions()))))

        self._in_process(begin)

    def enforce_rebalance(self) -> None:
        """Let it ask for a rebalance."""
        if self.coordinator is not None and not self.closing:
            self._in_process(self.coordinator.enforce_rebalance, "the simulation wants it")

    def _in_process(self, function, *args) -> None:  # type: ignore[no-untyped-def]  # any callback
        if self.alive and self.coordinator is not None and not self.closing:
            self.process.call_soon(self._guard, function, *args)

    def _guard(self, function, *args) -> None:  # type: ignore[no-untyped-def]  # any callback
        try:
            if not self.finished and not self.closing:
                function(*args)
        except CoordinatorError as error:
            self._failed(error)

    def _subscribe(self, topics: tuple[str, ...]) -> None:
        assert self.coordinator is not None
        self.subscription = topics
        self._world.history.note(self.name, f"subscribes to {', '.join(topics)}")
        self.coordinator.subscribe(topics)

    # -- the program ------------------------------------------------------------------------------------------------

    async def _guarded(self, work) -> None:  # type: ignore[no-untyped-def]  # any coroutine
        """An exception that the application does not expect is a finding, not the end of one task."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Violation as breach:
            self._world.fail(breach)
        except Exception as error:  # noqa: BLE001 - reported as a finding
            self._world.crashed(self.name, error)

    async def _main(self) -> None:
        world, spec = self._world, self.spec
        cluster = ClusterClient(
            client_config(world.cluster.bootstrap, self.name),
            Environment(world.network.connector(self.process), self._random, world.cluster.wall_clock_ms, Inline()),
        )
        self.coordinator = coordinator = ConsumerCoordinator(self._config(), cluster, self._assignors)
        self._committed_at = world.loop.time()
        if spec.pattern is not None:
            coordinator.subscribe_pattern(re.compile(spec.pattern))
        else:
            coordinator.subscribe(spec.topics)
        fenced = False
        while not self.closing and not fenced:
            fenced = await self._poll(coordinator)
        await self._close(coordinator)
        await cluster.close()
        self.finished = True
        world.history.note(self.name, "ended")

    def _config(self) -> CoordinatorConfig:
        spec = self.spec
        return CoordinatorConfig(
            group_id=self._world.group_id,
            group_instance_id=spec.instance_id,
            client_rack=spec.rack,
            session_timeout_ms=spec.session_timeout_ms,
            heartbeat_interval_ms=spec.heartbeat_interval_ms,
            max_poll_interval_ms=spec.max_poll_interval_ms,
            rebalance_timeout_ms=spec.rebalance_timeout_ms,
            request_timeout_ms=8_000,
            default_api_timeout_ms=15_000,
        )

    async def _poll(self, coordinator: ConsumerCoordinator) -> bool:
        """One turn of the application's loop; True when it was fenced and must end."""
        world = self._world
        world.checkers.step()
        try:
            coordinator.polled()
        except FencedError as error:
            self._failed(error)
            return True
        except CoordinatorError as error:
            if type(error) is CoordinatorError:
                # Only for a background task that crashed.
                self._world.crashed(self.name, error)
            self._failed(error)
        if coordinator.attention:
            change = coordinator.assignment.change()
            if change:
                await self._carry_out(coordinator, change)
        await self._look_up(coordinator)
        await self._read(coordinator)
        if self._commit_due():
            self._committed_at = world.loop.time()
            commit = self._commit(self._positions())
            if self.spec.commit == "async":
                self._asked = [task for task in self._asked if not task.done()]
                self._asked.append(asyncio.get_running_loop().create_task(self._guarded(commit), name="commit"))
            else:
                await commit
        pause_s = self.spec.poll_every_ms / 1000 * self._random.uniform(0.5, 1.5)
        await asyncio.sleep(max(pause_s, self.absent_until - world.loop.time()))
        return False

    def _commit_due(self) -> bool:
        if self.spec.commit == "revoke" or not self._stints:
            return False
        return self._world.loop.time() - self._committed_at >= self.spec.commit_every_ms / 1000

    # -- carrying out what the group wants --------------------------------------------------------------------------

    async def _carry_out(self, coordinator: ConsumerCoordinator, change: Change) -> None:
        world = self._world
        if change.lost:
            await self._callback("lost", change.lost)
            self._give_up(change.lost, "lost")
            coordinator.let_go(change.lost)
        if change.revoked:
            await self._commit({key: value for key, value in self._positions().items() if key in change.revoked})
            await self._callback("revoked", change.revoked)
            # While the callback ran they may have been lost instead.
            for partition in sorted(change.revoked):
                self._give_up((partition,), "revoked" if self.holds(partition) else "lost")
            coordinator.let_go(change.revoked)
        taken = coordinator.assignment.take_up(change)
        for partition in sorted(taken):
            self._stints[partition] = world.checkers.taken_up(self, partition)
        if taken:
            await self._callback("assigned", taken)

    async def _callback(self, kind: str, partitions: Iterable[TopicPartition]) -> None:
        self._world.history.note(self.name, f"on_{kind} {listed(partitions, 1000)}")
        if self.spec.callback_ms:
            await asyncio.sleep(self.spec.callback_ms / 1000)

    def _give_up(self, partitions: Iterable[TopicPartition], how: str) -> None:
        for partition in sorted(partitions):
            stint = self._stints.pop(partition, None)
            if stint is None:
                raise Violation("callbacks", f"{self.name} was told that {partition} is {how}, which it does not hold")
            self._world.checkers.ends(stint, how)

    async def _look_up(self, coordinator: ConsumerCoordinator) -> None:
        wanted = {partition: stint for partition, stint in self._stints.items() if stint.start is None}
        if not wanted:
            return
        checkers = self._world.checkers
        before = {partition: checkers.committed_now(partition) for partition in wanted}
        try:
            found = await coordinator.committed(wanted, timeout_ms=3_000)
        except CoordinatorError as error:
            self._failed(error)
            return
        for partition, stint in sorted(wanted.items()):
            if self._stints.get(partition) is stint and self.holds(partition):
                position = found[partition]
                checkers.starts(stint, 0 if position is None else position.offset, before[partition])

    # -- reading and committing -------------------------------------------------------------------------------------

    async def _read(self, coordinator: ConsumerCoordinator) -> None:
        end_offset = self._world.cluster.end_offset
        batch: list[tuple[Stint, int]] = []
        for partition, stint in self._stints.items():
            if stint.start is not None:
                count = min(self.spec.batch, (end_offset(partition) or 0) - stint.position)
                if count > 0:
                    batch.append((stint, count))
        if not batch:
            return
        leaving = coordinator.assignment.to_revoke
        batch = [(stint, count) for stint, count in batch if stint.partition not in leaving]
        await asyncio.sleep((1 + self.slow_ms) / 1000)
        for stint, count in batch:
            if self._stints.get(stint.partition) is stint:
                self._world.checkers.processes(stint, count)

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(stint.position)
            for partition, stint in sorted(self._stints.items())
            if stint.start is not None and stint.position > stint.acknowledged
        }

    async def _commit(self, positions: dict[TopicPartition, OffsetAndMetadata]) -> None:
        assert self.coordinator is not None
        stints = {partition: self._stints[partition] for partition in positions}
        if not positions:
            return
        try:
            results = await self.coordinator.commit(positions, timeout_ms=4_000)
        except CoordinatorError as error:
            self._failed(error, f"commit of {listed(positions, 1000)}")
            return
        for partition, result in results.items():
            if result is None:
                self._world.checkers.acknowledged(stints[partition], positions[partition].offset)
            else:
                self._failed(result, f"commit of {partition}")

    async def _close(self, coordinator: ConsumerCoordinator) -> None:
        self._world.history.note(self.name, "closes")
        await self._commit(self._positions())
        for partition in sorted(self._stints):
            self._give_up((partition,), "closed" if self.holds(partition) else "lost")
        coordinator.let_go(tuple(coordinator.assignment.held))
        await coordinator.close(5_000)
        if self._asked:
            await asyncio.wait(self._asked)

    def _failed(self, error: CoordinatorError, what: str = "poll") -> None:
        self.failures.append(f"{what}: {type(error).__name__}: {error}")
        self._world.history.note(self.name, f"{what} raised {type(error).__name__}: {error}")
        if isinstance(error, AssignorError):
            raise Violation("plans", f"{self.name}: {error}")

    def _describe(self) -> str:
        spec = self.spec
        subscription = f"pattern {spec.pattern}" if spec.pattern else ", ".join(spec.topics)
        static = f", instance {spec.instance_id}" if spec.instance_id else ""
        return f"{'+'.join(spec.assignors)} on {subscription}{static}, commits {spec.commit}"
