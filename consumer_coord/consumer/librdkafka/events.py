"""Errors as messages: confluent-kafka's ``poll`` returns a message with ``error()`` where ours would raise."""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from consumer_coord.consumer.librdkafka.exceptions import to_kafka_error
from consumer_coord.errors import (
    CallbackError,
    ClosedError,
    ConcurrentUseError,
    CoordinatorError,
    ForkedError,
    UnknownTopicError,
    WakeupError,
)
from consumer_coord.printable import get_logger

_NO_TIMESTAMP = (TIMESTAMP_NOT_AVAILABLE, -1)

logger = get_logger(__name__)

#: What the application did itself, or asked for: raised in any case.
_ITS_OWN = (CallbackError, ClosedError, ConcurrentUseError, ForkedError, WakeupError)


def is_told(error: CoordinatorError) -> bool:
    """Whether a poll tells of this error by a message, because something outside the application went wrong."""
    return not isinstance(error, _ITS_OWN)


def error_messages(error: CoordinatorError) -> list[Message]:
    """``error`` as the messages that a poll hands out: one for each topic if it is about topics."""
    logger.info("handed out as a message: %s", error)
    told = to_kafka_error(error)
    if isinstance(error, UnknownTopicError) and error.topics:
        return [
            Message(
                topic=topic,
                value=told.str().encode(),
                error=KafkaError(told.code(), f"Subscribed topic not available: {topic}: {error}"),
                timestamp=_NO_TIMESTAMP,
            )
            for topic in error.topics
        ]
    # With a value: a message without one is false, and "if not message" is how applications look for None.
    return [Message(value=told.str().encode(), error=told, timestamp=_NO_TIMESTAMP)]
