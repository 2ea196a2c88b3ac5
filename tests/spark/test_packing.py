"""Packing: every offset in exactly one task, within the limits, and the same tasks for the same ranges."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer_coord.errors import ConfigurationError
from consumer_coord.spark.packing import SPLIT_WORTH, TASK_WORTH, Packing, Range, Task, pack, pack_with, split


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    partitions = draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), unique=True, max_size=30))
    found = []
    for topic, number in partitions:
        start, size = draw(st.integers(0, 10**9)), draw(st.integers(1, 10**6))
        found.append(Range(topic, number, start, start + size))
    return found


PACKINGS = st.builds(
    Packing,
    st.integers(1, 64),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(10_000, 10**6),
)


def offsets_of(parts: Sequence[Range]) -> list[Range]:
    joined: list[Range] = []
    for part in sorted(parts):
        if joined and joined[-1].topic_partition == part.topic_partition and joined[-1].end == part.start:
            joined[-1] = Range(part.topic, part.partition, joined[-1].start, part.end)
        else:
            joined.append(part)
    return joined


@settings(deadline=None)
@given(ranges(), PACKINGS)
def test_every_offset_is_in_exactly_one_task(given_ranges: list[Range], packing: Packing) -> None:
    tasks = pack(given_ranges, packing)
    assert offsets_of([part for task in tasks for part in task]) == sorted(given_ranges)
    assert all(part.size > 0 for task in tasks for part in task)


@settings(deadline=None)
@given(ranges(), PACKINGS)
def test_limits_are_kept(given_ranges: list[Range], packing: Packing) -> None:
    tasks = pack(given_ranges, packing)
    total = sum(each.size for each in given_ranges)
    if packing.max_records_per_partition is not None:
        assert all(sum(part.size for part in task) <= packing.max_records_per_partition for task in tasks)
    else:
        assert len(tasks) <= max(packing.parallelism, packing.min_partitions or 1)
    if packing.min_partitions is not None:
        assert len(tasks) >= min(packing.min_partitions, total)


def test_min_partitions_holds_however_the_records_divide() -> None:
    assert len(pack([Range("orders", 0, 0, 11)], Packing(1, 5))) == 5


@settings(deadline=None)
@given(ranges(), PACKINGS, st.randoms(use_true_random=False))
def test_the_order_of_ranges_does_not_matter(given_ranges: list[Range], packing: Packing, random: object) -> None:
    shuffled = list(given_ranges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis types its generator as object
    assert pack(shuffled, packing) == pack(given_ranges, packing)


def test_small_ranges_share_a_task() -> None:
    many = [Range("orders", number, 0, 100) for number in range(64)]
    assert len(pack(many, Packing(parallelism=8))) == 1


def test_work_fills_the_cores() -> None:
    many = [Range("orders", number, 0, TASK_WORTH) for number in range(64)]
    tasks = pack(many, Packing(parallelism=8))
    assert [sum(part.size for part in task) for task in tasks] == [8 * TASK_WORTH] * 8


def test_a_huge_range_is_split() -> None:
    tasks = pack([Range("orders", 0, 10, 10 + 8 * SPLIT_WORTH)], Packing(parallelism=4))
    assert [sum(part.size for part in task) for task in tasks] == [2 * SPLIT_WORTH] * 4


def test_min_partitions_splits_whatever_is_there() -> None:
    assert len(pack([Range("orders", 0, 0, 100)], Packing(parallelism=1, min_partitions=10))) == 10


def test_nothing_makes_no_task() -> None:
    assert pack([], Packing(parallelism=4)) == ()
    assert split(Range("orders", 0, 5, 5), 10) == []


def test_a_packer_of_the_users_is_followed() -> None:
    def one_each(parts: Sequence[Range], packing: Packing) -> Sequence[Task]:
        return [(part,) for part in parts]

    wanted = [Range("orders", 0, 0, 5), Range("orders", 1, 0, 5)]
    assert pack_with(one_each, wanted, Packing(1)) == tuple((part,) for part in wanted)


@given(st.data())
def test_a_replay_by_a_packer_that_depends_on_chance_holds_the_same_offsets(data: st.DataObject) -> None:
    """Replayed batches are packed again: the tasks may differ then, and what is read may not."""

    def by_chance(parts: Sequence[Range], packing: Packing) -> Sequence[Task]:
        pieces = []
        for part in data.draw(st.permutations(parts)):
            middle = data.draw(st.integers(part.start, part.end))
            pieces += [(attrs.evolve(part, end=middle),), (attrs.evolve(part, start=middle),)]
        return [task for task in pieces if task[0].size]

    def held(tasks: Sequence[Task]) -> set[tuple[int, int]]:
        return {(part.partition, offset) for task in tasks for part in task for offset in range(part.start, part.end)}

    wanted = [Range("orders", 0, 3, 9), Range("orders", 1, 0, 5)]
    first, again = (pack_with(by_chance, wanted, Packing(1)) for _ in range(2))
    assert held(first) == held(again) == held([tuple(wanted)])


def test_a_packer_that_drops_or_doubles_is_refused() -> None:
    wanted = [Range("orders", 0, 0, 5), Range("orders", 1, 0, 5)]
    answers = iter([[wanted[:1]], [wanted, wanted[:1]], [[Range("orders", 0, 0, 6), wanted[1]]]])

    def wrong(parts: Sequence[Range], packing: Packing) -> Sequence[Task]:
        return [tuple(task) for task in next(answers)]

    for _ in range(3):
        with pytest.raises(ConfigurationError, match="exactly once"):
            pack_with(wrong, wanted, Packing(1))
