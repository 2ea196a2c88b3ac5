"""Huge groups: time and memory grow with members and entries of the plan, not with partitions.

The tests count calls of functions, which are the same on every machine; the benchmarks measure time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from assignors import Assignor, Cluster, CooperativeStickyAssignor, Member, RangeAssignor, StickyAssignor, verify
from assignors.balancing.dealing import MOST_ENTRIES
from tests.support.assignors.plans import loads, owning


def calls_of(action: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, an action calls."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def huge(members: int, partitions: int, topics: int, halves: bool = False) -> tuple[Cluster, dict[str, Member]]:
    names = [f"topic-{number:03d}" for number in range(topics)]

    def subscription(number: int) -> list[str]:
        return sorted(random.Random(number).sample(names, topics // 2)) if halves else names

    cluster = Cluster(dict.fromkeys(names, partitions // topics))
    return cluster, {f"member-{number:04d}": Member(subscription(number)) for number in range(members)}


def after_a_change(cluster: Cluster, members: Mapping[str, Member], assignor: Assignor) -> dict[str, Member]:
    plan = assignor.assign(cluster, members)
    verify(cluster, members, plan)
    group = owning(members, plan, 1)
    gone = group.pop("member-0003")
    group["member-new"] = Member(gone.topics)
    return group


def work_after_a_change(partitions: int, halves: bool) -> int:
    assignor = CooperativeStickyAssignor()
    cluster, members = huge(300, partitions, 100, halves)
    group = after_a_change(cluster, members, assignor)
    return calls_of(lambda: assignor.assign(cluster, group))


@pytest.mark.thorough
@pytest.mark.behaviour(111)
@pytest.mark.parametrize("assignor", [RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor()], ids=lambda a: a.name)
def test_two_thousand_members_and_a_million_partitions(assignor: Assignor) -> None:
    cluster, members = huge(2_000, 1_000_000, 500)
    plan = assignor.assign(cluster, members)
    verify(cluster, members, plan)
    assert loads(plan)[0] == loads(plan)[-1] == 500
    assert calls_of(lambda: assignor.assign(cluster, members)) < 150_000
    if assignor.name != "range":
        assert sum(map(len, plan.values())) <= MOST_ENTRIES * 1.1
        group = after_a_change(cluster, members, assignor)
        assert calls_of(lambda: assignor.assign(cluster, group)) < 150_000


@pytest.mark.behaviour(111)
@pytest.mark.parametrize("halves", [False, True], ids=["alike", "random-halves"])
def test_more_partitions_are_hardly_more_work(halves: bool) -> None:
    work = [work_after_a_change(partitions, halves) for partitions in (100_000, 400_000)]
    assert work[1] < 2 * work[0]
