"""One round of a look-up of starts: a partition that has no answer yet delays the others for the round only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer_coord.consumer import start_offsets
from consumer_coord.consumer.partitions import Origin
from consumer_coord.consumer.start_offsets import ResetPolicy, Start, TimeLimits
from consumer_coord.group.committed_offsets import Fetched
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.offsets import OFFSET_BEGINNING, OFFSET_END, OffsetAndMetadata
from tests.leaders.test_list_available import A, B, Leaders
from tests.support.group.virtual import in_virtual_time, now_ms

LIMITS = TimeLimits(60_000, 1_000)


class Commits:
    """The group's commits, which the coordinator returns at once, without a row for the partitions of ``failed``."""

    def __init__(self, committed: Mapping[Any, OffsetAndMetadata | None], failed: Mapping[Any, Any] | None = None) -> None:
        self.cluster: Any = SimpleNamespace(environment=SimpleNamespace(wall_clock_ms=lambda: 1_000_000))
        self._result = Fetched(committed, failed or {})

    async def committed_available(self, partitions: Collection[Any], timeout_ms: float) -> Fetched:
        return self._result


@pytest.mark.parametrize("reset", ["earliest", "latest", "by_duration:PT1S"])
@in_virtual_time
async def test_a_partition_without_a_leader_and_a_commit_delays_partitions_with_commits_by_a_round(
    monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    leaders = Leaders({A: 1e9, B: 1e9})
    monkeypatch.setattr(start_offsets, "list_offsets", leaders.list_offsets)
    policy, coordinator = ResetPolicy(reset, read_committed=False), Commits({A: OffsetAndMetadata(5), B: None})
    result = await policy.starts(cast(ConsumerCoordinator, coordinator), [A, B], LIMITS)
    assert result.found == {A: Start(Origin.COMMIT, OffsetAndMetadata(5))}
    assert result.failed == {B: leaders.error}
    assert now_ms() == pytest.approx(1_000)


@in_virtual_time
async def test_a_partition_without_a_leader_delays_the_seek_of_another_to_the_end_by_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = Leaders({A: 1e9, B: 20})
    monkeypatch.setattr(start_offsets, "list_offsets", leaders.list_offsets)
    policy, coordinator = ResetPolicy("earliest", read_committed=False), Commits({})
    wanted = {A: OFFSET_BEGINNING, B: OFFSET_END}
    result = await policy.at(cast(ConsumerCoordinator, coordinator), wanted, LIMITS)
    assert result.found.keys() == {B}
    assert result.failed.keys() == {A}
    assert now_ms() == pytest.approx(1_000)


@in_virtual_time
async def test_a_partition_whose_commit_is_unknown_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders({A: 20, B: 20})
    monkeypatch.setattr(start_offsets, "list_offsets", leaders.list_offsets)
    policy, coordinator = ResetPolicy("latest", read_committed=False), Commits({A: None}, {B: leaders.error})
    result = await policy.starts(cast(ConsumerCoordinator, coordinator), [A, B], LIMITS)
    assert result.found.keys() == {A}
    assert result.failed == {B: leaders.error}
