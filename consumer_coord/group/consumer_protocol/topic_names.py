"""What the group wants a member to hold, by topic ids, beside what the application holds, by names.  Pure.

An answer names partitions by topic ids.  Ids that the metadata does not know yet wait: those partitions are taken up when
it does.  A topic that was deleted and made again has another id under its name: what is held of the former topic is let go
of before anything of the new one is taken up.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence, Set

import attrs

from consumer_coord.topic_partition import TopicPartition, by_topic

#: topic id -> partition numbers
ById = Mapping[uuid.UUID, frozenset[int]]


@attrs.frozen
class TargetAssignment:
    """What the last answer that told of it wants this member to hold.  ``number`` grows with every one."""

    number: int = 0
    partitions: ById = attrs.field(factory=dict)

    def following(self, rows: Iterable[tuple[uuid.UUID, Iterable[int]]]) -> TargetAssignment:
        """The target of an answer that names ``rows``; the same one if it names nothing new."""
        partitions: dict[uuid.UUID, frozenset[int]] = {}
        for topic_id, numbers in rows:
            partitions[topic_id] = partitions.get(topic_id, frozenset()) | frozenset(numbers)
        told = {topic_id: numbers for topic_id, numbers in partitions.items() if numbers}
        return self if self.number and told == self.partitions else TargetAssignment(self.number + 1, told)

    def __bool__(self) -> bool:
        return bool(self.partitions)


@attrs.frozen
class Reconciliation:
    """A target by names.  ``ids`` are the topics' of ``partitions``; what is in ``unknown`` waits for metadata, and what is in
    ``former`` waits until the topic that had its name before is held no more."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, uuid.UUID]
    unknown: frozenset[uuid.UUID]
    former: frozenset[str]

    @property
    def complete(self) -> bool:
        """True when nothing of the target waits."""
        return not self.unknown and not self.former


def reconcile(
    target: TargetAssignment,
    names: Mapping[uuid.UUID, str],
    held: Set[TopicPartition],
    held_ids: Mapping[str, uuid.UUID],
) -> Reconciliation:
    """Resolve ``target``.  ``held_ids``: of which topics the partitions in ``held`` are; their names stay known, also when the
    metadata has forgotten a topic that was deleted."""
    topics_held = {partition.topic for partition in held}
    known = {held_ids[topic]: topic for topic in topics_held if topic in held_ids}
    partitions: set[TopicPartition] = set()
    ids: dict[str, uuid.UUID] = {}
    unknown: set[uuid.UUID] = set()
    former: set[str] = set()
    for topic_id, numbers in target.partitions.items():
        name = known.get(topic_id) or names.get(topic_id)
        if name is None:
            unknown.add(topic_id)
        elif name in topics_held and held_ids.get(name) != topic_id:
            former.add(name)
        else:
            ids[name] = topic_id
            partitions.update(TopicPartition(name, number) for number in numbers)
    return Reconciliation(frozenset(partitions), ids, frozenset(unknown), frozenset(former))


def owned_by_id(held: Iterable[TopicPartition], held_ids: Mapping[str, uuid.UUID]) -> Sequence[tuple[uuid.UUID, Sequence[int]]]:
    """What a heartbeat says is held: one row for each topic, in the order of the names."""
    return tuple((held_ids[topic], tuple(numbers)) for topic, numbers in by_topic(held).items())
