"""Custom assignors for the queries of the tests."""

from __future__ import annotations

from collections.abc import Mapping

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol


class ToTheFirst(Assignor):
    """Assigns everything to the member with the smallest id, as soon as no other member holds it."""

    name = "to-the-first"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        first = min(members)
        plan: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        for topic, count in cluster.partitions.items():
            elsewhere = {number for member in members for number in members[member].owned.get(topic, ()) if member != first}
            plan[first][topic] = [number for number in range(count) if number not in elsewhere]
        return plan


class Failing(Assignor):
    """An assignor that always raises."""

    name = "failing"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        raise ValueError("no idea")
