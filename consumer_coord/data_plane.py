"""librdkafka as the data plane: one ``confluent_kafka.Consumer`` with manual assignment.

Only the polling thread touches the handle: it serialises all calls, unfairly, so that a call from another thread starves
while the first sits in ``consume()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException

from consumer_coord.errors import ConfigurationError
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: A position that nobody knows yet (``RD_KAFKA_OFFSET_INVALID``).
OFFSET_INVALID = -1001

EARLIEST = OffsetAndMetadata(OFFSET_BEGINNING)
LATEST = OffsetAndMetadata(OFFSET_END)


class DataPlane:
    """The handle, what is assigned to it, and what is paused."""

    def __init__(self, settings: Mapping[str, Any], **keywords: Any) -> None:
        try:
            self.handle = confluent_kafka.Consumer(dict(settings), **keywords)
        except KafkaException as error:
            told = error.args[0]
            raise ConfigurationError(f"librdkafka refuses the settings: {told.str()}") from error
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()

    def start(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Fetch these partitions from these positions; paused ones stay paused."""
        if not positions:
            return
        self.handle.incremental_assign(
            [native(partition, position) for partition, position in sorted(positions.items())]
        )
        self.assigned |= positions.keys()
        if still_paused := self.paused & positions.keys():
            self.handle.pause([native(partition) for partition in sorted(still_paused)])

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these no more; after this call no message of theirs comes out."""
        ending = self.assigned.intersection(partitions)
        if ending:
            self.handle.incremental_unassign([native(partition) for partition in sorted(ending)])
            self.assigned -= ending
        self.paused.difference_update(partitions)

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Behind the last message handed to the application, for those partitions that had one."""
        wanted = sorted(self.assigned.intersection(partitions))
        if not wanted:
            return {}
        found = self.handle.position([native(partition) for partition in wanted])
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.offset, epoch_of(row))
            for row in found
            if row.offset >= 0
        }

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing from these until :meth:`resume`."""
        wanted = set(partitions)
        self.paused |= wanted
        if now_paused := self.assigned & wanted:
            self.handle.pause([native(partition) for partition in sorted(now_paused)])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these again."""
        wanted = set(partitions)
        self.paused -= wanted
        if again := self.assigned & wanted:
            self.handle.resume([native(partition) for partition in sorted(again)])


def native(partition: TopicPartition, position: OffsetAndMetadata | None = None) -> confluent_kafka.TopicPartition:
    """As confluent-kafka's TopicPartition."""
    if position is None:
        return confluent_kafka.TopicPartition(partition.topic, partition.partition)
    told: dict[str, Any] = {}
    if position.metadata:
        told["metadata"] = position.metadata
    if position.leader_epoch >= 0:
        told["leader_epoch"] = position.leader_epoch
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, position.offset, **told)


def epoch_of(row: confluent_kafka.TopicPartition) -> int:
    """A row's leader epoch, -1 when it has none."""
    return -1 if row.leader_epoch is None else int(row.leader_epoch)


def partition_of(row: confluent_kafka.TopicPartition) -> TopicPartition:
    """A row's topic and partition."""
    return TopicPartition(row.topic, row.partition)


def position_of(row: confluent_kafka.TopicPartition) -> OffsetAndMetadata:
    """A row's offset with its epoch and metadata."""
    return OffsetAndMetadata(row.offset, epoch_of(row), row.metadata or "")


def partition_of_message(message: confluent_kafka.Message) -> TopicPartition:
    """A message's topic and partition."""
    return TopicPartition(message.topic(), message.partition())


def after(message: confluent_kafka.Message) -> OffsetAndMetadata:
    """The position behind a message."""
    epoch = message.leader_epoch()
    return OffsetAndMetadata(message.offset() + 1, -1 if epoch is None else epoch)
