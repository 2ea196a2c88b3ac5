"""librdkafka learns the subscription's topics before it reads them, and is not made to request metadata repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import attrs
import pytest
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata, TopicMetadata

from consumer_coord.confluent import KafkaError, KafkaException, TopicPartition
from consumer_coord.consumer.deliveries import Span
from consumer_coord.consumer.librdkafka.plane import Librdkafka, OffLoop
from consumer_coord.consumer.partitions import Plan, Read
from consumer_coord.consumer.worker import Worker
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition as Partition

T = TypeVar("T")


class Handle:
    """A substitute for confluent_kafka.Consumer that records the calls."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.mentioned: list[str] = []
        self.topics = ["a", "b", "c", "d", "e", "f"]
        self.error: int | None = None
        #: The look-ups and assignments, in order.
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []
        self.waiting: list[Any] = []

    def consume(self, most: int, timeout: float) -> list[Any]:
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def poll(self, timeout: float) -> Any:
        return next(iter(self.consume(1, timeout)), None)

    def incremental_assign(self, rows: list[TopicPartition]) -> None:
        self.calls.append(("assign", [(row.topic, row.offset) for row in rows]))

    def position(self, rows: list[TopicPartition]) -> list[TopicPartition]:
        return rows

    def incremental_unassign(self, rows: list[TopicPartition]) -> None:
        self.calls.append(("unassign", [(row.topic, row.partition) for row in rows]))

    def pause(self, rows: list[TopicPartition]) -> None:
        """Do nothing: the partitions stay assigned."""

    def resume(self, rows: list[TopicPartition]) -> None:
        """Do nothing: this may also name unassigned partitions."""

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "the call sends a request to a broker, and waits"
        self.mentioned.append(partition.topic)
        return (-1001, -1001)

    def list_topics(self, topic: str | None = None, *, timeout: float) -> ClusterMetadata:
        self.asked.append(topic)
        self.calls.append(("ask", [(topic or "all", 0)]))
        if self.error is not None:
            raise KafkaException(KafkaError(self.error))
        found = ClusterMetadata()
        found.topics = {name: TopicMetadata() for name in self.topics if topic in (None, name)}
        for each in found.topics.values():
            each.partitions = dict.fromkeys(range(2), PartitionMetadata())
        return found


@pytest.fixture
def plane() -> Iterator[Librdkafka]:
    made = Librdkafka({"group.id": "g"})
    real, made.handle = made.handle, Handle()
    yield made
    real.close()


def _handle(plane: Librdkafka) -> Any:
    return plane.handle


def test_a_topic_is_asked_for_once(plane: Librdkafka) -> None:
    assert plane.learn(["a", "b"])
    assert plane.learn(["a", "b"])
    assert _handle(plane).asked == ["a", "b"]


def test_many_topics_are_asked_for_in_one_request(plane: Librdkafka) -> None:
    assert plane.learn(_handle(plane).topics)
    assert _handle(plane).asked == [None]


@pytest.mark.parametrize("error", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT])
@pytest.mark.parametrize("topics", [["a", "b"], ["a", "b", "c", "d", "e"]])
def test_librdkafka_knows_what_is_wanted_when_a_question_is_lost(plane: Librdkafka, topics: list[str], error: int) -> None:
    _handle(plane).error = error
    assert not plane.learn(topics)
    assert _handle(plane).mentioned == topics


@pytest.mark.parametrize("topics", [["a", "b"], ["a", "b", "c", "d", "e"]])
def test_a_question_whose_answer_takes_long_is_not_asked_again(plane: Librdkafka, topics: list[str]) -> None:
    _handle(plane).error = KafkaError._TIMED_OUT
    assert not plane.learn(topics)
    asked = len(_handle(plane).asked)
    assert asked == (2 if len(topics) == 2 else 1), "each topic once"
    _handle(plane).error = None
    assert not plane.learn(topics), "its response is still pending"
    assert len(_handle(plane).asked) == asked
    assert not plane.learn([*topics, "f"]), "a response to other topics is no response to this one"
    assert _handle(plane).asked[asked:] == ["f"]


def test_a_question_that_could_not_be_sent_is_asked_again_after_two_seconds(
    plane: Librdkafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr("consumer_coord.consumer.librdkafka.plane.time", SimpleNamespace(monotonic=lambda: clock[0]))
    _handle(plane).error = KafkaError._TRANSPORT
    assert not plane.learn(["a"])
    _handle(plane).error = None
    clock[0] += 1.9
    assert not plane.learn(["a"])
    assert _handle(plane).asked == ["a"], "each of many members would send a request with each poll"
    clock[0] += 0.2
    assert plane.learn(["a"])
    assert _handle(plane).asked == ["a", "a"]


def test_a_topic_that_does_not_exist_is_asked_for_again(plane: Librdkafka) -> None:
    assert plane.learn(["later"]), "there was a response"
    _handle(plane).topics.append("later")
    assert plane.learn(["later"])
    assert plane.learn(["later"])
    assert _handle(plane).asked == ["later", "later"]


def _start(worker: Worker, *topics: str, offset: int = 0, epoch: int = -1) -> list[tuple[str, list[tuple[str, int]]]]:
    """Begin to read partition 0 of these topics; return the calls of librdkafka's handle."""
    calls: list[tuple[str, list[tuple[str, int]]]] = _handle_of(worker).calls
    calls.clear()
    begun = {
        Partition(topic, 0): Read(number, OffsetAndMetadata(offset, epoch), on=True) for number, topic in enumerate(topics)
    }
    asyncio.run(worker.reconcile(Plan({**worker.applied.reads, **begun})))
    return list(calls)


class AtOnce(OffLoop):
    """A variant that makes every call at once, on the loop's thread."""

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.set_result(function())
        return done


def _switch_off(worker: Worker, topic: str) -> None:
    partition = Partition(topic, 0)
    off = attrs.evolve(worker.applied.reads[partition], on=False)
    asyncio.run(worker.reconcile(Plan({**worker.applied.reads, partition: off})))


def _handle_of(worker: Worker) -> Any:
    assert isinstance(worker.plane, AtOnce)
    return worker.plane._kafka.handle


@pytest.fixture
def idle(plane: Librdkafka) -> Worker:
    """Return a worker that reads a and b from offset 7, and has found no records."""
    worker = Worker(AtOnce(plane), lambda error: False)
    _start(worker, "a", "b", offset=7)
    asyncio.run(worker.fetch(1, 0.001))
    return worker


def test_a_new_topic_does_not_wait_for_two_fetches_of_idle_partitions(idle: Worker) -> None:
    assert _start(idle, "c") == [
        ("unassign", [("a", 0), ("b", 0)]),
        ("ask", [("c", 0)]),
        ("assign", [("c", 0)]),
        ("assign", [("a", 7), ("b", 7)]),
    ]
    assert set(idle.assigned) == {Partition("a", 0), Partition("b", 0), Partition("c", 0)}
    _switch_off(idle, "c")
    assert _start(idle, "c") == [("assign", [("c", 0)])], "librdkafka knows the topic"


def test_a_paused_partition_is_not_assigned_again_for_a_new_topic(idle: Worker) -> None:
    _switch_off(idle, "a")
    assert ("unassign", [("b", 0)]) in _start(idle, "c")


def test_idle_partitions_come_back_when_the_new_one_cannot_be_assigned(idle: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rows: list[TopicPartition]) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    with monkeypatch.context() as patch:
        patch.setattr(_handle_of(idle), "incremental_assign", refuse)
        with pytest.raises(KafkaException):
            _start(idle, "c")
    _handle_of(idle).assignment = list
    _handle_of(idle).position = lambda rows: rows
    _handle_of(idle).calls.clear()
    asyncio.run(idle.reconcile(idle.applied))
    assert ("assign", [("a", 7), ("b", 7), ("c", 0)]) in _handle_of(idle).calls


@pytest.mark.parametrize("wait_s", [0.0, 0.001])
def test_partitions_with_records_are_not_assigned_again_for_a_new_topic(idle: Worker, wait_s: float) -> None:
    _handle_of(idle).waiting = [Span(Partition("a", 0), 7)]
    asyncio.run(idle.fetch(1, wait_s))
    assert _start(idle, "c") == [("ask", [("c", 0)]), ("assign", [("c", 0)])]


def test_a_topic_whose_epoch_librdkafka_checks_is_not_asked_for(idle: Worker) -> None:
    assert _start(idle, "c", epoch=3) == [("assign", [("c", 0)])]


def test_the_end_of_an_idle_partition_is_not_reported_again_for_a_new_topic() -> None:
    plane = Librdkafka({"group.id": "g", "enable.partition.eof": "true"})
    real, plane.handle = plane.handle, Handle()
    worker = Worker(AtOnce(plane), lambda error: False)
    _start(worker, "a")
    asyncio.run(worker.fetch(1, 0.001))
    assert _start(worker, "c") == [("ask", [("c", 0)]), ("assign", [("c", 0)])]
    real.close()
