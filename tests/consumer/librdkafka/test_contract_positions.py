"""Where librdkafka reads: the part of what the engine relies on (see ``test_contract.py``) that is about positions."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError

from consumer_coord.offsets import OffsetAndMetadata, partition_of_message
from consumer_coord.topic_partition import TopicPartition
from tests.support.consumer.data_planes import Logs, Play, at, nothing_comes, offsets, take

#: librdkafka has timers of a second.
pytestmark = pytest.mark.thorough


def test_the_position_moves_when_a_message_is_taken(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 10)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        await plane.assign(at(logs, 0, offset=3))
        assert await plane.assignment() == {one}
        assert await plane.positions([one]) == {}
        assert offsets(await take(plane, 1)) == [3]
        assert (await plane.positions([one]))[one].offset == 4
        assert offsets(await take(plane, 2)) == [4, 5]
        assert (await plane.positions([one]))[one].offset == 6
        assert offsets(await take(plane, 4)) == [6, 7, 8, 9]
        await nothing_comes(plane)
        assert (await plane.positions([one]))[one].offset == 10
        await plane.close()

    play(story)


@pytest.mark.parametrize("start", [OffsetAndMetadata(0), OffsetAndMetadata(10, leader_epoch=0)], ids=["beginning", "epoch"])
def test_the_last_word_on_a_position_counts(play: Play, start: OffsetAndMetadata) -> None:
    """Also while a question about the former one waits for its answer, behind a Fetch of other partitions."""

    async def story(logs: Logs) -> None:
        logs.produce(0, 50)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        there = OffsetAndMetadata(40)
        await plane.assign(at(logs, 1))
        await nothing_comes(plane, 0.3)
        await plane.assign({one: start})
        for position in (there, start, there):
            await plane.unassign([one])
            await plane.assign({one: position})
        assert offsets(await take(plane, 10)) == list(range(40, 50))
        await nothing_comes(plane, 1.5)
        await plane.close()

    play(story)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_out_of_range_without_a_policy_is_an_event_and_then_silence(play: Play, where: str) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 10)
        logs.trim(0, 4)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        await plane.assign(at(logs, 0, offset=1 if where == "before" else 1_000))
        (event,) = await take(plane, 1)
        assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert partition_of_message(event) == one
        assert await plane.positions([one]) == {}
        await nothing_comes(plane)
        await plane.unassign([one])
        await plane.assign(at(logs, 0, offset=6))
        assert offsets(await take(plane, 4)) == [6, 7, 8, 9]
        await plane.close()

    play(story)


def test_an_event_out_of_range_outlives_its_assignment(play: Play) -> None:
    """The event may also stop the next assignment, because librdkafka stops reading in another thread, perhaps later."""

    async def story(logs: Logs) -> None:
        logs.produce(0, 10)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        for attempt in range(20):
            await plane.assign(at(logs, 0, offset=1_000))
            # Wait until the event is in the queue. librdkafka does not report this.
            await asyncio.sleep(0.05 * attempt)
            await plane.unassign([one])
            await plane.assign(at(logs, 0, offset=9))
            (message,) = await take(plane, 1)
            if message.error() is not None:
                assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
                assert message.offset() == 1_000
                await plane.unassign([one])
                await plane.assign(at(logs, 0, offset=9))
                assert offsets(await take(plane, 1)) == [9], "assigned once more it is read"
                break
            assert message.offset() == 9
            await plane.unassign([one])
        else:
            pytest.fail("it was outdated each time")
        await plane.close()

    play(story)


def test_a_topic_that_is_deleted_and_made_again_has_other_offsets(play: Play) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 5)
        logs.produce(1, 20)
        plane = logs.plane()
        await plane.assign(at(logs, 0, 1))
        await take(plane, 25)
        logs.delete_topic()
        await nothing_comes(plane, 1.5)
        assert len(await plane.assignment()) == 2
        # Not fetched until both have their records: partition 0 would end before the offset 5 for a moment.
        both = await plane.positions([TopicPartition(logs.topic, 0), TopicPartition(logs.topic, 1)])
        await plane.unassign(both)
        await nothing_comes(plane, 1.5)
        logs.recreate_topic()
        logs.produce(0, 7)
        logs.produce(1, 3)
        await plane.assign(both)
        messages = await take(plane, 3)
        (event,) = [message for message in messages if message.error() is not None]
        assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert (event.partition(), event.offset()) == (1, 20)
        assert [message.offset() for message in messages if message.error() is None] == [5, 6]
        await plane.close()

    play(story)
