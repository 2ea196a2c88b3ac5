"""What the engine relies on in librdkafka, on this thread and behind one; on the embedded Kafka.

The simulation has no model of librdkafka, because members of a simulation read with the own Fetch.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from tests.support.consumer.data_planes import Logs, Play, at, code, nothing_comes, offsets, take

#: librdkafka has timers of a second.
pytestmark = pytest.mark.thorough


def test_a_fetch_gives_what_is_there_and_waits_for_the_first_alone(play: Play) -> None:
    async def story(logs: Logs) -> None:
        plane = logs.plane()
        loop = asyncio.get_running_loop()
        await plane.assign(at(logs, 0))
        batches: list[list[Any]] = []
        await plane.fetch(5, 0, batches.append)
        await plane.fetch(5, 0.05, batches.append)
        assert batches == [[], []], "the sink is called also when nothing came"
        logs.produce(0, 3)
        began = loop.time()
        found: list[Any] = []
        while not found:
            await plane.fetch(100, 20, found.extend)
        assert loop.time() - began < 10, "it waited for a hundred"
        assert offsets(found)[0] == 0
        await plane.close()

    play(story)


def test_a_batch_has_messages_of_several_partitions(play: Play) -> None:
    async def story(logs: Logs) -> None:
        for partition in range(3):
            logs.produce(partition, 20)
        plane = logs.plane()
        await plane.assign(at(logs, 0, 1, 2))
        messages = await take(plane, 60)
        for partition in range(3):
            assert offsets([one for one in messages if one.partition() == partition]) == list(range(20))
        await plane.close()

    play(story)


def test_after_unassign_nothing_comes_and_it_begins_anew(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 20)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        await plane.assign(at(logs, 0))
        assert offsets(await take(plane, 2)) == [0, 1]
        await plane.unassign([one])
        assert await plane.assignment() == frozenset()
        await nothing_comes(plane)
        await plane.assign(at(logs, 0, offset=9))
        assert await plane.positions([one]) == {}
        assert offsets(await take(plane, 2)) == [9, 10]
        await plane.close()

    play(story)


def test_what_cannot_be_raises_and_changes_nothing(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 5)
        plane = logs.plane()
        one, other = TopicPartition(logs.topic, 0), TopicPartition("never-heard-of", 1)
        await plane.assign(at(logs, 0))
        with pytest.raises(KafkaException) as twice:
            await plane.assign(at(logs, 0, 1, offset=1))
        assert code(twice) == KafkaError._CONFLICT
        assert await plane.assignment() == {one}
        with pytest.raises(KafkaException) as foreign:
            await plane.unassign([one, other])
        assert code(foreign) == KafkaError._INVALID_ARG
        assert await plane.assignment() == {one}
        assert await plane.positions([other]) == {}
        assert offsets(await take(plane, 5)) == [0, 1, 2, 3, 4]
        await plane.close()

    play(story)


def test_the_end_of_a_partition_is_an_event_that_moves_nothing(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 3)
        plane = logs.plane(enable_partition_eof=True)
        one = TopicPartition(logs.topic, 0)
        await plane.assign(at(logs, 0))
        messages = await take(plane, 4)
        assert offsets(messages[:3]) == [0, 1, 2]
        assert messages[3].error().code() == KafkaError._PARTITION_EOF
        assert messages[3].offset() == 3
        assert (await plane.positions([one]))[one].offset == 3
        await nothing_comes(plane)
        logs.produce(0, 1)
        again = await take(plane, 2)
        assert [again[0].offset(), again[1].error().code()] == [3, KafkaError._PARTITION_EOF]
        await plane.close()

    play(story)


def test_a_topic_that_was_not_heard_of_comes_within_seconds(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 5)
        plane = logs.plane()
        await plane.assign(at(logs, 0))
        await take(plane, 5)
        later = TopicPartition(logs.create_topic(), 0)
        await plane.assign({later: OffsetAndMetadata(0)})
        assert offsets(await take(plane, 5)) == [0, 1, 2, 3, 4]
        await plane.close()

    play(story)


def test_calls_are_carried_out_in_their_order_although_nobody_waits(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 20)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        begun = [
            asyncio.ensure_future(call)
            for call in (
                plane.assign(at(logs, 0)),
                plane.unassign([one]),
                plane.assign(at(logs, 0, offset=3)),
                plane.unassign([one]),
                plane.assign(at(logs, 0, offset=7)),
            )
        ]
        await asyncio.sleep(0)
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await plane.wait_idle()
        assert await plane.assignment() == {one}
        assert offsets(await take(plane, 2)) == [7, 8]
        await plane.close()

    play(story)


def test_what_a_cancelled_fetch_took_reaches_its_sink(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 50)
        plane = logs.plane()
        found: list[Any] = []
        await plane.assign(at(logs, 0))
        for _ in range(200):
            fetching = asyncio.ensure_future(plane.fetch(3, 0.02, found.extend))
            await asyncio.sleep(0)
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
            await plane.wait_idle()
            if len(found) == 50:
                break
        assert offsets(found) == list(range(50))
        await plane.close()

    play(story)


def test_close_is_idempotent_and_the_end(play: Play) -> None:
    async def story(logs: Logs) -> None:
        plane = logs.plane()
        await plane.assign(at(logs, 0, 1))
        await plane.close()
        await plane.close()
        with pytest.raises(RuntimeError):
            await plane.fetch(1, 0, lambda _: None)

    play(story)
