"""Snapshots of groups from brokers that answer wrongly or not at all: what is not known is named, and hides nothing else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.watch.collect import Collector
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import FetchRequest
from consumer_coord.wire.messages.offsets import ListOffsetsRequest, OffsetFetchRequest, OffsetFetchResponse
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import WALL_CLOCK_MS, FakeBrokers
from tests.support.group.ill_leaders import ILL, T0, T1, at_node, group_brokers, without_partition
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time

WITHOUT_FETCH = LagPolicy(records=False)


async def first(brokers: FakeBrokers, policy: LagPolicy = WITHOUT_FETCH) -> dict[str, Any]:
    """Return what the first message says about group g."""
    cluster = new_cluster(brokers)
    try:
        message = await Collector(cluster, ["g"], policy, interval_s=1.0, timeout_ms=30_000).first()
    finally:
        await cluster.close()
    group: dict[str, Any] = message["groups"]["g"]
    return group


@pytest.mark.parametrize("kind", ILL)
@in_virtual_time
async def test_the_lag_at_an_ill_leader_is_unknown_and_that_of_the_others_is_not(kind: str) -> None:
    brokers = group_brokers(assigned=True)
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, ILL[kind](brokers)))
    group = await first(brokers)
    assert group["lag"]["t"][0] == 95
    assert group["unknown"] == {"t": 1}
    assert group["member_lag"] == {"0": None}, "the member has a partition whose lag is unknown"
    assert group["behind"] == [["t", 0, 95]]


@in_virtual_time
async def test_a_commit_without_a_row_is_unknown_and_not_a_missing_commit() -> None:
    def without_t_1(request: OffsetFetchRequest) -> Struct:
        answer: OffsetFetchResponse = brokers.usual(request)
        return attrs.evolve(answer, groups=tuple(without_partition(group, 1) for group in answer.groups))

    brokers = group_brokers(assigned=True)
    brokers.always(OffsetFetchRequest, without_t_1)
    group = await first(brokers)
    assert group["lag"]["t"][0] == 95
    assert group["unknown"] == {"t": 1}
    assert group["member_lag"] == {"0": None}


@in_virtual_time
async def test_nothing_is_unknown_where_all_brokers_answer() -> None:
    group = await first(group_brokers(assigned=True))
    assert group["lag"]["t"][0] == 190
    assert "unknown" not in group
    assert group["member_lag"] == {"0": 190}


@in_virtual_time
async def test_the_age_of_a_topic_is_that_of_its_oldest_unread_record() -> None:
    brokers = group_brokers(assigned=True)
    brokers.written_ms = {T0: WALL_CLOCK_MS - 2_000, T1: WALL_CLOCK_MS - 7_500}
    group = await first(brokers, LagPolicy(seconds=True))
    assert group["lag_seconds"] == {"t": 7.5}
    assert "lag_seconds" not in await first(brokers)
    assert len(brokers.all(FetchRequest)) == 2, "one for each leader, and none without seconds"
    brokers.always(FetchRequest, at_node(brokers, 1, codes.NOT_LEADER_OR_FOLLOWER))
    group = await first(brokers, LagPolicy(seconds=True))
    assert (group["lag"]["t"][0], group["lag_seconds"]) == (190, {"t": None}), "the records are known"


@pytest.mark.parametrize(("start", "lag", "unknown"), [(EARLIEST, 195, None), (LATEST, 95, None), (None, 95, {"t": 1})])
@in_virtual_time
async def test_a_partition_without_a_commit_counts_as_the_flag_says(start: int | None, lag: int, unknown: Any) -> None:
    brokers = group_brokers(assigned=True, committed=(T0,))
    group = await first(brokers, LagPolicy(start, records=False))
    assert (group["lag"]["t"][0], group.get("unknown")) == (lag, unknown)
