"""Errors of the broker, which clients receive as Kafka's error codes."""

from __future__ import annotations

from consumer_coord.errors import CoordinatorError, DisconnectedError


class AppendError(CoordinatorError):
    """Raised if records were not appended; ``code`` is the error code for the sender."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message, code=code)


class BrokerStoppedError(DisconnectedError):
    """Raised if the broker was stopped, so that its connections end without a response."""


class ConnectionDroppedError(DisconnectedError):
    """Raised if a fault must end this connection without a response."""


class GroupError(CoordinatorError):
    """Raised if a request to a group is refused; ``code`` is the error code for the sender."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message, code=code)


class TransactionError(CoordinatorError):
    """Raised if a request to a transaction is refused; ``code`` is the error code for the sender."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message, code=code)


class RefusedError(CoordinatorError):
    """Raised if an administrator's request is refused; ``code`` is the error code of the response."""
