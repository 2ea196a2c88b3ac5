"""Every error that this package raises, in one hierarchy.

::

    CoordinatorError
        RetriableError        a retry may help, and the library retries within the caller's time limit
        FatalError            a retry does not help before something is changed
            FencedError       another member has this member's instance id

Errors that come from a broker carry Kafka's numeric ``code``; 0 means that no broker reported the error.
"""

from __future__ import annotations

from consumer_coord.log_text import printable


class CoordinatorError(Exception):
    """Base of all errors of this package.

    The message is one printable line, because quoted texts may come from a broker or from another member.
    """

    #: Kafka's error code, or 0 for an error that no broker reported.
    code: int = 0

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(printable(message))
        if code is not None:
            self.code = code


class RetriableError(CoordinatorError):
    """Raised if a retry may succeed."""


class FatalError(CoordinatorError):
    """Raised if a retry does not help before something is changed; the message names the change."""


class FencedError(FatalError):
    """Raised if another member has this member's instance id (FENCED_INSTANCE_ID, 82)."""


class MalformedMessageError(CoordinatorError, ValueError):
    """Raised if bytes are not a valid Kafka message; every decoder raises only this error for invalid input."""


class ResponseTooLargeError(MalformedMessageError):
    """Raised if a broker announces a response of ``size`` bytes, more than ``limit`` (``receive.message.max.bytes``)."""

    def __init__(self, message: str, *, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class UnsupportedVersionError(FatalError):
    """Raised if a broker and this client have no common version of a request, or a field does not exist in that version."""


class DisconnectedError(RetriableError):
    """Raised if the connection ended before the response arrived."""


class UnreachableError(DisconnectedError):
    """Raised if the connection was refused at once: the address is not listening, or its host name is unknown."""


class RequestTimedOutError(RetriableError, TimeoutError):
    """Raised if a deadline passed before the response arrived."""


class IncompleteResponseError(RetriableError):
    """Raised if a broker answered, but without a usable row for something that the request asked for.

    The row is missing, there are two different rows, or its values have no meaning, such as -1 for the end of a log. The
    request is repeated with back-off, and this error is raised at the time limit.
    """


class BrokerError(CoordinatorError):
    """Raised for an error code of a broker that has no separate class."""


class CoordinatorNotAvailableError(RetriableError):
    """Raised if no coordinator was found in time (error codes 14, 15 and 16, or no broker responded)."""


class ConfigurationError(FatalError, ValueError):
    """Raised for a setting that is unknown, contradictory or refused; the message names the setting."""


class AuthenticationError(FatalError):
    """Raised if a broker does not accept this client's credentials, or TLS could not be set up.

    The call that raises it does not try again. Background work does, after 1 s and later after 10 s, so that a member recovers
    when its credentials are valid again.
    """


class AuthorizationError(FatalError):
    """Raised if the principal lacks a permission for this group, topic or cluster (29, 30, 31).

    The call that raises it does not try again. A member whose permission is missing reports the error in ``poll``, leaves the
    group, and joins again in a later poll.
    """


class InconsistentGroupProtocolError(FatalError):
    """Raised if this member has no assignor in common with the group's members (23)."""


class GroupMaxSizeReachedError(FatalError):
    """Raised if the group is full (81, ``group.max.size`` of the broker)."""


class UnknownTopicError(RetriableError):
    """Raised if a topic or partition does not exist (3)."""

    #: The missing subscribed topics; empty if the error has another cause.
    topics: tuple[str, ...] = ()


class AssignorError(FatalError):
    """Raised if an assignor raised, hung, or returned an invalid plan; the message names the assignor and the cause."""


class CommitFailedError(FatalError):
    """Raised if a commit was refused because this member no longer owns the partitions (22, 25, or after a loss)."""


class RebalanceInProgressError(RetriableError):
    """Raised while a rebalance moves the committed partitions (27): poll, then commit the partitions still assigned."""


class CallbackError(CoordinatorError):
    """Raised if a rebalance callback of the application raised; the cause is that exception."""


class WakeupError(CoordinatorError):
    """Raised after ``wakeup()`` was called from another thread."""


class ConcurrentUseError(CoordinatorError, RuntimeError):
    """Raised if a call cannot wait for the call that is in progress.

    Calls of different threads wait for each other. This error is for calls that would wait for ever: from a signal handler or a
    callback that interrupts a call of the same thread, and from a thread for which a callback waits.
    """


class ClosedError(CoordinatorError, RuntimeError):
    """Raised if the object is closed."""


class NotAssignedError(FatalError):
    """Raised if a partition in a call is not assigned to this consumer."""


class IllegalStateError(FatalError):
    """Raised if the consumer's state does not allow this call; the message names the call to make first."""


class PollIntervalExceededError(CoordinatorError):
    """Raised if the application did not poll for ``max.poll.interval.ms`` and its member left; the next poll rejoins."""


class ForkedError(CoordinatorError, RuntimeError):
    """Raised if the object belongs to a parent process: create a new one after ``fork()``."""


class NothingToCommitError(CoordinatorError):
    """Raised by ``commit()`` without arguments if no message was delivered since the partitions were assigned."""


class NoOffsetError(FatalError):
    """Raised if ``auto.offset.reset`` is ``error`` or ``none`` and a partition has no valid position."""
