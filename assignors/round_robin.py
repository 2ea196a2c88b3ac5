"""Kafka's round-robin assignor: all partitions of all topics in order, distributed to the members in turn.

This assignor follows ``org.apache.kafka.clients.consumer.RoundRobinAssignor`` of 4.4.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from assignors.base import Assignor, Cluster, Member, Plan
from assignors.subscriptions import Subscriptions, ranges_of_step


class RoundRobinAssignor(Assignor):
    """Assignor that gives each partition to the next member, in a fixed circular order, that subscribes to its topic."""

    name = "roundrobin"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Return the plan of Java's ``RoundRobinAssignor``: member id -> topic -> partition numbers, ascending."""
        subscriptions = Subscriptions.of(cluster, members)
        if len(subscriptions.classes) == 1:
            return _assign_alike(cluster, subscriptions)
        return _assign_mixed(cluster, subscriptions)


def _assign_alike(cluster: Cluster, subscriptions: Subscriptions) -> Plan:
    """Plan for equal subscriptions: each of the n members gets every n-th partition of each topic."""
    takers = len(subscriptions.members)
    dealt: dict[int, list[range]] = {}
    rows: list[list[range]] = []
    first = 0
    for topic in subscriptions.topics:
        count = cluster.partitions[topic]
        if count not in dealt:
            dealt[count] = ranges_of_step(count, takers)
        rows.append(dealt[count][-first:] + dealt[count][:-first] if first else dealt[count])
        first = (first + count) % takers
    plan: dict[str, Mapping[str, Sequence[int]]] = {}
    columns = zip(*rows, strict=True) if rows else [()] * takers
    scarce = any(count < takers for count in dealt)
    for member_id, column in zip(subscriptions.members, columns, strict=True):
        pairs = zip(subscriptions.topics, column, strict=True)
        plan[member_id] = {topic: numbers for topic, numbers in pairs if numbers} if scarce else dict(pairs)
    return plan


def _assign_mixed(cluster: Cluster, subscriptions: Subscriptions) -> Plan:
    plan: dict[str, dict[str, Sequence[int]]] = {member_id: {} for member_id in subscriptions.members}
    takers_of: dict[int, list[int]] = {}
    dealt: dict[tuple[int, int], list[range]] = {}
    circle = 0
    for topic, classes in subscriptions.subscribers.items():
        count = cluster.partitions[topic]
        takers = takers_of.get(classes)
        if takers is None:
            takers = takers_of[classes] = subscriptions.members_of(classes)
        ranges = dealt.get((count, len(takers)))
        if ranges is None:
            ranges = dealt[count, len(takers)] = ranges_of_step(count, len(takers))
        first = bisect_left(takers, circle) % len(takers)
        for numbers, position in zip(ranges, takers[first:] + takers[:first], strict=True):
            if not numbers:
                break
            plan[subscriptions.members[position]][topic] = numbers
        circle = takers[(first + count - 1) % len(takers)] + 1
    return plan
