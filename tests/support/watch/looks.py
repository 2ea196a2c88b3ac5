"""Snapshots for tests: ``group(a="0-2", b="3")`` is a group of one topic with two members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumer_coord.lag.partition_lag import PartitionLag
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.watch.history import State
from consumer_coord.watch.snapshots import GroupSnapshot, MemberSnapshot, OffsetsSnapshot

TOPIC = "orders"
STABLE = {"state": "Stable", "type": "Classic", "assignor": "range", "coordinator": "kafka:9092 (broker 1)"}


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of ranges: ``0-2 5`` -> 0, 1, 2, 5."""
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def member(name: str, owned: str = "", **more: Any) -> MemberSnapshot:
    """Return a member with that client id."""
    partitions = {TOPIC: numbers(owned)} if owned else {}
    values: dict[str, Any] = {"client_id": name, "host": "/10.0.0.1", "topics": (TOPIC,), **more}
    return MemberSnapshot(f"{name}-1234567890", owned=partitions, **values)


def group(*members: MemberSnapshot, **more: Any) -> GroupSnapshot:
    """Return a group, stable unless ``more`` has another state."""
    return GroupSnapshot("shop", members=members, **{**STABLE, **more})


def rebalancing(*members: MemberSnapshot, **more: Any) -> GroupSnapshot:
    """Return a classic group in a rebalance: its coordinator reports neither assignments nor subscriptions."""
    bare = tuple(MemberSnapshot(one.member_id, one.client_id, one.host, one.instance_id) for one in members)
    return group(*bare, **{"state": "PreparingRebalance", "assignor": "", **more})


def offsets(
    count: int, committed: Mapping[int, int], ends: Mapping[int, int], topic: str = TOPIC
) -> dict[str, OffsetsSnapshot]:
    """Return a snapshot of the group's offsets."""
    commits = {TopicPartition(topic, number): offset for number, offset in committed.items()}
    return {"shop": offsets_of({topic: count}, commits, {TopicPartition(topic, number): end for number, end in ends.items()})}


def offsets_of(
    counts: Mapping[str, int], committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> OffsetsSnapshot:
    """Return a snapshot of offsets, in which each commit has its lag."""
    lags = {one: PartitionLag(OffsetAndMetadata(offset), None, ends.get(one)) for one, offset in committed.items()}
    return OffsetsSnapshot(counts, lags, ends)


def owners(state: State, topic: str = TOPIC) -> list[str | None]:
    """Return the client ids that own a topic's partitions, from the state's message."""
    shop = state.as_message()["groups"]["shop"]
    found: list[str | None] = []
    for first, last, owner in shop["owners"].get(topic, ()):
        found += [None if owner < 0 else shop["members"][str(owner)]["client"]] * (last + 1 - first)
    return found
