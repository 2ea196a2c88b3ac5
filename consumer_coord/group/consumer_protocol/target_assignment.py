"""Compare a member's target (by topic ids) with the owned partitions (by names). This module uses no I/O.

A response names partitions by topic ids. Partitions of a topic whose id is not in the metadata yet must wait. A topic that was
deleted and created again has a new id. The member releases the partitions of the deleted topic before it adds partitions of the
new topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence, Set

from consumer_coord import lazy_attrs as attrs
from consumer_coord.topic_partition import TopicPartition, by_topic

#: Topic id -> partition numbers.
ById = Mapping[uuid.UUID, frozenset[int]]


@attrs.frozen
class TargetAssignment:
    """The target in the last response that contained a target; ``number`` grows with every target."""

    number: int = 0
    partitions: ById = attrs.field(factory=dict)

    def following(self, rows: Iterable[tuple[uuid.UUID, Iterable[int]]]) -> TargetAssignment:
        """Return the target for the ``rows`` of a response; return this object if the target is the same."""
        partitions: dict[uuid.UUID, frozenset[int]] = {}
        for topic_id, numbers in rows:
            partitions[topic_id] = partitions.get(topic_id, frozenset()) | frozenset(numbers)
        named = {topic_id: numbers for topic_id, numbers in partitions.items() if numbers}
        return self if self.number and named == self.partitions else TargetAssignment(self.number + 1, named)

    def __bool__(self) -> bool:
        return bool(self.partitions)


@attrs.frozen
class Reconciliation:
    """A target with topic names instead of ids; ``ids`` has the id of each topic in ``partitions``.

    The topics in ``unknown`` wait for metadata. The topics in ``former`` wait until the member owns no partition of the deleted
    topic with the same name.
    """

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, uuid.UUID]
    unknown: frozenset[uuid.UUID]
    former: frozenset[str]

    @property
    def complete(self) -> bool:
        """True if no part of the target waits."""
        return not self.unknown and not self.former


def reconcile(
    target: TargetAssignment,
    names: Mapping[uuid.UUID, str],
    held: Set[TopicPartition],
    held_ids: Mapping[str, uuid.UUID],
) -> Reconciliation:
    """Resolve ``target`` to topic names; ``held_ids`` maps the topics of the partitions in ``held`` to their ids.

    With ``held_ids``, the names of owned topics are known even if a topic was deleted and the metadata no longer has it.
    """
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
    """Return the owned partitions in the form of a heartbeat: one row for each topic, in the order of the topics' names."""
    return tuple((held_ids[topic], tuple(numbers)) for topic, numbers in by_topic(held).items())
