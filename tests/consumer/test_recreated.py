"""A topic that is deleted and created again under its name is another topic: it is read from its first record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.offsets import (
    OFFSET_COMMIT_BY_NAME,
    OFFSET_FETCH_BY_NAME,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from tests.support.consumer.embedded import BROKER, KeepingConsumer, consumer, produce, row, take
from tests.support.waiting import eventually
from tests.support.white_box import data_plane, partitions

OLD = 40


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        produce(running, "orders", {number: (f"old {one}" for one in range(OLD)) for number in (0, 1)})
        yield running


def make_again(kafka: EmbeddedKafka, count: int) -> None:
    kafka.recreate_topic("orders", 2)
    produce(kafka, "orders", {number: (f"new {one}" for one in range(count)) for number in (0, 1)})


def new_values(one: KeepingConsumer) -> set[tuple[int, str]]:
    found = {(message.partition(), bytes(message.value() or b"").decode()) for message in one.kept}
    return {each for each in found if each[1].startswith("new")}


@pytest.mark.parametrize("count", [OLD + 60, OLD, 30], ids=["more", "as many", "fewer"])
@pytest.mark.parametrize("automatic", [True, False], ids=["automatic commits", "manual commits"])
def test_no_record_of_the_new_topic_is_skipped(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, automatic: bool, count: int
) -> None:
    settings: dict[str, Any] = {"enable_auto_commit": automatic, "auto_commit_interval_ms": 50, "auto_offset_reset": "latest"}
    with consumer(kafka, metadata_max_age_ms=1_000, **settings) as one:
        one.commit(offsets=[row(0, 10), row(1, 10)], asynchronous=False)
        one.subscribe(["orders"])
        assert len(take(one, 2 * (OLD - 10))) == 2 * (OLD - 10)
        make_again(kafka, count)
        eventually(lambda: "created again" in caplog.text, step=one.poll_and_keep)
        # Records that were read from the old position are read again.
        eventually(lambda: len(new_values(one)) == 2 * count, step=one.poll_and_keep)
        eventually(lambda: [each.offset for each in one.position([row(0), row(1)])] == [count, count], step=one.poll_and_keep)
        one.kept.clear()
        if not automatic:
            one.commit(asynchronous=False)
    with consumer(kafka) as two:
        assert [each.offset for each in two.committed([row(0), row(1)], 10)] == [count, count]


def test_stored_offsets_of_the_old_topic_are_not_committed_to_the_new_one(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, metadata_max_age_ms=1_000, enable_auto_offset_store=False, auto_commit_interval_ms=50) as one:
        one.subscribe(["orders"])
        for message in take(one, 2 * OLD):
            one.store_offsets(message)
        make_again(kafka, 5)
        eventually(lambda: len(new_values(one)) == 10, step=one.poll_and_keep)
        one.kept.clear()
    with consumer(kafka) as two:
        assert all(each.offset <= 0 for each in two.committed([row(0), row(1)], 10))


@pytest.fixture
def before_4_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """OffsetCommit and OffsetFetch identify topics by name."""
    for request, newest in ((OffsetCommitRequest, OFFSET_COMMIT_BY_NAME), (OffsetFetchRequest, OFFSET_FETCH_BY_NAME)):
        key = api_for(request).key
        monkeypatch.setitem(SERVED, key, attrs.evolve(SERVED[key], max_version=newest))


@pytest.fixture(params=["Kafka 4.1", "before"])
def any_broker(request: pytest.FixtureRequest) -> None:
    if request.param == "before":
        request.getfixturevalue("before_4_1")


@pytest.mark.usefixtures("any_broker")
def test_a_commit_for_the_old_topic_reveals_the_new_one(kafka: EmbeddedKafka) -> None:
    """The commit fails, because of its topic id or after a look-up of the id, long before the metadata expires."""
    with consumer(kafka, enable_auto_commit=False, metadata_max_age_ms=3_600_000) as one:
        one.subscribe(["orders"])
        last = take(one, 2 * OLD)[-1]
        make_again(kafka, 3)
        with pytest.raises(KafkaException, match="was deleted"):
            one.commit(last, asynchronous=False)
        eventually(lambda: len(new_values(one)) == 6, step=one.poll_and_keep)
        one.kept.clear()


@pytest.mark.usefixtures("any_broker")
def test_an_automatic_commit_never_puts_the_old_position_into_the_new_topic(kafka: EmbeddedKafka) -> None:
    """librdkafka goes on reading the new topic at the old position; the next commit reveals that it is another topic."""
    settings: dict[str, Any] = {"metadata_max_age_ms": 3_600_000, "auto_commit_interval_ms": 50}
    with consumer(kafka, **settings) as one:
        one.subscribe(["orders"])
        take(one, 2 * OLD)
        make_again(kafka, OLD + 4)
        eventually(lambda: len(new_values(one)) == 2 * (OLD + 4), step=one.poll_and_keep)
        one.kept.clear()


@pytest.mark.usefixtures("any_broker")
@pytest.mark.parametrize("columns", [False, True])
def test_a_close_leaves_no_old_position_in_the_new_topic(kafka: EmbeddedKafka, columns: bool) -> None:
    one = consumer(kafka, metadata_max_age_ms=3_600_000, auto_commit_interval_ms=3_600_000)
    one.subscribe(["orders"])
    read = 0

    def step() -> None:
        nonlocal read
        read += len(one.consume_arrow(timeout=0.05) if columns else one.consume(2 * OLD, 0.05))

    eventually(lambda: read == 2 * OLD, step=step)
    kafka.recreate_topic("orders", 2)
    one.close()
    produce(kafka, "orders", {number: (f"new {each}" for each in range(OLD + 4)) for number in (0, 1)})
    with consumer(kafka) as two:
        two.subscribe(["orders"])
        assert len(take(two, 2 * (OLD + 4))) == 2 * (OLD + 4)


def test_where_the_policy_begins_after_a_seek_out_of_range_is_a_position_of_the_new_topic(kafka: EmbeddedKafka) -> None:
    settings: dict[str, Any] = {"auto_offset_reset": "by_duration:PT1H", "auto_commit_interval_ms": 50}
    with consumer(kafka, metadata_max_age_ms=1_000, **settings) as one:
        one.subscribe(["orders"])
        assert len(take(one, 2 * OLD)) == 2 * OLD
        make_again(kafka, 0)
        eventually(lambda: all(each.former_topic_id for each in partitions(one).values()), step=one.poll_and_keep)
        one.seek(row(0, OLD))
        eventually(lambda: one.committed([row(0)], 10)[0].offset == 0, step=one.poll_and_keep)


@pytest.mark.parametrize("paused", [False, True])
def test_a_commit_is_for_the_old_topic_until_a_record_of_the_new_one_is_delivered(kafka: EmbeddedKafka, paused: bool) -> None:
    """A record that was only read ahead does not count."""
    with consumer(kafka, enable_auto_commit=False, metadata_max_age_ms=1_000) as one:
        one.subscribe(["orders"])
        old = [message for message in take(one, 2 * OLD) if message.partition() == 0][-1]
        make_again(kafka, 0)
        eventually(lambda: all(each.former_topic_id for each in partitions(one).values()), step=one.poll_and_keep)
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        produce(kafka, "orders", {0: ["new", "new"]})
        ahead = data_plane(one).read_ahead(2)
        assert [message.value() for message in ahead] == [b"new", b"new"]
        if paused:
            one.pause([row(0)])
        with pytest.raises(KafkaException, match="was deleted"):
            one.commit(old, asynchronous=False)
        one.resume([row(0)])
        (new,) = take(one, 1)
        one.commit(new, asynchronous=False)
        assert one.committed([row(0)], 10)[0].offset == 1
