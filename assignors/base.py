"""The contract between a group's leader and an assignor.

An assignor is a pure function from the state of the cluster and the members' subscriptions to a plan. The function does no I/O,
keeps no state that a plan depends on, and imports nothing but the standard library and attrs. So it can be tested without
Kafka, run in a worker thread, and be replayed in a simulation.

Kafka's names for these are ``ConsumerPartitionAssignor`` (KIP-429) and ``Cluster``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import attrs

#: member id -> topic -> partition numbers. Any sequence of integers is accepted; ``range`` objects save memory.
Plan: TypeAlias = Mapping[str, Mapping[str, Sequence[int]]]


class RebalanceProtocol(enum.IntEnum):
    """When members revoke partitions (KIP-429). The higher value is the better protocol, as in Kafka."""

    #: Every member revokes all its partitions before it joins.
    EAGER = 0
    #: Members keep their partitions; a partition that moves is revoked first, and assigned in a second round.
    COOPERATIVE = 1


@attrs.frozen(kw_only=False)
class Cluster:
    """The leader's view of the cluster.

    ``partitions``: topic -> number of partitions. Topics whose lookup failed are absent. ``racks``: topic -> for each partition
    the racks that hold a replica of it. Empty when the brokers have none. ``lag``: topic -> for each partition its lag in
    records, None where it could not be fetched: ``lag["orders"][3]``. Without a commit the lag counts from the start position
    of ``auto.offset.reset``, and is None with ``none``. Filled only when the assignor *needs* it (see :attr:`Assignor.needs`).
    ``weights``: topic -> for each partition its rate in records a second, None where unknown; also only when the assignor needs
    it. ``generation``: the generation that this assignment will have. A claim of partitions from this generation or a later one
    cannot be true. None where generations are not known.
    """

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] = attrs.field(factory=dict)
    lag: Mapping[str, Sequence[int | None]] = attrs.field(factory=dict)
    weights: Mapping[str, Sequence[float | None]] = attrs.field(factory=dict)
    generation: int | None = None


@attrs.frozen(kw_only=False)
class Member:
    """One member's subscription, as the leader receives it.

    ``owned``: topic -> partitions that the member claims to hold (KIP-429), with the ``generation`` of that assignment
    (KIP-792; -1 if the member does not send it). ``instance_id`` is set for a static member (KIP-345), ``rack`` for a member
    that sent its rack (KIP-881). ``user_data`` are the assignor's own bytes.
    """

    topics: Sequence[str]
    owned: Mapping[str, Sequence[int]] = attrs.field(factory=dict)
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None
    user_data: bytes | None = None


#: The names that :attr:`Assignor.needs` may contain.
FIGURES = ("lag", "weights")


class Assignor(ABC):
    """Base class of every assignor, built-in or your own."""

    #: The name that is sent in JoinGroup; all members of a group must have one name in common.
    name: str
    #: The supported rebalance protocols. ``(COOPERATIVE, EAGER)`` may be in a mixed list during a live upgrade.
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)
    #: Figures that the leader fetches before it calls :meth:`assign`: ``"lag"`` or ``"weights"``.
    needs: frozenset[str] = frozenset()

    @abstractmethod
    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Make the plan: member id -> topic -> partition numbers, with every member present.

        The plan must depend on the arguments alone: the same arguments give the same plan in every process.
        """

    def user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return bytes for this member's subscription; the leader's assignor receives them as ``Member.user_data``."""
        return None

    def check_needs(self) -> None:
        """Raise ValueError when :attr:`needs` is not a set of names, or names a figure that cannot be fetched."""
        needs: object = self.needs
        if isinstance(needs, str) or not isinstance(needs, Collection):
            raise ValueError(f"needs is {needs!r}, which is not a set of names: write frozenset({{'lag'}})")
        for name in needs:
            if name not in FIGURES:
                raise ValueError(f"needs names {name!r}; only {' and '.join(map(repr, FIGURES))} can be fetched")

    def on_assignment(self, assignment: Mapping[str, Sequence[int]], generation: int) -> None:  # noqa: B027
        """Receive this member's assignment, topic -> partition numbers, after each successful sync."""
