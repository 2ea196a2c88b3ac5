"""Records for the Spark tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Producer


def produce(bootstrap_servers: str, topic: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Write ``records``, arguments of ``Producer.produce`` each, and wait until they are acknowledged."""
    errors: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "enable.idempotence": True})
    for record in records:
        producer.produce(topic, on_delivery=delivered, **record)
    assert producer.flush(90) == 0
    assert not errors, errors
