"""Random clusters and groups, of every kind that a coordinator may hand to an assignor."""

from __future__ import annotations

import random

from assignors import Cluster, Member

_WORDS = ("orders", "payments", "clicks", "audit", "a", "B", "über", "\uffee", "\U0001f980", "z-1", "z-10", "z-2")


def cluster_and_members(
    rng: random.Random, *, racks: bool = False, most_topics: int = 7, most_members: int = 9, most_partitions: int = 12
) -> tuple[Cluster, dict[str, Member]]:
    """One cluster and one group without a history; small, because differences show best in small cases."""
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
