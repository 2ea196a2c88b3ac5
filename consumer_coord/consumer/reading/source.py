"""What may fetch for a :class:`~consumer_coord.consumer.reading.reader.Reader` in place of a ``Fetcher``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from consumer_coord.consumer.reading.chunks import MessageChunk, ReadingEvent
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch import FetchStart, Stopped
from consumer_coord.topic_partition import TopicPartition


class MessageSource(Protocol):
    """Fetches messages, with the methods of :class:`~consumer_coord.fetch.Fetcher`; used on one loop."""

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` has something to return or to raise; readable from any thread."""

    def assign(self, starts: Mapping[TopicPartition, FetchStart]) -> None:
        """Read these partitions, also those that are assigned already."""

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""

    def take(self, max_bytes: int) -> list[MessageChunk | ReadingEvent | Stopped]:
        """Return what was fetched, in order, without a wait; raise what ended the Fetches."""

    def failure(self) -> CoordinatorError | None:
        """Return what ended the Fetches; None if they go on."""

    def advance(self, partition: TopicPartition, serial: int, next_offset: int) -> None:
        """Take note that what was taken before an offset is no longer needed."""

    def log_ends(self) -> None:
        """Return None, because nothing is known about the ends of the logs."""

    def watermarks(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the high watermark, if known; without a request."""

    def queues(self, partition: TopicPartition) -> Mapping[str, int]:
        """Return figures of a partition for the statistics."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of new connections."""

    async def close(self) -> None:
        """Release all resources; idempotent."""
