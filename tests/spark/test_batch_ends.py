"""The ledger and the planner alone: spans follow each other, commits come after Spark's word, three answers are told apart."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.net.metadata import NO_TOPIC_ID
from consumer_coord.spark.batch_ends import Answer, Batch, Ends, Limits, Member, NothingNew, Unknown, plan
from consumer_coord.spark.checkpoint import Offsets, from_json
from consumer_coord.spark.ledger import NONE, TRANSITIONS, Entry, Event, Holding, Key, Ledger, PlannedCommit, State, absent
from consumer_coord.spark.packing import Packing, pack
from consumer_coord.spark.source import batch_ranges
from consumer_coord.spark.subscribed_topics import TopicView, View
from consumer_coord.topic_partition import TopicPartition

ID, NEW_ID = uuid.UUID(int=7), uuid.UUID(int=8)
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
START = Offsets("billing")


def holding(position: int = 0, *, ownership: int = 1, committed: int | None = None, topic_id: uuid.UUID = ID) -> Holding:
    return Holding(topic_id, ownership, position, position if committed is None else committed)


class Planner:
    """A ledger that changes, and the answers of the planner."""

    def __init__(self, name: str) -> None:
        self.ledger = Ledger(name)

    def accept(self, partition: TopicPartition, holding: Holding) -> None:
        self.ledger = self.ledger.accept(partition, holding)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        self.ledger = self.ledger.release(partitions)

    def confirm(self, finished: Offsets) -> None:
        self.ledger = self.ledger.finish(finished, {"orders"})

    def committed(self, partition: TopicPartition, commit: PlannedCommit) -> None:
        self.ledger = self.ledger.committed(partition, commit)

    def answer(
        self,
        start: Offsets,
        latest: Mapping[TopicPartition, int],
        limits: Limits | None = None,
        *,
        current: bool = True,
        waiting: str | None = None,
        now_ms: float = 0,
    ) -> Answer:
        answer = plan(self.ledger, start, Ends(latest, current), limits or Limits(), Member(1, "c", waiting), now_ms)
        if isinstance(answer, Batch):
            self.ledger = answer.ledger
        return answer


def plan_batch(
    planner: Planner,
    start: Offsets,
    latest: Mapping[TopicPartition, int],
    limits: Limits | None = None,
    *,
    now_ms: float = 0,
) -> Offsets | None:
    """Return the end of the batch, or None if there is certainly nothing new."""
    answer = planner.answer(start, latest, limits, now_ms=now_ms)
    assert not isinstance(answer, Unknown), answer
    return answer.end if isinstance(answer, Batch) else None


def spans(offsets: Offsets | None) -> dict[int, tuple[int, int]]:
    assert offsets is not None
    return {partition.partition: (span.start, span.end) for partition, span in offsets.spans()}


def committable(planner: Planner) -> dict[TopicPartition, int]:
    return {partition: commit.offset for partition, commit in planner.ledger.uncommitted().items()}


def test_a_batch_holds_what_is_new_and_names_what_is_held() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    planner.accept(P1, holding(20))
    first = plan_batch(planner, START, {P0: 15, P1: 20})
    assert spans(first) == {0: (10, 15), 1: (20, 20)}


def test_without_news_there_is_no_batch() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(first)
    assert plan_batch(planner, first, {P0: 15}) is None


def test_a_changed_share_makes_a_batch_without_data() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(first)
    planner.drop([P0])
    assert spans(plan_batch(planner, first, {})) == {}


def test_nothing_is_committed_before_spark_has_finished_it() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    assert committable(planner) == {}
    planner.confirm(first)
    assert committable(planner) == {P0: 15}
    planner.confirm(first)
    assert committable(planner) == {P0: 15}
    planner.committed(P0, planner.ledger.uncommitted()[P0])
    assert committable(planner) == {}


def test_a_range_is_not_committed_under_a_later_ownership() -> None:
    """A partition was lost and received again. Another member may have read further, so a commit would set the group back."""
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    planner.drop([P0])
    planner.accept(P0, holding(30, ownership=2))
    planner.confirm(first)
    assert committable(planner) == {}


def test_a_commit_never_goes_back() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10, committed=40))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(first)
    assert committable(planner) == {}


def test_a_restarted_planner_knows_where_its_checkpoint_ends() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    checkpoint = plan_batch(planner, START, {P0: 15})
    assert checkpoint is not None
    restarted = Planner("billing")
    restarted.confirm(from_json(json.loads(json.dumps(checkpoint.to_json())), "billing"))
    assert restarted.ledger.began
    assert restarted.ledger.end(P0, ID) == 15
    assert restarted.ledger.end(P1, ID) is None


def test_what_the_checkpoint_proves_finished_is_committed_at_once() -> None:
    """After a restart or a lost membership: a batch of the former membership has read the records in between."""
    planner = Planner("billing")
    planner.accept(P0, Holding(ID, 1, 15, 10, confirmed=15))
    assert committable(planner) == {P0: 15}
    planner.committed(P0, PlannedCommit(15, 1, ID))
    assert committable(planner) == {}


def test_a_start_is_committed_before_a_batch_reads_the_partition() -> None:
    planner = Planner("billing")
    planner.accept(P0, Holding(ID, 1, 0, NONE))
    planner.accept(P1, holding(10))
    assert committable(planner) == {P0: 0}
    assert spans(plan_batch(planner, START, {P0: 5, P1: 12})) == {1: (10, 12)}
    planner.committed(P0, PlannedCommit(0, 1, ID))
    assert planner.ledger.ready.keys() == {P0, P1}


def test_a_checkpoint_says_nothing_about_a_topic_made_again() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    checkpoint = plan_batch(planner, START, {P0: 15})
    assert checkpoint is not None
    restarted = Planner("billing")
    restarted.confirm(checkpoint)
    assert restarted.ledger.end(P0, uuid.UUID(int=8)) is None


def test_nothing_of_the_old_topic_is_committed_to_one_made_again() -> None:
    """The same partition name, held without a break, and another topic since the batch was planned."""
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    late = PlannedCommit(15, 1, ID)
    planner.accept(P0, holding(0, topic_id=NEW_ID))
    planner.confirm(first)
    assert committable(planner) == {}
    planner.committed(P0, late)
    assert planner.ledger.held[P0] == holding(0, topic_id=NEW_ID)
    again = plan_batch(planner, first, {P0: 12})
    assert spans(again) == {0: (0, 12)}
    assert again is not None
    assert again.topics["orders"].id == NEW_ID
    planner.ledger = planner.ledger.missed(planner.ledger.open)
    planner.confirm(again)
    assert committable(planner) == {P0: 12}
    assert planner.ledger.end(P0, ID) is None


def test_a_batch_never_mixes_two_topics_of_one_name() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    planner.accept(P1, holding(0, topic_id=NEW_ID))
    assert isinstance(planner.answer(START, {P0: 15, P1: 5}), Unknown)
    planner.accept(P0, holding(0, topic_id=NEW_ID))
    assert spans(plan_batch(planner, START, {P0: 15, P1: 5})) == {0: (0, 15), 1: (0, 5)}


def test_what_spark_did_not_run_is_planned_again() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    first = plan_batch(planner, START, {P0: 15})
    assert first is not None
    planner.confirm(START)
    assert spans(plan_batch(planner, START, {P0: 17})) == {0: (10, 17)}
    assert committable(planner) == {}


def test_a_limit_is_shared_in_proportion_and_never_passed() -> None:
    planner = Planner("billing")
    for partition in (P0, P1, P2):
        planner.accept(partition, holding())
    limited = plan_batch(planner, START, {P0: 600, P1: 300, P2: 100}, Limits(max_offsets=100))
    assert spans(limited) == {0: (0, 60), 1: (0, 30), 2: (0, 10)}


def test_nobody_starves_beside_a_huge_partition() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding())
    planner.accept(P1, holding())
    start: Offsets | None = START
    for _ in range(3):
        assert start is not None
        planner.confirm(start)
        start = plan_batch(planner, start, {P0: 10**9, P1: 1}, Limits(max_offsets=10))
    assert planner.ledger.held[P1].position == 1


def test_too_little_waits_for_more_or_for_the_delay() -> None:
    limits = Limits(min_offsets=100, max_delay_ms=1_000)
    planner = Planner("billing")
    planner.accept(P0, holding())
    first = plan_batch(planner, START, {P0: 5}, limits, now_ms=0)
    assert spans(first) == {0: (0, 5)}, "the first batch does not wait"
    assert first is not None
    planner.confirm(first)
    assert plan_batch(planner, first, {P0: 50}, limits, now_ms=999) is None
    assert spans(plan_batch(planner, first, {P0: 50}, limits, now_ms=1_000)) == {0: (5, 50)}


def test_a_partition_behind_its_position_has_no_data() -> None:
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    assert spans(plan_batch(planner, START, {P0: 4})) == {0: (10, 10)}


# -- three answers ------------------------------------------------------------------------------------------------


def idle() -> tuple[Planner, Offsets]:
    """A planner that has read its two partitions to the end, and the end of its last batch."""
    planner = Planner("billing")
    planner.accept(P0, holding(10))
    planner.accept(P1, holding(20))
    end = plan_batch(planner, START, {P0: 15, P1: 20})
    assert end is not None
    planner.confirm(end)
    return planner, end


def test_nothing_new_needs_every_end_from_after_the_call() -> None:
    planner, end = idle()
    assert isinstance(planner.answer(end, {P0: 15, P1: 20}), NothingNew)
    for answer in (planner.answer(end, {P0: 15, P1: 20}, current=False), planner.answer(end, {P0: 15})):
        assert isinstance(answer, Unknown)
        assert "orders-1" in answer.why
    assert planner.answer(end, {P0: 15, P1: 20}, waiting="a rebalance") == Unknown("a rebalance")


def test_a_partition_that_is_not_known_delays_no_other() -> None:
    planner, end = idle()
    assert spans(plan_batch(planner, end, {P0: 17})) == {0: (15, 17), 1: (20, 20)}


def test_the_only_batch_of_a_run_waits_for_everything() -> None:
    planner, end = idle()
    once = Limits(complete=True)
    assert isinstance(planner.answer(end, {P0: 17}, once), Unknown)
    assert planner.answer(end, {P0: 17, P1: 20}, once, waiting="a rebalance") == Unknown("a rebalance")
    assert isinstance(planner.answer(end, {P0: 17, P1: 20}, once), Batch)


def test_a_changed_share_is_recorded_only_when_all_is_known() -> None:
    planner, end = idle()
    planner.accept(P2, holding(5))
    assert isinstance(planner.answer(end, {P0: 15, P1: 20}), Unknown)
    assert isinstance(planner.answer(end, {P0: 15, P1: 20, P2: 5}), Batch)


# -- promises -----------------------------------------------------------------------------------------------------


def view(count: int = 3, topic_id: uuid.UUID = ID) -> View:
    return View(1, {"orders": TopicView(topic_id, count)})


def test_a_run_reads_up_to_its_targets_and_nothing_of_newer_partitions() -> None:
    planner, end = idle()
    planner.ledger = planner.ledger.promise({P0: 17, P1: 20}, view())
    planner.accept(P2, holding(0))
    batch = plan_batch(planner, end, {P0: 30, P1: 30, P2: 30})
    assert spans(batch) == {0: (15, 17), 1: (20, 20), 2: (0, 0)}
    assert batch is not None
    planner.confirm(batch)
    assert isinstance(planner.answer(batch, {}), NothingNew), "old end offsets are enough"


def test_an_end_below_a_target_is_not_the_end_of_a_run() -> None:
    """A new leader may report an older high watermark."""
    planner, end = idle()
    planner.ledger = planner.ledger.promise({P0: 17, P1: 20}, view())
    assert isinstance(planner.answer(end, {P0: 15, P1: 20}), Unknown)


def test_a_checkpoint_promises_what_is_subscribed() -> None:
    _, end = idle()
    promised = Ledger("billing").finish(end, {"orders"})
    assert promised.open == {Key(P0, ID), Key(P1, ID)}
    assert Ledger("billing").finish(end, set()).open == frozenset()
    taken = promised.accept(P0, holding(15))
    assert taken.open == {Key(P1, ID)}
    assert taken.seen(taken.open).open == frozenset()


def test_the_checkpoint_of_a_deleted_topic_ends_no_promise_about_the_new_one() -> None:
    """And the old topic's promise stays until its loss was reported, also when a batch of the new topic is finished."""
    planner, end = idle()
    fresh = Ledger("billing").promise({P0: 9}, view(topic_id=NEW_ID)).finish(end, {"orders"})
    assert fresh.targets == {P0: 9}
    planner.ledger = fresh.accept(P0, holding(0, topic_id=NEW_ID))
    batch = plan_batch(planner, end, {P0: 9})
    assert batch is not None
    planner.confirm(batch)
    assert planner.ledger.open == {Key(P0, ID), Key(P1, ID)}
    planner.ledger = planner.ledger.missed(planner.ledger.open)
    planner.confirm(batch)
    assert planner.ledger.entries.keys() == {Key(P0, NEW_ID)}


def test_a_released_partition_is_open_until_its_topic_was_seen() -> None:
    planner, _ = idle()
    planner.drop([P0])
    assert planner.ledger.open == {Key(P0, ID)}
    assert absent(planner.ledger.open, view()) == {}
    assert planner.ledger.seen(planner.ledger.open).open == frozenset()
    assert planner.ledger.missed(planner.ledger.open).open == frozenset()


def test_what_a_target_still_needs_stays_open_although_its_topic_exists() -> None:
    planner, _ = idle()
    planner.ledger = planner.ledger.promise({P0: 17, P1: 20}, view())
    planner.drop([P0, P1])
    assert planner.ledger.seen(planner.ledger.open).open == {Key(P0, ID)}
    assert planner.ledger.missed([Key(P0, ID)]).targets == {P1: 20}


def test_gone_is_read_from_metadata_that_shows_it_clearly() -> None:
    keys = [Key(P2, ID)]
    assert absent(keys, view()) == {}
    assert "deleted" in absent(keys, View(1, {}))[keys[0]]
    assert "created again" in absent(keys, view(topic_id=NEW_ID))[keys[0]]
    assert absent(keys, View(1, {}, {"orders": "LEADER_NOT_AVAILABLE"})) == {}
    assert absent(keys, view(2)) == {}, "the broker is out of date, because topics lose no partitions"
    nameless = [Key(P2, NO_TOPIC_ID)]
    assert absent(nameless, view(3, NO_TOPIC_ID)) == {}
    assert "with 2 partitions" in absent(nameless, view(2, NO_TOPIC_ID))[nameless[0]]


@given(st.sampled_from(Event), st.sampled_from(State))
def test_every_entry_follows_the_table(event: Event, state: State) -> None:
    before = Entry(state, holding=holding() if state is State.HELD else None)
    after = before.after(event, **({"holding": holding()} if event is Event.TAKE_UP else {}))
    assert after.state is TRANSITIONS[event].get(state, state)
    assert (after.holding is not None) is (after.state is State.HELD)


SIZES = st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 10**9), min_size=1)


@settings(deadline=None)
@given(SIZES, st.integers(1, 10**9))
def test_admission_is_exact(sizes: Mapping[TopicPartition, int], most: int) -> None:
    planner = Planner("billing")
    for partition in sizes:
        planner.accept(partition, holding())
    planned = plan_batch(planner, START, sizes, Limits(max_offsets=most))
    assert planned is not None
    assert sum(span.end - span.start for _, span in planned.spans()) == min(most, sum(sizes.values()))
    assert all(span.end <= sizes[partition] for partition, span in planned.spans())


@settings(deadline=None)
@given(SIZES, st.integers(1, 64))
def test_any_recorded_batch_replays_as_the_same_tasks(sizes: Mapping[TopicPartition, int], cores: int) -> None:
    planner = Planner("billing")
    for partition in sizes:
        planner.accept(partition, holding())
    planned = plan_batch(planner, START, sizes)
    assert planned is not None
    replayed = from_json(json.loads(json.dumps(planned.to_json())), "billing")
    assert pack(batch_ranges(replayed), Packing(cores)) == pack(batch_ranges(planned), Packing(cores))
    assert sum(part.size for task in pack(batch_ranges(replayed), Packing(cores)) for part in task) == sum(sizes.values())
