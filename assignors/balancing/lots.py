"""Lots: sets of interchangeable partitions, the unit in which the sticky assignors count.

Without racks, the partitions of a topic are one lot. With racks (KIP-881), a lot consists of the partitions of one topic whose
replicas are in the same racks. Racks without members do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors.balancing.claims import Claims
from assignors.balancing.least_moves import Nearness
from assignors.base import Cluster, Member
from assignors.bits import bit_set
from assignors.subscriptions import Subscriptions
from consumer_coord import lazy_attrs as attrs


@attrs.frozen
class Lots:
    """The lots of a group. A lot is identified by its number.

    ``topics``: the topic of each lot; ``supply``: the number of partitions of each lot; ``owned``: for each member, lot -> the
    partitions that the member owns; ``free``: the partitions of each lot that have no owner, ascending. ``nearness`` is None if
    racks do not matter.
    """

    topics: Sequence[str]
    supply: Sequence[int]
    owned: Sequence[Mapping[int, Sequence[int]]]
    free: Sequence[Sequence[int]]
    nearness: Nearness | None

    @classmethod
    def by_topic(cls, cluster: Cluster, subscriptions: Subscriptions, claims: Claims) -> Lots:
        """Return the lots if racks do not matter: one lot per topic."""
        topics = subscriptions.topics
        number_of = {topic: number for number, topic in enumerate(topics)}
        owned = [{number_of[topic]: partitions for topic, partitions in kept.items()} if kept else {} for kept in claims.kept]
        supply = [cluster.partitions[topic] for topic in topics]
        return cls(topics, supply, owned, [claims.free.get(topic, ()) for topic in topics], None)

    @classmethod
    def by_rack(cls, cluster: Cluster, subscriptions: Subscriptions, claims: Claims, rack_of: Sequence[str]) -> Lots:
        """Return one lot per topic and set of racks; ``rack_of`` has the rack of each member, empty if the member has none."""
        in_use = frozenset(filter(None, rack_of))
        number_of: dict[tuple[str, frozenset[str]], int] = {}
        lots_of: dict[str, list[int]] = {}
        supply: list[int] = []
        for topic in subscriptions.topics:
            of_topic = lots_of[topic] = []
            racks = cluster.racks.get(topic, ())
            for partition in range(cluster.partitions[topic]):
                key = topic, racks[partition] & in_use if partition < len(racks) else frozenset[str]()
                number = number_of.setdefault(key, len(supply))
                if number == len(supply):
                    supply.append(0)
                supply[number] += 1
                of_topic.append(number)
        owned = [_by_lot(kept, lots_of) for kept in claims.kept]
        free = _by_lot(claims.free, lots_of)
        size = len(rack_of)
        without = bit_set([m for m, rack in enumerate(rack_of) if not rack], size)
        in_rack = {rack: bit_set([m for m, own in enumerate(rack_of) if own == rack], size) for rack in in_use}
        near_members = [without | sum([in_rack[rack] for rack in racks]) for _, racks in number_of]
        near_lots = {
            rack: bit_set([number for (_, racks), number in number_of.items() if rack in racks], len(supply)) for rack in in_use
        }
        nearness = Nearness(near_members, [near_lots.get(rack, -1) for rack in rack_of])
        topics = [topic for topic, _ in number_of]
        return cls(topics, supply, owned, [free.get(number, ()) for number in range(len(supply))], nearness)


def racks_of_members(cluster: Cluster, subscriptions: Subscriptions, members: Mapping[str, Member]) -> Sequence[str] | None:
    """Return the rack of each member, or None if racks do not matter (Kafka's ``useRackAwareAssignment``).

    Racks matter if a member is in a rack with replicas, and some partition does not have replicas in all such racks.
    """
    rack_of = [members[member_id].rack or "" for member_id in subscriptions.members]
    if not any(rack_of) or not cluster.racks:
        return None
    kinds: set[frozenset[str]] = set()
    for topic in subscriptions.topics:
        count = cluster.partitions[topic]
        racks = cluster.racks.get(topic, ())
        kinds.update(racks[:count])
        if len(racks) < count:
            kinds.add(frozenset())
    everywhere = frozenset().union(*kinds)
    return None if everywhere.isdisjoint(rack_of) or kinds == {everywhere} else rack_of


def _by_lot(partitions: Mapping[str, Sequence[int]], lots_of: Mapping[str, Sequence[int]]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = {}
    for topic, numbers in partitions.items():
        lots = lots_of[topic]
        for partition in numbers:
            result.setdefault(lots[partition], []).append(partition)
    return result
