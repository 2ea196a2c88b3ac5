"""An idle AsyncGroupConsumer: the handle's thread repeats the wait, and the loop runs only when there is work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.consumer.engine import SLICE_S, Engine
from consumer_coord.consumer.librdkafka.plane import Threaded
from consumer_coord.group.application_polls import Application
from tests.consumer.test_async_consumer import DEADLINE_S, PARTITIONS, consumer, produce
from tests.support.waiting import eventually_async


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        yield running


def test_one_call_of_the_loop_covers_many_waits() -> None:
    waits: list[float] = []

    def fetch(most: int, wait_s: float) -> list[str]:
        waits.append(wait_s)
        return ["message"] if len(waits) == 4 else []

    librdkafka: Any = SimpleNamespace(fetch_now=fetch, take=lambda most: [], dry=True, close=lambda: None, is_open=True)

    async def main() -> None:
        plane = Threaded(librdkafka)
        following = iter((0.3, 0.2, 0.1, 0.0))
        plane.next_wait_s = lambda: next(following)
        arrived: list[list[str]] = []
        await plane.fetch(1, 0.4, arrived.append)
        assert (waits, arrived) == ([0.4, 0.3, 0.2, 0.1], [["message"]])
        del waits[:]
        plane.next_wait_s = lambda: 0.0
        await plane.fetch(1, 0.4, arrived.append)
        assert (waits, arrived) == ([0.4], [["message"], []])
        await plane.close()

    asyncio.run(main())


def _engine(**changes: Any) -> Any:
    """Return the attributes that :meth:`Engine.next_wait_s` reads, of an idle consumer at time 10."""
    application: Any = SimpleNamespace(polls=0, waits=0)
    application.waited = lambda: Application.waited(application)
    idle = {
        "_quiet_until": 10.5,
        "engine_loop": SimpleNamespace(now=lambda: 10.0),
        "attention": False,
        "closing": False,
        "returns_early": False,
        "suspended": False,
        "core": SimpleNamespace(rebalancing=changes.pop("rebalancing", False), application=application),
        "slice_s": lambda: SLICE_S,
    }
    return SimpleNamespace(**{**idle, **changes})


def test_an_idle_wait_is_repeated_and_counts_as_polling() -> None:
    idle = _engine()
    assert Engine.next_wait_s(idle) == SLICE_S
    assert (idle.core.application.polls, idle.core.application.waits) == (1, 1)
    near = _engine(_quiet_until=10.25, slice_s=lambda: 1.0)
    assert Engine.next_wait_s(near) == 0.25


@pytest.mark.parametrize(
    "work",
    [
        {"_quiet_until": 10.0},
        {"_quiet_until": 0.0},
        {"attention": True},
        {"closing": True},
        {"returns_early": True},
        {"suspended": True},
        {"rebalancing": True},
    ],
    ids=lambda work: next(iter(work)),
)
def test_work_for_the_loop_ends_the_wait(work: dict[str, Any]) -> None:
    engine = _engine(**work)
    assert Engine.next_wait_s(engine) == 0.0
    assert engine.core.application.polls == 0


def test_calls_of_other_tasks_and_messages_end_an_idle_wait(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await eventually_async(member.assignment, step=lambda: member.poll(0.05))
            idle = asyncio.create_task(member.poll())
            for _ in range(3):
                await member.pause(await member.assignment())
                await member.resume(await member.assignment())
                assert not idle.done()
            await asyncio.to_thread(produce, kafka, 1)
            message = await idle
            assert message is not None
            assert message.error() is None

    asyncio.run(main())
