"""Every error this package raises, in one hierarchy.

::

    CoordinatorError
        RetriableError        a retry may help, and the library retries within the caller's time limit
        FatalError            a retry does not help before something is changed
            FencedError       another member has taken this member's place

Errors that come from a broker carry Kafka's numeric ``code``; 0 means that the error is the client's own.
"""

from __future__ import annotations

from consumer_coord.printable import printable


class CoordinatorError(Exception):
    """Base of all errors of this package.

    The message is one printable line, because its quotations may come from a broker or from another member.
    """

    #: Kafka's error code, 0 for an error of the client's own.
    code: int = 0

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(printable(message))
        if code is not None:
            self.code = code


class RetriableError(CoordinatorError):
    """A retry may help."""


class FatalError(CoordinatorError):
    """A retry does not help before something is changed; the message names the change."""


class FencedError(FatalError):
    """Another member has taken this member's place (FENCED_INSTANCE_ID, 82)."""


class MalformedMessageError(CoordinatorError, ValueError):
    """The bytes are not a Kafka message: the one error of every decoder, whatever is wrong with its input."""


class UnsupportedVersionError(FatalError):
    """A broker and this client have no version of a request in common, or a field has no place in that version."""


class DisconnectedError(RetriableError):
    """The connection ended before the response arrived."""


class UnreachableError(DisconnectedError):
    """The address is not listening, or its host name is unknown: the connection was refused at once."""


class RequestTimedOutError(RetriableError, TimeoutError):
    """A deadline passed before the response arrived."""


class BrokerError(CoordinatorError):
    """A broker responded with an error code that has no class."""


class CoordinatorNotAvailableError(RetriableError):
    """No coordinator was found in time (15, 16, 14, or no broker responded)."""


class ConfigurationError(FatalError, ValueError):
    """A setting is unknown, contradictory or refused; the message names it."""


class AuthenticationError(FatalError):
    """The broker does not accept this client's credentials, or TLS could not be set up; never retried."""


class AuthorizationError(FatalError):
    """The principal may not use this group, topic or cluster (29, 30, 31); never retried."""


class InconsistentGroupProtocolError(FatalError):
    """The group's members and this member have no assignor in common (23)."""


class GroupMaxSizeReachedError(FatalError):
    """The group is full (81, ``group.max.size`` of the broker)."""


class UnknownTopicError(RetriableError):
    """A topic or partition does not exist (3)."""

    #: The missing subscribed topics; empty if the error has another cause.
    topics: tuple[str, ...] = ()


class AssignorError(FatalError):
    """An assignor raised, hung, or returned a plan that no group may follow; the message names the assignor and the cause."""


class CommitFailedError(FatalError):
    """A commit was refused because this member no longer owns the partitions (22, 25, or lost in a rebalance)."""


class RebalanceInProgressError(RetriableError):
    """A rebalance is moving the committed partitions; poll, and commit the partitions that are still assigned (27)."""


class CallbackError(CoordinatorError):
    """A rebalance callback of the application raised; the cause is that exception."""


class WakeupError(CoordinatorError):
    """``wakeup()`` was called from another thread."""


class ConcurrentUseError(CoordinatorError, RuntimeError):
    """Two threads used one consumer at once, or a callback called a method it must not call."""


class ClosedError(CoordinatorError, RuntimeError):
    """The object was closed before."""


class NotAssignedError(FatalError):
    """A partition that a call names is not assigned to this consumer."""


class IllegalStateError(FatalError):
    """The consumer's state does not allow this call; the message names the call to make first."""


class PollIntervalExceededError(CoordinatorError):
    """The application did not poll for ``max.poll.interval.ms`` and its member left the group; the next poll rejoins."""


class ForkedError(CoordinatorError, RuntimeError):
    """The object belongs to a parent process: create a new one after ``fork()``."""


class NothingToCommitError(CoordinatorError):
    """``commit()`` was called without arguments, and no message was delivered since the partitions were assigned."""


class NoOffsetError(FatalError):
    """``auto.offset.reset`` is ``error`` or ``none`` and a partition has no valid position."""
