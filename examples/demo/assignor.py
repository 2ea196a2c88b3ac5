"""The demo's own assignor: partitions in proportion to each member's capacity, moving as few as possible."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from assignors import Assignor, Cluster, Member, Plan, RebalanceProtocol


class CapacityAssignor(Assignor):
    """Members say how much they can take (``CAPACITY`` in their environment); the leader shares partitions out by that.

    It is cooperative: what a member holds beyond its share is left out of the plan, so its owner lets go of it, and the
    next round gives it away.  Meanwhile all members keep consuming.
    """

    name = "capacity"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def user_data(self, topics: Sequence[str]) -> bytes:
        """This member's capacity, for the leader."""
        return os.environ.get("CAPACITY", "1").encode()

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Topic by topic: keep what fits into one's share, assign what has no owner to members with room."""
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
    """``count`` in proportion to the capacities, rounded so that it adds up (largest remainder)."""
    total = sum(capacities.values())
    exact = {name: count * capacity / total for name, capacity in capacities.items()}
    shares = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    return shares
