"""Bugs in the use of clocks are found by drawn histories in which the clocks differ.

The clocks of some members run 5 % too fast or too slowly, and jump ahead. With the loop's clock in every process, none of these
bugs has an effect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final

import pytest

from consumer_coord import retry
from consumer_coord.group.classic_protocol import heartbeat
from consumer_coord.retry import Deadline
from consumer_coord.simulation.command import Drawing
from consumer_coord.simulation.loop import OnVirtualClock
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.scenario import Scenario
from tests.support.simulation.planting import assert_found
from tests.support.simulation.small_cluster import SmallCluster, simulated

SEEDS = range(60)

Patch = pytest.MonkeyPatch


def _brokers_time() -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, OnVirtualClock)
    return loop.loop.moment


def _time_limits_are_on_another_clock(patch: Patch) -> None:
    """A deadline is computed with one clock, and waited for with another."""
    patch.setattr(retry, "now", _brokers_time)


def _heartbeats_are_due_on_another_clock(patch: Patch) -> None:
    """The next heartbeat is scheduled with one clock, and waited for with another."""
    patch.setattr(f"{heartbeat.__name__}.now", _brokers_time)


#: Name -> the bug, the rules that it breaks, and the seed that found it.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], Collection[str], int]]] = {
    "time limits are on another clock": (_time_limits_are_on_another_clock, {"late", "liveness", "raised"}, 15),
    "heartbeats are due on another clock": (_heartbeats_are_due_on_another_clock, {"storms", "liveness"}, 0),
}


def _drifting(seed: int) -> Scenario:
    return Drawing(members=4, ms=30_000, clocks="drifting").scenario(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, rules, seed = PLANTED[name]
    assert_found(name, (plant, rules), _drifting, SEEDS, seed, monkeypatch)


@simulated
async def test_a_process_has_a_clock_of_its_own() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, OnVirtualClock)
    fast, woken = Process.on(loop.loop, "fast"), list[tuple[float, float]]()

    async def wakes(after_s: float) -> None:
        await asyncio.sleep(after_s)
        woken.append((loop.time(), asyncio.get_running_loop().time()))

    async def program() -> None:
        began = [fast.create_task(wakes(after_s)) for after_s in (1.05, 30.0)]
        await asyncio.sleep(0)
        fast.set_clock(1.05)
        await asyncio.wait(began[:1])
        fast.set_clock(0.95, 20.0)
        began.append(fast.create_task(wakes(0.95)))
        await asyncio.wait(began)

    await asyncio.wait({task := fast.create_task(program())})
    task.result()
    # The first timer after 1 s; after the jump the clock shows 21.05, so 0.95 are one second, and 8.95 to 30 are 9.42 s.
    assert [(round(at, 3), round(own, 3)) for at, own in woken] == [(1.0, 1.05), (2.0, 22.0), (10.421, 30.0)]
    assert not fast.is_steady
    assert fast.frozen_s == 20.0


@simulated
async def test_a_timer_fires_at_the_first_moment_at_which_the_clock_shows_its_time() -> None:
    """Of several moments that a clock shows alike, the timer fires at the first, also if the clock jumps after it was set."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, OnVirtualClock)
    random, fired = Random(7), dict[tuple[int, float], float]()
    clocks = list[tuple[float, float, float]]()
    for number in range(300):
        process = Process.on(loop.loop, f"process-{number}")
        process.set_clock(random.uniform(0.95, 1.05), random.uniform(0.0, 3.0))
        for when in (process.time() + random.uniform(1.0, 40.0) for _ in range(3)):
            process.call_at(when, lambda key: fired.update({key: loop.loop.moment}), (number, when))
        await asyncio.sleep(random.uniform(0.0, 0.1))
        process.set_clock(rate := random.choice((1.0, 0.95)), 0.5)
        clocks.append((loop.loop.moment, process.time(), rate))
    await asyncio.sleep(60)
    assert len(fired) == 900
    for (number, when), moment in fired.items():
        changed_at, changed_to, rate = clocks[number]
        shown, before = (changed_to + (one - changed_at) * rate for one in (moment, math.nextafter(moment, 0.0)))
        assert before < when <= shown


@simulated
async def test_frames_arrive_when_the_network_says_so_whatever_the_clock_of_the_process_shows() -> None:
    cluster = SmallCluster()
    slow, took_s = cluster.process("slow"), list[float]()

    async def program() -> None:
        client = cluster.client(slow)
        await client.refresh(Deadline.after(10_000))
        for rate, jump_s in ((0.5, 0.0), (0.5, 40.0)):
            slow.set_clock(rate, jump_s)
            await asyncio.sleep(5)
            began = cluster.loop.moment
            await client.refresh(Deadline.after(10_000))
            took_s.append(cluster.loop.moment - began)
        await client.close()

    await cluster.run(slow, program())
    cluster.close()
    assert max(took_s) < 0.1
