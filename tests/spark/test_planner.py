"""The planner alone: spans follow each other, commits come after Spark's word and only for what was held throughout."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.spark.checkpoint import Offsets, from_json
from consumer_coord.spark.packing import Packing
from consumer_coord.spark.planner import Holding, Limits, PlannedCommit, Planner
from consumer_coord.spark.source import plan_tasks
from consumer_coord.topic_partition import TopicPartition

ID, NEW_ID = uuid.UUID(int=7), uuid.UUID(int=8)
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
START = Offsets("billing")


def holding(position: int = 0, *, ownership: int = 1, committed: int | None = None, topic_id: uuid.UUID = ID) -> Holding:
    return Holding(topic_id, ownership, position, position if committed is None else committed)


def plan(
    planner: Planner,
    start: Offsets,
    latest: Mapping[TopicPartition, int],
    limits: Limits | None = None,
    *,
    now_ms: float = 0,
    generation: int = 1,
) -> Offsets | None:
    return planner.plan(start, latest, limits or Limits(), cluster="c", generation=generation, now_ms=now_ms)


def spans(offsets: Offsets | None) -> dict[int, tuple[int, int]]:
    assert offsets is not None
    return {partition.partition: (span.start, span.end) for partition, span in offsets.spans()}


def committable(planner: Planner) -> dict[TopicPartition, int]:
    return {partition: commit.offset for partition, commit in planner.uncommitted().items()}


def test_a_batch_holds_what_is_new_and_names_what_is_held() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    planner.take_up(P1, holding(20))
    first = plan(planner, START, {P0: 15, P1: 20})
    assert spans(first) == {0: (10, 15), 1: (20, 20)}


def test_without_news_there_is_no_batch() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(first)
    assert plan(planner, first, {P0: 15}) is None


def test_a_changed_share_makes_a_batch_without_data() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(first)
    planner.drop([P0])
    assert spans(plan(planner, first, {})) == {}


def test_nothing_is_committed_before_spark_has_finished_it() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    assert committable(planner) == {}
    planner.confirm(first)
    assert committable(planner) == {P0: 15}
    planner.confirm(first)
    assert committable(planner) == {P0: 15}
    planner.committed(P0, planner.uncommitted()[P0])
    assert committable(planner) == {}


def test_a_range_is_not_committed_under_a_later_ownership() -> None:
    """A partition was lost and received again. Another member may have read further, so a commit would set the group back."""
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    planner.drop([P0])
    planner.take_up(P0, holding(30, ownership=2))
    planner.confirm(first)
    assert committable(planner) == {}


def test_a_commit_never_goes_back() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10, committed=40))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(first)
    assert committable(planner) == {}


def test_a_restarted_planner_knows_where_its_checkpoint_ends() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    checkpoint = plan(planner, START, {P0: 15})
    assert checkpoint is not None
    restarted = Planner("billing")
    restarted.confirm(from_json(json.loads(json.dumps(checkpoint.to_json())), "billing"))
    assert restarted.history.began
    assert restarted.history.end(P0, ID) == 15
    assert restarted.history.end(P1, ID) is None


def test_a_position_ahead_of_the_commit_is_named_once_more_and_then_committed() -> None:
    """After a restart: its range was planned by a membership that is gone."""
    planner = Planner("billing")
    planner.confirm(START)
    planner.take_up(P0, holding(15, committed=10))
    again = plan(planner, START, {P0: 15})
    assert spans(again) == {0: (15, 15)}
    assert committable(planner) == {}
    assert again is not None
    planner.confirm(again)
    assert committable(planner) == {P0: 15}
    assert plan(planner, again, {P0: 15}) is None, "once is enough, also if the commit takes its time"


def test_a_checkpoint_says_nothing_about_a_topic_made_again() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    checkpoint = plan(planner, START, {P0: 15})
    assert checkpoint is not None
    restarted = Planner("billing")
    restarted.confirm(checkpoint)
    assert restarted.history.end(P0, uuid.UUID(int=8)) is None


def test_nothing_of_the_old_topic_is_committed_to_one_made_again() -> None:
    """The same partition name, held without a break, and another topic since the batch was planned."""
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    late = PlannedCommit(15, 1, ID)
    planner.take_up(P0, holding(0, topic_id=NEW_ID))
    planner.confirm(first)
    assert committable(planner) == {}
    planner.committed(P0, late)
    assert planner.held[P0] == holding(0, topic_id=NEW_ID)
    again = plan(planner, first, {P0: 12})
    assert spans(again) == {0: (0, 12)}
    assert again is not None
    assert again.topics["orders"].id == NEW_ID
    planner.confirm(again)
    assert committable(planner) == {P0: 12}
    assert planner.history.end(P0, ID) is None


def test_a_batch_never_mixes_two_topics_of_one_name() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    planner.take_up(P1, holding(0, topic_id=NEW_ID))
    assert plan(planner, START, {P0: 15, P1: 5}) is None
    planner.take_up(P0, holding(0, topic_id=NEW_ID))
    assert spans(plan(planner, START, {P0: 15, P1: 5})) == {0: (0, 15), 1: (0, 5)}


def test_what_spark_did_not_run_is_planned_again() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    first = plan(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(START)
    assert spans(plan(planner, START, {P0: 17})) == {0: (10, 17)}
    assert committable(planner) == {}


def test_a_limit_is_shared_in_proportion_and_never_passed() -> None:
    planner = Planner("billing")
    for partition in (P0, P1, P2):
        planner.take_up(partition, holding())
    limited = plan(planner, START, {P0: 600, P1: 300, P2: 100}, Limits(max_offsets=100))
    assert spans(limited) == {0: (0, 60), 1: (0, 30), 2: (0, 10)}


def test_nobody_starves_beside_a_huge_partition() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding())
    planner.take_up(P1, holding())
    start: Offsets | None = START
    for _ in range(3):
        assert start is not None
        planner.confirm(start)
        start = plan(planner, start, {P0: 10**9, P1: 1}, Limits(max_offsets=10))
    assert planner.held[P1].position == 1


def test_too_little_waits_for_more_or_for_the_delay() -> None:
    limits = Limits(min_offsets=100, max_delay_ms=1_000)
    planner = Planner("billing")
    planner.take_up(P0, holding())
    first = plan(planner, START, {P0: 5}, limits, now_ms=0)
    assert spans(first) == {0: (0, 5)}, "the first batch does not wait"
    assert first is not None
    planner.confirm(first)
    assert plan(planner, first, {P0: 50}, limits, now_ms=999) is None
    assert spans(plan(planner, first, {P0: 50}, limits, now_ms=1_000)) == {0: (5, 50)}


def test_a_partition_behind_its_position_has_no_data() -> None:
    planner = Planner("billing")
    planner.take_up(P0, holding(10))
    assert spans(plan(planner, START, {P0: 4})) == {0: (10, 10)}


SIZES = st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 10**9), min_size=1)


@settings(deadline=None)
@given(SIZES, st.integers(1, 10**9))
def test_admission_is_exact(sizes: Mapping[TopicPartition, int], most: int) -> None:
    planner = Planner("billing")
    for partition in sizes:
        planner.take_up(partition, holding())
    planned = plan(planner, START, sizes, Limits(max_offsets=most))
    assert planned is not None
    assert sum(span.end - span.start for _, span in planned.spans()) == min(most, sum(sizes.values()))
    assert all(span.end <= sizes[partition] for partition, span in planned.spans())


@settings(deadline=None)
@given(SIZES, st.integers(1, 64))
def test_any_recorded_batch_replays_as_the_same_tasks(sizes: Mapping[TopicPartition, int], cores: int) -> None:
    planner = Planner("billing")
    for partition in sizes:
        planner.take_up(partition, holding())
    planned = plan(planner, START, sizes)
    assert planned is not None
    replayed = from_json(json.loads(json.dumps(planned.to_json())), "billing")
    assert plan_tasks(replayed, None, Packing(cores)) == plan_tasks(planned, None, Packing(cores))
    assert sum(part.size for task in plan_tasks(replayed, None, Packing(cores)) for part in task) == sum(sizes.values())
