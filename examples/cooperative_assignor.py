"""An assignor for the cooperative protocol: partitions by capacity, with few moves.

The page "Design an assignor" of the documentation builds the assignor step by step, checks it, and measures a rolling deploy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors import Assignor, Cluster, Member, Plan, RebalanceProtocol

Partition = tuple[str, int]


class CooperativeCapacity(Assignor):
    """Assign partitions in proportion to each member's capacity; move a partition only if this makes the loads more equal."""

    name = "cooperative-capacity"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def __init__(self, capacity: int = 1) -> None:
        self.capacity = capacity

    def user_data(self, topics: Sequence[str]) -> bytes:
        """Return this member's capacity, which JoinGroup sends to the leader."""
        return str(self.capacity).encode()

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Keep owned partitions, assign the others, and balance; leave out partitions that another member must revoke first."""
        capacity = {name: capacity_of(member) for name, member in sorted(members.items())}
        owner = owners(cluster, members)
        held: dict[str, set[Partition]] = {name: set() for name in capacity}
        for partition, name in owner.items():
            held[name].add(partition)
        for topic, count in sorted(cluster.partitions.items()):
            takers = [name for name in capacity if topic in members[name].topics]
            for partition in ((topic, number) for number in range(count) if takers):
                if partition not in owner:
                    held[min(takers, key=lambda name: (len(held[name]) + 1) / capacity[name])].add(partition)
        while (move := better(held, capacity, members)) is not None:
            partition, giver, taker = move
            held[giver].remove(partition)
            held[taker].add(partition)
        plan: dict[str, dict[str, list[int]]] = {name: {} for name in members}
        for name, partitions in held.items():
            for topic, number in sorted(partitions):
                if owner.get((topic, number), name) == name:
                    plan[name].setdefault(topic, []).append(number)
        return plan


def capacity_of(member: Member) -> int:
    """Return a member's capacity; 1 without valid user data."""
    data = member.user_data or b""
    return max(1, int(data)) if data.isdigit() and len(data) < 9 else 1


def owners(cluster: Cluster, members: Mapping[str, Member]) -> dict[Partition, str]:
    """Return partition -> the member that owns the partition in the newest generation, if there is only one such member."""
    claims: dict[Partition, list[tuple[int, str]]] = {}
    for name, member in members.items():
        for topic, numbers in member.owned.items():
            for number in numbers:
                claims.setdefault((topic, number), []).append((member.generation, name))
    found = {}
    for (topic, number), claimed in sorted(claims.items()):
        newest = max(claimed)[0]
        of_newest = [name for generation, name in claimed if generation == newest]
        known = number < cluster.partitions.get(topic, 0)
        if known and len(of_newest) == 1 and topic in members[of_newest[0]].topics:
            found[topic, number] = of_newest[0]
    return found


def better(
    held: Mapping[str, set[Partition]], capacity: Mapping[str, int], members: Mapping[str, Member]
) -> tuple[Partition, str, str] | None:
    """Return a move that balances a member with a high load and a member with a low load, or None."""
    by_load = sorted(capacity, key=lambda name: (len(held[name]) / capacity[name], name))
    for taker in by_load:
        after = (len(held[taker]) + 1) / capacity[taker]
        for giver in reversed(by_load):
            if len(held[giver]) / capacity[giver] <= after:
                break
            movable = [partition for partition in held[giver] if partition[0] in members[taker].topics]
            if movable:
                return max(movable), giver, taker
    return None
