"""librdkafka hears of the subscription's topics before it has to read them, and is not made to ask again and again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ClusterMetadata, TopicMetadata

from consumer_coord.consumer.librdkafka.plane import Librdkafka


class Handle:
    """Stands in for confluent_kafka.Consumer: keeps what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.mentioned: list[str] = []
        self.topics = ["a", "b", "c", "d", "e", "f"]
        self.error: int | None = None

    def get_watermark_offsets(self, partition: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "it asks a broker, and waits"
        self.mentioned.append(partition.topic)
        return (-1001, -1001)

    def list_topics(self, topic: str | None = None, *, timeout: float) -> ClusterMetadata:
        self.asked.append(topic)
        if self.error is not None:
            raise KafkaException(KafkaError(self.error))
        found = ClusterMetadata()
        found.topics = {name: TopicMetadata() for name in self.topics if topic in (None, name)}
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
def test_librdkafka_knows_what_is_wanted_when_a_question_is_lost(
    plane: Librdkafka, topics: list[str], error: int
) -> None:
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
    assert not plane.learn(topics), "its answer is still under way"
    assert len(_handle(plane).asked) == asked
    assert not plane.learn([*topics, "f"]), "nor is one that was not asked for an answer to the others"
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
    assert _handle(plane).asked == ["a"], "each of many members would ask with each poll"
    clock[0] += 0.2
    assert plane.learn(["a"])
    assert _handle(plane).asked == ["a", "a"]


def test_a_topic_that_does_not_exist_is_asked_for_again(plane: Librdkafka) -> None:
    assert plane.learn(["later"]), "there was an answer"
    _handle(plane).topics.append("later")
    assert plane.learn(["later"])
    assert plane.learn(["later"])
    assert _handle(plane).asked == ["later", "later"]
