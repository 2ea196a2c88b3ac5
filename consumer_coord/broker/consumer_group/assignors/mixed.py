"""The assignor ``uniform`` for members with different subscriptions (``UniformHeterogeneousAssignmentBuilder``).

Each member keeps the target partitions that it still subscribes to. Then each topic's unassigned partitions go to its least
loaded subscribers. Finally, topic by topic, partitions move from the most loaded to the least loaded subscribers, until no move
makes the loads more even.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from consumer_coord.broker.consumer_group.assignors.spec import GroupSpec
from consumer_coord.broker.consumer_group.member import Partitions

#: Maximum number of balancing rounds. With overlapping subscriptions, balancing without a limit may take a long time.
_MAX_ROUNDS = 16
_NOBODY = -1


def assign_mixed(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Return the plan. If loads are equal, the order of the given members and of the topic ids decides."""
    draft = _Draft(spec)
    draft.deal()
    draft.balance()
    return draft.plan()


class _Draft:
    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._ids = list(spec.members)
        #: topic id -> the places of its subscribers in the list of members
        self._subscribers: dict[uuid.UUID, list[int]] = {}
        for place, member in enumerate(spec.members.values()):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(place)
        self._owners = {topic_id: [_NOBODY] * spec.partitions[topic_id] for topic_id in self._subscribers}
        self.sizes = [0] * len(self._ids)
        for place, member in enumerate(spec.members.values()):
            for topic_id, numbers in member.target.items():
                if topic_id in member.topics:
                    # This broker may not know all partitions of a topic that has grown. It assigns what it knows.
                    known = [number for number in numbers if number < len(self._owners[topic_id])]
                    self.sizes[place] += len(known)
                    for number in known:
                        self._owners[topic_id][number] = place

    def plan(self) -> Mapping[str, Partitions]:
        plan: dict[str, dict[uuid.UUID, set[int]]] = {member_id: {} for member_id in self._ids}
        for topic_id, owners in self._owners.items():
            for number, place in enumerate(owners):
                if place != _NOBODY:
                    plan[self._ids[place]].setdefault(topic_id, set()).add(number)
        return {
            member_id: {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
            for member_id, topics in plan.items()
        }

    def _in_order(self) -> list[uuid.UUID]:
        """Sort topics by partitions per subscriber, descending, and then by the number of subscribers, ascending."""

        def order(topic_id: uuid.UUID) -> tuple[float, int, tuple[int, int]]:
            subscribers = len(self._subscribers[topic_id])
            return -len(self._owners[topic_id]) / subscribers, subscribers, _java_order(topic_id)

        return sorted(self._subscribers, key=order)

    def _give(self, topic_id: uuid.UUID, number: int, place: int) -> None:
        former = self._owners[topic_id][number]
        if former != _NOBODY:
            self.sizes[former] -= 1
        self._owners[topic_id][number] = place
        self.sizes[place] += 1

    def deal(self) -> None:
        """Assign the partitions without an owner."""
        for topic_id in self._in_order():
            numbers = [number for number, place in enumerate(self._owners[topic_id]) if place == _NOBODY]
            if numbers:
                subscribers = _Levels(self.sizes, self._subscribers[topic_id])
                for number in numbers:
                    self._give(topic_id, number, subscribers.next_least_loaded())

    def balance(self) -> None:
        """Balance the topics with several subscribers in rounds until a whole round moves nothing."""
        topics = [topic_id for topic_id in self._in_order() if len(self._subscribers[topic_id]) > 1]
        last_moved = None
        for _ in range(_MAX_ROUNDS):
            for topic_id in topics:
                if topic_id == last_moved:
                    return
                if self._balance_topic(topic_id) or last_moved is None:
                    last_moved = topic_id

    def _balance_topic(self, topic_id: uuid.UUID) -> int:
        """Move partitions of one topic; return how many moved."""
        subscribers = self._subscribers[topic_id]
        sizes = [self.sizes[place] for place in subscribers]
        if max(sizes) - min(sizes) <= 1:
            return 0
        levels = _Levels(self.sizes, subscribers)
        held: dict[int, list[int]] = {}
        for number, place in enumerate(self._owners[topic_id]):
            held.setdefault(place, []).append(number)
        moved = 0
        while True:
            giver = levels.next_most_loaded()
            while giver is not None and not held.get(giver):
                levels.exclude_most_loaded()
                giver = levels.next_most_loaded()
            if giver is None:
                return moved
            number = held[giver].pop()
            taker = levels.next_least_loaded()
            if levels.are_even:
                return moved
            self._give(topic_id, number, taker)
            moved += 1


class _Levels:
    """Selects the subscriber that next receives a partition, and the subscriber that next loses a partition, by their loads.

    The least loaded subscribers form a range at the low end. After each of these subscribers has received a partition, the
    range's level rises by one, and the range grows by the subscribers with this number of partitions. At the high end, there is
    a similar range, whose level falls.
    """

    def __init__(self, sizes: Sequence[int], subscribers: Sequence[int]) -> None:
        self._sizes = sizes
        self._sorted = sorted(subscribers, key=lambda place: (sizes[place], place))
        self._low_end = self._next_low = 0
        self._low_level = sizes[self._sorted[0]] - 1
        self._high_start = self._high_end = len(self._sorted)
        self._high_level = sizes[self._sorted[-1]] + 1
        self._next_high = len(self._sorted) - 1

    @property
    def are_even(self) -> bool:
        """Whether a further move would not make the loads more even."""
        return self._high_level - self._low_level <= 1

    def next_least_loaded(self) -> int:
        """Return the member that receives the next partition."""
        if self._next_low >= self._low_end:
            self._low_level += 1
            while self._low_end < len(self._sorted) and self._sizes[self._sorted[self._low_end]] == self._low_level:
                self._low_end += 1
            self._next_low = 0
        self._next_low += 1
        return self._sorted[self._next_low - 1]

    def next_most_loaded(self) -> int | None:
        """Return the member that loses the next partition; None if all members are excluded."""
        if self._next_high < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # All members in the range are excluded, so continue with the next lower level that has a member.
                self._high_level = self._sizes[self._sorted[self._high_start - 1]]
            else:
                self._high_level -= 1
            while self._high_start > 0 and self._sizes[self._sorted[self._high_start - 1]] == self._high_level:
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return None
        self._next_high -= 1
        return self._sorted[self._next_high + 1]

    def exclude_most_loaded(self) -> None:
        """Remove the last returned member from the range, because it has no partition of this topic."""
        place, last = self._next_high + 1, self._high_end - 1
        self._sorted[place], self._sorted[last] = self._sorted[last], self._sorted[place]
        self._high_end -= 1


def _java_order(topic_id: uuid.UUID) -> tuple[int, int]:
    """Return a sort key for the order of Kafka's ``Uuid.compareTo``: the two halves of the UUID as signed numbers."""
    high, low = topic_id.int >> 64, topic_id.int & (1 << 64) - 1
    return high - (high >> 63 << 64), low - (low >> 63 << 64)
