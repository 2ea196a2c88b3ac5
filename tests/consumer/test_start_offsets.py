"""Start offsets on an embedded Kafka: with a committed offset, out of range, and without a position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, KafkaError, TopicPartition
from consumer_coord.errors import NoOffsetError
from consumer_coord.offsets import OFFSET_TAIL_BASE
from consumer_coord.topic_partition import TopicPartition as PartitionOf
from tests.support.consumer.embedded import BROKER, DEADLINE_S, consumer, held, produce, row, take
from tests.support.environments import needs_librdkafka
from tests.support.waiting import eventually
from tests.support.white_box import data_plane, partitions


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        yield running


def _committed(kafka: EmbeddedKafka) -> list[int]:
    with consumer(kafka) as one:
        return [each.offset for each in one.committed([row(0), row(1)], 10)]


@pytest.mark.behaviour(55)
@pytest.mark.parametrize("auto_store", [True, False])
def test_a_member_that_read_nothing_leaves_the_end_it_began_at(kafka: EmbeddedKafka, auto_store: bool) -> None:
    """With auto.offset.reset=latest, records that are written between two members are read by the second one."""
    produce(kafka, "orders", {0: range(7)})
    with consumer(kafka, auto_offset_reset="latest", enable_auto_offset_store=auto_store) as one:
        one.subscribe(["orders"])
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
    assert _committed(kafka) == [7, 0]
    produce(kafka, "orders", {0: range(10), 1: range(3)})
    with consumer(kafka, auto_offset_reset="latest") as two:
        two.subscribe(["orders"])
        found = sorted((message.partition(), message.offset()) for message in take(two, 13))
    assert found == [(0, 7 + number) for number in range(10)] + [(1, number) for number in range(3)]


def test_where_a_member_began_is_no_stored_offset(kafka: EmbeddedKafka) -> None:
    """With enable.auto.offset.store=false, commit() without arguments commits only the offsets that the application stored."""
    with consumer(kafka, auto_offset_reset="latest", enable_auto_offset_store=False) as one:
        one.subscribe(["orders"])
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        produce(kafka, "orders", {0: range(5)})
        messages = take(one, 5)
        one.store_offsets(messages[1])
        one.commit(asynchronous=False)
        assert _committed(kafka) == [2, -1001]
    assert _committed(kafka) == [2, 0], "close commits the start of the other partition, too"


def test_a_partition_that_begins_at_a_commit_is_not_committed_again(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(7)})
    with consumer(kafka) as one:
        one.commit(offsets=[row(0, 3)], asynchronous=False)
        one.subscribe(["orders"])
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        commits = one.metrics()["commit-total"]
        one.unsubscribe()
        one.kept.clear()
        assert one.metrics()["commit-total"] - commits <= 1
    assert _committed(kafka)[0] in (3, 4), "nothing, or the one message that a poll returned"


def test_a_seek_is_committed_although_nothing_was_read_after_it(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        assert len(take(one, 5)) == 5
        one.commit(asynchronous=False)
        one.seek(row(0, 0))
    assert _committed(kafka)[0] == 0


def test_the_start_of_a_reassigned_partition_is_committed_over_another_members_commit(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        assert len(take(one, 5)) == 5
        position = one.position([row(0)])[0]
        one.unsubscribe()
        with consumer(kafka) as two:
            two.commit(offsets=[row(0, 3)], asynchronous=False)
        one.subscribe(["orders"], on_assign=lambda consumer, _: consumer.assign([position, row(1)]))
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
    assert _committed(kafka)[0] == 5


@pytest.mark.behaviour(55)
def test_a_duration_begins_again_where_it_says_when_the_offset_is_out_of_range(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka, auto_offset_reset="by_duration:PT1H") as one:
        one.subscribe(["orders"])
        assert len(take(one, 5)) == 5
        one.seek(row(0, 1_000))
        assert [message.offset() for message in take(one, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.behaviour(55)
@pytest.mark.parametrize(("reset", "first"), [("by_duration:PT1H", 0), ("earliest", 0), ("latest", 5)])
def test_a_manual_assignment_begins_by_the_policy_when_the_offset_is_out_of_range(
    kafka: EmbeddedKafka, reset: str, first: int
) -> None:
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka, auto_offset_reset=reset) as one:
        one.assign([row(0, 1_000)])
        if first:
            eventually(lambda: one.assignment()[0].offset == first, step=one.poll_and_keep)
            produce(kafka, "orders", {0: range(5)})
        assert [message.offset() for message in take(one, 5)] == list(range(first, first + 5))


@pytest.mark.behaviour(55)
@pytest.mark.parametrize("committed", [None, 1_000])
def test_a_manual_assignment_without_a_position_begins_by_the_policy(kafka: EmbeddedKafka, committed: int | None) -> None:
    """There is no committed offset, or it is out of range."""
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka) as one:
        if committed is not None:
            one.commit(offsets=[row(0, committed)], asynchronous=False)
        one.assign([row(0)])
        assert [message.offset() for message in take(one, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("how", ["assign", "seek", "on_assign"])
@pytest.mark.parametrize(
    ("offset", "first"),
    [(OFFSET_BEGINNING, 4), (OFFSET_END, 10), (OFFSET_TAIL_BASE - 3, 7), (OFFSET_TAIL_BASE - 100, 4), (OFFSET_STORED, 6)],
)
def test_a_logical_offset_is_a_position_of_the_log(kafka: EmbeddedKafka, how: str, offset: int, first: int) -> None:
    produce(kafka, "orders", {0: range(10)})
    admin = pytest.importorskip("confluent_kafka.admin").AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_records([row(0, 4)])[row(0, 4)].result(DEADLINE_S)
    with consumer(kafka) as one:
        one.commit(offsets=[row(0, 6)], asynchronous=False)
        if how == "on_assign":
            one.subscribe(["orders"], on_assign=lambda consumer, _: consumer.assign([row(0, offset)]))
        else:
            one.assign([row(0, offset if how == "assign" else 5)])
        if how == "seek":
            one.seek(row(0, offset))
        eventually(lambda: data_plane(one).assigned, step=one.poll_and_keep)
        produce(kafka, "orders", {0: [10]})
        assert [message.offset() for message in take(one, 11 - first)] == list(range(first, 11))


@pytest.mark.parametrize("last", [8, OFFSET_END, OFFSET_BEGINNING])
def test_the_last_of_several_starts_counts(kafka: EmbeddedKafka, last: int) -> None:
    """Also if a look-up for a former start is in progress."""
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka) as one:
        one.assign([row(0, OFFSET_BEGINNING)])
        for offset in (OFFSET_END, 3, OFFSET_BEGINNING, last):
            one.poll(0)
            one.seek(row(0, offset))
        first = {8: 8, OFFSET_END: 10, OFFSET_BEGINNING: 0}[last]
        eventually(lambda: data_plane(one).assigned, step=one.poll_and_keep)
        produce(kafka, "orders", {0: [10]})
        assert [message.offset() for message in take(one, 11 - first)] == list(range(first, 11))


@pytest.mark.behaviour(55)
def test_a_manual_assignment_without_a_policy_reports_an_offset_out_of_range(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, auto_offset_reset="none") as one:
        one.assign([row(0, 1_000)])
        message = one.poll(DEADLINE_S)
        assert message is not None
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        produce(kafka, "orders", {0: range(5)})
        one.seek(row(0, 2))
        assert [message.offset() for message in take(one, 3)] == [2, 3, 4]


@pytest.mark.behaviour(55)
def test_the_first_record_is_no_position_to_commit_after_an_offset_out_of_range(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        one.commit(offsets=[row(0, 5)], asynchronous=False)
        one.seek(row(0, 5))
        eventually(lambda: data_plane(one).out_of_range, "the offset is out of range")
        eventually(lambda: not data_plane(one).out_of_range, step=one.poll_and_keep)
    assert _committed(kafka)[0] == 5, "no record was read"


@pytest.mark.behaviour(55)
def test_a_partition_without_a_position_does_not_hold_up_the_others(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(5), 1: range(10)})
    told: list[str] = []
    with consumer(kafka, auto_offset_reset="none", poll_raises_errors=True) as one:
        one.commit(offsets=[row(1, 0)], asynchronous=False)
        one.subscribe(["orders"])
        found: list[int] = []
        while len(found) < 10 or not told:
            try:
                message = one.poll(0.1)
            except NoOffsetError as error:
                told.append(str(error))
                continue
            if message is not None:
                assert message.partition() == 1
                found.append(message.offset() or 0)
        assert found == list(range(10))
        assert "orders-0" in told[0]
        assert "orders-1" not in told[0]
        # The error is raised again and again, at the pace of the backoff, not of the polls.
        polls = 0
        while polls < 1_000:
            polls += 1
            try:
                assert one.poll(0) is None
            except NoOffsetError:
                told.append("again")
        assert len(told) < 500
        one.seek(row(0, 2))
        assert [message.offset() for message in take(one, 3)] == [2, 3, 4]


@pytest.mark.behaviour(55)
@pytest.mark.parametrize("raises", [False, True])
def test_a_poll_without_a_limit_reports_a_missing_position_repeatedly(kafka: EmbeddedKafka, raises: bool) -> None:
    """No other event wakes the poll."""
    settings: dict[str, Any] = {"heartbeat_interval_ms": 3_000, "enable_auto_commit": False, "poll_raises_errors": raises}
    told: list[str] = []
    with consumer(kafka, auto_offset_reset="none", **settings) as one:
        one.subscribe(["orders"])
        for _ in range(3):
            try:
                message = one.poll()
            except NoOffsetError as error:
                told.append(str(error))
            else:
                assert message is not None
                told.append(message.error().str())
    assert len(told) == 3
    assert all("orders-0, orders-1" in each for each in told)


def test_offsets_out_of_range_begin_again_by_the_policy_of_librdkafka(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka, auto_offset_reset="earliest") as one:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1], step=one.poll_and_keep)
        assert len(take(one, 5)) == 5
        one.seek(row(0, 1_000))
        assert [message.offset() for message in take(one, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.behaviour(55)
def test_without_a_policy_an_offset_out_of_range_is_reported_until_a_seek(
    kafka: EmbeddedKafka,
) -> None:
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka, auto_offset_reset="none", poll_raises_errors=True) as one:
        one.commit(offsets=[row(0, 0), row(1, 0)], asynchronous=False)
        one.subscribe(["orders"])
        assert len(take(one, 5)) == 5
        one.seek(row(0, 1_000))
        for _ in range(2):
            with pytest.raises(NoOffsetError, match="orders-0"):
                take(one, 1)
        one.seek(row(0, 2))
        assert [message.offset() for message in take(one, 3)] == [2, 3, 4]


def _commit_in_epoch(one: Any, offset: int) -> None:
    one.commit(offsets=[TopicPartition("orders", 0, offset, leader_epoch=0), row(1, 0)], asynchronous=False)


@pytest.mark.behaviour(57)
def test_a_commit_behind_the_end_of_its_epoch_begins_again_at_that_end(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka, auto_offset_reset="earliest") as one:
        _commit_in_epoch(one, 50)
        one.subscribe(["orders"])
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        began = partitions(one)[PartitionOf("orders", 0)].start
        assert began is not None
        assert began.offset == 10
        produce(kafka, "orders", {0: range(10, 13)})
        assert [message.offset() for message in take(one, 3)] == [10, 11, 12]


@pytest.mark.parametrize("reset", ["latest", "none"])
@pytest.mark.parametrize("columns", [False, True])
def test_a_commit_in_an_epoch_that_the_log_does_not_know_is_where_reading_starts(
    kafka: EmbeddedKafka, reset: str, columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets that were copied from another cluster have that cluster's epochs."""
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka, auto_offset_reset=reset) as one:
        one.commit(offsets=[TopicPartition("orders", 0, 7, leader_epoch=5), row(1, 0)], asynchronous=False)
        one.subscribe(["orders"])
        if columns:
            found: list[int] = []

            def read() -> None:
                found.extend(pa.record_batch(one.consume_arrow(timeout=0.1))["offset"].to_pylist())

            eventually(lambda: len(found) == 3, step=read)
        else:
            found = [message.offset() for message in take(one, 3)]
    assert found == [7, 8, 9]
    assert "orders-0: starting at the committed offset 7, although the log does not know its leader epoch 5" in caplog.text


@needs_librdkafka
def test_a_commit_whose_epoch_was_checked_goes_to_librdkafka_without_it(kafka: EmbeddedKafka) -> None:
    """With the epoch, librdkafka would check the offset a second time, and only when its timer of a second fires."""
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka) as one:
        _commit_in_epoch(one, 7)
        one.subscribe(["orders"])
        eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        began = partitions(one)[PartitionOf("orders", 0)].start
        assert began is not None
        assert (began.offset, began.leader_epoch) == (7, -1)
        assert [message.offset() for message in take(one, 3)] == [7, 8, 9]
        found = one.commit(asynchronous=False)
        assert found is not None
        assert [(each.offset, each.leader_epoch) for each in found if each.partition == 0] == [(10, 0)], "records have epochs"


def test_a_commit_whose_epoch_cannot_be_checked_keeps_it(kafka: EmbeddedKafka) -> None:
    """Then librdkafka checks the epoch, because the leader may be moving to another broker."""
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka) as one:
        one.commit(offsets=[TopicPartition("orders", 0, 7, leader_epoch=5), row(1, 0)], asynchronous=False)
        asked: list[Any] = []

        async def unanswered(cluster: Any, wanted: Any, timeout_ms: float) -> dict[Any, Any]:
            asked.append(wanted)
            return {}

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("consumer_coord.leaders.leader_epochs.epoch_ends", unanswered)
            one.subscribe(["orders"])
            eventually(lambda: len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        assert asked == [{PartitionOf("orders", 0): 5}]
        began = partitions(one)[PartitionOf("orders", 0)].start
        assert began is not None
        assert began.leader_epoch == 5
