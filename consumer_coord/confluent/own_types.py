"""The classes of confluent-kafka 2.16 in Python, for a process that has no confluent-kafka 2.x.

Constructors, methods, comparisons and texts are those of confluent-kafka's C classes, and a test compares them. Three things
are different on purpose, because the C classes fail there: a comparison of a ``KafkaError`` with something other than a number
is False, a ``TopicPartition`` and a ``KafkaException`` can be pickled and copied, and a constructor raises a TypeError for
elements of a timestamp that are not numbers.
"""

from __future__ import annotations

import operator
import warnings
from typing import Any, Final, TypeAlias

from consumer_coord.confluent.error_table import ERRORS

TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1
TIMESTAMP_LOG_APPEND_TIME: Final = 2

#: Pickles name the module whose classes are confluent-kafka's own where that is installed, so they can be read there, too.
_HOME = "consumer_coord.confluent"

#: ``str``, whose name means a method inside :class:`KafkaError`.
Text: TypeAlias = str
#: The metadata of a partition that was given none. None itself is an error, as for confluent-kafka.
_ABSENT: Final[Any] = object()


def _integer(value: Any, bits: int = 32) -> int:
    """Return an argument for a signed integer of C; raise TypeError or OverflowError."""
    number = operator.index(value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise OverflowError(f"signed integer of {bits} bits: {number} is out of range")
    return number


def _text(value: Any, name: str) -> str:
    """Return an argument for a string of C; raise TypeError, ValueError or UnicodeEncodeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError("embedded null character")
    value.encode()
    return str(value)


class Consumer:
    """The base class of this package's consumers, in place of confluent-kafka's where confluent-kafka 2.x is not installed."""

    __module__ = _HOME


class KafkaError:
    """An error or an event: a code for comparison with ``KafkaError.<NAME>``, and a text.

    ``fatal``: the client cannot continue. ``retriable``: the operation may be tried again. ``txn_requires_abort``: the
    application must abort its transaction.
    """

    __slots__ = ("_code", "_fatal", "_reason", "_retriable", "_txn_requires_abort")
    __module__ = _HOME

    def __init__(
        self, error: int, reason: Text | None = None, fatal: int = 0, retriable: int = 0, txn_requires_abort: int = 0
    ) -> None:
        self._code = _integer(error)
        self._reason = ERRORS.get(self._code, ("", f"Err-{self._code}?"))[1] if reason is None else _text(reason, "reason")
        self._fatal = bool(_integer(fatal))
        self._retriable = bool(_integer(retriable))
        self._txn_requires_abort = bool(_integer(txn_requires_abort))

    def code(self) -> int:
        """Return the code, one of the constants of this class."""
        return self._code

    def str(self) -> Text:
        """Return the text."""
        return self._reason

    def name(self) -> Text:
        """Return the name of the code, such as ``_TIMED_OUT``."""
        return ERRORS.get(self._code, (f"ERR_{self._code}?", ""))[0]

    def fatal(self) -> bool:
        """Return whether the client cannot continue."""
        return self._fatal

    def retriable(self) -> bool:
        """Return whether the operation may be tried again."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Return whether the application must abort its transaction."""
        return self._txn_requires_abort

    def __repr__(self) -> Text:
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self._reason}"}}'

    def __hash__(self) -> int:
        return self._code

    def __eq__(self, other: object) -> bool:
        code = _code_of(other)
        return code is not None and self._code == code

    def __lt__(self, other: object) -> bool:
        return NotImplemented if (code := _code_of(other)) is None else self._code < code

    def __le__(self, other: object) -> bool:
        return NotImplemented if (code := _code_of(other)) is None else self._code <= code

    def __gt__(self, other: object) -> bool:
        return NotImplemented if (code := _code_of(other)) is None else self._code > code

    def __ge__(self, other: object) -> bool:
        return NotImplemented if (code := _code_of(other)) is None else self._code >= code

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaError, (
            self._code,
            self._reason,
            int(self._fatal),
            int(self._retriable),
            int(self._txn_requires_abort),
        )


for _code, (_name, _) in ERRORS.items():
    setattr(KafkaError, _name, _code)


def _code_of(other: object) -> int | None:
    """Return the code of an error, or a number itself; None for anything else."""
    if isinstance(other, KafkaError):
        return other.code()
    return other if isinstance(other, int) else None


class KafkaException(Exception):
    """An error of Kafka; ``exception.args[0]`` is the :class:`KafkaError`."""

    __module__ = _HOME


class TopicPartition:
    """One partition of one topic, with an offset, the committed metadata, and the reason why a call failed for it.

    Equality, hash and order are those of topic and partition.
    """

    __slots__ = ("_leader_epoch", "_metadata", "_offset", "_partition", "_topic")
    __module__ = _HOME

    def __init__(
        self, topic: str, partition: int = -1, offset: int = -1001, metadata: str = _ABSENT, leader_epoch: int = -1
    ) -> None:
        self._topic = _text(topic, "topic")
        self._partition = _integer(partition)
        self._offset = _integer(offset, 64)
        self._metadata = None if metadata is _ABSENT else _text(metadata, "metadata")
        self._leader_epoch = max(-1, _integer(leader_epoch))

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def partition(self) -> int:
        """The partition's number; -1 if none was given."""
        return self._partition

    @partition.setter
    def partition(self, value: int) -> None:
        number = _integer(value, 64)
        if number != (kept := (number + (1 << 31)) % (1 << 32) - (1 << 31)):
            warnings.warn("Truncation of value to int", RuntimeWarning, stacklevel=2)
        self._partition = kept

    @property
    def offset(self) -> int:
        """The offset, or a logical offset, which is negative."""
        return self._offset

    @offset.setter
    def offset(self, value: int) -> None:
        self._offset = _integer(value, 64)

    @property
    def metadata(self) -> str | None:
        """The application's text, which is committed with the offset; None if there is none."""
        return self._metadata

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the last record before the offset; None if it is unknown."""
        return self._leader_epoch if self._leader_epoch >= 0 else None

    @property
    def error(self) -> KafkaError | None:
        """The reason why a call failed for this partition; a subclass sets it."""
        return None

    def __repr__(self) -> str:
        return (
            f"TopicPartition{{topic={self.topic},partition={self.partition},offset={self.offset}"
            f",leader_epoch={self.leader_epoch},error={self.error}}}"
        )

    def __hash__(self) -> int:
        return hash(self._topic) ^ self._partition

    def _key(self, other: object) -> tuple[str, int]:
        if type(other) is not type(self):
            raise NotImplementedError
        assert isinstance(other, TopicPartition)
        return other._topic, other._partition

    def __eq__(self, other: object) -> bool:
        return self._key(self) == self._key(other)

    def __lt__(self, other: object) -> bool:
        return self._key(self) < self._key(other)

    def __le__(self, other: object) -> bool:
        return self._key(self) <= self._key(other)

    def __gt__(self, other: object) -> bool:
        return self._key(self) > self._key(other)

    def __ge__(self, other: object) -> bool:
        return self._key(self) >= self._key(other)


class Message:
    """A record, or an error or event if :meth:`error` is not None.

    ``latency`` is in seconds, the timestamp a tuple of its type and milliseconds since 1970.
    """

    __slots__ = (
        "_delivery_count",
        "_error",
        "_headers",
        "_key",
        "_latency_us",
        "_leader_epoch",
        "_offset",
        "_partition",
        "_timestamp",
        "_topic",
        "_value",
    )
    __module__ = _HOME

    def __init__(
        self,
        topic: str | None = None,
        partition: int = -1,
        offset: int = -1001,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] | None = None,
        latency: float = -1.0,
        leader_epoch: int = -1,
        delivery_count: int = -1,
    ) -> None:
        self._topic, self._key, self._value, self._headers, self._error = topic, key, value, headers, error
        self._partition = max(-1, _integer(partition))
        given = _integer(offset, 64)
        self._offset = given if given >= 0 else -1001
        self._latency_us = int(latency * 1_000_000) if latency >= 0 else -1
        self._leader_epoch = max(-1, _integer(leader_epoch))
        count = _integer(delivery_count, 16)
        self._delivery_count = count if count > 0 else -1
        self._timestamp = _timestamp(timestamp)

    def topic(self) -> str | None:
        """Return the topic's name."""
        return self._topic

    def partition(self) -> int | None:
        """Return the partition's number."""
        return None if self._partition == -1 else self._partition

    def offset(self) -> int | None:
        """Return the record's offset."""
        return None if self._offset < 0 else self._offset

    def key(self) -> Any:
        """Return the key as bytes, or what a deserializer made of it."""
        return self._key

    def value(self) -> Any:
        """Return the value as bytes, or what a deserializer made of it."""
        return self._value

    deserialized_key = key
    deserialized_value = value

    def headers(self) -> Any:
        """Return the headers, a list of tuples of name and bytes or None; None without headers."""
        return self._headers

    def error(self) -> KafkaError | None:
        """Return the error or event that this message reports; None for a record."""
        return self._error

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp (``TIMESTAMP_...``) and the timestamp in milliseconds since 1970."""
        return self._timestamp

    def latency(self) -> float | None:
        """Return how long producing the message took, in seconds; None for a message that was read."""
        return None if self._latency_us == -1 else self._latency_us / 1_000_000

    def leader_epoch(self) -> int | None:
        """Return the leader epoch of the record's batch; None if it is unknown."""
        return None if self._leader_epoch == -1 else self._leader_epoch

    def delivery_count(self) -> int | None:
        """Return how often a share group has delivered the record; None outside a share group."""
        return None if self._delivery_count == -1 else self._delivery_count

    def set_topic(self, value: Any, /) -> None:
        """Replace the topic's name."""
        self._topic = value

    def set_key(self, value: Any, /) -> None:
        """Replace the key, for instance by a deserialized one."""
        self._key = value

    def set_value(self, value: Any, /) -> None:
        """Replace the value."""
        self._value = value

    def set_headers(self, value: Any, /) -> None:
        """Replace the headers."""
        self._headers = value

    def set_error(self, value: Any, /) -> None:
        """Replace the error that :meth:`error` returns; the value stays."""
        self._error = value

    def __len__(self) -> int:
        value = self.value()
        return 0 if value is None else len(value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Message) and self._compared() == other._compared()

    def _compared(self) -> tuple[Any, ...]:
        """Return what makes two messages equal: all but the latency, and the timestamp without its type."""
        return (
            *(self._topic, self._value, self._key, self._headers, self._error),
            *(self._partition, self._offset, self._leader_epoch, self._timestamp[1]),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce a message, also of a subclass, to a ``Message`` of its present contents."""
        return Message, (
            *(self.topic(), self._partition, self._offset, self.key(), self.value(), self.headers(), self.error()),
            *(self._timestamp, -1.0 if self._latency_us < 0 else self.latency(), self._leader_epoch, self._delivery_count),
        )


def _timestamp(given: Any) -> tuple[int, int]:
    if given is None:
        return TIMESTAMP_NOT_AVAILABLE, 0
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError("timestamp must be a tuple of (int, int)")
    return _integer(given[0]), _integer(given[1], 64)
