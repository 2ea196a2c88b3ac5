"""The interface between a group's leader and an assignor.

An assignor is a pure function from the state of the cluster and the members' subscriptions to a plan. The function does no I/O,
keeps no state that affects a plan, and imports only the standard library and ``consumer_coord.lazy_attrs``. So it can be tested
without Kafka, run in a worker thread, and replayed in a simulation.

In Kafka, the assignor is a ``ConsumerPartitionAssignor`` (KIP-429), and the state of the cluster is a ``Cluster``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from consumer_coord import lazy_attrs as attrs

#: member id -> topic -> partition numbers. Any sequence of integers is accepted; ``range`` objects save memory.
Plan: TypeAlias = Mapping[str, Mapping[str, Sequence[int]]]


class RebalanceProtocol(enum.IntEnum):
    """A rebalance protocol: when members revoke partitions (KIP-429). As in Kafka, a higher value is a better protocol."""

    #: Every member revokes all its partitions before it joins.
    EAGER = 0
    #: Members keep their partitions; a partition that moves is revoked first, and assigned in a second round.
    COOPERATIVE = 1


@attrs.frozen(kw_only=False)
class Cluster:
    """The leader's view of the cluster.

    ``partitions``: topic -> number of partitions. Topics whose lookup failed are absent. ``racks``: topic -> for each partition
    the racks with a replica of it; empty if the brokers have no racks. ``lag``: topic -> for each partition its lag in records
    (such as ``lag["orders"][3]``), None if the lag could not be fetched. Without a commit, the lag is counted from the start
    position that ``auto.offset.reset`` selects, and is None if that setting is ``none``. ``weights``: topic -> for each
    partition its rate in records per second, None if unknown. The leader sets ``lag`` and ``weights`` only if the assignor
    *needs* them (see :attr:`Assignor.needs`). ``generation``: the generation of this assignment, or None if generations are
    unknown. A claim from this generation or a later generation is invalid.
    """

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]] = attrs.field(factory=dict)
    lag: Mapping[str, Sequence[int | None]] = attrs.field(factory=dict)
    weights: Mapping[str, Sequence[float | None]] = attrs.field(factory=dict)
    generation: int | None = None


@attrs.frozen(kw_only=False)
class Member:
    """A member's subscription, as the leader receives it.

    ``owned``: topic -> partitions that the member reports as owned (KIP-429), with the ``generation`` of that assignment
    (KIP-792; -1 if the member does not send it). ``instance_id`` is set for a static member (KIP-345), ``rack`` for a member
    that sent its rack (KIP-881). ``user_data`` has the bytes of the member's assignor (:meth:`Assignor.user_data`).
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

    #: The name in JoinGroup; all members of a group must have one name in common.
    name: str
    #: The supported rebalance protocols. During a rolling upgrade, an assignor with ``(COOPERATIVE, EAGER)`` may be configured
    #: together with eager assignors.
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)
    #: Figures that the leader fetches before it calls :meth:`assign`: ``"lag"`` or ``"weights"``.
    needs: frozenset[str] = frozenset()

    @abstractmethod
    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Return the plan: member id -> topic -> partition numbers, with an entry for every member.

        The plan must depend only on the arguments, so that every process computes the same plan from the same arguments.
        """

    def user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return bytes for this member's subscription; the leader's assignor receives these bytes as ``Member.user_data``."""
        return None

    def check_needs(self) -> None:
        """Raise ValueError if :attr:`needs` is not a set of names, or contains the name of an unavailable figure."""
        needs: object = self.needs
        if isinstance(needs, str) or not isinstance(needs, Collection):
            raise ValueError(f"needs is {needs!r}, which is not a set of names: write frozenset({{'lag'}})")
        for name in needs:
            if name not in FIGURES:
                raise ValueError(f"needs contains {name!r}, but only {' and '.join(map(repr, FIGURES))} can be fetched")

    def on_assignment(self, assignment: Mapping[str, Sequence[int]], generation: int) -> None:  # noqa: B027
        """Receive this member's assignment, topic -> partition numbers, after each successful sync."""
