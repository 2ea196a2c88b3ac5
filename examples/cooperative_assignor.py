"""An assignor for the cooperative protocol: partitions by capacity, and nothing moves without need.

The page "Design an assignor" of the documentation builds it step by step, checks it, and looks at a rolling deploy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors import Assignor, Cluster, Member, Plan, RebalanceProtocol

Partition = tuple[str, int]


class CooperativeCapacity(Assignor):
    """Each member gets partitions in proportion to its capacity; a partition stays where it is unless that is unfair."""

    name = "cooperative-capacity"
    protocols = (RebalanceProtocol.COOPERATIVE,)

    def __init__(self, capacity: int = 1) -> None:
        self.capacity = capacity

    def user_data(self, topics: Sequence[str]) -> bytes:
        """What this member tells the leader."""
        return str(self.capacity).encode()

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Keep, hand out, even out; and leave out what another member has still to let go of."""
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
    """What a member told; 1 for one that told nothing, or something else."""
    told = member.user_data or b""
    return max(1, int(told)) if told.isdigit() and len(told) < 9 else 1


def owners(cluster: Cluster, members: Mapping[str, Member]) -> dict[Partition, str]:
    """Partition -> the member that owns it: the claim of the newest generation, none when two have the same."""
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
    """A move from the fullest to the emptiest member that makes the group more even; None when there is none."""
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
