"""GroupConsumer: subscriptions, starting positions, commits (behaviours 46, 55, 56, 58, 78, 79, 85, 86)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import GroupConsumer, confluent
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaError, KafkaException
from consumer_coord.errors import ConfigurationError, NoOffsetError, NotAssignedError
from consumer_coord.leaders.list_offsets import duration_ms
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import Request
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.consumer.embedded import BROKER, CallbackLog, consumer, held, poll_each, produce, row, take
from tests.support.waiting import eventually
from tests.support.white_box import data_plane


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2, "other": 1}, config=BROKER) as running:
        yield running


@pytest.mark.behaviour(46)
def test_a_subscription_and_a_manual_assignment_exclude_each_other(kafka: EmbeddedKafka) -> None:
    produce(kafka, "other", {0: range(3)})
    with consumer(kafka) as one:
        one.assign([row(0, 1, "other")])
        assert [message.offset() for message in take(one, 2)] == [1, 2]
        one.subscribe(["orders"])
        assert one.assignment() == [], "a subscription ends a manual assignment"
        eventually(lambda: held(one) == [0, 1], step=one.poll_and_keep)
        with pytest.raises(NotAssignedError, match="unsubscribe first"):
            one.assign([row(0, 0, "other")])
        one.unsubscribe()
        assert one.assignment() == []
        one.assign([row(0, 0, "other")])
        assert len(take(one, 3)) == 3


@pytest.mark.behaviour(46)
@pytest.mark.parametrize("wrong", ["orders", [None], [b"orders"]])
def test_a_subscription_that_is_none_is_refused(kafka: EmbeddedKafka, wrong: Any) -> None:
    with consumer(kafka) as one, pytest.raises(TypeError, match="list of topic"):
        one.subscribe(wrong)


@pytest.mark.behaviour(46, 47)
def test_a_pattern_that_is_no_regular_expression_is_quoted(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        with pytest.raises(ConfigurationError, match=r"\^\(orders"):
            one.subscribe(["^(orders"])
        one.subscribe(["^ord", "other"])
        eventually(lambda: len(one.assignment()) == 3, step=one.poll_and_keep)


@pytest.mark.behaviour(55)
@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10), ("by_duration:PT1H", 4), ("by_duration:P2D", 0)])
def test_where_reading_begins_without_a_commit(kafka: EmbeddedKafka, reset: str, first: int) -> None:
    now = int(time.time() * 1000)
    produce(kafka, "orders", {0: range(4)}, timestamp=now - 7_200_000)
    produce(kafka, "orders", {0: range(6)}, timestamp=now - 60_000)
    with consumer(kafka, auto_offset_reset=reset) as one:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1] and len(data_plane(one).assigned) == 2, step=one.poll_and_keep)
        if reset == "latest":
            produce(kafka, "orders", {0: ["new"]})
        assert take(one, max(1, 10 - first))[0].offset() == first


@pytest.mark.behaviour(55)
def test_without_a_commit_and_a_policy_poll_says_what_to_do(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka, auto_offset_reset="none", poll_raises_errors=True) as one:
        one.subscribe(["orders"])
        with pytest.raises(NoOffsetError, match=r"orders-0, orders-1, and auto.offset.reset is none: commit") as raised:
            eventually(lambda: False, step=one.poll_and_keep)
        assert isinstance(raised.value, KafkaException)
        assert raised.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
        # Do what the error message advises.
        one.commit(offsets=[row(0, 1), row(1, 0)], asynchronous=False)
        assert [message.offset() for message in take(one, 2)] == [1, 2]


@pytest.mark.behaviour(55)
def test_a_commit_counts_before_any_policy(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka) as one:
        one.commit(offsets=[row(0, 7)], asynchronous=False)
        one.subscribe(["orders"])
        assert [message.offset() for message in take(one, 3)] == [7, 8, 9]


def test_durations_are_iso_8601() -> None:
    assert duration_ms("P1DT2H3M4.5S") == ((26 * 60 + 3) * 60 + 4.5) * 1000
    assert duration_ms("PT0.25S") == 250
    with pytest.raises(ValueError, match="P1DT12H30M5S"):
        duration_ms("1 hour")


@pytest.mark.behaviour(56)
def test_a_seek_keeps_the_stored_offset(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(100)})
    with consumer(kafka, enable_auto_offset_store=False, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        last = take(one, 100)[-1]
        one.store_offsets(last)
        one.seek(row(0, 40))
        assert one.position([row(0)])[0].offset in (40, confluent.OFFSET_INVALID)
        committed = one.commit(asynchronous=False)
        assert committed is not None
        assert [each.offset for each in committed] == [100], "a stored record is finished, wherever reading continues"
        assert [message.offset() for message in take(one, 60)] == list(range(40, 100))
        with pytest.raises(KafkaException):
            one.seek(row(0, 0, "other"))


@pytest.mark.behaviour(57)
def test_a_log_that_was_cut_back_behind_the_committed_position_is_noticed(kafka: EmbeddedKafka) -> None:
    """A crash can leave this state: offset 50 was committed in epoch 0, which ended at 10 (KIP-320)."""
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka, auto_offset_reset="none", poll_raises_errors=True) as one:
        one.commit(offsets=[confluent.TopicPartition("orders", 0, 50, leader_epoch=0), row(1, 0)], asynchronous=False)
        one.subscribe(["orders"])
        with pytest.raises(NoOffsetError, match="truncation detected at offset 50") as raised:
            eventually(lambda: False, step=one.poll_and_keep)
        assert raised.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
        # The error is raised at every poll, until the application seeks.
        with pytest.raises(NoOffsetError, match="orders-0"):
            eventually(lambda: False, step=one.poll_and_keep)
        one.seek(row(0, 8))
        assert [message.offset() for message in take(one, 2)] == [8, 9]


@pytest.mark.behaviour(58)
def test_lag_is_reported_for_each_partition(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(30), 1: range(5)})
    reported: list[dict[str, Any]] = []
    with consumer(
        kafka, statistics_interval_ms=200, stats_cb=lambda text: reported.append(json.loads(text)), queued_min_messages=1
    ) as one:
        one.subscribe(["orders"])
        take(one, 35)

        def lags() -> dict[str, int]:
            partitions = reported[-1]["topics"].get("orders", {}).get("partitions", {}) if reported else {}
            return {number: each["consumer_lag_stored"] for number, each in partitions.items() if number in ("0", "1")}

        one.commit(offsets=[row(0, 10)], asynchronous=False)
        eventually(lambda: {"0", "1"} <= lags().keys(), step=one.poll_and_keep)
        assert all(each["consumer_lag"] is not None for each in reported[-1]["topics"]["orders"]["partitions"].values())
        ends = {number: one.get_watermark_offsets(row(number), timeout=60) for number in (0, 1)}
        assert ends == {0: (0, 30), 1: (0, 5)}


# -- commits ----------------------------------------------------------------------------------------------------------


def _committed(kafka: EmbeddedKafka, *numbers: int) -> list[int]:
    with consumer(kafka) as other:
        return [each.offset for each in other.committed([row(number) for number in numbers], timeout=60)]


@pytest.mark.behaviour(85)
def test_automatic_commits_come_at_their_interval(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka, auto_commit_interval_ms=50) as one:
        one.subscribe(["orders"])
        take(one, 10)
        eventually(lambda: one.committed([row(0)])[0].offset == 10, step=one.poll_and_keep)
        commits = one.metrics()["commit-total"]
        for _ in range(20):
            one.poll(0.02)
        assert one.metrics()["commit-total"] == commits, "an unchanged offset was committed again"


@pytest.mark.behaviour(85)
def test_an_automatic_commit_that_fails_is_made_again_at_the_next_interval(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    produce(kafka, "orders", {0: range(10)})
    kafka.add_fault("OffsetCommit", Fault(error_code=codes.INVALID_COMMIT_OFFSET_SIZE), times=2)
    with consumer(kafka, auto_commit_interval_ms=50) as one:
        one.subscribe(["orders"])
        take(one, 10)
        eventually(lambda: one.committed([row(0)])[0].offset == 10, step=one.poll_and_keep)
    assert caplog.text.count("automatic commit of orders-0 failed") == 2


@pytest.mark.behaviour(85)
def test_automatic_commits_do_not_cover_undelivered_records(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(100)})
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1], step=one.poll_and_keep)
        assert len(take(one, 7)) == 7
        assert not one.kept
    assert _committed(kafka, 0) == [7]


@pytest.mark.behaviour(85)
def test_without_automatic_commits_nothing_is_committed(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10)})
    with consumer(kafka, enable_auto_commit=False, auto_commit_interval_ms=10) as one:
        one.subscribe(["orders"])
        take(one, 10)
        for _ in range(10):
            one.poll(0.02)
    assert _committed(kafka, 0) == [-1001]


@pytest.mark.behaviour(86)
def test_a_commit_of_the_interval_that_is_under_way_is_answered_before_on_revoke(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10)})
    asked, leaving = threading.Event(), threading.Event()
    looks: list[bool] = []

    def answers() -> bool:
        """Release the response; this is called every 10 ms and waits for a few calls."""
        asked.set()
        if leaving.is_set():
            looks.append(True)
        return len(looks) > 5

    kafka.add_fault("OffsetCommit", Fault(wait_until=answers))
    with consumer(kafka, auto_commit_interval_ms=50) as one:
        found: list[bool] = []
        one.subscribe(["orders"], on_revoke=lambda *_: found.append(len(looks) > 5))
        take(one, 10)
        eventually(asked.is_set, step=one.poll_and_keep)
        leaving.set()
        one.unsubscribe()
        one.poll(0)
        assert found == [True]
    assert _committed(kafka, 0) == [10]


@pytest.mark.behaviour(86)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_finished_records_are_committed_before_a_revocation(kafka: EmbeddedKafka, strategy: str) -> None:
    produce(kafka, "orders", {0: range(10), 1: range(20)})
    # The error is retriable, so the commit is sent again.
    kafka.add_fault("OffsetCommit", Fault(error_code=codes.COORDINATOR_LOAD_IN_PROGRESS), times=2)
    with consumer(kafka, strategy) as one, consumer(kafka, strategy) as two:
        one.subscribe(["orders"])
        take(one, 30)
        two.subscribe(["orders"])
        eventually(lambda: len(held(one)) == len(held(two)) == 1, step=poll_each(one, two))
        moved = held(two)[0]
        assert two.committed([row(moved)])[0].offset == (10, 20)[moved]
        produce(kafka, "orders", {0: ["new"], 1: ["new"]})
        eventually(lambda: two.position([row(moved)])[0].offset == (11, 21)[moved], step=poll_each(one, two))
        again = [*one.kept, *two.kept]
        assert again
        assert all(message.value() == b"new" for message in again), "records were processed twice"


@pytest.mark.behaviour(86)
def test_a_commit_that_cannot_succeed_does_not_stop_the_rebalance(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    produce(kafka, "orders", {0: range(10), 1: range(20)})
    with consumer(kafka) as one, consumer(kafka) as two:
        one.subscribe(["orders"])
        take(one, 30)
        kafka.add_fault("OffsetCommit", Fault(error_code=codes.TOPIC_AUTHORIZATION_FAILED))
        two.subscribe(["orders"])
        eventually(lambda: len(held(one)) == len(held(two)) == 1, step=poll_each(one, two))
    assert "commit before a revoke of orders-1 failed" in caplog.text
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text


@pytest.mark.behaviour(86)
def test_the_commit_before_giving_up_is_bounded_in_time(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10), 1: range(20)})
    with (
        consumer(kafka, rebalance_timeout_ms=300, socket_timeout_ms=1_000) as one,
        consumer(kafka, rebalance_timeout_ms=10_000) as two,
    ):
        one.subscribe(["orders"])
        take(one, 30)
        kafka.add_fault("OffsetCommit", Fault(error_code=codes.COORDINATOR_LOAD_IN_PROGRESS), times=1_000)
        two.subscribe(["orders"])
        eventually(lambda: len(held(one)) == len(held(two)) == 1, step=poll_each(one, two))
        kafka.clear_faults()


@pytest.mark.behaviour(86)
def test_after_an_unsubscribe_whose_time_was_up_a_revoke_waits_for_its_commit_again(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10), 1: range(20)})
    refusing = threading.Event()
    refused: list[Request] = []
    revoked: list[int] = []

    def refuse(_: int, request: Request) -> Fault | None:
        if not isinstance(request.message, OffsetCommitRequest) or not refusing.is_set():
            return None
        refused.append(request)
        return Fault(error_code=codes.COORDINATOR_LOAD_IN_PROGRESS)

    def on_revoke(_: Any, rows: Any) -> None:
        revoked.extend(each.partition for each in rows)
        refusing.clear()

    kafka.add_request_hook(refuse)
    settings: dict[str, Any] = {"default_api_timeout_ms": 500, "auto_commit_interval_ms": 0}
    with consumer(kafka, **settings) as one, consumer(kafka) as two:
        one.subscribe(["orders"], on_revoke=on_revoke)
        take(one, 30)
        refusing.set()
        one.unsubscribe()
        one.poll(0)
        assert refused
        assert revoked == [0, 1], "when the time limit has passed"
        revoked.clear()
        one.subscribe(["orders"], on_revoke=on_revoke)
        produce(kafka, "orders", {0: ["new"], 1: ["new"]})
        eventually(lambda: [message.value() for message in one.kept].count(b"new") == 2, step=one.poll_and_keep)
        refused.clear()
        refusing.set()
        two.subscribe(["orders"])
        eventually(lambda: len(refused) >= 3 or revoked, step=poll_each(one, two))
        assert not revoked
        refusing.clear()
        eventually(lambda: len(held(one)) == len(held(two)) == 1, step=poll_each(one, two))
        assert revoked == held(two)


@pytest.mark.behaviour(78, 79)
def test_asynchronous_commits_are_reported_in_order_and_before_close(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(10)})
    calls: list[tuple[Any, list[int]]] = []
    config_told = CallbackLog()
    one = consumer(kafka, on_commit=lambda error, rows: calls.append((error, [each.offset for each in rows])))
    one.subscribe(["orders"], **config_told.callbacks())
    messages = take(one, 10)
    kafka.add_fault("OffsetCommit", Fault(delay_ms=200))
    for message in messages[:3]:
        one.commit(message)
    one.commit(offsets=[row(1, 0)], asynchronous=False)
    assert [offsets for _, offsets in calls] in ([], [[1], [2], [3]]), "reported outside of poll, or out of order"
    one.commit(messages[4])
    one.close()
    assert calls[:4] == [(None, [1]), (None, [2]), (None, [3]), (None, [5])]
    # Automatic commits are reported, too.
    assert [error for error, _ in calls[4:]] == [None] * len(calls[4:])
    assert calls[-1][1][0] == 10
    # The automatic commit at close covers the delivered records.
    assert _committed(kafka, 0) == [10]


@pytest.mark.behaviour(79)
def test_without_on_commit_only_failed_commits_are_logged(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.commit(offsets=[row(0, 1)])
        one.commit(offsets=[confluent.TopicPartition("orders", 1, 1, "x" * 5_000)])
    messages = [record.getMessage() for record in caplog.records if "an asynchronous commit failed" in record.getMessage()]
    assert len(messages) == 1
    assert "orders-1" in messages[0]


def test_a_commit_says_for_each_row_what_went_wrong(kafka: EmbeddedKafka) -> None:
    calls: list[Any] = []
    with consumer(kafka, on_commit=lambda error, rows: calls.append(rows)) as one:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1], step=one.poll_and_keep)
        with pytest.raises(KafkaException) as raised:
            one.commit(offsets=[confluent.TopicPartition("orders", 0, 3, "x" * 5_000), row(1, 4)], asynchronous=False)
        assert raised.value.args[0].code() == codes.OFFSET_METADATA_TOO_LARGE
        assert [each.offset for each in one.committed([row(1), row(0)])] == [4, confluent.OFFSET_INVALID]
        one.commit(offsets=[confluent.TopicPartition("orders", 0, 3, "x" * 5_000), row(1, 5)])
        eventually(lambda: calls, step=one.poll_and_keep)
        assert [each.error is not None and each.error.code() for each in calls[0]] == [codes.OFFSET_METADATA_TOO_LARGE, False]
        with pytest.raises(ValueError, match="mutually exclusive"):
            one.commit(message=object(), offsets=[row(0, 1)])
        with pytest.raises(KafkaException) as raised:
            one.commit(asynchronous=False)
        assert raised.value.args[0].code() == KafkaError._NO_OFFSET


def test_closed_is_closed(kafka: EmbeddedKafka) -> None:
    one = consumer(kafka)
    one.close()
    one.close()
    calls: list[Any] = [lambda: one.poll(0), lambda: one.consume(1, 0), lambda: one.subscribe(["orders"]), one.assignment]
    for call in calls:
        with pytest.raises(KafkaException, match="closed"):
            call()


def test_a_consumer_whose_subclass_forgot_to_make_it_is_closed() -> None:
    class Forgetful(GroupConsumer):
        def __init__(self) -> None:
            self.mine = 1

    one = Forgetful()
    calls: list[Any] = [lambda: one.poll(0), lambda: one.consume(1, 0), lambda: one.subscribe(["orders"]), one.assignment]
    for call in calls:
        with pytest.raises(KafkaException, match="closed"):
            call()
    one.close()


def test_no_hook_slows_the_attributes_that_poll_reads() -> None:
    """With ``__getattr__`` in its class each read took four times as long, and ``poll`` was slower than librdkafka's."""
    hooks = {"__getattr__", "__getattribute__"}
    assert not hooks & {name for kind in GroupConsumer.__mro__ if kind is not object for name in vars(kind)}


def test_a_consumer_is_a_context_manager_and_an_iterator(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka) as one:
        assert isinstance(one, GroupConsumer)
        one.subscribe(["orders"])
        seen = []
        for message in one:
            seen.append(message.value())
            if len(seen) == 3:
                break
    assert seen == [b"0", b"1", b"2"]


def test_offsets_of_assigned_partitions_are_stored_although_others_are_not_assigned(kafka: EmbeddedKafka) -> None:
    """As with confluent-kafka."""
    with consumer(kafka, enable_auto_offset_store=False, enable_auto_commit=False) as one:
        one.assign([row(0, 0)])
        one.store_offsets(offsets=[row(1, 5), row(0, 1)])
        committed = one.commit(asynchronous=False)
        assert committed is not None
        assert [(each.partition, each.offset) for each in committed] == [(0, 1)]
        with pytest.raises(NotAssignedError, match="orders-1"):
            one.store_offsets(offsets=[row(1, 5)])
