"""The producer of the consumers' tests: confluent-kafka's, or kafka-python's where there is no confluent-kafka 2.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consumer_coord.confluent.types import own_because

__all__ = ["Producer"]


class _Producer:
    """kafka-python's producer with the methods of confluent-kafka's that the tests use."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=config["bootstrap.servers"],
            linger_ms=int(config.get("linger.ms", 0)),
            compression_type=config.get("compression.type"),
        )

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Any = None,
    ) -> None:
        """Send a record, in the background."""
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        self._producer.send(topic, _encoded(value), _encoded(key), pairs, partition, timestamp)

    def poll(self, timeout: float = 0) -> int:
        """Do nothing: there are no callbacks."""
        return 0

    def flush(self, timeout: float = 60) -> int:
        """Wait until all records are sent; raise the error of kafka-python if they are not."""
        self._producer.flush(timeout)
        return 0


def _encoded(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


if TYPE_CHECKING or own_because is None:
    from confluent_kafka import Producer
else:
    Producer = _Producer
