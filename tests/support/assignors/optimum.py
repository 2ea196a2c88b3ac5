"""The quality of the best possible sticky plan, computed slowly and independently of the assignors.

The computation is a minimum-cost flow: one node per partition and per member, and one unit of flow per partition along a
cheapest path (Bellman-Ford). The cost of a unit is first its increase of the sum of squared loads, then whether the racks
match, then whether the partition moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from assignors import Cluster, Member, Plan

TopicPartition = tuple[str, int]


@attrs.frozen(order=True)
class Quality:
    """The quality of a plan; smaller values are better.

    ``loads``: how many partitions the members have, descending; ``far``: partitions without a replica in their
    member's rack; ``moves``: partitions that a member of the group owned before and no longer has.
    """

    loads: Sequence[int]
    far: int
    moves: int


def owners(members: Mapping[str, Member]) -> dict[TopicPartition, str]:
    """Return the owner of each partition by the members' claims, for histories without conflicts."""
    return {
        (topic, partition): member_id
        for member_id, member in members.items()
        for topic, partitions in member.owned.items()
        for partition in partitions
        if topic in member.topics
    }


def is_far(cluster: Cluster, member: Member, partition: TopicPartition) -> bool:
    """Return whether a member with a rack has no replica of a partition there."""
    if not member.rack:
        return False
    topic, number = partition
    racks = cluster.racks.get(topic, ())
    return number >= len(racks) or member.rack not in racks[number]


def quality(cluster: Cluster, members: Mapping[str, Member], plan: Plan, racks: bool) -> Quality:
    """Return the quality of a plan."""
    owner = owners(members)
    given = [
        (member_id, (topic, partition))
        for member_id, topics in plan.items()
        for topic, partitions in topics.items()
        for partition in partitions
    ]
    return Quality(
        sorted((sum(map(len, topics.values())) for topics in plan.values()), reverse=True),
        sum(racks and is_far(cluster, members[member_id], partition) for member_id, partition in given),
        sum(owner.get(partition, member_id) != member_id for member_id, partition in given),
    )


def best(cluster: Cluster, members: Mapping[str, Member], racks: bool) -> Quality:
    """Return the best quality of any complete plan."""
    owner = owners(members)
    partitions = [
        (topic, number)
        for topic, count in cluster.partitions.items()
        for number in range(count)
        if any(topic in member.topics for member in members.values())
    ]
    names = list(members)
    far_unit = len(partitions) + 1
    even_unit = far_unit * (len(partitions) + 1)
    cost = {}
    for partition in partitions:
        for name in names:
            if partition[0] in members[name].topics:
                far = racks and is_far(cluster, members[name], partition)
                moved = owner.get(partition, name) != name
                cost[partition, name] = far_unit * far + moved
    holder: dict[TopicPartition, str] = {}
    loads = dict.fromkeys(names, 0)
    for partition in partitions:
        _place(partition, names, cost, holder, loads, even_unit)
    plan: dict[str, dict[str, list[int]]] = {name: {} for name in names}
    for (topic, number), name in holder.items():
        plan[name].setdefault(topic, []).append(number)
    return quality(cluster, members, plan, racks)


def _place(
    start: TopicPartition,
    names: Sequence[str],
    cost: Mapping[tuple[TopicPartition, str], int],
    holder: dict[TopicPartition, str],
    loads: dict[str, int],
    even_unit: int,
) -> None:
    """Place one more partition, moving others along the cheapest path."""
    distance = {name: cost[start, name] for name in names if (start, name) in cost}
    came: dict[str, tuple[TopicPartition, str | None]] = dict.fromkeys(distance, (start, None))
    changed = True
    while changed:
        changed = False
        for partition, name in holder.items():
            if name not in distance:
                continue
            for other in names:
                if other != name and (partition, other) in cost:
                    there = distance[name] - cost[partition, name] + cost[partition, other]
                    if other not in distance or there < distance[other]:
                        distance[other] = there
                        came[other] = (partition, name)
                        changed = True
    end = min(distance, key=lambda name: distance[name] + even_unit * (2 * loads[name] + 1))
    loads[end] += 1
    at: str | None = end
    while at is not None:
        partition, previous = came[at]
        holder[partition] = at
        at = previous
