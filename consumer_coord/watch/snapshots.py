"""Snapshots of groups, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from consumer_coord.admin.groups import CONSUMER, GroupDescription, MemberDescription
from consumer_coord.lag.partition_lag import PartitionLag
from consumer_coord.topic_partition import TopicPartition

#: States of a classic group in which the coordinator reports the assignment. For KIP-848 groups, every state is such a state.
_TELLS_ASSIGNMENT = frozenset({"Stable", "Empty", "Dead"})
#: States of either kind of group in which a rebalance is in progress.
_REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})


@attrs.frozen
class MemberSnapshot:
    """A member. ``owned`` is topic -> partition numbers; ``topics`` is None if the coordinator does not report the topics.

    ``generation`` is the member epoch (KIP-848), or the generation that a classic member's subscription names (None if the
    client does not send a generation).
    """

    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None
    generation: int | None = None
    owned: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    topics: tuple[str, ...] | None = None
    pattern: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The member's identity: ``group.instance.id``, which a static member keeps at a restart, or else the member id."""
        return ("instance", self.instance_id) if self.instance_id is not None else ("member", self.member_id)

    @property
    def label(self) -> str:
        """A short name for texts: the instance id, or the client id with the first letters of the rest of the member id."""
        if self.instance_id is not None:
            return self.instance_id
        rest = self.member_id.removeprefix(self.client_id).lstrip("-")
        return f"{self.client_id}-{rest[:6]}" if self.client_id and rest else self.member_id


@attrs.frozen
class GroupSnapshot:
    """A group at one moment; with ``error`` set, the other fields are unknown."""

    group_id: str
    state: str = ""
    type: str = ""
    assignor: str = ""
    coordinator: str = ""
    epoch: int | None = None
    members: tuple[MemberSnapshot, ...] = ()
    error: str | None = None

    @property
    def rebalancing(self) -> bool:
        """True while a rebalance is in progress."""
        return self.state in _REBALANCING

    @property
    def reports_owners(self) -> bool:
        """False while the coordinator of a classic group does not report the assignment."""
        return self.type == CONSUMER or self.state in _TELLS_ASSIGNMENT


@attrs.frozen
class OffsetsSnapshot:
    """The number of partitions of each topic, the lags, and the end offsets; unknown offsets are absent.

    ``refused`` are owned partitions whose commits this principal may not read. ``seconds``: whether the lags have ages.
    """

    partitions: Mapping[str, int] = attrs.field(factory=dict)
    lags: Mapping[TopicPartition, PartitionLag] = attrs.field(factory=dict)
    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    refused: frozenset[TopicPartition] = frozenset()
    seconds: bool = False

    @property
    def unknown(self) -> frozenset[TopicPartition]:
        """The partitions whose lag no broker has reported."""
        return frozenset(one for one, lag in self.lags.items() if lag.records is None) | self.refused

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The offset from which the lag of each partition counts."""
        return {one: lag.position for one, lag in self.lags.items() if lag.position is not None}


def to_snapshot(group: GroupDescription) -> GroupSnapshot:
    """Return the parts of a description that the page shows."""
    return GroupSnapshot(
        group.group_id,
        group.state,
        group.type,
        group.assignor,
        f"{group.coordinator.address} (broker {group.coordinator.id})",
        group.epoch,
        tuple(_member(member) for member in group.members),
    )


def _member(member: MemberDescription) -> MemberSnapshot:
    subscription = member.subscription
    generation = member.epoch
    if generation is None and subscription is not None and subscription.generation >= 0:
        generation = subscription.generation
    return MemberSnapshot(
        member.member_id,
        member.client_id,
        member.host,
        member.instance_id,
        generation,
        member.assignment,
        None if subscription is None else subscription.topics,
        None if subscription is None else subscription.pattern,
    )
