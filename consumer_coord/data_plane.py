"""librdkafka as the data plane: one ``confluent_kafka.Consumer`` with manual assignment.

Only the polling thread touches the handle: it serialises all calls, unfairly, so that a call from another thread starves
while the first sits in ``consume()``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, Message

from consumer_coord.data_plane_security import guarded
from consumer_coord.errors import ConfigurationError
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: A position that nobody knows yet (``RD_KAFKA_OFFSET_INVALID``).
OFFSET_INVALID = -1001

EARLIEST = OffsetAndMetadata(OFFSET_BEGINNING)
LATEST = OffsetAndMetadata(OFFSET_END)

#: A message costs librdkafka's ``poll`` 1.2-1.7 us and ``consume`` 0.4-0.7 us, so ``poll`` takes so many more at once.
MOST_AHEAD = 100


class DataPlane:
    """The handle, what is assigned to it, what is paused, and what was read ahead of the application.

    Messages in :attr:`ahead` count as not handed out: positions lie before them, they go with their partition when it is
    stopped or sought, and wait with it while it is paused.
    """

    def __init__(self, settings: Mapping[str, Any], **keywords: Any) -> None:
        try:
            self.handle = confluent_kafka.Consumer(guarded(settings), **keywords)
        except KafkaException as error:
            told = error.args[0]
            raise ConfigurationError(f"librdkafka refuses the settings: {told.str()}") from error
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.ahead: deque[Message] = deque()
        #: What was read ahead of partitions that are paused.
        self._held_back: list[Message] = []

    def read_ahead(self, first: Message) -> Message:
        """Take what else is there, behind the ``first`` message that a poll brought; returns what to hand out."""
        self.ahead.append(first)
        # If this raises (a callback did), the first one waits for the next poll.
        self.ahead.extend(self.handle.consume(MOST_AHEAD, 0))
        return self.ahead.popleft()

    def take(self, most: int) -> list[Message]:
        """What was read ahead, at most so many."""
        ahead = self.ahead
        return [ahead.popleft() for _ in range(min(most, len(ahead)))]

    def _first_ahead(self) -> dict[TopicPartition, Message]:
        """The first message read ahead of each partition."""
        first: dict[TopicPartition, Message] = {}
        for message in (*self._held_back, *self.ahead):
            if message.error() is None:
                first.setdefault(partition_of_message(message), message)
        return first

    def _drop_ahead(self, partitions: Iterable[TopicPartition]) -> None:
        if self.ahead or self._held_back:
            dropped = {(partition.topic, partition.partition) for partition in partitions}
            self.ahead = deque(one for one in self.ahead if (one.topic(), one.partition()) not in dropped)
            self._held_back = [one for one in self._held_back if (one.topic(), one.partition()) not in dropped]

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
            self._drop_ahead(ending)
        self.paused.difference_update(partitions)

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the application goes on: behind the last message handed out, for those partitions that had one."""
        wanted = sorted(self.assigned.intersection(partitions))
        if not wanted:
            return {}
        found = self.position([native(partition) for partition in wanted])
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.offset, epoch_of(row))
            for row in found
            if row.offset >= 0
        }

    def position(self, rows: list[confluent_kafka.TopicPartition]) -> list[confluent_kafka.TopicPartition]:
        """The same for given rows, ``OFFSET_INVALID`` for those without."""
        found: list[confluent_kafka.TopicPartition] = self.handle.position(rows)
        if self.ahead or self._held_back:
            first = self._first_ahead()
            for index, row in enumerate(found):
                message = first.get(partition_of(row))
                if message is not None:
                    found[index] = native(partition_of(row), before(message))
        return found

    def seek(self, row: confluent_kafka.TopicPartition) -> None:
        """Go on at the row's offset; what was read ahead is forgotten."""
        self.handle.seek(row)
        self._drop_ahead([partition_of(row)])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing from these until :meth:`resume`."""
        wanted = set(partitions)
        # Kept, and not fetched again: a seek would make librdkafka forget the position, and with it what to commit.
        waiting = [one for one in self.ahead if one.error() is None and partition_of_message(one) in wanted]
        if waiting:
            self._held_back += waiting
            self.ahead = deque(one for one in self.ahead if one.error() is not None or partition_of_message(one) not in wanted)
        self.paused |= wanted
        if now_paused := self.assigned & wanted:
            self.handle.pause([native(partition) for partition in sorted(now_paused)])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these again."""
        wanted = set(partitions)
        self.paused -= wanted
        self.ahead.extend(one for one in self._held_back if partition_of_message(one) in wanted)
        self._held_back = [one for one in self._held_back if partition_of_message(one) not in wanted]
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


def before(message: confluent_kafka.Message) -> OffsetAndMetadata:
    """The position at a message."""
    epoch = message.leader_epoch()
    return OffsetAndMetadata(message.offset(), -1 if epoch is None else epoch)


def after(message: confluent_kafka.Message) -> OffsetAndMetadata:
    """The position behind a message."""
    at = before(message)
    return attrs.evolve(at, offset=at.offset + 1)
