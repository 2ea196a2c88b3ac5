"""Convert errors to messages, because confluent-kafka's ``poll`` returns a message with ``error()`` instead of raising."""

from __future__ import annotations

from typing import Any, Final

from consumer_coord.confluent.kafka_exceptions import to_kafka_error
from consumer_coord.confluent.types import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message
from consumer_coord.errors import (
    CallbackError,
    ClosedError,
    ConcurrentUseError,
    CoordinatorError,
    ForkedError,
    UnknownTopicError,
    WakeupError,
)
from consumer_coord.log_text import get_logger

_NO_TIMESTAMP = (TIMESTAMP_NOT_AVAILABLE, -1)

logger: Final = get_logger(__name__)

#: Errors that the application caused or requested. A poll always raises these errors.
_CAUSED_BY_APPLICATION = (CallbackError, ClosedError, ConcurrentUseError, ForkedError, WakeupError)


def is_delivered(error: CoordinatorError) -> bool:
    """Return whether a poll delivers this error as a message, because the application did not cause it."""
    return not isinstance(error, _CAUSED_BY_APPLICATION)


def error_messages(error: CoordinatorError) -> list[Message]:
    """Return the messages by which a poll delivers an error: one message for each topic, if the error names topics."""
    logger.info("delivered as a message: %s", error)
    converted = to_kafka_error(error)
    code, text = converted.code(), converted.str()
    if isinstance(error, UnknownTopicError) and error.topics:
        return [
            _message(KafkaError(code, f"Subscribed topic not available: {topic}: {error}"), text, topic)
            for topic in error.topics
        ]
    return [_message(converted, text)]


def _message(error: KafkaError, text: str, topic: str | None = None) -> Message:
    # The message has a value, because a message without a value is false in Python, and applications check for None with "if
    # not message".
    fields: dict[str, Any] = {"topic": topic, "value": text.encode(), "error": error, "timestamp": _NO_TIMESTAMP}
    try:
        return Message(**fields)
    except TypeError:
        # Before version 2.13 of confluent-kafka, Python code cannot create a Message.
        from consumer_coord.confluent.own_types import Message as OwnMessage

        return OwnMessage(**fields)
