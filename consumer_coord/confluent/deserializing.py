"""confluent-kafka's deserializing consumer and its errors if confluent-kafka 2.x is installed, otherwise this package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumer_coord.confluent.types import own_because

if TYPE_CHECKING or own_because is None:
    from confluent_kafka import DeserializingConsumer
    from confluent_kafka.error import ConsumeError, KeyDeserializationError, ValueDeserializationError
    from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
else:
    from consumer_coord.confluent.own_deserializing import (
        ConsumeError,
        DeserializingConsumer,
        KeyDeserializationError,
        MessageField,
        SerializationContext,
        SerializationError,
        ValueDeserializationError,
    )

__all__ = [
    "ConsumeError",
    "DeserializingConsumer",
    "KeyDeserializationError",
    "MessageField",
    "SerializationContext",
    "SerializationError",
    "ValueDeserializationError",
]
