"""The rounds of a look-up at several leaders: no leader delays another, and a slow leader gets more time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from consumer_coord.errors import AuthorizationError, CoordinatorError, RetriableError
from consumer_coord.leaders import list_offsets
from consumer_coord.leaders.list_offsets import EARLIEST, Listed, ListedOffset, list_available
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from tests.support.group.virtual import in_virtual_time, now_ms

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Leaders:
    """Leaders that respond a fixed time after a request; partition -> that time in milliseconds."""

    def __init__(self, after_ms: Mapping[TopicPartition, float], error: CoordinatorError | None = None) -> None:
        self.after_ms = after_ms
        self.error = error or RetriableError("no response")
        #: The time limits of the rounds, in milliseconds.
        self.rounds: list[float] = []

    async def list_offsets(
        self, cluster: Any, wanted: Mapping[TopicPartition, int], deadline: Deadline, *, read_committed: bool
    ) -> Listed:
        limit_ms = deadline.remaining_ms
        self.rounds.append(round(limit_ms))
        times = {one: self.after_ms[one] for one in wanted}
        await asyncio.sleep(min(max(times.values()), limit_ms) / 1000)
        found = {one: ListedOffset(7) for one, after_ms in times.items() if after_ms < limit_ms}
        return Listed(found, dict.fromkeys(wanted.keys() - found.keys(), self.error))


async def look_up(leaders: Leaders, monkeypatch: pytest.MonkeyPatch, timeout_ms: float = 60_000) -> Listed:
    monkeypatch.setattr(list_offsets, "list_offsets", leaders.list_offsets)
    cluster: Any = None
    return await list_available(cluster, dict.fromkeys(leaders.after_ms, EARLIEST), timeout_ms)


@in_virtual_time
async def test_a_partition_without_a_leader_delays_the_others_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 20, B: 1e9})
    result = await look_up(leaders, monkeypatch)
    assert result.found.keys() == {A}
    assert result.failed == {B: leaders.error}
    assert leaders.rounds == [1_000]


@in_virtual_time
async def test_leaders_that_respond_at_once_delay_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    began = now_ms()
    assert (await look_up(Leaders({A: 20, B: 30}), monkeypatch)).complete().keys() == {A, B}
    assert now_ms() - began == pytest.approx(30)


@in_virtual_time
async def test_slow_leaders_get_more_time_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 3_000, B: 3_500})
    assert (await look_up(leaders, monkeypatch)).complete().keys() == {A, B}
    assert leaders.rounds == [1_000, 2_000, 4_000]


@in_virtual_time
async def test_the_last_round_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 1e9})
    result = await look_up(leaders, monkeypatch, timeout_ms=10_000)
    assert leaders.rounds == [1_000, 2_000, 4_000, 3_000]
    with pytest.raises(RetriableError, match="no response"):
        result.complete()


@in_virtual_time
async def test_a_refusal_ends_the_look_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 1_000}, AuthorizationError("refused"))
    assert (await look_up(leaders, monkeypatch)).failed == {A: leaders.error}
    assert leaders.rounds == [1_000]
