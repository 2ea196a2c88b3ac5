"""What the formula reads of a report: all kinds of groups, deleted and unknown partitions, and rebalances."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from consumer_coord.admin.groups import GroupDescription, MemberDescription
from consumer_coord.admin.report import GroupReport, PartitionRow
from consumer_coord.errors import RetriableError, UnknownTopicError
from consumer_coord.lag.partition_lag import PartitionLag
from consumer_coord.net.metadata import Broker
from consumer_coord.scaling.reading import Membership, reading_of
from consumer_coord.scaling.wanted_replicas import Reading
from consumer_coord.topic_partition import TopicPartition


def group(state: str = "Stable", *members: str, **fields: Any) -> GroupDescription:
    described = tuple(MemberDescription(name, None, "app", "/10.0.0.1", {}, None) for name in members)
    known: dict[str, Any] = {"type": "Consumer", "protocol_type": "consumer", "assignor": "uniform", "epoch": 3}
    return GroupDescription("g", state=state, coordinator=Broker(1, "kafka", 9092), members=described, **{**known, **fields})


def report(of: GroupDescription, *lags: PartitionLag) -> GroupReport:
    return GroupReport(of, tuple(PartitionRow(TopicPartition("t", number), lag, None) for number, lag in enumerate(lags)))


BEHIND = PartitionLag(start=0, end=7)
ONLY_MARKERS = PartitionLag(start=0, end=7, has_record=False)
UNKNOWN = PartitionLag(unknown=RetriableError("no leader"))
DELETED = PartitionLag(unknown=UnknownTopicError("t-3 does not exist"))


def test_markers_and_deleted_partitions_are_no_lag_and_unknown_ones_are_counted() -> None:
    found = reading_of(report(group("Stable", "a", "b"), BEHIND, ONLY_MARKERS, UNKNOWN, DELETED), 9.0, None)
    assert found == Reading(at=9.0, lag=7, partitions_with_lag=1, members=2, unknown=1)


@pytest.mark.parametrize(
    ("state", "settled"),
    [
        ("Stable", True),
        ("Empty", True),
        *((state, False) for state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady")),
        *((state, False) for state in ("Dead", "Unknown")),
    ],
)
def test_states_of_all_kinds_of_groups(state: str, settled: bool) -> None:
    assert reading_of(report(group(state), BEHIND), 0.0, None).settled is settled


def test_another_member_or_epoch_shows_a_rebalance_between_two_readings() -> None:
    now = group("Stable", "a", "b")
    for before, settled in (
        (now, True),
        (attrs.evolve(now, members=now.members[:1]), False),
        (attrs.evolve(now, epoch=2), False),
    ):
        assert reading_of(report(now, BEHIND), 0.0, Membership.of(before)).settled is settled


def test_members_of_a_share_group_share_partitions() -> None:
    assert reading_of(report(group(type="Share"), BEHIND), 0.0, None).shared
    assert not reading_of(report(group(type="Streams"), BEHIND), 0.0, None).shared
