"""When starts are looked up, and what becomes of a partition by each result."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest

from consumer_coord.consumer.partitions import Origin, Partition, Phase, Retry, Table
from consumer_coord.consumer.reading.chunks import OutOfRange
from consumer_coord.consumer.start_lookups import (
    LookUp,
    Rules,
    StartBy,
    WakeAt,
    begin_readings,
    end_readings,
    error_to_raise,
    next_look_up,
    take_results,
)
from consumer_coord.consumer.start_offsets import NONE, Start, TimeLimits
from consumer_coord.errors import (
    AuthorizationError,
    CoordinatorError,
    IncompleteResponseError,
    NoOffsetError,
    RequestTimedOutError,
)
from consumer_coord.net.answers import Results
from consumer_coord.offsets import OFFSET_END, OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

A, B, C = (TopicPartition("orders", number) for number in range(3))
START, OTHER = OffsetAndMetadata(7), OffsetAndMetadata(3, 2)
RULES = Rules("earliest", 60_000, lambda failures: 100.0 * 2**failures)
NOTHING: frozenset[TopicPartition] = frozenset()
LATE, DENIED = RequestTimedOutError("late"), AuthorizationError("denied")


def partition(phase: Phase = Phase.LOCATING, **fields: Any) -> Partition:
    return Partition(**{"phase": phase, "ownership": 1, "serial": 4, **fields})


def retry(failures: int, at: float = 0.0, error: CoordinatorError = LATE, since: float = 0.0) -> Retry:
    return Retry(failures, since, at, error)


# -- readings that ended ------------------------------------------------------------------------------------------------


def test_after_a_truncation_reading_continues_where_the_log_still_agrees() -> None:
    table: Table = {A: partition(Phase.READING, start=START), B: partition(Phase.READING, serial=9)}
    table, texts = end_readings(table, {A: (OutOfRange("truncated", 9, OTHER), 4)}, RULES, NOTHING, 5, 0.0)
    assert (table[A].phase, table[A].start, table[A].serial) == (Phase.READING, OTHER, 10)
    assert texts == ["orders-0 continues at offset 3: truncated"]


@pytest.mark.parametrize(
    ("reset", "resume_at", "texts"),
    [
        ("latest", None, ["orders-0 continues where auto.offset.reset=latest selects: gone"]),
        (NONE, None, []),
        (NONE, OTHER, []),
    ],
)
def test_an_offset_out_of_range_is_replaced_by_the_policy(reset: str, resume_at: Any, texts: list[str]) -> None:
    table: Table = {A: partition(Phase.READING, start=START, origin=Origin.CHOSEN)}
    table, said = end_readings(
        table, {A: (OutOfRange("gone", 7, resume_at), 4)}, attrs.evolve(RULES, reset=reset), NOTHING, 4, 0.0
    )
    assert (table[A].phase, table[A].start, table[A].origin, table[A].out_of_range) == (Phase.LOCATING, None, None, "gone")
    assert said == texts
    _, look_up = next_look_up(table, RULES, 0.0, 0.0)
    assert isinstance(look_up, LookUp)
    assert (look_up.by, look_up.wanted) == (StartBy.RESET, {A: "gone"})


@pytest.mark.parametrize("one", [partition(Phase.READING, serial=5), partition(Phase.STOPPING), partition(Phase.LOCATING)])
def test_the_end_of_an_earlier_reading_changes_nothing(one: Partition) -> None:
    ended = {A: (OutOfRange("gone", 7, OTHER), 4), B: (OutOfRange("gone", 7), 1)}
    assert end_readings({A: one}, ended, RULES, NOTHING, 5, 0.0) == ({A: one}, [])


@pytest.mark.parametrize("origin", [Origin.RESET, Origin.FIRST])
def test_after_resets_in_vain_the_next_look_up_waits_for_the_back_off(origin: Origin) -> None:
    table: Table = {A: partition(Phase.READING, start=START, origin=Origin.COMMIT)}
    waits = list[float]()
    for serial in range(4, 7):
        table, _ = end_readings(table, {A: (OutOfRange("gone", 7), serial)}, RULES, NOTHING, serial, 10.0)
        waits.append(0.0 if (failed := table[A].retry) is None else failed.at - 10.0)
        found = Results({A: Start(origin, START)})
        table, look_up = next_look_up(table, RULES, 20.0, 0.0)
        assert isinstance(look_up, LookUp)
        table, _ = take_results(table, {look_up: found}, RULES, NOTHING, serial, 20.0)
        assert table[A].phase is Phase.READING
    assert waits == [0.0, pytest.approx(0.1), pytest.approx(0.2)]
    # A record was read since the reset.
    table, _ = end_readings(table, {A: (OutOfRange("gone", 8), 7)}, RULES, NOTHING, 7, 10.0)
    assert (table[A].phase, table[A].retry, table[A].resets_in_vain) == (Phase.LOCATING, None, 0)


# -- the next look-up ---------------------------------------------------------------------------------------------------


def looked_up(table: Table, moment: float = 0.0) -> tuple[Table, dict[StartBy, Any]]:
    """Return the table after all due look-ups have begun, and what they ask for."""
    asked: dict[StartBy, Any] = {}
    timer = 0.0
    while True:
        table, request = next_look_up(table, RULES, moment, timer)
        if request is None:
            return table, asked
        if isinstance(request, WakeAt):
            timer = request.moment
        else:
            assert all(table[one].awaits is request for one in request.wanted)
            asked[request.by] = request.wanted


def test_each_start_is_looked_up_once_by_what_determines_it() -> None:
    table: Table = {A: partition(), B: partition(logical=OFFSET_END), C: partition(logical=OFFSET_END, out_of_range="gone")}
    table, asked = looked_up(table)
    assert asked == {StartBy.COMMIT: {A: None}, StartBy.LOGICAL: {B: OFFSET_END}, StartBy.RESET: {C: "gone"}}
    assert looked_up(table) == (table, {})


@pytest.mark.parametrize(
    "one", [partition(Phase.TAKEN), partition(Phase.UNLOCATED), partition(start=START), partition(declined=True)]
)
def test_only_a_partition_that_needs_its_start_is_looked_up(one: Partition) -> None:
    assert looked_up({A: one}) == ({A: one}, {})


@pytest.mark.parametrize(("at", "asked"), [(10.0, True), (10.0009, True), (10.5, False)])
def test_a_failed_look_up_waits_for_its_back_off_which_may_end_a_millisecond_early(at: float, asked: bool) -> None:
    _, found = looked_up({A: partition(retry=retry(1, at))}, moment=10.0)
    assert bool(found) == asked


def test_the_timer_is_set_once_for_the_first_back_off_and_delays_no_other_partition() -> None:
    table = {A: partition(retry=retry(1, 12.0)), B: partition(retry=retry(1, 11.0)), C: partition()}
    assert next_look_up(table, RULES, 10.0, 0.0) == (table, WakeAt(11.0))
    _, request = next_look_up(table, RULES, 10.0, 11.0)
    assert isinstance(request, LookUp)
    assert request.wanted.keys() == {C}


@pytest.mark.parametrize(("failures", "logs_ms"), [(0, 1_000), (1, 2_000), (5, 32_000), (6, 60_000), (2_000, 60_000)])
def test_each_round_has_twice_the_time_up_to_the_limit(failures: int, logs_ms: float) -> None:
    one = partition(retry=retry(failures)) if failures else partition()
    _, request = next_look_up({A: one, B: partition(retry=retry(3_000))}, RULES, 10.0, 0.0)
    assert isinstance(request, LookUp)
    assert request.limits == TimeLimits(60_000, logs_ms)


# -- results ------------------------------------------------------------------------------------------------------------


def taken(one: Partition, result: Any, moment: float = 10.0, known: frozenset[TopicPartition] = NOTHING) -> Any:
    """Return the partition after the result of its look-up, and what is logged."""
    look_up = LookUp(StartBy.COMMIT, {A: None}, TimeLimits(1, 1))
    table, texts = take_results({A: attrs.evolve(one, awaits=look_up)}, {look_up: result}, RULES, known, 20, moment)
    assert table[A].awaits is None
    return table[A], texts


@pytest.mark.parametrize(("origin", "committed"), [(Origin.COMMIT, START), (Origin.RESET, OTHER), (Origin.FIRST, OTHER)])
def test_a_start_that_was_found_begins_a_reading(origin: Origin, committed: OffsetAndMetadata) -> None:
    one = partition(retry=retry(3), out_of_range="gone", committed=OTHER)
    after, texts = taken(one, Results({A: Start(origin, START)}))
    assert (after.phase, after.start, after.origin, after.serial) == (Phase.READING, START, origin, 21)
    assert (after.retry, after.out_of_range, after.committed, texts) == (None, None, committed, [])


@pytest.mark.parametrize(
    ("origin", "known", "former"),
    [(Origin.RESET, NOTHING, None), (Origin.FIRST, NOTHING, "former"), (Origin.FIRST, frozenset({A}), None)],
)
def test_a_start_by_the_policy_is_one_in_the_present_topic(origin: Origin, known: Any, former: Any) -> None:
    after, _ = taken(partition(former_topic_id="former"), Results({A: Start(origin, START)}), known=known)
    assert after.former_topic_id == former


def test_a_look_up_that_was_cancelled_begins_again_at_once() -> None:
    assert taken(partition(), None) == (partition(), [])


@pytest.mark.parametrize("result", [LATE, Results({}, {A: LATE})])
def test_a_failure_that_may_pass_is_logged_once_and_tried_again(result: Any) -> None:
    after, texts = taken(partition(), result)
    assert (after.phase, after.retry) == (Phase.LOCATING, Retry(1, 10.0, 10.1, LATE))
    assert texts == ["the start of orders-0 is not known yet: late"]
    again, texts = taken(after, result, moment=20.0)
    assert (again.retry, texts) == (Retry(2, 10.0, 20.2, LATE), [])


@pytest.mark.parametrize(
    ("error", "since", "raises"),
    [
        (DENIED, 10.0, True),
        (NoOffsetError("none"), 10.0, True),
        (IncompleteResponseError("no row"), 10.0, False),
        (IncompleteResponseError("no row"), -50.0, True),
        (LATE, -50.0, False),
    ],
)
def test_the_application_hears_what_a_retry_does_not_resolve(error: CoordinatorError, since: float, raises: bool) -> None:
    after, texts = taken(partition(retry=retry(1, since=since)), Results({}, {A: error}))
    assert (after.phase is Phase.UNLOCATED) == raises
    assert after.retry == Retry(2, 10.0 if error.args == ("no row",) and raises else since, 10.2, error)
    due = error_to_raise({A: after})
    assert (due is not None and due[1] == {A}) == raises
    assert bool(texts) == (not isinstance(error, NoOffsetError) and error is not LATE)


def test_partitions_that_failed_together_are_looked_up_together() -> None:
    drawn = itertools.count(1)
    rules = attrs.evolve(RULES, backoff_ms=lambda failures: 10.0 * next(drawn))
    look_up = LookUp(StartBy.COMMIT, {}, TimeLimits(1, 1))
    table, texts = take_results({one: partition(awaits=look_up) for one in (A, B)}, {look_up: LATE}, rules, NOTHING, 0, 0.0)
    assert [one.retry and one.retry.at for one in table.values()] == [0.01, 0.01]
    assert texts == ["the start of orders-0, orders-1 is not known yet: late"]


def test_a_result_changes_only_the_partitions_that_still_wait_for_it() -> None:
    look_up = LookUp(StartBy.COMMIT, {A: None}, TimeLimits(1, 1))
    table = {A: partition(awaits=LookUp(StartBy.COMMIT, {A: None}, TimeLimits(1, 1)))}
    assert take_results(table, {look_up: Results({A: Start(Origin.COMMIT, START)})}, RULES, NOTHING, 0, 0.0) == (table, [])


# -- beginning, raising ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "after"),
    [
        (partition(start=START), Phase.READING),
        (partition(start=START, declined=True), Phase.LOCATING),
        (partition(), Phase.LOCATING),
        (partition(Phase.TAKEN, start=START), Phase.TAKEN),
    ],
)
def test_a_partition_is_read_as_soon_as_its_start_is_known(one: Partition, after: Phase) -> None:
    assert begin_readings({A: one})[A].phase is after


def test_one_error_is_raised_at_a_time_and_that_of_missing_offsets_first() -> None:
    def unlocated(error: CoordinatorError) -> Partition:
        return partition(Phase.UNLOCATED, retry=retry(1, error=error))

    assert error_to_raise({A: partition(retry=retry(1)), B: partition(Phase.READING)}) is None
    assert error_to_raise({A: unlocated(DENIED), B: unlocated(LATE), C: unlocated(DENIED)}) == (DENIED, frozenset({A, C}))
    due = error_to_raise({A: unlocated(DENIED), B: unlocated(NoOffsetError("no commit")), C: unlocated(NoOffsetError("gone"))})
    assert due is not None
    assert due[1] == {B, C}
    assert "auto.offset.reset is none" in str(due[0])
