"""confluent-kafka's classes if confluent-kafka 2.x is installed, otherwise this package's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

#: Why the classes are this package's own: the error of the import; None if they are confluent-kafka's.
own_because: ImportError | None = None

if TYPE_CHECKING:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        OFFSET_END,
        OFFSET_INVALID,
        OFFSET_STORED,
        TIMESTAMP_CREATE_TIME,
        TIMESTAMP_LOG_APPEND_TIME,
        TIMESTAMP_NOT_AVAILABLE,
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        TopicPartition,
    )
else:
    try:
        # The C module, because applications and tracing libraries may replace confluent_kafka.Consumer. Its successor 4.x has
        # no such module, although its package has the same name.
        from confluent_kafka.cimpl import (
            OFFSET_BEGINNING,
            OFFSET_END,
            OFFSET_INVALID,
            OFFSET_STORED,
            TIMESTAMP_CREATE_TIME,
            TIMESTAMP_LOG_APPEND_TIME,
            TIMESTAMP_NOT_AVAILABLE,
            Consumer,
            KafkaError,
            KafkaException,
            Message,
            TopicPartition,
        )
    except ImportError as error:
        from consumer_coord.confluent.own_types import (
            TIMESTAMP_CREATE_TIME,
            TIMESTAMP_LOG_APPEND_TIME,
            TIMESTAMP_NOT_AVAILABLE,
            Consumer,
            KafkaError,
            KafkaException,
            Message,
            TopicPartition,
        )
        from consumer_coord.offsets import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED

        own_because = error.with_traceback(None)

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "TopicPartition",
    "own_because",
]
