"""Processes on one clock: stopped, continued, killed."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings

import pytest

from consumer_coord.simulation.loop import VirtualTimeLoop, run
from consumer_coord.simulation.process import Process


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def test_the_code_in_a_process_runs_on_that_process() -> None:
    async def program(seen: list[object]) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
        seen.append((loop, await asyncio.to_thread(asyncio.get_running_loop), loop.time()))

    async def main() -> None:
        seen: list[object] = []
        process = Process.on(_loop(), "one")
        process.create_task(program(seen))
        await asyncio.sleep(5)
        assert asyncio.get_running_loop() is process.loop
        assert seen == [(process, process, 2.0)]

    run(main(), strict=True)


def test_a_frozen_process_does_everything_at_once_when_it_goes_on() -> None:
    async def program(seen: list[float]) -> None:
        loop = asyncio.get_running_loop()
        for moment in (1, 2, 3, 9):
            loop.call_at(moment, lambda: seen.append(loop.time()))

    async def main() -> list[float]:
        seen: list[float] = []
        process = Process.on(_loop(), "one")
        process.create_task(program(seen))
        await asyncio.sleep(1.5)
        process.freeze()
        await asyncio.sleep(4)
        process.thaw()
        await asyncio.sleep(10)
        return seen

    assert run(main(), strict=True) == [1, 5.5, 5.5, 9]


def test_a_killed_process_runs_no_finally_and_leaves_nothing() -> None:
    async def program(seen: list[str]) -> None:
        try:
            await asyncio.sleep(2)
            seen.append("continued")
        finally:
            seen.append("finally")

    async def main() -> list[str]:
        seen: list[str] = []
        process = Process.on(_loop(), "one")
        process.create_task(program(seen))
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        assert not _loop().leaks()
        return list(seen)

    assert run(main(), strict=True) == []


def test_the_tasks_of_a_killed_process_are_closed_to_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that a kill interrupted awaits in its ``finally``, and starts another task there, which never begins."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: ignored.append(about.exc_value))

    async def closing() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            try:
                await asyncio.sleep(1)
            finally:
                await asyncio.shield(asyncio.get_running_loop().create_task(asyncio.sleep(1)))

    async def main() -> None:
        process = Process.on(_loop(), "one")
        process.create_task(closing())
        await asyncio.sleep(1)
        process.kill()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main(), strict=True)
        gc.collect()
    assert not ignored
