"""Kafka's range assignor: every subscriber gets a contiguous range of each topic's partitions.

This assignor follows ``org.apache.kafka.clients.consumer.RangeAssignor`` of 4.4.0, including racks (KIP-881). Topics with the
same subscribers and the same number of partitions are *co-partitioned*: also with racks, the same member gets partition p of
each such topic.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from assignors.base import Assignor, Cluster, Member, Plan
from assignors.subscriptions import Subscriptions


class RangeAssignor(Assignor):
    """Assignor that divides each topic into ranges, in Kafka's order of members; the first members get one partition more."""

    name = "range"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Return the plan of Java's ``RangeAssignor``: member id -> topic -> partition numbers, ascending."""
        subscriptions = Subscriptions.of(cluster, members)
        groups: dict[tuple[int, int], list[str]] = {}
        for topic, classes in subscriptions.subscribers.items():
            groups.setdefault((classes, cluster.partitions[topic]), []).append(topic)
        alike = [(subscriptions.members_of(classes), count, topics) for (classes, count), topics in groups.items()]
        racks = _MemberRacks([members[member_id].rack for member_id in subscriptions.members], cluster)
        plans: list[dict[str, Sequence[int]]] = [{} for _ in subscriptions.members]
        if any(racks.matter(topic, takers) for takers, _, topics in alike for topic in topics):
            for takers, count, topics in alike:
                _assign_by_rack(count, racks, takers, topics, plans)
        else:
            cuts: dict[tuple[int, int], list[range]] = {}
            for takers, count, topics in alike:
                ranges = cuts.get((count, len(takers)))
                if ranges is None:
                    ranges = cuts[count, len(takers)] = _cut(count, len(takers))
                _assign_ranges(ranges, takers, topics, plans)
        return dict(zip(subscriptions.members, plans, strict=True))


def _cut(count: int, takers: int) -> list[range]:
    """Return the ranges of a topic's partitions, in the members' order, without empty ranges."""
    share, more = divmod(count, takers)
    starts = [place * share + min(place, more) for place in range(min(count, takers) + 1)]
    return list(map(range, starts, starts[1:]))


def _assign_ranges(
    ranges: Sequence[range], takers: Sequence[int], topics: Sequence[str], plans: list[dict[str, Sequence[int]]]
) -> None:
    """Assign topics regardless of racks. All topics are divided in the same way, so they share the members' range objects."""
    if len(topics) == 1:
        topic = topics[0]
        for member, numbers in zip(takers, ranges, strict=False):
            plans[member][topic] = numbers
        return
    for member, numbers in zip(takers, ranges, strict=False):
        if plans[member]:
            plans[member].update(dict.fromkeys(topics, numbers))
        else:
            plans[member] = dict.fromkeys(topics, numbers)


def _assign_by_rack(
    count: int,
    racks: _MemberRacks,
    takers: Sequence[int],
    topics: Sequence[str],
    plans: list[dict[str, Sequence[int]]],
) -> None:
    """Assign with racks (``assignWithRackMatching``), then assign the rest by plain ranges.

    All given topics have the same number of partitions and the same subscribers. Several topics are co-partitioned, so they
    share one state: partition p is assigned to a member only if the member's rack has a replica of partition p of every topic.
    A single topic is assigned member by member.
    """
    if len(topics) == 1 and racks.matter(topics[0], takers):
        state = _RangeState(count, takers)
        for member in takers:
            state.take(member, functools.partial(racks.match, member, topics[0]))
    elif len(topics) > 1 and racks.any_of(takers):
        state = _RangeState(count, takers)
        _match_co_partitioned(state, racks, takers, topics)
    else:
        _assign_ranges(_cut(count, len(takers)), takers, topics, plans)
        return
    for member in takers:
        state.take(member, lambda _: True)
    for member, partitions in state.taken.items():
        if partitions:
            plans[member].update(dict.fromkeys(topics, tuple(sorted(partitions))))


def _match_co_partitioned(state: _RangeState, racks: _MemberRacks, takers: Sequence[int], topics: Sequence[str]) -> None:
    remaining = list(takers)
    for partition in range(state.count):
        for place, member in enumerate(remaining):
            if state.may_take(member) > 0 and all(racks.match(member, topic, partition) for topic in topics):
                state.give(member, [partition])
                if state.may_take(member) == 0:
                    del remaining[place]
                break


class _MemberRacks:
    """The rack of each member (by its position), and the racks with a replica of each partition."""

    def __init__(self, racks: Sequence[str | None], cluster: Cluster) -> None:
        self._rack_of = {member: rack for member, rack in enumerate(racks) if rack}
        self._cluster = cluster

    def any_of(self, takers: Sequence[int]) -> bool:
        return any(member in self._rack_of for member in takers)

    def match(self, member: int, topic: str, partition: int) -> bool:
        """Return whether the member is near the partition; a member without a rack is near all partitions."""
        rack = self._rack_of.get(member)
        if rack is None:
            return True
        of_topic = self._cluster.racks.get(topic, ())
        return partition < len(of_topic) and rack in of_topic[partition]

    def matter(self, topic: str, takers: Sequence[int]) -> bool:
        """Return whether racks make a difference for any member and partition (``useRackAwareAssignment``)."""
        if not self._rack_of:
            return False
        of_members = {self._rack_of[member] for member in takers if member in self._rack_of}
        count = self._cluster.partitions[topic]
        of_topic = self._cluster.racks.get(topic, ())[:count]
        every = frozenset().union(*of_topic)
        if of_members.isdisjoint(every):
            return False
        return len(of_topic) < count or any(racks != every for racks in of_topic)


class _RangeState:
    """The number of partitions of one topic that each member may still receive (``TopicAssignmentState``)."""

    def __init__(self, count: int, takers: Sequence[int]) -> None:
        self.count = count
        self.taken: dict[int, list[int]] = {member: [] for member in takers}
        self._free = dict.fromkeys(range(count))
        self._share, self._more = divmod(count, len(takers))

    def may_take(self, member: int) -> int:
        return max(0, self._share + (self._more > 0) - len(self.taken[member]))

    def give(self, member: int, partitions: Sequence[int]) -> None:
        taken = self.taken[member]
        taken.extend(partitions)
        if len(taken) > self._share:
            self._more -= 1
        for partition in partitions:
            del self._free[partition]

    def take(self, member: int, may_have: Callable[[int], bool]) -> None:
        """Give this member the first suitable free partitions, up to the size of its range."""
        wanted = self.may_take(member)
        chosen = list(itertools.islice(filter(may_have, self._free), wanted))
        if chosen:
            self.give(member, chosen)
