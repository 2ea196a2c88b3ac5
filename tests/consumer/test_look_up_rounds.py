"""The rounds in which :class:`ResetPolicy` looks up offsets: no leader delays another, and a slow leader gets more time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer_coord.consumer.data_plane import OFFSET_BEGINNING, OFFSET_END
from consumer_coord.consumer.partitions import Origin
from consumer_coord.consumer.start_offsets import ResetPolicy, Start
from consumer_coord.errors import RetriableError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders import list_offsets
from consumer_coord.leaders.list_offsets import Listed, ListedOffset
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from tests.support.group.virtual import in_virtual_time, now_ms

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Leaders:
    """Leaders that respond a fixed time after a request; partition -> that time in milliseconds."""

    def __init__(self, after_ms: Mapping[TopicPartition, float]) -> None:
        self.after_ms = after_ms
        #: The time limits of the rounds, in milliseconds.
        self.rounds: list[float] = []

    async def list_offsets(
        self,
        cluster: Any,
        wanted: Mapping[TopicPartition, int],
        deadline: Deadline,
        *,
        read_committed: bool,
    ) -> Listed:
        limit_ms = deadline.remaining_ms
        self.rounds.append(round(limit_ms))
        times = {one: self.after_ms[one] for one in wanted}
        await asyncio.sleep(min(max(times.values()), limit_ms) / 1000)
        found = {one: ListedOffset(7) for one, after_ms in times.items() if after_ms < limit_ms}
        return Listed(found, dict.fromkeys(wanted.keys() - found.keys(), RetriableError("no response")))


async def look_up(leaders: Leaders, monkeypatch: pytest.MonkeyPatch, timeout_ms: float = 60_000) -> set[TopicPartition]:
    monkeypatch.setattr(list_offsets, "list_offsets", leaders.list_offsets)
    coordinator: Any = SimpleNamespace(cluster=None)
    policy = ResetPolicy("earliest", read_committed=False)
    return set(await policy.at(coordinator, dict.fromkeys(leaders.after_ms, OFFSET_BEGINNING), timeout_ms))


@in_virtual_time
async def test_a_partition_without_a_leader_delays_the_others_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 20, B: 1e9})
    assert await look_up(leaders, monkeypatch) == {A}
    assert leaders.rounds == [1_000]


@in_virtual_time
async def test_leaders_that_respond_at_once_delay_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    began = now_ms()
    assert await look_up(Leaders({A: 20, B: 30}), monkeypatch) == {A, B}
    assert now_ms() - began == pytest.approx(30)


@in_virtual_time
async def test_slow_leaders_get_more_time_in_each_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leaders = Leaders({A: 3_000, B: 3_500})
    with caplog.at_level(logging.WARNING):
        assert await look_up(leaders, monkeypatch) == {A, B}
    assert leaders.rounds == [1_000, 2_000, 4_000]
    assert [one.getMessage() for one in caplog.records] == ["the start of t-0, t-1 is not known yet: no response"]


@in_virtual_time
async def test_the_last_round_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 1e9})
    with pytest.raises(RetriableError, match="no response"):
        await look_up(leaders, monkeypatch, timeout_ms=10_000)
    assert leaders.rounds == [1_000, 2_000, 4_000, 3_000]


class Commits:
    """The group's commits, which the coordinator returns at once."""

    def __init__(self, leaders: Leaders, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.cluster: Any = SimpleNamespace(environment=SimpleNamespace(wall_clock_ms=lambda: 1_000_000))
        self._every = dict.fromkeys(leaders.after_ms, None) | dict(committed)

    async def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return {one: self._every[one] for one in partitions}


@pytest.mark.parametrize("reset", ["earliest", "latest", "by_duration:PT1S"])
@in_virtual_time
async def test_a_partition_without_a_leader_and_a_commit_delays_partitions_with_commits_by_a_second(
    monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    leaders = Leaders({A: 1e9, B: 1e9})
    monkeypatch.setattr(list_offsets, "list_offsets", leaders.list_offsets)
    policy, coordinator = ResetPolicy(reset, read_committed=False), Commits(leaders, {A: OffsetAndMetadata(5)})
    found = await policy.starts(cast(ConsumerCoordinator, coordinator), [A, B], 60_000)
    assert found == {A: Start(Origin.COMMIT, OffsetAndMetadata(5))}
    assert now_ms() == pytest.approx(1_000)


@in_virtual_time
async def test_a_partition_without_a_leader_delays_the_seek_of_another_to_the_end_by_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders({A: 1e9, B: 20})
    monkeypatch.setattr(list_offsets, "list_offsets", leaders.list_offsets)
    policy, coordinator = ResetPolicy("earliest", read_committed=False), Commits(leaders, {})
    wanted = {A: OFFSET_BEGINNING, B: OFFSET_END}
    assert set(await policy.at(cast(ConsumerCoordinator, coordinator), wanted, 60_000)) == {B}
    assert now_ms() == pytest.approx(1_000)
