"""The virtual-time loop: time jumps, order is fixed, and mistakes end the run."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.simulation.loop import DeadlockError, LeakError, LimitError, SimulationError, VirtualTimeLoop, run
from consumer_coord.simulation.process import Process


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        await asyncio.sleep(3_600)
        async with asyncio.timeout(5):
            await asyncio.sleep(1.5)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3_601.5


def test_a_timeout_fires_at_its_moment() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.25):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main(), strict=True) == 2.25


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_at(1.0, seen.append, number)
        loop.call_soon_threadsafe(seen.append, -1)
        await asyncio.sleep(1.0)
        return seen

    assert run(main()) == [-1, *range(50)]


def test_a_set_of_tasks_has_one_order() -> None:
    async def child(number: int, seen: list[int]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(number)
            raise

    async def main() -> list[int]:
        seen: list[int] = []
        try:
            async with asyncio.TaskGroup() as group:  # keeps its tasks in a set
                for number in range(100):
                    group.create_task(child(number, seen))
                await asyncio.sleep(1)
                raise ZeroDivisionError
        except* ZeroDivisionError:
            pass
        return seen

    first = run(main())
    assert len(first) == 100
    assert first == run(main())


def test_work_for_a_thread_runs_inline_and_takes_no_time() -> None:
    async def main() -> tuple[int, float]:
        result = await asyncio.to_thread(lambda: 6 * 7)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return result, asyncio.get_running_loop().time()

    assert run(main()) == (42, 0.0)


def test_a_deadlock_is_told_with_the_place_where_everybody_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(waits_for_ever(), name="the waiter")

    with pytest.raises(DeadlockError, match=r"the waiter in waits_for_ever \(test_loop.py:\d+\) > wait \(locks.py"):
        run(main())


def test_a_loop_that_spins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer_coord.simulation.loop.MAX_STEPS_PER_MOMENT", 1_000)

    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LimitError, match="without time passing"):
        run(main())


@pytest.mark.parametrize("in_process", [False, True])
def test_a_callback_that_waits_and_never_suspends_is_told(monkeypatch: pytest.MonkeyPatch, in_process: bool) -> None:
    monkeypatch.setattr("consumer_coord.simulation.loop.MAX_CLOCK_READS", 10_000)

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + 1
        while loop.time() < ends:
            pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        task = Process.on(loop, "one").create_task(wait()) if in_process else asyncio.ensure_future(wait())
        await asyncio.wait({task}, timeout=60)

    with pytest.raises(LimitError, match="without a suspension"):
        run(main())


def test_limits_on_time_and_steps() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(LimitError, match="virtual time passed 60 s"):
        run(main(), max_time_s=60)
    with pytest.raises(LimitError, match="more than 500 steps"):
        run(main(), max_steps=500)


def test_what_is_left_behind_is_told() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(10, print)
        cancelled = loop.call_later(10, print)
        cancelled.cancel()
        left = asyncio.create_task(asyncio.sleep(20), name="left")
        await asyncio.sleep(1)
        assert not left.done()

    run(main())
    with pytest.raises(LeakError) as caught:
        run(main(), strict=True)
    assert str(caught.value).splitlines()[0].startswith("task left in sleep")
    assert str(caught.value).count("timer at 10.000 s: print") == 1


def test_an_exception_that_nobody_awaited_is_a_finding() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)

    with pytest.raises(LeakError, match="ZeroDivisionError"):
        run(main(), strict=True)


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        for _ in range(10_000):
            async with asyncio.timeout(30):
                await asyncio.sleep(0.001)
        return len(loop.timers)

    assert run(main()) < 500


def test_sockets_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(SimulationError, match="no sockets"):
            await asyncio.open_connection("localhost", 9092)

    run(main())
