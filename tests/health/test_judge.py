"""The judge alone: facts in, health out."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from consumer_coord.fetch import LogEnd
from consumer_coord.health import Facts, Health, Owed, PartitionFacts, Reason, judge
from consumer_coord.topic_partition import TopicPartition

NOW, LIMIT_S, POLL_S = 1_000.0, 10.0, 300.0

#: The leader answered 0.1 s ago that the log ends at the position 5, where everything was fetched.
AT_END = LogEnd(fetched=5, end=5, high_watermark=5, answered_at=NOW - 0.1, wait_s=0.5, broker=2)
ONE = PartitionFacts(partition=TopicPartition("orders", 3), position=5, since=NOW - 14, log=AT_END)
FACTS = Facts(now=NOW, state="stable", joined=True, polled_at=NOW, delivered_at=NOW - 14, max_poll_interval_s=POLL_S)


def health(log: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **changes: Any) -> Health:
    """Judge one partition at the end of its log, with these changes of its log, of the facts, and of its own facts."""
    one = attrs.evolve(ONE, **{"log": attrs.evolve(AT_END, **(log or {})), **changes})
    return judge(attrs.evolve(FACTS, partitions=(one,), **(facts or {})), LIMIT_S)


def found(answer: Health) -> tuple[Owed, int | None, Reason | None, bool]:
    """Return what was found about the only partition, and whether the consumer is healthy."""
    (one,) = answer.partitions
    return one.owed, one.records, one.reason, answer.healthy


def test_nothing_is_owed_at_the_end_of_the_log() -> None:
    answer = health()
    assert found(answer) == (Owed.NO, 0, None, True)
    assert answer.partitions[0].since_s == 0.0
    assert answer.partitions[0].text == "orders-3: nothing owed"


@pytest.mark.parametrize(
    ("reason", "log", "facts"),
    [
        (Reason.UNDELIVERED, {"end": 8, "high_watermark": 8}, {}),
        (Reason.UNDELIVERED, {"fetched": 8, "end": 8, "high_watermark": 8}, {}),
        (Reason.OPEN_TRANSACTION, {"high_watermark": 8}, {}),
        (Reason.NO_LEADER, {"end": 8, "broker": None}, {}),
        (Reason.LEADER_SILENT, {"end": 8, "answered_at": NOW - 12}, {}),
        (Reason.LEADER_REFUSES, {"end": 8, "obstacle": "KAFKA_STORAGE_ERROR"}, {}),
        (Reason.THROTTLED, {"end": 8, "throttled_until": NOW + 3}, {}),
        (Reason.LEASE_ENDED, {"fetched": 8, "end": 8}, {"lease_s": -1.0}),
        (Reason.UNDELIVERED, {"fetched": None, "end": 8, "high_watermark": None}, {}),
    ],
)
def test_owed_records_beyond_the_limit_are_unhealthy_with_a_reason(
    reason: Reason, log: dict[str, Any], facts: dict[str, Any]
) -> None:
    answer = health(log, facts)
    assert found(answer) == (Owed.YES, 3, reason, False)
    assert answer.live, "a restart does not help"
    assert answer.partitions[0].since_s == 14.0
    assert answer.problems[0].startswith(f"orders-3: 3 records not delivered for 14.0 s ({reason.value}: ")
    assert health(log, facts, since=NOW - 9).healthy


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (Reason.LEADER_SILENT, {"log": {"answered_at": NOW - 14}}),
        (Reason.NO_LEADER, {"log": {"answered_at": NOW - 14, "broker": None}}),
        (Reason.LEADER_SILENT, {"log": {"answered_at": NOW - 14, "end": None, "high_watermark": None}}),
        (Reason.LOOKING_UP, {"position": None, "log": {}, "obstacle": Reason.LOOKING_UP}),
        (Reason.REVOKING, {"position": None, "log": {}, "obstacle": Reason.REVOKING}),
    ],
)
def test_what_is_unknown_is_not_nothing(reason: Reason, changes: dict[str, Any]) -> None:
    """The last response said that the log has no more records, but it is 14 s old."""
    answer = health(**changes)
    assert found(answer) == (Owed.UNKNOWN, None, reason, False)
    assert answer.partitions[0].since_s == 14.0


def test_a_leader_that_has_just_become_silent_is_unknown_and_healthy() -> None:
    assert found(health({"answered_at": NOW - 1.4}))[0] is Owed.NO, "the broker may wait for records for 0.5 s"
    assert found(health({"answered_at": NOW - 1.6}, since=NOW)) == (Owed.UNKNOWN, None, Reason.LEADER_SILENT, True)


def test_the_silence_of_a_leader_counts_from_its_last_response_also_at_the_first_look() -> None:
    assert health({"answered_at": NOW - 14}, since=NOW).partitions[0].since_s == 14.0


@pytest.mark.parametrize("reason", [Reason.PAUSED, Reason.NOT_SELECTED])
def test_a_decision_of_the_application_is_no_problem(reason: Reason) -> None:
    one = attrs.evolve(ONE, since=0.0, log=None, obstacle=reason)
    answer = judge(attrs.evolve(FACTS, partitions=(one,)), LIMIT_S)
    assert found(answer) == (Owed.UNKNOWN, None, reason, True)
    assert answer.partitions[0].excused


WAITING = {"fetched": 8, "end": 8, "high_watermark": 8}


def test_an_application_that_works_is_healthy_until_max_poll_interval() -> None:
    works = health(WAITING, {"polled_at": NOW - POLL_S + 1}, since=0.0)
    assert found(works) == (Owed.YES, 3, Reason.APPLICATION_BUSY, True)
    assert works.live
    stuck = health(WAITING, {"polled_at": NOW - POLL_S - 1}, since=0.0)
    assert found(stuck) == (Owed.YES, 3, Reason.APPLICATION_BUSY, False)
    assert not stuck.live, "a restart helps"


def test_an_application_that_reads_other_partitions_is_busy() -> None:
    assert found(health(WAITING, {"delivered_at": NOW - 1})) == (Owed.YES, 3, Reason.APPLICATION_BUSY, True)


def test_a_buffer_that_is_full_hides_the_leader_of_another_partition() -> None:
    """No Fetch is sent while the application's records fill the buffer, so the leader's silence is not its fault."""
    silent = {"answered_at": NOW - 14, "held_back": True}
    assert found(health(silent, {"polled_at": NOW - 14})) == (Owed.UNKNOWN, None, Reason.APPLICATION_BUSY, True)


def test_a_handler_is_busy_although_the_consumer_polls() -> None:
    """Also if the processor has paused the partition until the handlers have finished some records."""
    for changes in ({"log": WAITING}, {"log": WAITING, "obstacle": Reason.PAUSED}):
        works = health(**changes, since=0.0, handling_s=POLL_S - 1)
        assert found(works) == (Owed.YES, 3, Reason.HANDLER_BUSY, True)
        stuck = health(**changes, since=0.0, handling_s=POLL_S + 1)
        assert found(stuck) == (Owed.YES, 3, Reason.HANDLER_BUSY, False)
        assert not stuck.live


def test_a_handler_does_not_excuse_a_silent_leader() -> None:
    assert found(health({"answered_at": NOW - 14}, handling_s=1.0))[2:] == (Reason.LEADER_SILENT, False)


def test_a_member_outside_its_group_is_unhealthy_after_the_limit() -> None:
    outside = attrs.evolve(FACTS, joined=False, state="preparing rebalance", outside_since=NOW - 14, outside_because="no route")
    assert judge(outside, LIMIT_S).problems == ("not in the group for 14.0 s (preparing rebalance): no route",)
    assert judge(outside, 20.0).healthy
    works = attrs.evolve(outside, polled_at=NOW - 200)
    assert judge(works, LIMIT_S).healthy, "the rebalance waits for this application"
    gone = judge(attrs.evolve(outside, polled_at=NOW - 400), LIMIT_S)
    assert not gone.healthy
    assert not gone.live


def test_a_failure_for_good_is_neither_healthy_nor_live() -> None:
    answer = judge(attrs.evolve(FACTS, failure="fenced"), LIMIT_S)
    assert (answer.healthy, answer.live, answer.problems) == (False, False, ("fenced",))


def test_every_partition_is_named_in_order() -> None:
    behind = attrs.evolve(ONE, log=attrs.evolve(AT_END, end=8))
    other = attrs.evolve(behind, partition=TopicPartition("orders", 1))
    answer = judge(attrs.evolve(FACTS, partitions=(behind, ONE, other)), LIMIT_S)
    assert [text.split(":")[0] for text in answer.problems] == ["orders-1", "orders-3"]


def test_the_health_as_json_has_the_fields_names() -> None:
    told = health({"end": 8}, {"lease_s": 40.12345}).as_dict()
    assert told["lease_s"] == 40.123
    assert told["partitions"] == [
        {
            "topic": "orders",
            "partition": 3,
            "owed": "yes",
            "records": 3,
            "since_s": 14.0,
            "reason": "not delivered",
            "excused": False,
            "detail": "not fetched yet",
        }
    ]
