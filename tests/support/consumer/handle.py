"""A substitute for ``confluent_kafka.Consumer``: endless partitions, in memory, on the calling thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import ClusterMetadata

from consumer_coord.confluent import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition


class Record:
    """A message."""

    __slots__ = ("_key", "_offset")

    def __init__(self, key: tuple[str, int], offset: int) -> None:
        self._key, self._offset = key, offset

    def topic(self) -> str:
        return self._key[0]

    def partition(self) -> int:
        return self._key[1]

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> None:
        return None

    def error(self) -> None:
        return None


class EndlessHandle:
    """A handle of which each call returns at most three messages, from one partition after the other."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        #: partition -> the next offset, and the position, which is None before the first message.
        self.read: dict[tuple[str, int], list[Any]] = {}
        self.paused: set[tuple[str, int]] = set()
        self.closed = False
        self._turn = 0

    def poll(self, timeout: float) -> Record | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, most: int, timeout: float) -> list[Record]:
        self._check()
        ready = [key for key in sorted(self.read) if key not in self.paused]
        found = []
        for _ in range(min(most, 3) if ready else 0):
            self._turn += 1
            key = ready[self._turn // 2 % len(ready)]
            offset = self.read[key][0]
            found.append(Record(key, offset))
            self.read[key] = [offset + 1, offset + 1]
        return found

    def incremental_assign(self, rows: list[TopicPartition]) -> None:
        self._check()
        if any((row.topic, row.partition) in self.read for row in rows):
            raise KafkaException(KafkaError(KafkaError._CONFLICT))
        for row in rows:
            self.read[row.topic, row.partition] = [max(0, row.offset), None]

    def incremental_unassign(self, rows: list[TopicPartition]) -> None:
        self._check()
        if any((row.topic, row.partition) not in self.read for row in rows):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
        for row in rows:
            del self.read[row.topic, row.partition]

    def pause(self, rows: list[TopicPartition]) -> None:
        self._check()
        self.paused.update((row.topic, row.partition) for row in rows)

    def resume(self, rows: list[TopicPartition]) -> None:
        self._check()
        self.paused.difference_update((row.topic, row.partition) for row in rows)

    def seek(self, row: TopicPartition) -> None:
        self._check()
        if (row.topic, row.partition) not in self.read:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        self.read[row.topic, row.partition] = [row.offset, None]

    def position(self, rows: list[TopicPartition]) -> list[TopicPartition]:
        self._check()
        found = []
        for row in rows:
            position = self.read.get((row.topic, row.partition), [0, None])[1]
            found.append(TopicPartition(row.topic, row.partition, OFFSET_INVALID if position is None else position))
        return found

    def assignment(self) -> list[TopicPartition]:
        self._check()
        return [TopicPartition(*key) for key in sorted(self.read)]

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        """Return the values for a partition that was never fetched."""
        return (-1001, -1001)

    def list_topics(self, *_: object, **__: object) -> ClusterMetadata:
        self._check()
        return ClusterMetadata()

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.closed:
            raise RuntimeError("Consumer closed")
