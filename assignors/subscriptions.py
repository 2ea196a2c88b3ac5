"""The checked input of every assignor: members and topics in Kafka's order, members grouped by subscription.

Members with equal subscriptions form a *class*. Groups have up to two thousand members but only one or two classes, so work per
class costs almost nothing. This makes the assignors twice as fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from assignors.base import Cluster, Member
from assignors.bits import bit_set, numbers_in
from consumer_coord import lazy_attrs as attrs

#: The maximum number of partitions of one topic. Kafka's limits for a whole cluster are lower, and a corrupt number must not
#: make a leader fill its memory.
MAX_PARTITIONS_PER_TOPIC = 10_000_000

#: Number of recent different subscriptions with which a member's subscription is compared.
_RECENT = 4


class InvalidInputError(ValueError):
    """Raised if a cluster or a subscription makes a plan impossible; the message names the topic or the member."""


@attrs.frozen
class Subscriptions:
    """The subscriptions of a group, by class.

    ``members``: member ids in Kafka's order (see :func:`members_in_order`); all other fields refer to positions in this list.
    ``class_of``: for each member its class. ``classes``: for each class its members' positions, ascending. ``topics``: all
    subscribed topics that exist and have partitions, in Java's order of strings. ``subscribers``: topic -> its classes, as the
    bits of a number (see ``bits``). ``bit_of``: topic -> its bit in the ``rows``, or 0 for any other string; ``rows``: for each
    class the bits of its topics.
    """

    members: Sequence[str]
    class_of: Sequence[int]
    classes: Sequence[Sequence[int]]
    topics: Sequence[str]
    subscribers: Mapping[str, int]
    bit_of: Mapping[str, int]
    rows: Sequence[int]

    @classmethod
    def of(cls, cluster: Cluster, members: Mapping[str, Member]) -> Subscriptions:
        """Check the input and sort it into classes; raise :class:`InvalidInputError` for invalid input."""
        check(cluster, members)
        order = members_in_order(members)
        bit_of = _TopicBits(cluster.partitions)
        class_of_row: dict[int, int] = {}
        class_of: list[int] = []
        classes: list[list[int]] = []
        # A comparison with an earlier subscription is much faster than looking up its topics, and usually finds an equal one.
        recent: list[tuple[Sequence[str], int]] = []
        for position, member_id in enumerate(order):
            subscribed = members[member_id].topics
            number = -1
            for spelling, known in recent:
                if spelling == subscribed:
                    number = known
                    break
            if number < 0:
                number = class_of_row.setdefault(bit_of.row(subscribed), len(classes))
                if number == len(classes):
                    classes.append([])
                recent = [(subscribed, number), *recent[: _RECENT - 1]]
            class_of.append(number)
            classes[number].append(position)
        topics = in_java_order([topic for topic, bit in bit_of.items() if bit])
        # A table of bits with one row per class: the column of a topic is the set of its subscribers.
        width = bit_of.width
        rows = list(class_of_row)
        table = "".join([f"{row:0{width}b}" for row in reversed(rows)])
        subscribers = {topic: int(table[width - bit_of[topic].bit_length() :: width], 2) for topic in topics}
        return cls(order, class_of, classes, topics, subscribers, bit_of.closed(), rows)

    def has_all(self, position: int, topics: Collection[str]) -> bool:
        """Return whether the member at this position subscribes to all of these (distinct) topics, and all of them exist."""
        bits = sum(map(self.bit_of.__getitem__, topics))
        return bits.bit_count() == len(topics) and not bits & ~self.rows[self.class_of[position]]

    @property
    def all_differ(self) -> bool:
        """Whether all subscriptions differ, so that a class's number is its member's position."""
        return len(self.classes) == len(self.members)

    def members_of(self, classes: int) -> list[int]:
        """Return the positions of the members of a set of classes, ascending."""
        if self.all_differ:
            return list(numbers_in(classes))
        return sorted(itertools.chain.from_iterable([self.classes[number] for number in numbers_in(classes)]))

    def member_set(self, classes: int) -> int:
        """Return the positions of the members of a set of classes, as the bits of a number."""
        return classes if self.all_differ else bit_set(self.members_of(classes), len(self.members))


class _TopicBits(dict[str, int]):
    """A mapping of topic -> its bit, assigned at the first lookup; 0 for topics without partitions."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        super().__init__()
        self.width = 0
        self._partitions = partitions

    def __missing__(self, topic: str) -> int:
        bit = 0
        if self._partitions.get(topic):
            bit = 1 << self.width
            self.width += 1
        self[topic] = bit
        return bit

    def row(self, topics: Sequence[str]) -> int:
        """Return the bits of these topics."""
        row = sum(map(self.__getitem__, topics))
        # The sum is right unless a topic is named twice. A topic without partitions adds 0. So if the sum has one set bit for
        # each name, all topics differ; otherwise, remove repeated names.
        return row if row.bit_count() == len(topics) else sum(map(self.__getitem__, set(topics)))

    def closed(self) -> dict[str, int]:
        """Return the bits of the topics that were looked up; the bit of any other topic is 0."""
        return _ClosedBits(self)


class _ClosedBits(dict[str, int]):
    def __missing__(self, topic: str) -> int:
        return 0


def check(cluster: Cluster, members: Mapping[str, Member]) -> None:
    """Raise :class:`InvalidInputError` for an invalid cluster or subscription."""
    for topic, count in cluster.partitions.items():
        if not isinstance(count, int) or not 0 <= count <= MAX_PARTITIONS_PER_TOPIC:
            raise InvalidInputError(
                f"topic {topic!r} cannot have {count!r} partitions: expected a whole number from 0 to "
                f"{MAX_PARTITIONS_PER_TOPIC}"
            )
    for member_id, member in members.items():
        if isinstance(member.topics, str):
            raise InvalidInputError(
                f"member {member_id!r} subscribes to the string {member.topics!r}: expected a sequence of topic names"
            )


def members_in_order(members: Mapping[str, Member]) -> list[str]:
    """Return member ids in Kafka's order: static members first, by instance id, then the others, by member id.

    The order is that of ``AbstractPartitionAssignor.MemberInfo``: a static member keeps its position when it restarts with
    another member id. Two members with one instance id (the broker fences one of them) are ordered by member id.
    """
    static = [member_id for member_id, member in members.items() if member.instance_id is not None]
    dynamic = [member_id for member_id, member in members.items() if member.instance_id is None]
    static.sort(key=java_key)
    static.sort(key=lambda member_id: java_key(members[member_id].instance_id or ""))
    return static + in_java_order(dynamic)


def java_key(text: str) -> bytes:
    """Return the sort key that orders strings as Java's ``String.compareTo`` does: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def in_java_order(texts: Iterable[str]) -> list[str]:
    """Return strings in Java's order, which differs from Python's order only for characters beyond U+FFFF."""
    result = sorted(texts)
    if all(map(str.isascii, result)):
        return result
    return sorted(result, key=java_key)


def ranges_of_step(count: int, takers: int) -> list[range]:
    """Return the partition numbers of each of ``takers`` members, if the partitions ``0 .. count - 1`` are assigned in turn."""
    return [range(place, count, takers) for place in range(takers)]
