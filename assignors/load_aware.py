"""An assignor that balances the lag, rates or weights of partitions over the members, instead of numbers of partitions.

A plan that followed every change of the lag would move partitions at each rebalance and increase the lag, so two limits apply.
Partitions with an owner move only if the members' loads become more even by more than a *threshold*, and only as many as a
*budget* allows. The moves of the sticky plan are always allowed, so that a new member gets its share. If no figures are
available, or if all figures are zero, the plan is the sticky plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from assignors.balancing import sticky_user_data
from assignors.balancing.balance import Balance, Item
from assignors.balancing.claims import MemberClaims, resolve
from assignors.balancing.last_assignment import SendsLastAssignment
from assignors.balancing.sticky_plan import Draft, draft
from assignors.base import Cluster, Member, Plan, RebalanceProtocol
from assignors.subscriptions import InvalidInputError, Subscriptions

#: Minimum of the threshold while some partitions have no owner.
_THRESHOLD_BETWEEN_ROUNDS = 0.5


class LoadAssignor(SendsLastAssignment):
    """Assignor that balances the sums of the partitions' figures over the members.

    ``by``: ``"lag"`` (unread records) or ``"weights"`` (records per second, measured by the leader). ``weights``: your own
    figures instead of fetched figures: topic -> a list with a figure for each partition, or one figure for every partition.
    ``threshold``: owned partitions move only if this reduces the gap between the fullest and the emptiest member by more than
    this fraction of the mean load. ``budget``: the maximum fraction of all partitions that may move for balance in one plan.
    ``floor``: this fraction of the mean figure is added to the load of each partition, because an idle partition also has a
    cost.

    All members of a group need the same settings, because any member may become the leader. Racks are ignored.
    """

    name = "load"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(
        self,
        by: Literal["lag", "weights"] = "lag",
        *,
        weights: Mapping[str, float | Sequence[float | None]] | None = None,
        threshold: float = 0.2,
        budget: float = 0.1,
        floor: float = 0.05,
    ) -> None:
        if by not in ("lag", "weights"):
            raise ValueError(f"by must be 'lag' or 'weights', not {by!r}")
        for name, value in (("threshold", threshold), ("budget", budget), ("floor", floor)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value!r}")
        super().__init__()
        self.needs: frozenset[str] = frozenset() if weights is not None else frozenset({by})
        self._by = by
        self._weights = weights
        self._threshold = threshold
        self._budget = budget
        self._floor = floor

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Plan even loads within the limits; no partition is assigned before its owner has revoked it (KIP-429)."""
        claims = {member_id: claims_of(member) for member_id, member in members.items()}
        sticky = draft(cluster, members, claims)
        subscriptions = Subscriptions.of(cluster, members)
        loads = self._loads(cluster, subscriptions.topics)
        result = sticky
        if loads is not None:
            allowed = sum(map(len, sticky.to_revoke.values()))
            result = self._balanced(cluster, subscriptions, claims, loads, allowed)
        # Partitions that occur only in user data (in the eager protocol) are already revoked.
        held = _held(members)
        for topic in list(result.to_revoke):
            result.to_revoke[topic] &= held.get(topic, set())
        return result.plan_without_hand_over()

    def _loads(self, cluster: Cluster, topics: Sequence[str]) -> dict[str, list[float]] | None:
        """Return topic -> the load of each partition; None if no figure is known, or if all figures are zero.

        An unknown figure counts as the mean of the known figures of its topic, or else of all topics.
        """
        known = {topic: self._figures(cluster, topic) for topic in topics}
        every = [figure for figures in known.values() for figure in figures if figure is not None]
        mean = sum(every) / len(every) if every else 0.0
        if not mean:
            return None
        loads = {}
        for topic, figures in known.items():
            of_topic = [figure for figure in figures if figure is not None]
            usual = sum(of_topic) / len(of_topic) if of_topic else mean
            loads[topic] = [self._floor * mean + (usual if figure is None else figure) for figure in figures]
        return loads

    def _figures(self, cluster: Cluster, topic: str) -> list[float | None]:
        count = cluster.partitions[topic]
        if self._weights is not None:
            given = self._weights.get(topic, ())
            raw = [given] * count if isinstance(given, (int, float)) else list(given)
        else:
            raw = list((cluster.lag if self._by == "lag" else cluster.weights).get(topic, ()))
        raw = raw[:count] + [None] * (count - len(raw))
        figures: list[float | None] = []
        for partition, figure in enumerate(raw):
            if figure is not None and not isinstance(figure, (int, float)):
                raise InvalidInputError(f"{self._by} of partition {partition} of {topic!r} is {figure!r}, not a number")
            usable = figure is not None and math.isfinite(figure)
            figures.append(max(0.0, float(figure)) if usable and figure is not None else None)
        return figures

    def _balanced(
        self,
        cluster: Cluster,
        subscriptions: Subscriptions,
        claims_by_id: Mapping[str, MemberClaims],
        loads: Mapping[str, Sequence[float]],
        allowed: int,
    ) -> Draft:
        claims = resolve(cluster, subscriptions, [claims_by_id[member_id] for member_id in subscriptions.members])
        may_have = {topic: subscriptions.member_set(classes) for topic, classes in subscriptions.subscribers.items()}
        balance = Balance(len(subscriptions.members), may_have)
        for member, kept in enumerate(claims.kept):
            for topic, partitions in kept.items():
                for partition in partitions:
                    balance.give(Item(loads[topic][partition], topic, partition, member), member)
        balance.place(
            [
                Item(loads[topic][partition], topic, partition, None)
                for topic, partitions in claims.free.items()
                for partition in partitions
            ]
        )
        balance.improve(moves=None)
        before = balance.snapshot()
        balance.improve(moves=allowed + int(self._budget * sum(map(len, loads.values()))))
        # Partitions without an owner may be partitions that the last plan took from their owners. If a small gap in load moved
        # further partitions before these partitions are assigned, one round would follow another.
        threshold = max(self._threshold, _THRESHOLD_BETWEEN_ROUNDS) if claims.free else self._threshold
        if before.gap - balance.gap <= threshold * balance.mean:
            balance.restore(before)
        return _as_draft(subscriptions.members, balance, claims.bound)


def claims_of(member: Member) -> MemberClaims:
    """Return a member's owned partitions; if there are none, return the last assignment in its user data."""
    if any(map(len, member.owned.values())) or not member.user_data:
        return member.owned, member.generation
    try:
        return sticky_user_data.decode(member.user_data)
    except sticky_user_data.InvalidUserDataError:
        return member.owned, member.generation


def _held(members: Mapping[str, Member]) -> dict[str, set[int]]:
    held: dict[str, set[int]] = {}
    for member in members.values():
        for topic, partitions in member.owned.items():
            held.setdefault(topic, set()).update(partitions)
    return held


def _as_draft(members: Sequence[str], balance: Balance, bound: Mapping[str, set[int]]) -> Draft:
    kept: list[Mapping[str, Sequence[int]]] = []
    gains: list[dict[str, Sequence[int]]] = []
    to_revoke = {topic: set(partitions) for topic, partitions in bound.items()}
    for member, items in enumerate(balance.held):
        own: dict[str, list[int]] = {}
        new: dict[str, list[int]] = {}
        for item in items:
            if item.owner == member:
                own.setdefault(item.topic, []).append(item.partition)
                continue
            new.setdefault(item.topic, []).append(item.partition)
            if item.owner is not None:
                to_revoke.setdefault(item.topic, set()).add(item.partition)
        kept.append({topic: sorted(partitions) for topic, partitions in sorted(own.items())})
        gains.append({topic: sorted(partitions) for topic, partitions in sorted(new.items())})
    return Draft(members, kept, gains, to_revoke)
