"""The input of every assignor: checked, members and topics in Kafka's order, members with equal subscriptions together.

Members with equal subscriptions form a *class*.  Groups have two thousand members and one or two classes, so whatever
is worked out per class instead of per member is nearly free; that is half of why the assignors are fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from assignors.base import Cluster, Member
from assignors.bits import bit_set, numbers_in

#: The largest number of partitions believed of one topic.  Kafka's own limits for a whole cluster lie below it, and a
#: corrupt count must not make a leader fill its memory.
MAX_PARTITIONS_PER_TOPIC = 10_000_000

#: With how many different subscriptions of other members a member's one is compared.
_RECENT = 4


class InvalidInputError(ValueError):
    """A cluster or a subscription that no plan can be made for; the message names the topic or the member."""


@attrs.frozen
class Subscriptions:
    """The subscriptions of a group, seen by class.

    ``members``: member ids in Kafka's order (see :func:`members_in_order`); everything else refers to
    positions in it.  ``class_of``: for each member its class.  ``classes``: for each class its members' positions,
    ascending.  ``topics``: all subscribed topics that exist and have partitions, in Java's order of strings.
    ``subscribers``: topic -> its classes, as the bits of a number (see ``bits``).  ``bit_of``: topic -> its bit in the
    ``rows``, 0 for any other string; ``rows``: for each class the bits of its topics.
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
        """Check the input and sort it into classes; raises :class:`InvalidInputError`."""
        check(cluster, members)
        order = members_in_order(members)
        bit_of = _TopicBits(cluster.partitions)
        class_of_row: dict[int, int] = {}
        class_of: list[int] = []
        classes: list[list[int]] = []
        # To compare with a subscription seen before is far cheaper than to look at its topics, and mostly succeeds.
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
        # A table of bits with a row per class, read by columns.
        width = bit_of.width
        rows = list(class_of_row)
        table = "".join([f"{row:0{width}b}" for row in reversed(rows)])
        subscribers = {topic: int(table[width - bit_of[topic].bit_length() :: width], 2) for topic in topics}
        return cls(order, class_of, classes, topics, subscribers, bit_of.closed(), rows)

    def has_all(self, position: int, topics: Collection[str]) -> bool:
        """Whether the member at this position subscribes to all of these topics (which differ), and they exist."""
        bits = sum(map(self.bit_of.__getitem__, topics))
        return bits.bit_count() == len(topics) and not bits & ~self.rows[self.class_of[position]]

    @property
    def all_differ(self) -> bool:
        """Whether no two subscribe alike, so that a class's number is its member's position."""
        return len(self.classes) == len(self.members)

    def members_of(self, classes: int) -> list[int]:
        """The positions of the members of a set of classes, ascending."""
        if self.all_differ:
            return list(numbers_in(classes))
        return sorted(itertools.chain.from_iterable([self.classes[number] for number in numbers_in(classes)]))

    def member_set(self, classes: int) -> int:
        """The positions of the members of a set of classes, as the bits of a number."""
        return classes if self.all_differ else bit_set(self.members_of(classes), len(self.members))


class _TopicBits(dict[str, int]):
    """topic -> a bit of its own, handed out as topics are met; 0 for those without partitions."""

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
        """The bits of these topics."""
        row = sum(map(self.__getitem__, topics))
        # A sum of n powers of two has n bits just when they all differ: that no topic is unknown or named twice.
        return row if row.bit_count() == len(topics) else sum(map(self.__getitem__, set(topics)))

    def closed(self) -> dict[str, int]:
        """The bits so far; what was not met has none."""
        return _ClosedBits(self)


class _ClosedBits(dict[str, int]):
    def __missing__(self, topic: str) -> int:
        return 0


def check(cluster: Cluster, members: Mapping[str, Member]) -> None:
    """Raise :class:`InvalidInputError` for what is no cluster or no subscription."""
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
    """Member ids as Kafka orders them: static ones first, by instance id, then the others, by member id.

    This is ``AbstractPartitionAssignor.MemberInfo``: a static member keeps its place when it restarts with
    another member id.  Two members with one instance id (the broker fences one of them) go by member id.
    """
    static = [member_id for member_id, member in members.items() if member.instance_id is not None]
    dynamic = [member_id for member_id, member in members.items() if member.instance_id is None]
    static.sort(key=java_key)
    static.sort(key=lambda member_id: java_key(members[member_id].instance_id or ""))
    return static + in_java_order(dynamic)


def java_key(text: str) -> bytes:
    """The sort key that orders strings as Java's ``String.compareTo`` does: by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def in_java_order(texts: Iterable[str]) -> list[str]:
    """Strings sorted as Java sorts them, which differs from Python only beyond the basic plane."""
    result = sorted(texts)
    if all(map(str.isascii, result)):
        return result
    return sorted(result, key=java_key)


def ranges_of_step(count: int, takers: int) -> list[range]:
    """The partitions ``0 .. count - 1`` dealt out one by one to ``takers``: for each its numbers."""
    return [range(place, count, takers) for place in range(takers)]
