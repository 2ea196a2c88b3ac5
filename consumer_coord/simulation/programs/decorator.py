"""The decorator :func:`simulated`: play a test for each seed, shrink the run that fails, and tell its story."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import random
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

import attrs

from consumer_coord.net.shared_clusters import forget_clusters
from consumer_coord.simulation.loop import VirtualTimeLoop, run
from consumer_coord.simulation.programs.guard import Patches, guarded
from consumer_coord.simulation.programs.process import ForbiddenError, without_logs
from consumer_coord.simulation.programs.spec import ProgramSpec, draw, kinds_of, parse
from consumer_coord.simulation.programs.where import is_program
from consumer_coord.simulation.programs.world import SimulatedWorld
from consumer_coord.simulation.scenario import Fault
from consumer_coord.simulation.shrink import fewer

P = ParamSpec("P")

#: The environment variable that names the one run to play.
REPLAY: Final = "CONSUMER_COORD_SIMULATED"
#: Maximum number of runs that are played to shrink a failed one.
_MOST_TRIALS: Final = 60
#: Limit of a run, in virtual seconds.
_MOST_S: Final = 7_200.0
#: Maximum number of lines of a story.
_MOST_LINES: Final = 60

Test: TypeAlias = Callable[[SimulatedWorld], Coroutine[Any, Any, None]]


@attrs.frozen
class ProgramOutcome:
    """One run; ``error`` is None if the test passed."""

    spec: ProgramSpec
    error: BaseException | None
    digest: str
    story: Sequence[str]


@attrs.frozen(kw_only=True)
class Simulated:
    """The arguments of :func:`simulated`, checked."""

    seeds: int
    processes: int
    kinds: Sequence[str]
    handled: str | None
    topics: Mapping[str, int]
    brokers: int

    def play(self, test: Test, spec: ProgramSpec) -> ProgramOutcome:
        """Play one run."""
        worlds: list[SimulatedWorld] = []
        patches = Patches()

        async def main(loop: VirtualTimeLoop) -> None:
            world = SimulatedWorld(loop, spec, topics=self.topics, brokers=self.brokers, patches=patches, handled=self.handled)
            worlds.append(world)
            try:
                await world.play(test)
            finally:
                # Consumers of killed processes warn, when they are dropped, that nobody has closed them.
                quiet.enter_context(without_logs())

        error: BaseException | None = None
        with contextlib.ExitStack() as quiet, _seeded(spec.seed, patches):
            try:
                run_on(main, spec.seed)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:
                if isinstance(raised, _skipped()):
                    raise
                error = raised
        if not worlds:
            assert error is not None
            raise error
        return ProgramOutcome(spec, error, worlds[0].digest, worlds[0].story)

    def check(self, test: Test) -> None:
        """Play all runs, or the one that the environment names; raise the error of the first that fails, shrunk."""
        __tracebackhide__ = True
        named = os.environ.get(REPLAY)
        with guarded():
            if named is not None:
                outcome = self.play(test, parse(named))
                if outcome.error is not None:
                    raise _told(outcome, len(outcome.spec.faults), test)
                return
            for seed in range(1, self.seeds + 1):
                with _silence():
                    outcome = self.play(test, draw(seed, self.processes, self.kinds))
                if outcome.error is not None:
                    raise self._shrunk(test, outcome)
            with _silence():
                # Consumers of killed processes warn that nobody has closed them.
                gc.collect()

    def _shrunk(self, test: Test, failed: ProgramOutcome) -> BaseException:
        assert failed.error is not None
        if isinstance(failed.error, ForbiddenError):
            return failed.error
        with _silence():
            again = self.play(test, failed.spec)
        if again.digest != failed.digest:
            again_text = "passes" if again.error is None else "fails, but in another way"
            failed.error.add_note(
                f"Seed {failed.spec.seed} {again_text} when it is played again, so the program depends on something that a seed"
                " does not determine: module globals that keep their values, the order of a set, or os.environ."
            )
            return failed.error
        with _silence():
            smallest = shrink(functools.partial(self.play, test), failed)
            gc.collect()
        # Once more, for what the program prints and logs.
        outcome = self.play(test, smallest.spec)
        with _silence():
            gc.collect()
        return _told(outcome, len(failed.spec.faults), test)


def simulated(
    *,
    seeds: int = 100,
    processes: int = 3,
    faults: str | Collection[str] = "all",
    handled: str | None = None,
    topics: Mapping[str, int] | None = None,
    brokers: int = 3,
) -> Callable[[Callable[Concatenate[SimulatedWorld, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Play an async test in virtual time, once for each seed, with the user's program in several simulated processes.

    The decorated test is an ordinary function for pytest. Its first argument is a :class:`SimulatedWorld`; further ones are
    fixtures. Whatever ``bootstrap.servers`` says, every ``AsyncGroupConsumer`` of the program reaches the simulated brokers.

    * ``seeds``: the number of runs; each draws its own faults, delays and ids, and is the same each time.
    * ``processes``: how many processes run the program.
    * ``faults``: ``"all"``, ``"none"``, or names of faults.
    * ``handled``: the function that handles one message (or a list of messages), named as ``unittest.mock.patch`` names it. A
      record is handled when the call returns.
    * ``topics``: name -> number of partitions, for topics that should not have 4.
    * ``brokers``: their number.

    The run that fails first is shrunk, and its error has a note with the story of the run and a line that replays it. Raise
    ``ValueError`` for arguments out of range, and ``TypeError`` if the test is not a coroutine function.
    """
    for name, value in (("seeds", seeds), ("processes", processes), ("brokers", brokers)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value!r}")
    settings = Simulated(
        seeds=seeds,
        processes=processes,
        kinds=kinds_of(faults if isinstance(faults, str) else sorted(faults)),
        handled=handled,
        topics=dict(topics or {}),
        brokers=brokers,
    )

    def decorate(test: Callable[Concatenate[SimulatedWorld, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        if not inspect.iscoroutinefunction(test):
            raise TypeError(f"{test.__qualname__} must be an async function: async def {test.__name__}(world)")

        @functools.wraps(test)
        def check(*args: P.args, **kwargs: P.kwargs) -> None:
            __tracebackhide__ = True
            settings.check(functools.wraps(test)(lambda world: test(world, *args, **kwargs)))

        # pytest looks for fixtures in the signature, and must not see that of the coroutine function.
        signature = inspect.signature(test)
        check.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[1:], return_annotation=None
        )
        del check.__wrapped__
        return check

    return decorate


def run_on(main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, None]], seed: int) -> None:
    """Run ``main(loop)`` on a fresh loop in virtual time, and forget what its processes left."""
    loops: list[VirtualTimeLoop] = []

    async def on_loop() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loops.append(loop)
        await main(loop)

    try:
        run(on_loop(), seed=seed, max_time_s=_MOST_S)
    finally:
        for loop in loops:
            for process in loop.processes:
                forget_clusters(process)


@contextlib.contextmanager
def _seeded(seed: int, patches: Patches) -> Iterator[None]:
    """Let Python's own randomness depend on the seed, during one run; undo all patches after it."""
    state, bytes_of = random.getstate(), Random(f"{seed}-urandom")
    random.seed(f"{seed}-random")
    patches.set(os, "urandom", bytes_of.randbytes)
    try:
        yield
    finally:
        patches.undo()
        random.setstate(state)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard what a program prints and logs: pytest would show that of all runs with the run that fails."""
    with without_logs(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _skipped() -> type[BaseException] | tuple[()]:
    """Return what ``pytest.skip()`` raises; nothing if pytest is not imported."""
    pytest = sys.modules.get("pytest")
    found: type[BaseException] | tuple[()] = () if pytest is None else pytest.skip.Exception
    return found


def shrink(play: Callable[[ProgramSpec], ProgramOutcome], failed: ProgramOutcome) -> ProgramOutcome:
    """Return the smallest run found that fails in the same line: fewer faults, fewer processes, shorter faults."""
    best, where, trials = failed, _place(failed.error), 0

    def fails(spec: ProgramSpec) -> bool:
        nonlocal best, trials
        if trials >= _MOST_TRIALS:
            return False
        trials += 1
        outcome = play(spec)
        if outcome.error is None or _place(outcome.error) != where:
            return False
        best = outcome
        return True

    def with_faults(faults: Sequence[Fault]) -> bool:
        return fails(attrs.evolve(best.spec, faults=tuple(faults)))

    fewer(best.spec.faults, with_faults)
    while best.spec.processes > 1 and fails(attrs.evolve(best.spec, processes=best.spec.processes - 1)):
        pass
    for number, fault in enumerate(best.spec.faults):
        if fault.for_ms > 1:
            shorter = attrs.evolve(fault, for_ms=fault.for_ms // 4)
            with_faults([*best.spec.faults[:number], shorter, *best.spec.faults[number + 1 :]])
    return best


def _place(error: BaseException | None) -> tuple[str, str]:
    """Return the type of an error, and the last line of the program in its traceback."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    own = [f"{frame.filename}:{frame.lineno}" for frame in frames if is_program(frame.filename)]
    return type(error).__name__, own[-1] if own else ""


def _told(outcome: ProgramOutcome, drawn: int, test: Test) -> BaseException:
    """Return the error of a failed run, with its story."""
    error, spec = outcome.error, outcome.spec
    assert error is not None
    frames = error.__traceback__
    while frames is not None and not is_program(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    error.__traceback__ = frames
    story = list(outcome.story)
    if len(story) > _MOST_LINES:
        story[_MOST_LINES // 3 : len(story) - 2 * _MOST_LINES // 3] = ["       ... "]
    name = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0] or getattr(test, "__qualname__", "the test")
    shrunk = f", shrunk from {drawn} faults to {len(spec.faults)}" if drawn > len(spec.faults) else ""
    lines = [
        f"Seed {spec.seed} fails{shrunk}. In virtual time:",
        *(f"  {line}" for line in story),
        "Play this run alone:",
        f"  {REPLAY}='{spec}' python -m pytest '{name}'",
    ]
    error.add_note("\n".join(lines))
    return error
