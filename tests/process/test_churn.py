"""Members that come, go and are killed while others process: what the group handles, and what it commits."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import attrs
import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from consumer_coord.process import Counts, context
from tests.consumer.test_async_consumer import MODERN, consumer
from tests.support.producer import Producer
from tests.support.waiting import eventually_async

PARTITIONS, KEYS = 6, 60


@attrs.define
class Log:
    """What all members of the group have handled."""

    #: (partition, offset) -> how often its handler returned while its result counted.
    finished: Counter[tuple[int, int]] = attrs.field(factory=Counter)
    #: Key -> offsets whose handlers run.
    running: dict[bytes, set[int]] = attrs.field(factory=dict)
    wrong: list[str] = attrs.field(factory=list)


class Member:
    """A member that processes until it is told to stop."""

    def __init__(self, kafka: EmbeddedKafka, log: Log, rng: random.Random, order: str, settings: dict[str, Any]) -> None:
        self._log, self._rng, self._order = log, rng, order
        self._stop = asyncio.Event()
        self._consumer = consumer(kafka, auto_commit_interval_ms=20, **settings)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> Counts:
        async with self._consumer as member:
            await member.subscribe(["orders"])
            return await member.process(self._handle, concurrency=8, order=self._order, stop=self._stop, most_records=60)

    async def stop(self) -> Counts:
        self._stop.set()
        return await self.task

    async def _handle(self, message: Any) -> None:
        key, offset, log = message.key(), message.offset(), self._log
        running = log.running.setdefault(key, set())
        if self._order != "none" and running:
            log.wrong.append(f"{key!r}: {offset} beside {running}")
        running.add(offset)
        try:
            for _ in range(self._rng.randrange(30)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            log.wrong.append(f"{key!r}: {offset} was cancelled: {context().reason}")
            raise
        finally:
            running.discard(offset)
        assert not context().lost.is_set(), "in a clean hand-over, every handler has time to finish"
        log.finished[message.partition(), offset] += 1


@pytest.mark.slow
@pytest.mark.parametrize("order", ["key", "partition", "none"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_clean_hand_overs_repeat_nothing(protocol: str, order: str) -> None:
    async def main(kafka: EmbeddedKafka) -> None:
        rng, log = random.Random(f"{protocol} {order}"), Log()
        settings: dict[str, Any] = {"assignors": MODERN} if protocol == "consumer" else {"heartbeat_interval_ms": 50}
        members, counts, produced = [Member(kafka, log, rng, order, settings)], list[Counts](), 0
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for _ in range(8):
            for _ in range(300):
                key = rng.randrange(KEYS)
                producer.produce("orders", b"x", key=f"k{key}", partition=key % PARTITIONS)
                produced += 1
            producer.flush(60)
            if len(members) > 2 or (len(members) == 2 and rng.random() < 0.4):
                counts.append(await members.pop(rng.randrange(len(members))).stop())
            else:
                members.append(Member(kafka, log, rng, order, settings))
            seen = log.finished.total()
            await eventually_async(lambda: log.finished.total() >= min(produced, seen + 100))  # noqa: B023
        await eventually_async(lambda: log.finished.total() >= produced)
        counts += [await one.stop() for one in members]
        assert not log.wrong
        assert set(log.finished.values()) == {1}
        assert sum(one.handled for one in counts) == produced
        assert await total_committed(kafka) == produced

    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.heartbeat.interval.ms": 50}
    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=config) as kafka:
        asyncio.run(main(kafka))


async def total_committed(kafka: EmbeddedKafka) -> int:
    reader: AsyncGroupConsumer
    async with consumer(kafka) as reader:
        rows = await reader.committed([TopicPartition("orders", number) for number in range(PARTITIONS)])
        return sum(max(0, row.offset) for row in rows)
