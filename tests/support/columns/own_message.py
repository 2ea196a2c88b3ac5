"""A class of messages in Python, as a base of rows where confluent-kafka is not installed."""

from __future__ import annotations

from typing import Any


class OwnMessage:
    """A message with the constructor and the methods of ``confluent_kafka.Message``."""

    __slots__ = ("_fields",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        topic: Any = None,
        partition: int = -1,
        offset: int = -1001,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        error: Any = None,
        timestamp: tuple[int, int] = (0, 0),
        latency: float = -1.0,
        leader_epoch: int = -1,
    ) -> None:
        self._fields = [topic, partition, offset, key, value, headers, error, timestamp, latency, leader_epoch]

    def topic(self) -> Any:
        return self._fields[0]

    def partition(self) -> int | None:
        return None if self._fields[1] == -1 else self._fields[1]

    def offset(self) -> int | None:
        return None if self._fields[2] < 0 else self._fields[2]

    def key(self) -> Any:
        return self._fields[3]

    def value(self) -> Any:
        return self._fields[4]

    def headers(self) -> Any:
        return self._fields[5]

    def error(self) -> Any:
        return self._fields[6]

    def timestamp(self) -> Any:
        return self._fields[7]

    def latency(self) -> float | None:
        return None if self._fields[8] < 0 else self._fields[8]

    def leader_epoch(self) -> int | None:
        return None if self._fields[9] < 0 else self._fields[9]

    def set_topic(self, topic: Any) -> None:
        self._fields[0] = topic

    def set_key(self, key: Any) -> None:
        self._fields[3] = key

    def set_value(self, value: Any) -> None:
        self._fields[4] = value

    def set_headers(self, headers: Any) -> None:
        self._fields[5] = headers

    def set_error(self, error: Any) -> None:
        self._fields[6] = error

    def __len__(self) -> int:
        return 0 if self.value() is None else len(self.value())

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, OwnMessage):
            return NotImplemented
        return self.offset() == other.offset() and self.value() == other.value()

    def __reduce__(self) -> Any:
        return OwnMessage, tuple(self._fields)


def rebuilt(*fields: Any) -> OwnMessage:
    """Return a message with these fields."""
    return OwnMessage(*(field for field in fields if field is not None))
