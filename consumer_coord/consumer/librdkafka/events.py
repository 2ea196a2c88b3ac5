"""Errors as messages: confluent-kafka's ``poll`` returns a message with ``error()`` where ours would raise."""

from __future__ import annotations

import attrs
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from consumer_coord.consumer.librdkafka.kafka_exceptions import to_kafka_error
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
            _message(KafkaError(told.code(), f"Subscribed topic not available: {topic}: {error}"), told.str(), topic)
            for topic in error.topics
        ]
    return [_message(told, told.str())]


def _message(error: KafkaError, text: str, topic: str | None = None) -> Message:
    # With a value: a message without one is false, and "if not message" is how applications look for None.
    try:
        return Message(topic=topic, value=text.encode(), error=error, timestamp=_NO_TIMESTAMP)
    except TypeError:
        # Before confluent-kafka 2.13 Python code cannot create a Message.
        return ErrorMessage(error, text.encode(), topic)


@attrs.frozen
class ErrorMessage:
    """A message with an error and no record, for versions of confluent-kafka whose Message Python code cannot create."""

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
        """Return the topic that the error is about, None if it is about no topic."""
        return self._topic

    def timestamp(self) -> tuple[int, int]:
        """Return (TIMESTAMP_NOT_AVAILABLE, -1)."""
        return _NO_TIMESTAMP

    def _none(self) -> None:
        """Return None: an error has no place in a log."""

    partition = offset = key = headers = latency = leader_epoch = _none
