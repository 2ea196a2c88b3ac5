"""The interface through which the engine reads records: from librdkafka, this package's fetcher, or a simulation's model.

Every method that may wait is a coroutine. If librdkafka's calls run on the application's thread, no method suspends. If
these calls run on a separate thread, or in virtual time, methods may suspend, and a started operation continues even if its
caller is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: A function that receives all messages of a fetch in one call; the list is empty if the fetch returned nothing.
Sink = Callable[[list[Any]], None]


class DataPlane(Protocol):
    """Fetches assigned partitions into a queue; a partition's position moves when a message is taken from the queue."""

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        """Wait at most ``wait_s`` seconds for a message, then pass up to ``most`` available messages to ``sink``.

        If the caller is cancelled, no message is lost: messages that were taken still reach ``sink``.
        """

    async def wait_idle(self) -> None:
        """Wait until no operation is in progress."""

    async def learn(self, topics: Collection[str], limit_s: float) -> bool:
        """Look up topics that will be assigned, within ``limit_s`` seconds; return False if no broker responded."""

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return whether the first fetch of these partitions would wait for pending fetches of idle partitions."""

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Also read these partitions, which are not assigned yet, from these positions."""

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these assigned partitions; no later fetch returns their messages."""

    async def positions(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the position after each partition's last message; omit partitions without a message since their assignment."""

    async def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""

    async def close(self) -> None:
        """Release all resources; idempotent."""
