"""One contract for what the engine reads from: librdkafka, on this thread and behind one, and the simulation's model of it.

The model is worth something because these assertions hold for the real thing; the real thing is asked on the embedded Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Row
from confluent_kafka.admin import AdminClient

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.consumer.data_plane import EARLIEST, LATEST, DataPlane, partition_of_message
from consumer_coord.consumer.librdkafka.plane import Inline, Librdkafka, Threaded
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.simulation import loop as virtual
from consumer_coord.simulation.cluster import SimulatedCluster
from consumer_coord.simulation.data_plane import PlaneConfig, SimulatedPlane
from consumer_coord.simulation.network import SimulatedNetwork
from consumer_coord.simulation.process import Process
from consumer_coord.topic_partition import TopicPartition

PARTITIONS = 3


class Logs(Protocol):
    """The cluster behind a plane."""

    topic: str

    def produce(self, partition: int, count: int) -> None:
        """So many more records."""

    def trim(self, partition: int, before: int) -> None:
        """Those before an offset are gone."""

    def create_topic(self) -> str:
        """A topic that the plane has not heard of; its name."""

    def delete_topic(self) -> None:
        """The topic is gone."""

    def recreate_topic(self) -> None:
        """It is there again, without records."""

    def plane(self, **settings: Any) -> DataPlane:
        """A plane; dots of librdkafka's settings are written as underscores."""


Story = Callable[[Logs], Awaitable[None]]


class SimulatedLogs:
    """The simulation's."""

    topic = "t"

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual.VirtualTimeLoop)
        network = SimulatedNetwork(loop, Random(1))
        self.process = Process.on(loop, "client")
        self.cluster = SimulatedCluster(
            loop, network, Random(2), config=BrokerConfig(auto_create_topics_enable=False), brokers=3, topics={"t": PARTITIONS}
        )
        self.cluster.start()

    def produce(self, partition: int, count: int) -> None:
        self.cluster.produce(TopicPartition(self.topic, partition), count)

    def trim(self, partition: int, before: int) -> None:
        self.cluster.trim(TopicPartition(self.topic, partition), before)

    def create_topic(self) -> str:
        self.cluster.kafka.create_topic("later", 1)
        self.cluster.produce(TopicPartition("later", 0), 5)
        return "later"

    def delete_topic(self) -> None:
        self.cluster.kafka.delete_topic(self.topic)

    def recreate_topic(self) -> None:
        self.cluster.kafka.create_topic(self.topic, PARTITIONS)

    def plane(self, **settings: Any) -> DataPlane:
        config = PlaneConfig(
            reset=settings.get("auto_offset_reset", "error"), eof=settings.get("enable_partition_eof", False), call_ms=2.0
        )
        return SimulatedPlane(self.process, self.cluster, Random(3), config)


class RealLogs:
    """librdkafka on the embedded Kafka."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, make: Callable[[Librdkafka], DataPlane]) -> None:
        self.topic = topic
        self._kafka = kafka
        self._make = make
        kafka.create_topic(topic, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def produce(self, partition: int, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self.topic, b"x", partition=partition)
        assert self._producer.flush(20) == 0

    def trim(self, partition: int, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap_servers})
        for done in admin.delete_records([Row(self.topic, partition, before)]).values():
            done.result(20)

    def create_topic(self) -> str:
        name = f"{self.topic}-later"
        self._kafka.create_topic(name, 1)
        for _ in range(5):
            self._producer.produce(name, b"x", partition=0)
        assert self._producer.flush(20) == 0
        return name

    def delete_topic(self) -> None:
        self._kafka.delete_topic(self.topic)

    def recreate_topic(self) -> None:
        self._kafka.create_topic(self.topic, PARTITIONS)

    def plane(self, **settings: Any) -> DataPlane:
        config = {
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "group.id": "contract",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        return self._make(Librdkafka(config))


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={}) as running:
        yield running


@pytest.fixture(params=["simulated", "inline", "threaded"])
def play(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Plays a story on one of the three."""
    if request.param == "simulated":
        return _play_simulated
    running: EmbeddedKafka = request.getfixturevalue("kafka")
    make = Inline if request.param == "inline" else Threaded
    topic = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)

    def on_embedded(story: Story) -> None:
        async def main() -> None:
            await story(RealLogs(running, topic, make))

        asyncio.run(main())

    return on_embedded


def _play_simulated(story: Story) -> None:
    async def main() -> None:
        logs = SimulatedLogs()

        async def whole() -> None:
            await story(logs)

        await asyncio.wait({task := logs.process.create_task(whole())})
        task.result()

    virtual.run(main(), max_time_s=600)


def at(logs: Logs, *numbers: int, offset: int = 0) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(logs.topic, number): OffsetAndMetadata(offset) for number in numbers}


async def take(plane: DataPlane, count: int, most: int = 1_000) -> list[Any]:
    """So many messages."""
    found: list[Any] = []
    ends = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < ends, f"only {found} came"
        await plane.fetch(min(most, count - len(found)), 0.5, found.extend)
    return found


async def nothing_comes(plane: DataPlane, for_s: float = 0.6) -> None:
    """Neither records nor events."""
    found: list[Any] = []
    for _ in range(3):
        await plane.fetch(10, for_s / 3, found.extend)
    assert not found


def offsets(messages: list[Any]) -> list[int]:
    assert not any(message.error() for message in messages), [message.error() for message in messages]
    return [message.offset() for message in messages]


def code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    number: int = raised.value.args[0].code()
    return number


def test_the_position_moves_when_a_message_is_taken(play: Callable[[Story], None]) -> None:
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


def test_a_fetch_gives_what_is_there_and_waits_for_the_first_alone(play: Callable[[Story], None]) -> None:
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


def test_a_batch_has_messages_of_several_partitions(play: Callable[[Story], None]) -> None:
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


def test_after_a_seek_there_is_no_position_and_nothing_old_comes(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 20)
        logs.produce(1, 20)
        plane = logs.plane()
        one, two = TopicPartition(logs.topic, 0), TopicPartition(logs.topic, 1)
        await plane.assign(at(logs, 0, 1))
        while len(await plane.positions([one, two])) < 2:
            await take(plane, 3)
        await plane.seek(one, OffsetAndMetadata(15))
        assert (await plane.positions([one, two])).keys() == {two}
        here: list[int] = []
        while len(here) < 5:
            here += offsets([message for message in await take(plane, 1) if message.partition() == 0])
        assert here == [15, 16, 17, 18, 19]
        assert (await plane.positions([one]))[one].offset == 20
        # Twice before anything came: the last one counts.
        await plane.seek(one, OffsetAndMetadata(1))
        await plane.seek(one, EARLIEST)
        await plane.unassign([two])
        assert offsets(await take(plane, 3)) == [0, 1, 2]
        await plane.close()

    play(story)


def test_a_seek_right_after_the_assignment_counts(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 20)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        for _ in range(5):
            await plane.assign(at(logs, 0, offset=3))
            await plane.seek(one, OffsetAndMetadata(12))
            assert await plane.positions([one]) == {}
            assert offsets(await take(plane, 2)) == [12, 13]
            await plane.unassign([one])
        await plane.close()

    play(story)


@pytest.mark.parametrize("how", ["sought", "assigned anew"])
@pytest.mark.parametrize("start", [EARLIEST, OffsetAndMetadata(10, leader_epoch=0)], ids=["beginning", "epoch"])
def test_the_last_word_on_a_position_counts(play: Callable[[Story], None], start: OffsetAndMetadata, how: str) -> None:
    """Also while a question about the former one waits for its answer, behind a Fetch of other partitions."""

    async def story(logs: Logs) -> None:
        logs.produce(0, 50)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        there = OffsetAndMetadata(40)
        await plane.assign(at(logs, 1))
        await nothing_comes(plane, 0.3)
        await plane.assign({one: start})
        if how == "assigned anew":
            await plane.unassign([one])
            await plane.assign({one: there})
        else:
            await plane.seek(one, there)
            await plane.seek(one, start)
            await plane.seek(one, there)
        assert offsets(await take(plane, 10)) == list(range(40, 50))
        await nothing_comes(plane, 1.5)
        await plane.close()

    play(story)


@pytest.mark.parametrize("after_s", [0, 0.1, 0.4])
def test_the_first_records_come_although_the_policy_began_elsewhere(play: Callable[[Story], None], after_s: float) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 50)
        plane = logs.plane(auto_offset_reset="latest")
        await plane.assign(at(logs, 1))
        await nothing_comes(plane, 0.3)
        await plane.assign(at(logs, 0, offset=60))
        await nothing_comes(plane, after_s)
        await plane.rewind([TopicPartition(logs.topic, 0)])
        assert offsets(await take(plane, 50)) == list(range(50))
        await nothing_comes(plane, 1.5)
        logs.produce(0, 1)
        assert offsets(await take(plane, 1)) == [50]
        await plane.close()

    play(story)


def test_after_unassign_nothing_comes_and_it_begins_anew(play: Callable[[Story], None]) -> None:
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


def test_pause_keeps_the_position_and_resume_goes_on_there(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 20)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        await plane.assign(at(logs, 0, offset=2))
        await plane.pause([one])
        await nothing_comes(plane)
        await plane.resume([one])
        assert offsets(await take(plane, 2)) == [2, 3]
        await plane.pause([one])
        await plane.pause([one])
        await nothing_comes(plane)
        assert (await plane.positions([one]))[one].offset == 4
        await plane.resume([one])
        assert offsets(await take(plane, 3)) == [4, 5, 6]
        await plane.resume([one])
        assert offsets(await take(plane, 1)) == [7]
        # Sought while it is paused: it goes on there.
        await plane.pause([one])
        await plane.seek(one, OffsetAndMetadata(16))
        await nothing_comes(plane)
        assert await plane.positions([one]) == {}
        await plane.resume([one])
        assert offsets(await take(plane, 4)) == [16, 17, 18, 19]
        # Assigned anew it is not paused.
        await plane.pause([one])
        await plane.unassign([one])
        await plane.assign(at(logs, 0, offset=18))
        assert offsets(await take(plane, 2)) == [18, 19]
        await plane.close()

    play(story)


def test_what_cannot_be_raises_and_changes_nothing(play: Callable[[Story], None]) -> None:
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
        with pytest.raises(KafkaException) as unknown:
            await plane.seek(other, OffsetAndMetadata(1))
        assert code(unknown) in (KafkaError._UNKNOWN_PARTITION, KafkaError._STATE)
        await plane.pause([other])
        await plane.resume([other])
        assert await plane.positions([other]) == {}
        assert offsets(await take(plane, 5)) == [0, 1, 2, 3, 4]
        await plane.close()

    play(story)


def test_logical_offsets_are_the_ends_of_the_log(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        for partition in (0, 1):
            logs.produce(partition, 10)
            logs.trim(partition, 4)
        plane = logs.plane()
        one, two = TopicPartition(logs.topic, 0), TopicPartition(logs.topic, 1)
        await plane.assign({one: EARLIEST})
        assert offsets(await take(plane, 6)) == [4, 5, 6, 7, 8, 9]
        await plane.assign({two: LATEST})
        await nothing_comes(plane)
        logs.produce(1, 2)
        assert offsets(await take(plane, 2)) == [10, 11]
        await plane.close()

    play(story)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_out_of_range_without_a_policy_is_an_event_and_then_silence(play: Callable[[Story], None], where: str) -> None:
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
        # A pause does not bring it back.
        await plane.pause([one])
        await plane.resume([one])
        await nothing_comes(plane)
        await plane.seek(one, OffsetAndMetadata(8))
        assert offsets(await take(plane, 2)) == [8, 9]
        assert (await plane.positions([one]))[one].offset == 10
        await plane.seek(one, OffsetAndMetadata(1_000))
        assert (await take(plane, 1))[0].error().code() == KafkaError._AUTO_OFFSET_RESET
        # Sought while it is paused.
        await plane.pause([one])
        await plane.seek(one, OffsetAndMetadata(7))
        await nothing_comes(plane)
        await plane.resume([one])
        assert offsets(await take(plane, 3)) == [7, 8, 9]
        await plane.unassign([one])
        await plane.assign(at(logs, 0, offset=6))
        assert offsets(await take(plane, 4)) == [6, 7, 8, 9]
        await plane.close()

    play(story)


def test_out_of_range_with_a_policy_goes_on_without_a_word(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 10)
        logs.trim(0, 4)
        plane = logs.plane(auto_offset_reset="earliest")
        one = TopicPartition(logs.topic, 0)
        await plane.assign(at(logs, 0, offset=1))
        assert offsets(await take(plane, 6)) == [4, 5, 6, 7, 8, 9]
        await plane.seek(one, OffsetAndMetadata(500))
        assert offsets(await take(plane, 2)) == [4, 5]
        await plane.close()

    play(story)


def test_the_end_of_a_partition_is_an_event_that_moves_nothing(play: Callable[[Story], None]) -> None:
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


def test_a_topic_that_was_not_heard_of_comes_within_seconds(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 5)
        plane = logs.plane()
        await plane.assign(at(logs, 0))
        await take(plane, 5)
        later = TopicPartition(logs.create_topic(), 0)
        await plane.assign({later: EARLIEST})
        await plane.pause([later])
        await plane.resume([later])
        assert offsets(await take(plane, 5)) == [0, 1, 2, 3, 4]
        await plane.close()

    play(story)


def test_a_topic_that_is_deleted_and_made_again_has_other_offsets(play: Callable[[Story], None]) -> None:
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
        both = [TopicPartition(logs.topic, 0), TopicPartition(logs.topic, 1)]
        await plane.pause(both)
        # librdkafka pauses in a thread of its own, and a fetch may be under way.
        await nothing_comes(plane, 1.5)
        logs.recreate_topic()
        logs.produce(0, 7)
        logs.produce(1, 3)
        await plane.resume(both)
        messages = await take(plane, 3)
        (event,) = [message for message in messages if message.error() is not None]
        assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert (event.partition(), event.offset()) == (1, 20)
        assert [message.offset() for message in messages if message.error() is None] == [5, 6]
        await plane.close()

    play(story)


def test_calls_are_carried_out_in_their_order_although_nobody_waits(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        logs.produce(0, 20)
        plane = logs.plane()
        one = TopicPartition(logs.topic, 0)
        begun = [
            asyncio.ensure_future(call)
            for call in (
                plane.assign(at(logs, 0)),
                plane.pause([one]),
                plane.seek(one, OffsetAndMetadata(7)),
                plane.resume([one]),
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


def test_what_a_cancelled_fetch_took_reaches_its_sink(play: Callable[[Story], None]) -> None:
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


def test_close_is_idempotent_and_the_end(play: Callable[[Story], None]) -> None:
    async def story(logs: Logs) -> None:
        plane = logs.plane()
        await plane.assign(at(logs, 0, 1))
        await plane.close()
        await plane.close()
        with pytest.raises(RuntimeError):
            await plane.fetch(1, 0, lambda _: None)

    play(story)
