"""The arithmetic of ``lag --interval-ms``."""

from __future__ import annotations

import attrs
import pytest

from consumer_coord.admin.lag import Sample, rows


def sample(at: float, committed: int, end: int, *, topic: str = "orders", partitions: int = 2) -> Sample:
    return Sample(at, "g", "Stable", 1, topic, partitions, end - committed, committed, end, frozenset(range(partitions)))


def test_rates_and_the_time_until_the_lag_is_gone() -> None:
    before = sample(10.0, committed=100, end=400)
    (row,) = rows([sample(12.0, committed=200, end=420)], {("g", "orders"): before})
    assert (row.read, row.written) == (50.0, 10.0)
    assert row.caught_up_in_s == pytest.approx(220 / 40)


@pytest.mark.parametrize(
    ("before", "current"),
    [
        (None, sample(12.0, 100, 400)),
        (sample(10.0, 100, 400, partitions=1), sample(12.0, 300, 900)),
        (sample(12.0, 100, 400), sample(12.0, 100, 400)),
    ],
)
def test_no_rate_where_nothing_can_be_compared(before: Sample | None, current: Sample) -> None:
    (row,) = rows([current], {} if before is None else {("g", "orders"): before})
    assert (row.read, row.written, row.caught_up_in_s) == (None, None, None)
    assert row.cells()[-3:] == [None, None, None]


def test_a_group_that_falls_behind_never_catches_up() -> None:
    before = sample(10.0, 100, 400)
    (row,) = rows([sample(11.0, 110, 500)], {("g", "orders"): before})
    assert row.caught_up_in_s is None


def test_the_largest_lag_comes_first() -> None:
    found = rows([sample(1, 5, 5, topic="a"), sample(1, 0, 9, topic="b"), sample(1, 0, 3, topic="c")], {})
    assert [row.sample.topic for row in found] == ["b", "c", "a"]


def test_no_rate_while_other_partitions_are_measured() -> None:
    """The sums of different partitions have no difference."""
    before, current = sample(10.0, 100, 400), sample(12.0, 300, 900)
    (row,) = rows([attrs.evolve(current, measured=frozenset({0}), unknown=1)], {("g", "orders"): before})
    assert (row.read, row.written) == (None, None)
    assert row.cells()[5:6] == [">=600"]
