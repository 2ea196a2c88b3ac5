"""The processes of a program: each runs the user's coroutine function, and is started again when it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Coroutine, Sequence
from random import Random
from typing import Any, Final, TypeAlias

import attrs

from consumer_coord.simulation.loop import waits_at
from consumer_coord.simulation.programs.handled import Trouble
from consumer_coord.simulation.programs.process import AnyAddress, ForbiddenError, ProgramProcess
from consumer_coord.simulation.virtual_kafka import VirtualKafka

Main: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

#: How long a process may take to end after SIGTERM, and how soon a failed one starts again, in seconds.
_GRACE_S: Final = 30.0
_AGAIN_S: Final = (1.0, 3.0)
#: A process that ends with an exception so many times after the last fault will not recover.
_CRASHES: Final = 5


@attrs.define(eq=False)
class Life:
    """One run of the coroutine function in one process."""

    number: int
    name: str
    process: ProgramProcess
    began_s: float
    task: asyncio.Task[None] | None = None
    stopping: bool = False
    ended: bool = False
    #: What its coroutine function raised.
    error: BaseException | None = None

    @property
    def runs(self) -> bool:
        """Whether the process runs, and has not been asked to end."""
        return not (self.ended or self.process.dead or self.stopping)


class Lives:
    """The processes of one run, with those that ended."""

    def __init__(
        self,
        kafka: VirtualKafka,
        seed: int,
        note: Callable[[str, str], None],
        tell: Callable[[Trouble], None],
        forbidden: Callable[[ForbiddenError], None],
    ) -> None:
        """``note`` receives (actor, event) for the story; ``tell`` what may be the reason of a repetition."""
        self.all: list[Life] = []
        #: The groups that the brokers have heard of.
        self.seen_groups: dict[str, None] = {}
        self._kafka = kafka
        self._seed = seed
        self._note = note
        self._tell = tell
        self._forbidden = forbidden
        self._random = Random(f"{seed}-lives")
        self._main: Main | None = None
        self._args: tuple[Any, ...] = ()
        #: Number of the process -> how many lives it has had.
        self._counts: dict[int, int] = {}
        #: Processes that are to run.
        self._wanted: set[int] = set()

    def groups(self) -> Collection[str]:
        """Return the groups that the program has used so far."""
        return self.seen_groups

    def new_process(self, name: str) -> ProgramProcess:
        """Return a process that reaches the simulated brokers."""
        process = ProgramProcess.begin(
            self._kafka.loop, name, self._forbidden, lambda text: self._note(name, f"nobody awaited: {text}")
        )
        environment = self._kafka.environment(process, Random(f"{self._seed}-{name}"))
        connector = AnyAddress(self._kafka.network, process, self._kafka.cluster.bootstrap)
        process.consumer_coord_environment = attrs.evolve(environment, connector=connector)
        return process

    # -- starting -----------------------------------------------------------------------------------------------------

    def begin(self, main: Main, args: tuple[Any, ...], count: int) -> None:
        """Start ``count`` processes, within a second."""
        self._main, self._args = main, args
        for _ in range(count):
            self._begin_one(self._random.uniform(0.0, 1.0))

    def _begin_one(self, after_s: float) -> int:
        number = len(self._counts) + 1
        self._counts[number] = 0
        self._wanted.add(number)
        self._kafka.loop.call_later(after_s, self._start, number)
        return number

    def add_one(self) -> Callable[[], None]:
        """Start another process; return what stops it."""
        number = self._begin_one(0.0)

        def stop() -> None:
            self._wanted.discard(number)
            for life in self.all:
                if life.number == number and life.runs:
                    self._terminate(life)

        return stop

    def _start(self, number: int) -> None:
        if number not in self._wanted or any(life.number == number and not life.ended for life in self.all):
            return
        self._counts[number] += 1
        name = f"process-{number}" if self._counts[number] == 1 else f"process-{number}.{self._counts[number]}"
        life = Life(number, name, self.new_process(name), self._kafka.loop.time())
        self.all.append(life)
        self._note(name, "starts")
        life.task = life.process.create_task(self._run(life), name=name)

    def start_missing(self) -> None:
        """Start every process that is to run and does not."""
        for number in sorted(self._wanted):
            self._start(number)

    async def _run(self, life: Life) -> None:
        assert self._main is not None
        failed = False
        try:
            await self._main(*self._args)
            self._note(life.name, "ended")
        except asyncio.CancelledError:
            self._note(life.name, "ended, cancelled")
        except Exception as error:  # noqa: BLE001 - the program ends, and starts again
            failed, life.error = True, error
            self._note(life.name, f"ended with {type(error).__name__}: {error}")
            self._tell(Trouble(life.name, f"ended with {type(error).__name__}", self._kafka.loop.time(), None))
        await self._clean_up(life)
        life.ended = True
        # In this step of its own task the process cannot end.
        self._kafka.loop.call_soon(self._kafka.kill, life.process)
        if failed and not life.stopping:
            self._kafka.loop.call_later(self._random.uniform(*_AGAIN_S), self._start, life.number)
        elif not life.stopping:
            self._wanted.discard(life.number)

    async def _clean_up(self, life: Life) -> None:
        """Cancel what is left, as ``asyncio.run`` does."""
        left = [task for task in self._kafka.loop.tasks_of(life.process) if task is not life.task]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- ending -------------------------------------------------------------------------------------------------------

    def named(self, name: str) -> Life | None:
        """Return the running process with this name; None if it does not run."""
        return next((life for life in self.all if life.name == name and life.runs), None)

    def running(self, pick: int) -> Life | None:
        """Return one of the running processes; None if none runs."""
        found = [life for life in self.all if life.runs]
        return found[pick % len(found)] if found else None

    def end(self, life: Life, *, kill: bool) -> Callable[[], None]:
        """End a process; return what starts it again."""
        if kill:
            self._kill(life, "was killed")
        else:
            self._terminate(life)
        return lambda: self._start_again(life)

    def _start_again(self, life: Life) -> None:
        if not life.ended:
            # It is still closing after SIGTERM.
            self._kafka.loop.call_later(0.5, self._start_again, life)
        else:
            self._start(life.number)

    def _kill(self, life: Life, what: str) -> None:
        if not life.ended:
            life.ended = True
            self._note(life.name, what)
            self._tell(Trouble(life.name, what, self._kafka.loop.time(), None))
            self._kafka.kill(life.process)

    def _terminate(self, life: Life) -> None:
        """Send SIGTERM, which kills a process without a handler; after the grace time, kill it."""
        life.stopping = True
        if life.process.send_signal(signal.SIGTERM):
            self._note(life.name, "gets SIGTERM")
            self._tell(Trouble(life.name, "was stopped", self._kafka.loop.time(), None))
            self._kafka.loop.call_later(_GRACE_S, self._kill, life, f"was killed {_GRACE_S:.0f} s after SIGTERM")
        else:
            self._kill(life, "got SIGTERM without a handler for it, which killed it")

    # -- reports ------------------------------------------------------------------------------------------------------

    def is_alive(self, name: str | None) -> bool:
        """Return whether the process with this name runs."""
        return any(life.name == name and not life.ended for life in self.all)

    def crash_loop(self, since_s: float) -> Life | None:
        """Return a process that has ended with an exception time and again since then; None if there is none."""
        for number in self._counts:
            failed = [life for life in self.all if life.number == number and life.error is not None]
            if len(failed) >= _CRASHES and failed[-_CRASHES].began_s >= since_s:
                return failed[-1]
        return None

    def describe(self) -> Sequence[str]:
        """Return a line for each process that runs, with where its tasks wait, and for each that ended for good."""
        lines = []
        last = {life.number: life for life in self.all}
        for life in last.values():
            if life.ended:
                why = "" if life.error is None else f" with {type(life.error).__name__}: {life.error}"
                lines.append(f"{life.name} has ended{why}")
            elif life.task is not None:
                # Without this module's own frame.
                place = waits_at(life.task).partition(" > ")[2]
                state = "stands still" if life.process.frozen else f"waits in {place}"
                lines.append(f"{life.name} {state}")
        return lines
