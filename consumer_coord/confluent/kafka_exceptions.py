"""Convert this package's errors to ``confluent_kafka.KafkaException``, so that existing ``except`` clauses still match."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn

from consumer_coord.confluent.types import KafkaError, KafkaException
from consumer_coord.errors import (
    AuthenticationError,
    CallbackError,
    ClosedError,
    ConcurrentUseError,
    ConfigurationError,
    CoordinatorError,
    DisconnectedError,
    FencedError,
    IllegalStateError,
    MalformedMessageError,
    NoOffsetError,
    NotAssignedError,
    PollIntervalExceededError,
    RequestTimedOutError,
    RetriableError,
)

#: librdkafka's local codes, for errors that no broker returned.
_LOCAL_CODES: tuple[tuple[type[CoordinatorError], int], ...] = (
    (ConfigurationError, KafkaError._INVALID_ARG),
    (RequestTimedOutError, KafkaError._TIMED_OUT),
    (DisconnectedError, KafkaError._TRANSPORT),
    (NoOffsetError, KafkaError._AUTO_OFFSET_RESET),
    (NotAssignedError, KafkaError._UNKNOWN_PARTITION),
    (PollIntervalExceededError, KafkaError._MAX_POLL_EXCEEDED),
    (AuthenticationError, KafkaError._AUTHENTICATION),
    (IllegalStateError, KafkaError._STATE),
    (ClosedError, KafkaError._STATE),
    (ConcurrentUseError, KafkaError._STATE),
    (MalformedMessageError, KafkaError._BAD_MSG),
)


_made: dict[type[CoordinatorError], Any] = {}


def _both(kind: type[CoordinatorError]) -> Any:
    """Return a class that is both this package's error and KafkaException, created once for each kind."""
    if kind not in _made:
        _made[kind] = _make(kind)
    return _made[kind]


def _make(kind: type[CoordinatorError]) -> Any:

    def __init__(self: Any, error: KafkaError, message: str, code: int) -> None:  # noqa: N807
        # ``args[0]`` is a KafkaError in every such exception, because programs call ``error.args[0].code()``. confluent-kafka
        # raises a RuntimeError for a closed consumer; ClosedError is one, too, and ``str(error)`` is the same text.
        Exception.__init__(self, error)
        self._message = message
        self.code = code

    def __str__(self: Any) -> str:  # noqa: N807
        return str(self._message)

    return type(kind.__name__, (kind, KafkaException), {"__init__": __init__, "__str__": __str__, "__module__": __name__})


def to_kafka_error(error: CoordinatorError) -> KafkaError:
    """Return the KafkaError for one of this package's errors."""
    code = error.code
    if isinstance(error, FencedError):
        # As in librdkafka, a fatal error has this code; its text has the cause.
        code = KafkaError._FATAL
    if code == 0:
        code = next((local for kind, local in _LOCAL_CODES if isinstance(error, kind)), KafkaError._FAIL)
    return KafkaError(code, str(error), fatal=isinstance(error, FencedError), retriable=isinstance(error, RetriableError))


def to_kafka_exception(error: CoordinatorError) -> CoordinatorError:
    """Return an error as an exception that is also a KafkaException; its first argument is the KafkaError."""
    if type(error) in _made.values():
        return error
    converted: CoordinatorError = _both(type(error))(to_kafka_error(error), str(error), error.code)
    converted.__cause__ = error.__cause__
    for name, value in vars(error).items():
        # Copy further attributes, for instance the topics of an UnknownTopicError.
        vars(converted).setdefault(name, value)
    return converted


def raise_cause(error: CallbackError) -> NoReturn:
    """Raise the exception of the application's callback, as confluent-kafka does."""
    cause = error.__cause__
    if cause is None:
        raise error
    raise cause from cause.__cause__


class _Converting:
    """The context manager of :func:`kafka_exceptions`. A generator would be slower, and every poll and commit enters it."""

    __slots__ = ("_bare_callbacks",)

    def __init__(self, *, bare_callbacks: bool) -> None:
        self._bare_callbacks = bare_callbacks

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bare_callbacks and isinstance(error, CallbackError):
            raise_cause(error)
        if isinstance(error, CoordinatorError):
            raise_converted(error)


_CONVERTING = _Converting(bare_callbacks=False)
_DROP_IN = _Converting(bare_callbacks=True)


def drop_in_exceptions() -> AbstractContextManager[None]:
    """Return a context manager like :func:`kafka_exceptions` that raises exceptions of callbacks unchanged."""
    return _DROP_IN


def kafka_exceptions() -> AbstractContextManager[None]:
    """Return a context manager that converts this package's errors to errors that are also a KafkaException."""
    return _CONVERTING


def raise_converted(error: CoordinatorError) -> None:
    """Raise an error as an exception that is also a KafkaException; do nothing if it already is a KafkaException."""
    converted = to_kafka_exception(error)
    if converted is not error:
        raise converted.with_traceback(error.__traceback__) from error.__cause__
