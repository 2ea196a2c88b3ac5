"""What a closed consumer consisted of can be garbage-collected at once, and not only when its timers have passed."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from tests.support.consumer.embedded import produce
from tests.support.waiting import DEADLINE_S, eventually, eventually_async

#: No timer of a consumer passes during a test.
LONG_MS = int(10 * DEADLINE_S * 1000)
#: The packages of the parts of a consumer, without those of its messages.
PARTS = ("consumer_coord.consumer.", "consumer_coord.group.", "consumer_coord.fetch.", "consumer_coord.net.")
RECORDS, CONSUMERS = 40, 5
protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"t": 2}, config={"group.max.session.timeout.ms": LONG_MS}) as running:
        produce(running, "t", {0: range(RECORDS // 2), 1: range(RECORDS // 2)})
        yield running


def settings(kafka: EmbeddedKafka, protocol: str, number: int) -> dict[str, Any]:
    """Return the settings of a consumer of a group of its own, with long timers."""
    session = {"session.timeout.ms": LONG_MS} if protocol == "classic" else {}
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": f"group {number}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": LONG_MS,
        "max.poll.interval.ms": LONG_MS,
        "default.api.timeout.ms": LONG_MS,
        "statistics.interval.ms": LONG_MS,
        "stats_cb": print,
        **session,
    }


def parts() -> Counter[str]:
    """Return the numbers of the parts of consumers that exist, by class."""
    gc.collect()
    kinds = Counter(type(one) for one in gc.get_objects())
    names = {kind: f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}
    return Counter({names[kind]: count for kind, count in kinds.items() if names[kind].startswith(PARTS)})


def more_than(before: Counter[str]) -> Callable[[], Counter[str]]:
    """Return a function that returns of which parts there are more than before."""
    return lambda: parts() - before


@protocols
def test_threads(kafka: EmbeddedKafka, protocol: str) -> None:
    def read(number: int) -> None:
        with GroupConsumer(settings(kafka, protocol, number)) as one:
            one.subscribe(["t"])
            left = RECORDS
            while left:
                left -= len(one.consume(left, 0.1))

    read(0)
    # What lasts as long as the process was made by the first consumer.
    more = more_than(parts())
    for number in range(CONSUMERS):
        read(number + 1)
    eventually(lambda: not more(), "no part of a closed consumer", shows=more)


@protocols
def test_asyncio(kafka: EmbeddedKafka, protocol: str) -> None:
    async def read(number: int) -> None:
        async with AsyncGroupConsumer(settings(kafka, protocol, number)) as one:
            await one.subscribe(["t"])
            left = RECORDS
            while left:
                left -= len(await one.consume(left, 0.1))

    async def main() -> None:
        await read(0)
        more = more_than(parts())
        for number in range(CONSUMERS):
            await read(number + 1)
        await eventually_async(lambda: not more(), "no part of a closed consumer", shows=more)

    asyncio.run(main())
