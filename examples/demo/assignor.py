"""The demo's assignor: partitions in proportion to each member's capacity, with as few moves as possible."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from assignors import Assignor, Cluster, Member, Plan, RebalanceProtocol


class CapacityAssignor(Assignor):
    """Assign partitions in proportion to each member's capacity (``CAPACITY`` in the member's environment).

    The assignor is cooperative. The plan leaves out partitions that a member owns beyond its share, so the member revokes these
    partitions, and the next round assigns them to other members. All members continue to consume at the same time.
    """

    name = "capacity"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def user_data(self, topics: Sequence[str]) -> bytes:
        """Return this member's capacity, which JoinGroup sends to the leader."""
        return os.environ.get("CAPACITY", "1").encode()

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Assign topic by topic: members keep partitions up to their share, and members below their share get the others."""
        plan: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        for topic, count in cluster.partitions.items():
            takers = {name: int(member.user_data or b"1") for name, member in members.items() if topic in member.topics}
            room = _shares(takers, count)
            free = set(range(count))
            for name in takers:
                held = [partition for partition in members[name].owned.get(topic, ()) if partition in free]
                free.difference_update(held)
                plan[name][topic] = held[: room[name]]
                room[name] -= len(plan[name][topic])
            for partition in sorted(free):
                roomiest = max(sorted(room), key=room.__getitem__)
                plan[roomiest][topic].append(partition)
                room[roomiest] -= 1
        return plan


def _shares(capacities: Mapping[str, int], count: int) -> dict[str, int]:
    """Split ``count`` into whole numbers in proportion to the capacities, by the method of the largest remainder."""
    total = sum(capacities.values())
    exact = {name: count * capacity / total for name, capacity in capacities.items()}
    shares = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    return shares
