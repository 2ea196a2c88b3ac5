"""Convert errors to messages, because confluent-kafka's ``poll`` returns a message with ``error()`` instead of raising."""

from __future__ import annotations

from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from consumer_coord import lazy_attrs as attrs
from consumer_coord.confluent.kafka_exceptions import to_kafka_error
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
    try:
        return Message(topic=topic, value=text.encode(), error=error, timestamp=_NO_TIMESTAMP)
    except TypeError:
        # Before version 2.13 of confluent-kafka, Python code cannot create a Message.
        return ErrorMessage(error, text.encode(), topic)


@attrs.frozen
class ErrorMessage:
    """A message with an error and no record, for versions of confluent-kafka in which Python code cannot create a Message."""

    _error: KafkaError
    _value: bytes
    _topic: str | None

    def __len__(self) -> int:
        return len(self._value)

    def error(self) -> KafkaError:
        """Return the error."""
        return self._error

    def value(self) -> bytes:
        """Return the error's text."""
        return self._value

    def topic(self) -> str | None:
        """Return the topic that the error names, or None."""
        return self._topic

    def timestamp(self) -> tuple[int, int]:
        """Return (TIMESTAMP_NOT_AVAILABLE, -1)."""
        return _NO_TIMESTAMP

    def _none(self) -> None:
        """Return None, because an error has no offset."""

    partition = offset = key = headers = latency = leader_epoch = _none
