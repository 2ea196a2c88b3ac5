"""Our errors as ``confluent_kafka.KafkaException``, so that a drop-in consumer's ``except`` clauses still match."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from consumer_coord.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigurationError,
    CoordinatorError,
    DisconnectedError,
    NoOffsetError,
    RequestTimedOutError,
    RetriableError,
)

#: librdkafka's own codes for what is no answer of a broker.
_LOCAL_CODES: tuple[tuple[type[CoordinatorError], int], ...] = (
    (ConfigurationError, KafkaError._INVALID_ARG),
    (RequestTimedOutError, KafkaError._TIMED_OUT),
    (DisconnectedError, KafkaError._TRANSPORT),
    (NoOffsetError, KafkaError._AUTO_OFFSET_RESET),
    (ClosedError, KafkaError._STATE),
    (ConcurrentUseError, KafkaError._STATE),
)


_made: dict[type[CoordinatorError], Any] = {}


def _both(kind: type[CoordinatorError]) -> Any:
    """A class that is our error and KafkaException at once, made once for each kind."""
    if kind not in _made:
        _made[kind] = _make(kind)
    return _made[kind]


def _make(kind: type[CoordinatorError]) -> Any:

    def __init__(self: Any, error: KafkaError, message: str, code: int) -> None:  # noqa: N807
        Exception.__init__(self, error)
        self._message = message
        self.code = code

    def __str__(self: Any) -> str:  # noqa: N807
        return str(self._message)

    return type(kind.__name__, (kind, KafkaException), {"__init__": __init__, "__str__": __str__, "__module__": __name__})


def to_kafka_error(error: CoordinatorError) -> KafkaError:
    """The KafkaError that stands for one of our errors."""
    code = error.code
    if code == 0:
        code = next((local for kind, local in _LOCAL_CODES if isinstance(error, kind)), KafkaError._FAIL)
    return KafkaError(code, str(error), retriable=isinstance(error, RetriableError))


def to_kafka_exception(error: CoordinatorError) -> CoordinatorError:
    """``error`` as an exception that is also a KafkaException, whose first argument is its KafkaError."""
    if type(error) in _made.values():
        return error
    converted: CoordinatorError = _both(type(error))(to_kafka_error(error), str(error), error.code)
    converted.__cause__ = error.__cause__
    return converted


@contextlib.contextmanager
def kafka_exceptions() -> Iterator[None]:
    """Let our errors leave the block as KafkaExceptions too."""
    try:
        yield
    except CoordinatorError as error:
        converted = to_kafka_exception(error)
        if converted is error:
            raise
        raise converted.with_traceback(error.__traceback__) from error.__cause__
