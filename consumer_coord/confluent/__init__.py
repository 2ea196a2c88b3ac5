"""confluent-kafka's types, arguments and exceptions, as this package's consumers accept and return them.

The names in ``__all__`` are confluent-kafka's own classes if confluent-kafka 2.x is installed. Without it, and with its
successor 4.x, which has other classes, they are this package's own, and equal in everything that a program can see: a program
that imports them from here runs with each of the three.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumer_coord.confluent.deserializing import (
        ConsumeError,
        DeserializingConsumer,
        KeyDeserializationError,
        MessageField,
        SerializationContext,
        SerializationError,
        ValueDeserializationError,
    )
    from consumer_coord.confluent.types import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TIMESTAMP_CREATE_TIME,
        TIMESTAMP_LOG_APPEND_TIME,
        TIMESTAMP_NOT_AVAILABLE,
        KafkaError,
        KafkaException,
        Message,
        TopicPartition,
    )

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "ConsumeError",
    "DeserializingConsumer",
    "KafkaError",
    "KafkaException",
    "KeyDeserializationError",
    "Message",
    "MessageField",
    "SerializationContext",
    "SerializationError",
    "TopicPartition",
    "ValueDeserializationError",
]

_DESERIALIZING = frozenset(
    (
        "ConsumeError",
        "DeserializingConsumer",
        "KeyDeserializationError",
        "MessageField",
        "SerializationContext",
        "SerializationError",
        "ValueDeserializationError",
    )
)


def __getattr__(name: str) -> Any:
    # On first use: the modules of this package are imported for what they contain, and need few of these names.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "deserializing" if name in _DESERIALIZING else "types"
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
