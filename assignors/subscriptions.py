"""What every assignor asks first: who subscribes to what, in which order, and does the input make sense at all.

Members with equal subscriptions form a *class*.  Groups have two thousand members and one or two classes, so whatever
is worked out per class instead of per member is nearly free; that is half of why the assignors are fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from assignors.base import Cluster, Member

#: The largest number of partitions believed of one topic.  Kafka's own limits for a whole cluster lie below it, and a
#: corrupt count must not make a leader fill its memory.
MAX_PARTITIONS_PER_TOPIC = 10_000_000


class InvalidInputError(ValueError):
    """A cluster or a subscription that no plan can be made for; the message names the topic or the member."""


@attrs.frozen
class Subscriptions:
    """The subscriptions of a group, seen by class.

    ``members``: member ids in Kafka's order (see :func:`members_in_order`); everything else refers to
    positions in it.  ``class_of``: for each member its class.  ``classes``: for each class its members' positions,
    ascending.  ``topic_sets``: for each class the topics it subscribes to, those that exist and have partitions.
    ``topics``: all of those, in Java's order of strings.  ``subscribers``: topic -> its classes, ascending.
    """

    members: Sequence[str]
    class_of: Sequence[int]
    classes: Sequence[Sequence[int]]
    topic_sets: Sequence[frozenset[str]]
    topics: Sequence[str]
    subscribers: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, cluster: Cluster, members: Mapping[str, Member]) -> Subscriptions:
        """Check the input and sort it into classes; raises :class:`InvalidInputError`."""
        check(cluster, members)
        order = members_in_order(members)
        partitions = cluster.partitions
        class_of_spelling: dict[tuple[str, ...], int] = {}
        class_of_set: dict[frozenset[str], int] = {}
        class_of: list[int] = []
        classes: list[list[int]] = []
        for position, member_id in enumerate(order):
            spelling = tuple(members[member_id].topics)
            number = class_of_spelling.get(spelling)
            if number is None:
                existing = frozenset(topic for topic in spelling if partitions.get(topic))
                number = class_of_spelling[spelling] = class_of_set.setdefault(existing, len(classes))
                if number == len(classes):
                    classes.append([])
            class_of.append(number)
            classes[number].append(position)
        topics = in_java_order(frozenset().union(*class_of_set))
        subscribers: dict[str, list[int]] = {topic: [] for topic in topics}
        for number, topic_set in enumerate(class_of_set):
            for topic in topic_set:
                subscribers[topic].append(number)
        return cls(order, class_of, classes, list(class_of_set), topics, subscribers)


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
