"""Kafka's range assignor: of each topic, every subscriber gets a contiguous range of partitions.

Follows ``org.apache.kafka.clients.consumer.RangeAssignor`` of 4.3.1, racks included (KIP-881): topics with the same
subscribers and the same number of partitions are *co-partitioned*, partition p of each going to one member, and that
stays so when racks are matched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from assignors.base import Assignor, Cluster, Member, Plan
from assignors.subscriptions import Subscriptions


class RangeAssignor(Assignor):
    """Per topic, ranges over the subscribers in Kafka's order of members; the first ones get one more."""

    name = "range"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """The plan of Java's ``RangeAssignor``: member id -> topic -> partition numbers, ascending."""
        subscriptions = Subscriptions.of(cluster, members)
        alike = _alike(cluster, subscriptions)
        plan: dict[str, dict[str, Sequence[int]]] = {member_id: {} for member_id in subscriptions.members}
        racks = _MemberRacks(members, cluster)
        if any(racks.matter(topic, takers) for takers, topics in alike for topic in topics):
            for takers, topics in alike:
                _assign_by_rack(cluster, racks, takers, topics, plan)
        else:
            for takers, topics in alike:
                _assign_ranges(cluster.partitions[topics[0]], takers, topics, plan)
        return plan


def _alike(cluster: Cluster, subscriptions: Subscriptions) -> list[tuple[list[str], list[str]]]:
    """Topics with equal subscribers and equal numbers of partitions, as (member ids in order, topics)."""
    groups: dict[tuple[int, int], list[str]] = {}
    for topic, classes in subscriptions.subscribers.items():
        groups.setdefault((classes, cluster.partitions[topic]), []).append(topic)
    takers_of = {
        classes: [subscriptions.members[position] for position in subscriptions.members_of(classes)]
        for classes in {classes for classes, _ in groups}
    }
    return [(takers_of[classes], topics) for (classes, _), topics in groups.items()]


def _assign_ranges(
    count: int, takers: Sequence[str], topics: Sequence[str], plan: dict[str, dict[str, Sequence[int]]]
) -> None:
    """Without racks all these topics are cut in the same way, so each member's range is made once and shared."""
    share, more = divmod(count, len(takers))
    start = 0
    for place, member_id in enumerate(takers):
        if start == count:
            break
        stop = start + share + (place < more)
        plan[member_id].update(dict.fromkeys(topics, range(start, stop)))
        start = stop


def _assign_by_rack(
    cluster: Cluster,
    racks: _MemberRacks,
    takers: Sequence[str],
    topics: Sequence[str],
    plan: dict[str, dict[str, Sequence[int]]],
) -> None:
    """``assignWithRackMatching``, and then what it left over by plain ranges.

    All topics here are cut alike in counts.  Several are co-partitioned, so they share one state: a partition goes to a
    member only if the member's rack holds a replica of it in every topic.  A topic alone goes member by member.
    """
    if len(topics) == 1 and racks.matter(topics[0], takers):
        state = _RangeState(cluster.partitions[topics[0]], takers)
        for member_id in takers:
            state.take(member_id, functools.partial(racks.match, member_id, topics[0]))
    elif len(topics) > 1 and racks.any_of(takers):
        state = _RangeState(cluster.partitions[topics[0]], takers)
        _match_co_partitioned(state, racks, takers, topics)
    else:
        _assign_ranges(cluster.partitions[topics[0]], takers, topics, plan)
        return
    for member_id in takers:
        state.take(member_id, lambda _: True)
    for member_id, partitions in state.taken.items():
        if partitions:
            plan[member_id].update(dict.fromkeys(topics, tuple(sorted(partitions))))


def _match_co_partitioned(
    state: _RangeState, racks: _MemberRacks, takers: Sequence[str], topics: Sequence[str]
) -> None:
    remaining = list(takers)
    for partition in range(state.count):
        for place, member_id in enumerate(remaining):
            if state.may_take(member_id) > 0 and all(racks.match(member_id, topic, partition) for topic in topics):
                state.give(member_id, [partition])
                if state.may_take(member_id) == 0:
                    del remaining[place]
                break


class _MemberRacks:
    """Which member sits in which rack, and which racks hold a replica of a partition."""

    def __init__(self, members: Mapping[str, Member], cluster: Cluster) -> None:
        self._rack_of = {member_id: member.rack for member_id, member in members.items() if member.rack}
        self._cluster = cluster

    def any_of(self, takers: Sequence[str]) -> bool:
        return any(member_id in self._rack_of for member_id in takers)

    def match(self, member_id: str, topic: str, partition: int) -> bool:
        """Whether this member may be said to be near; one without a rack is near to everything."""
        rack = self._rack_of.get(member_id)
        if rack is None:
            return True
        of_topic = self._cluster.racks.get(topic, ())
        return partition < len(of_topic) and rack in of_topic[partition]

    def matter(self, topic: str, takers: Sequence[str]) -> bool:
        """``useRackAwareAssignment``: some member can be near to some partitions and not to others."""
        of_members = {self._rack_of[member_id] for member_id in takers if member_id in self._rack_of}
        if not of_members:
            return False
        count = self._cluster.partitions[topic]
        of_topic = self._cluster.racks.get(topic, ())[:count]
        every = frozenset().union(*of_topic)
        if of_members.isdisjoint(every):
            return False
        return len(of_topic) < count or any(racks != every for racks in of_topic)


class _RangeState:
    """``TopicAssignmentState``: how many partitions each member may still take of one topic."""

    def __init__(self, count: int, takers: Sequence[str]) -> None:
        self.count = count
        self.taken: dict[str, list[int]] = {member_id: [] for member_id in takers}
        self._free = dict.fromkeys(range(count))
        self._share, self._more = divmod(count, len(takers))

    def may_take(self, member_id: str) -> int:
        return max(0, self._share + (self._more > 0) - len(self.taken[member_id]))

    def give(self, member_id: str, partitions: Sequence[int]) -> None:
        taken = self.taken[member_id]
        taken.extend(partitions)
        if len(taken) > self._share:
            self._more -= 1
        for partition in partitions:
            del self._free[partition]

    def take(self, member_id: str, may_have: Callable[[int], bool]) -> None:
        """Give this member the first free partitions that it may have, as many as its range holds."""
        wanted = self.may_take(member_id)
        chosen = list(itertools.islice(filter(may_have, self._free), wanted))
        if chosen:
            self.give(member_id, chosen)
