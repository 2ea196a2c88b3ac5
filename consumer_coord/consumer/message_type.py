"""The messages that consumers deliver: rows of decoded responses, as instances of ``confluent_kafka.Message``."""

from __future__ import annotations

from typing import Any, Final

from consumer_coord.columns.decode_messages import Messages
from consumer_coord.confluent.kafka_exceptions import to_kafka_error
from consumer_coord.confluent.types import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message
from consumer_coord.errors import CoordinatorError
from consumer_coord.topic_partition import TopicPartition


def rebuild(*fields: Any) -> Any:
    """Return a message for ``pickle`` and ``copy``; see :meth:`~consumer_coord.columns.decode_messages.Messages.create`."""
    return MESSAGES.create(*fields)


#: Creates messages for every consumer of the process.
MESSAGES: Final = Messages(Message, rebuild)


def error_message(partition: TopicPartition, offset: int, error: CoordinatorError) -> Any:
    """Return the message by which a poll tells why a partition cannot be read at an offset. Its value is the error's text."""
    return _event(partition, offset, to_kafka_error(error))


def eof_message(partition: TopicPartition, offset: int) -> Any:
    """Return the message by which a poll tells that a partition has no records at and after an offset."""
    return _event(partition, offset, KafkaError(KafkaError._PARTITION_EOF, f"Reached end of partition at offset {offset}"))


def _event(partition: TopicPartition, offset: int, error: KafkaError) -> Any:
    text, without_time = error.str().encode(), (TIMESTAMP_NOT_AVAILABLE, -1)
    return MESSAGES.create(*partition, offset, None, text, None, error, without_time, None, None, None)
