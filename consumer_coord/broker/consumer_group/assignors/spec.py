"""What an assignor of the broker is given (``GroupSpec``, ``SubscribedTopicDescriber``)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from consumer_coord.broker.consumer_group.member import Partitions


@attrs.frozen
class MemberSpec:
    """One member: the topics that it subscribes to and that exist, id -> name, and what it is to have until now."""

    topics: Mapping[uuid.UUID, str]
    target: Partitions = attrs.field(factory=dict)
    instance_id: str | None = None
    rack_id: str | None = None


@attrs.frozen
class GroupSpec:
    """A group.

    ``homogeneous``: all members subscribe to the same topics. ``partitions`` is topic id -> number of partitions, ``racks``
    topic id -> for each partition the racks of its replicas (empty without racks). ``assigned`` are the partitions that
    some member is to have until now, one that is just being replaced among them. ``epoch`` is that of the group.
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
        """Member id -> partitions; a member that is left out gets nothing. Raises :class:`AssignorFailedError`."""


class AssignorFailedError(Exception):
    """No assignment could be made; the heartbeat that wanted one is answered UNKNOWN_SERVER_ERROR."""
