"""A user's program in virtual time: ``consumer_coord.testing.simulated``."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from consumer_coord.errors import ConfigurationError
from consumer_coord.simulation.programs import decorator, spec
from consumer_coord.simulation.programs.decorator import Simulated
from consumer_coord.simulation.programs.guard import guarded
from consumer_coord.simulation.programs.process import ForbiddenError
from consumer_coord.simulation.programs.world import StuckError
from consumer_coord.simulation.scenario import Fault
from consumer_coord.testing import SimulatedWorld, simulated
from consumer_coord.threads.background import Runtime
from tests.support.simulation import billing

BILLING = "tests.support.simulation.billing"
HANDLED = f"{BILLING}.handle"
SETTINGS = Simulated(seeds=1, processes=2, kinds=(), handled=HANDLED, topics={"orders": 4}, brokers=3)


def run_of(*faults: Fault, processes: int = 2, seed: int = 1) -> spec.ProgramSpec:
    return spec.ProgramSpec(seed=seed, processes=processes, faults=faults)


def plays(program: Callable[[], Any], check: Callable[[SimulatedWorld], None]) -> Callable[[SimulatedWorld], Any]:
    """Return the usual test of a program."""

    async def test(world: SimulatedWorld) -> None:
        await world.produce("orders", 100)
        await world.run(program)
        await world.settled()
        check(world)

    return test


def nothing_lost(world: SimulatedWorld) -> None:
    assert world.lost() == []


# -- programs, right and wrong


@pytest.mark.parametrize("program", [billing.main, billing.iterating, billing.parallel])
def test_right_programs_lose_nothing(program: Callable[[], Any]) -> None:
    simulated(seeds=6, handled=HANDLED)(plays(program, nothing_lost))()


def test_a_program_that_commits_before_it_processes_is_found_within_20_seeds() -> None:
    with pytest.raises(AssertionError) as found:
        simulated(seeds=20, handled=HANDLED)(plays(billing.hasty, nothing_lost))()
    (note,) = found.value.__notes__
    assert re.search(r"Seed \d+ fails", note)
    assert re.search(r"committed \d+ at .*; process-\S+ was killed at", note), note
    replay = re.search(r"CONSUMER_COORD_SIMULATED='(.*)' python -m pytest '(.*)'", note)
    assert replay is not None
    named = spec.parse(replay[1])
    assert len(named.faults) == 1, "shrunk"
    with guarded():
        again = [SETTINGS.play(plays(billing.hasty, nothing_lost), named) for _ in range(2)]
    assert again[0].digest == again[1].digest
    assert isinstance(again[0].error, AssertionError)


@pytest.mark.parametrize(("program", "loses"), [(billing.at_a_desk, False), (billing.hasty_at_a_desk, True)])
def test_a_handler_that_does_not_await_is_interrupted_by_a_kill(program: Callable[[], Any], loses: bool) -> None:
    settings = attrs.evolve(SETTINGS, handled=f"{BILLING}.Desk.handle")
    faults = [Fault(5_000, "kill", 0, spec.MOMENTS.index("handles"), 300), Fault(15_000, "stop", 0, 0, 300)]
    with guarded():
        outcome = settings.play(plays(program, nothing_lost), run_of(*faults))
    assert any("was killed" in line for line in outcome.story)
    assert isinstance(outcome.error, AssertionError if loses else type(None)), outcome.story
    assert any("gets SIGTERM" in line for line in outcome.story) or loses


def test_a_replay_line_plays_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    @simulated(seeds=50, handled=HANDLED)
    async def test(world: SimulatedWorld) -> None:
        seeds.append(1)
        raise AssertionError("as always")

    monkeypatch.setenv(decorator.REPLAY, str(run_of(Fault(100, "kill", 1, 2, 300))))
    with pytest.raises(AssertionError, match="as always") as found:
        test()
    assert seeds == [1]
    assert "kill@100/1/2/300" in found.value.__notes__[0]
    monkeypatch.setenv(decorator.REPLAY, "1,kill")
    with pytest.raises(ConfigurationError, match="'1,kill' is no simulated run: copy it from the report"):
        test()


def test_the_same_seed_is_the_same_run_and_other_seeds_are_others() -> None:
    settings = Simulated(seeds=1, processes=2, kinds=tuple(spec.KINDS), handled=HANDLED, topics={"orders": 4}, brokers=3)
    test = plays(billing.parallel, nothing_lost)
    with guarded():
        digests = [settings.play(test, spec.draw(seed, 2, settings.kinds)).digest for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("kind", list(spec.KINDS))
def test_each_kind_of_fault_is_survived(kind: str) -> None:
    told: list[SimulatedWorld] = []

    def check(world: SimulatedWorld) -> None:
        nothing_lost(world)
        told.append(world)

    lasts_ms = max(spec.KINDS[kind].lasts_ms)
    faults = [Fault(at, kind, number, 7, lasts_ms) for number, at in enumerate((4_000, 22_000))]
    with guarded():
        outcome = SETTINGS.play(plays(billing.main, check), run_of(*faults))
    assert outcome.error is None, outcome.story
    assert len(told[0].story) > 4, "the story tells of the faults"


# -- what a world tells


def test_repeated_records_have_a_reason() -> None:
    reasons: list[str] = []
    has_handled = spec.MOMENTS.index("has handled")

    def check(world: SimulatedWorld) -> None:
        nothing_lost(world)
        assert "times" in repr(world.repeated())
        reasons.extend(one.reason for one in world.repeated())

    with guarded():
        for fault in (Fault(3_000, "kill", 0, has_handled, 500), Fault(3_000, "suspend", 0, has_handled, 60_000)):
            outcome = SETTINGS.play(plays(billing.main, check), run_of(fault))
            assert outcome.error is None
            assert any(reasons), fault
    assert any("was killed at " in reason for reason in reasons), reasons
    assert any("was suspended at" in reason for reason in reasons), reasons


def test_a_program_that_reads_nothing_is_stuck_and_the_error_says_where() -> None:
    with guarded():
        outcome = SETTINGS.play(plays(billing.deaf, nothing_lost), run_of())
    assert isinstance(outcome.error, StuckError)
    text = str(outcome.error)
    assert re.search(r"no progress for 180 s after the last fault: orders-0 ends at \d+, nothing is committed; 0 of", text)
    assert re.search(r"process-1(\.\d+)? waits in deaf \(billing\.py:\d+\)", text), text


def test_a_program_that_ends_with_an_exception_each_time_is_stuck() -> None:
    with guarded():
        outcome = SETTINGS.play(plays(billing.broken, nothing_lost), run_of())
    assert isinstance(outcome.error, StuckError)
    assert re.search(r"process-1\.\d+ has ended again and again", str(outcome.error))
    assert isinstance(outcome.error.__cause__, KeyError)


def test_a_service_takes_time_and_fails() -> None:
    async def test(world: SimulatedWorld) -> None:
        service = world.external(f"{BILLING}.charge", lambda order: order.decode(), failures=0.1, error=TimeoutError)
        await world.produce("orders", [(f"k{number}", str(number)) for number in range(60)], at_once=True)
        await world.run(billing.main)
        await world.settled()
        assert world.lost() == []
        assert {call.args[0].decode() for call in service.calls} == {str(number) for number in range(60)}
        assert any(call.failed and call.done for call in service.calls)
        assert any(call.failed and not call.done for call in service.calls)
        assert sorted(world.records("orders")) == sorted((b"k%d" % n, b"%d" % n) for n in range(60))

    with guarded():
        outcome = SETTINGS.play(test, run_of())
    assert outcome.error is None
    assert any("ended with TimeoutError" in line for line in outcome.story)
    assert asyncio.run(billing.charge(b"")) == "paid", "the service is no longer replaced"


# -- what a program may not do


@pytest.mark.parametrize("what", list(billing.FORBIDDEN))
def test_what_is_not_possible_in_virtual_time_names_the_line(what: str) -> None:
    with guarded():
        outcome = SETTINGS.play(plays(billing.FORBIDDEN[what], nothing_lost), run_of())
    assert isinstance(outcome.error, ForbiddenError)
    text = str(outcome.error)
    assert " ".join(what.split()) in text
    line = re.match(r"(\S+billing\.py):(\d+) \(in (\S+)\): ", text)
    assert line is not None, text
    assert text.split("virtual time. ")[1], "there is a remedy"


def test_a_blocking_consumer_is_rejected_although_its_thread_runs() -> None:
    Runtime.shared()
    with guarded():
        outcome = SETTINGS.play(plays(billing.FORBIDDEN["a thread"], nothing_lost), run_of())
    assert isinstance(outcome.error, ForbiddenError)


def test_nothing_is_rejected_outside_of_a_run() -> None:
    before = time.time, datetime.datetime, os.urandom, random.getstate()
    with guarded():
        assert time.time() > 0
        assert datetime.datetime.now(datetime.UTC).tzinfo is datetime.UTC
        for kind in (datetime.datetime, before[1]):
            assert isinstance(kind(2026, 1, 1, tzinfo=datetime.UTC), datetime.datetime)
        time.sleep(0)
    SETTINGS.play(plays(billing.main, nothing_lost), run_of())
    assert (time.time, datetime.datetime, os.urandom, random.getstate()) == before
    assert "connect" not in vars(socket.socket), "the class inherits the method again"


# -- the decorator


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="seeds must be at least 1, not 0"):
        simulated(seeds=0)
    with pytest.raises(ValueError, match=r'faults must be "all", "none", or some of kill, .*, not \'murder\''):
        simulated(faults=["kill", "murder"])
    with pytest.raises(TypeError, match="must be an async function: async def"):
        simulated()(lambda world: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ModuleNotFoundError):
        simulated(seeds=1, handled="no_such_module.handle")(plays(billing.main, nothing_lost))()


def test_lost_needs_the_handler() -> None:
    with pytest.raises(RuntimeError, match=r'world\.lost\(\) needs @simulated\(handled="module\.function"\)'):
        simulated(seeds=1, faults="none")(plays(billing.main, nothing_lost))()


PROJECT = """
import pytest
import billing
from consumer_coord.testing import simulated


@pytest.fixture
def count():
    return 40


@simulated(seeds=3, handled="billing.handle")
async def test_right(world, count):
    await world.produce("orders", count)
    await world.run(billing.main)
    await world.settled()
    assert world.lost() == []
    assert len(world.repeated()) < 100


@simulated(seeds=20, handled="billing.handle")
async def test_hasty(world):
    await world.produce("orders", 100)
    await world.run(billing.hasty)
    await world.settled()
    assert world.lost() == []
"""


def test_pytest_runs_such_tests_without_another_plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(billing.__file__) as source:
        pytester.makepyfile(billing=source.read(), test_orders=PROJECT)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=300)
    result.assert_outcomes(passed=1, failed=1)
    replay = re.search(r"CONSUMER_COORD_SIMULATED='(.*)' python -m pytest '(.*)'", result.stdout.str())
    assert replay is not None
    monkeypatch.setenv("CONSUMER_COORD_SIMULATED", replay[1])
    again = pytester.runpytest_subprocess(replay[2], "-p", "no:cacheprovider", timeout=300)
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*assert world.lost() == []", "*committed * was killed at *"])
