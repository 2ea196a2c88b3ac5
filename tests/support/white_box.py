"""The parts of a consumer that its public methods do not show: the assignment of the data plane, and the group's view of it.

A test that looks behind the public methods of a consumer does so with these functions. No other test reads private attributes
of a consumer; ``tests/test_structure.py`` checks this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.consumer.librdkafka.handle import Librdkafka
from consumer_coord.consumer.partitions import Partition
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.consumer.thread_turns import ThreadTurns
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.threads.background import Runtime
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from consumer_coord.topic_partition import TopicPartition
from tests.support.waiting import eventually


@attrs.frozen
class DataPlaneOf:
    """What a consumer has fetched."""

    reader: Reader

    @property
    def assigned(self) -> Collection[TopicPartition]:
        """The partitions that are fetched."""
        return self.reader.assigned

    @property
    def ready(self) -> Sequence[Any]:
        """The messages that have not been delivered yet, in order."""
        return self.reader.ready

    @property
    def out_of_range(self) -> Collection[TopicPartition]:
        """The partitions whose offset is not in the log, and that have no new position yet."""
        return self.reader.out_of_range

    def read_ahead(self, count: int) -> Sequence[Any]:
        """Make messages ready until there are ``count``, as a poll does, and return them."""
        eventually(lambda: len(self.ready) >= count, step=lambda: self.reader.pull(count))
        return self.ready

    def lose(self, count: int) -> None:
        """Take messages without the consumer's knowledge, as an interrupted call does."""
        reader = self.reader
        eventually(lambda: reader.ready, step=lambda: reader.pull(1))
        chunk: Any = reader.items()[0]
        assert chunk.rows.take(count)


def turns_of(consumer: GroupConsumer) -> ThreadTurns:
    """Return what decides which thread may use a consumer, and runs the threads' calls on the loop."""
    return consumer._turns


def waits_quietly(consumer: GroupConsumer) -> bool:
    """Return whether the next poll of an idle consumer waits for a message, and looks at nothing else."""
    return turns_of(consumer).quiet is coordinator_of(consumer).application.news


def data_plane(consumer: GroupConsumer | AsyncGroupConsumer) -> DataPlaneOf:
    """Return the data plane of a consumer that was used."""
    reader: Reader = consumer._shared._access.opened().reader
    return DataPlaneOf(reader)


def next_offset(consumer: GroupConsumer | AsyncGroupConsumer, partition: TopicPartition) -> int | None:
    """Return the offset from which the next record of a partition will be decoded."""
    cursor = data_plane(consumer).reader.cursors.get(partition)
    return None if cursor is None else cursor.next


def librdkafka(consumer: GroupConsumer | AsyncGroupConsumer) -> Librdkafka:
    """Return the owner of the handle of librdkafka. A test may replace its ``handle``."""
    return consumer._librdkafka


def partitions(consumer: GroupConsumer) -> Mapping[TopicPartition, Partition]:
    """Return the engine's table: the state of each assigned partition."""
    return consumer._engine.table


def coordinator_of(consumer: GroupConsumer | AsyncGroupConsumer) -> ConsumerCoordinator:
    """Return the coordinator that makes the consumer a member of its group; it belongs to the loop's thread."""
    return consumer._core


def set_lease_clock(consumer: GroupConsumer | AsyncGroupConsumer, clock: Callable[[], float]) -> None:
    """Let the lease of a consumer's membership end by another clock."""
    coordinator_of(consumer).lease.clock = clock
    if isinstance(consumer, GroupConsumer):
        consumer._at_hand.use_clock(clock, -1)


def blocking_coordinator_of(consumer: GroupConsumer) -> BlockingCoordinator:
    """Return the blocking coordinator of a consumer, which runs functions and coroutines on the loop's thread."""
    coordinator: BlockingCoordinator = consumer._coordinator
    return coordinator


def is_in_call(consumer: GroupConsumer) -> bool:
    """Return whether a thread is inside a call of the consumer."""
    return bool(consumer._at_hand.user)


def closes_at_exit() -> int:
    """Return how many members of this process are closed when the interpreter exits."""
    return len(Runtime.shared()._at_exit)


def open_clusters() -> int:
    """Return how many cluster clients the members of this process share."""
    return len(Runtime.shared().clusters._clients)
