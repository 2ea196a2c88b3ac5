"""Snapshots of groups from brokers that answer wrongly or not at all: what is not known is named, and hides nothing else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.watch.collect import Collector
from consumer_coord.wire.messages.offsets import ListOffsetsRequest, OffsetFetchRequest, OffsetFetchResponse
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import FakeBrokers
from tests.support.group.ill_leaders import ILL, at_node, group_brokers, without_partition
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time


async def first(brokers: FakeBrokers) -> dict[str, Any]:
    """Return what the first message says about group g."""
    cluster = new_cluster(brokers)
    try:
        message = await Collector(cluster, ["g"], LagPolicy(records=False), interval_s=1.0, timeout_ms=30_000).first()
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
