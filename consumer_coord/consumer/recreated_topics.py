"""Notice that a topic was deleted and created again, and read the new one from its first record (KIP-516); a pure function.

A position belongs to a topic id, not to a name. Until the application receives a record of the new topic, its position is still
one in the former topic, and so a commit carries the former topic id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.callback_types import Partitions
from consumer_coord.consumer.partitions import Partition, PartitionEvent, Phase, Table, after, last_serial, moved
from consumer_coord.net.metadata import is_other
from consumer_coord.offsets import OFFSET_BEGINNING
from consumer_coord.topic_partition import TopicPartition


def look_at_topics(
    table: Table, present: Mapping[TopicPartition, uuid.UUID | None], known: Partitions, serial: int
) -> tuple[Table, tuple[TopicPartition, ...]]:
    """Return the table with the topic ids that are ``present`` now, and the partitions whose topic was created again.

    ``known`` are the partitions of whose current topic a record, or the error that it has no start, has reached the
    application. The new readings have the serial numbers after ``serial``, in the order of the result.
    """
    changed: dict[TopicPartition, Partition] = {}
    recreated = []
    for partition, one in table.items():
        if is_other(one.topic_id, present.get(partition)):
            recreated.append(partition)
        elif one.topic_id is None and present.get(partition) is not None:
            # A look-up that began before the topic id was known may have returned offsets of a deleted topic.
            again: dict[str, Any] = {"awaits": None} if one.phase is Phase.LOCATING else {}
            changed[partition] = attrs.evolve(one, topic_id=present[partition], **again)
    for number, partition in enumerate(recreated, start=last_serial(table, serial) + 1):
        one = table[partition]
        former = None if partition in known else one.former_topic_id
        changes: dict[str, Any] = {"former_topic_id": former}
        if one.phase is not Phase.TAKEN and (one.start is not None or one.out_of_range is not None):
            changes = {"former_topic_id": former or one.topic_id, "start": None, "origin": None, "logical": OFFSET_BEGINNING}
        to = after(PartitionEvent.RECREATED, one.phase)
        assert isinstance(to, Phase)
        changed[partition] = moved(
            one, to, topic_id=present[partition], serial=number, committed=None, commit=None, out_of_range=None, **changes
        )
    return {**table, **changed} if changed else table, tuple(recreated)
