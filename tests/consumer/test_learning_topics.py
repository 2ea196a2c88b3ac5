"""librdkafka learns the subscription's topics before it reads them, and is not made to request metadata repeatedly."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata, TopicMetadata

from consumer_coord.confluent import KafkaError, KafkaException, TopicPartition
from consumer_coord.consumer.librdkafka.handle import Librdkafka

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
    monkeypatch.setattr("consumer_coord.consumer.librdkafka.handle.time", SimpleNamespace(monotonic=lambda: clock[0]))
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
