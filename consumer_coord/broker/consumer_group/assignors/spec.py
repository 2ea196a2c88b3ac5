"""The input of a broker's assignor (``GroupSpec``, ``SubscribedTopicDescriber``)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from consumer_coord.broker.consumer_group.member import Partitions


@attrs.frozen
class MemberSpec:
    """A member, with the existing topics that it subscribes to (id -> name), and its current target."""

    topics: Mapping[uuid.UUID, str]
    target: Partitions = attrs.field(factory=dict)
    instance_id: str | None = None
    rack_id: str | None = None


@attrs.frozen
class GroupSpec:
    """The group that an assignor assigns for.

    ``homogeneous``: whether all members subscribe to the same topics. ``partitions``: topic id -> number of partitions.
    ``racks``: topic id -> for each partition the racks of its replicas (empty without racks). ``assigned``: all partitions in
    members' current targets, including the target of a static member that is being replaced. ``epoch``: the group epoch.
    """

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    partitions: Mapping[uuid.UUID, int]
    racks: Mapping[uuid.UUID, Sequence[frozenset[str]]] = attrs.field(factory=dict)
    assigned: Partitions = attrs.field(factory=dict)
    epoch: int = 0


class ServerAssignor(Protocol):
    """An assignor of the broker (``ConsumerGroupPartitionAssignor``)."""

    name: str

    def assign(self, spec: GroupSpec) -> Mapping[str, Partitions]:
        """Return member id -> partitions; omitted members get no partitions. Raise :class:`AssignorFailedError` on failure."""


class AssignorFailedError(Exception):
    """Raised if an assignor fails. The heartbeat that needs the assignment receives UNKNOWN_SERVER_ERROR."""
