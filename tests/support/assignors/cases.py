"""Random clusters and groups, of every kind that a coordinator may pass to an assignor."""

from __future__ import annotations

import random

import attrs

from assignors import Cluster, Member

_WORDS = ("orders", "payments", "clicks", "audit", "a", "B", "über", "\uffee", "\U0001f980", "z-1", "z-10", "z-2")


def cluster_and_members(
    rng: random.Random, *, racks: bool = False, most_topics: int = 7, most_members: int = 9, most_partitions: int = 12
) -> tuple[Cluster, dict[str, Member]]:
    """Return a cluster and a group without a history; small, because differences show best in small cases."""
    topics = rng.sample(_WORDS, rng.randint(1, most_topics))
    absent = [topic for topic in topics if rng.random() < 0.1]
    same = rng.randint(0, most_partitions)
    partitions = {
        topic: same if rng.random() < 0.5 else rng.randint(0, most_partitions) for topic in topics if topic not in absent
    }
    rack_names = [f"rack-{number}" for number in range(rng.randint(1, 4))] if racks else []
    replica_racks = {}
    for topic, count in partitions.items():
        if rack_names and rng.random() < 0.9:
            per_partition = rng.randint(0, len(rack_names))
            every = [frozenset(rng.sample(rack_names, per_partition)) for _ in range(count)]
            replica_racks[topic] = every if rng.random() < 0.8 else every[:1] * count
    if len(replica_racks) > 1 and rng.random() < 0.3:
        first = next(iter(replica_racks.values()))
        replica_racks = {topic: first for topic in replica_racks if partitions[topic] == len(first)}
    members = {}
    kinds = [rng.sample(topics, rng.randint(0, len(topics))) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        kinds = [topics]
    instance_ids = rng.sample(range(100), 20)
    for number in range(rng.randint(1, most_members)):
        subscription = list(rng.choice(kinds)) if rng.random() < 0.8 else rng.sample(topics, rng.randint(0, len(topics)))
        rng.shuffle(subscription)
        members[f"{rng.choice(_WORDS)}-{rng.randint(0, 999)}-{number}"] = Member(
            topics=subscription,
            instance_id=f"instance-{instance_ids[number]}" if rng.random() < 0.3 else None,
            rack=rng.choice([*rack_names, "elsewhere", ""]) if rack_names and rng.random() < 0.8 else None,
        )
    return Cluster(partitions, replica_racks), members


def with_history(rng: random.Random, cluster: Cluster, members: dict[str, Member]) -> dict[str, Member]:
    """Return the group with claims that do not conflict: subscribers own most partitions, in unequal numbers."""
    owned: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
    for topic, count in cluster.partitions.items():
        subscribers = [member_id for member_id, member in members.items() if topic in member.topics]
        if not subscribers:
            continue
        weights = [rng.random() ** 3 for _ in subscribers]
        for partition in range(count):
            if rng.random() < 0.8:
                owned[rng.choices(subscribers, weights)[0]].setdefault(topic, []).append(partition)
    return {
        member_id: attrs.evolve(member, owned=owned[member_id], generation=rng.choice([3, 4]))
        for member_id, member in members.items()
    }


def with_doubtful_claims(rng: random.Random, cluster: Cluster, members: dict[str, Member]) -> dict[str, Member]:
    """Return the group with doubtful claims of every kind: duplicate, stale, of deleted or unsubscribed topics."""
    result = {}
    for member_id, member in members.items():
        owned: dict[str, list[int]] = {}
        for topic in [*cluster.partitions, "deleted"]:
            if rng.random() < 0.6:
                owned[topic] = [rng.randint(-1, cluster.partitions.get(topic, 3) + 1) for _ in range(rng.randint(0, 5))]
        result[member_id] = attrs.evolve(member, owned=owned, generation=rng.randint(-1, 3))
    return result


def changed(rng: random.Random, cluster: Cluster, members: dict[str, Member]) -> tuple[Cluster, dict[str, Member]]:
    """Return a cluster and a group after random changes since the last rebalance.

    A member left, joined, or subscribed to other topics; a topic grew, was created, or was deleted.
    """
    partitions = dict(cluster.partitions)
    group = dict(members)
    topics = sorted({topic for member in members.values() for topic in member.topics})
    for _ in range(rng.randint(1, 3)):
        event = rng.randint(0, 5)
        if event == 0 and len(group) > 1:
            del group[rng.choice(sorted(group))]
        elif event == 1:
            like = group[rng.choice(sorted(group))]
            group[f"new-{rng.randint(0, 9999)}"] = Member(like.topics, rack=like.rack)
        elif event == 2 and topics:
            member_id = rng.choice(sorted(group))
            group[member_id] = attrs.evolve(group[member_id], topics=rng.sample(topics, rng.randint(0, len(topics))))
        elif event == 3 and partitions:
            topic = rng.choice(sorted(partitions))
            partitions[topic] += rng.randint(1, 5)
        elif event == 4 and partitions:
            del partitions[rng.choice(sorted(partitions))]
        elif event == 5 and topics:
            partitions.setdefault(rng.choice(topics), rng.randint(40, 45))  # never smaller than it was
    return Cluster(partitions, cluster.racks), group
