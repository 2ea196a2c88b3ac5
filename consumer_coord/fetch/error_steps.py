"""Tables of the fetcher's action after each error code in a Fetch response.

The tables follow ``FetchCollector.handleInitializeErrors`` and ``FetchSessionHandler.handleResponse`` of the Java client.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from consumer_coord.errors import AuthorizationError, BrokerError, CoordinatorError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes


class Step(enum.Enum):
    """The fetcher's next action for a partition or for a fetch session."""

    #: Use the records.
    DELIVER = "deliver"
    #: Forget the preferred replica, refresh the metadata and fetch from the leader after the backoff.
    FIND_LEADER = "find leader"
    #: Refresh the metadata, which shows whether the topic was deleted and created again, and retry after the backoff.
    CHECK_TOPIC = "check topic"
    #: Retry after the backoff, for example because the broker's metadata is older than the client's.
    BACK_OFF = "back off"
    #: At a follower: fetch from the leader. At the leader: stop and report that the offset is out of range.
    OUT_OF_RANGE = "out of range"
    #: Stop fetching the partition and report the error.
    STOP = "stop"
    #: Begin a new fetch session (KIP-227).
    NEW_SESSION = "new session"


PARTITION: Mapping[int, Step] = {
    codes.NONE: Step.DELIVER,
    codes.NOT_LEADER_OR_FOLLOWER: Step.FIND_LEADER,
    codes.LEADER_NOT_AVAILABLE: Step.FIND_LEADER,
    codes.REPLICA_NOT_AVAILABLE: Step.FIND_LEADER,
    codes.KAFKA_STORAGE_ERROR: Step.FIND_LEADER,
    codes.FENCED_LEADER_EPOCH: Step.FIND_LEADER,
    codes.OFFSET_NOT_AVAILABLE: Step.FIND_LEADER,
    codes.UNKNOWN_TOPIC_OR_PARTITION: Step.CHECK_TOPIC,
    codes.UNKNOWN_TOPIC_ID: Step.CHECK_TOPIC,
    codes.INCONSISTENT_TOPIC_ID: Step.CHECK_TOPIC,
    codes.UNKNOWN_LEADER_EPOCH: Step.BACK_OFF,
    codes.UNKNOWN_SERVER_ERROR: Step.BACK_OFF,
    codes.OFFSET_OUT_OF_RANGE: Step.OUT_OF_RANGE,
    codes.TOPIC_AUTHORIZATION_FAILED: Step.STOP,
    # The batch is damaged on the broker's disk, so a retry would return the same bytes. Java raises this error, too.
    codes.CORRUPT_MESSAGE: Step.STOP,
}
RESPONSE: Mapping[int, Step] = {
    codes.NONE: Step.DELIVER,
    codes.FETCH_SESSION_ID_NOT_FOUND: Step.NEW_SESSION,
    codes.INVALID_FETCH_SESSION_EPOCH: Step.NEW_SESSION,
    codes.FETCH_SESSION_TOPIC_ID_ERROR: Step.NEW_SESSION,
}
EPOCH_END: Mapping[int, Step] = {
    **PARTITION,
    # A log in an old record format has no leader epochs, so there is no end offset to compare with the position.
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT: Step.DELIVER,
}

_ADVICE: Mapping[int, tuple[str, type[CoordinatorError]]] = {
    codes.TOPIC_AUTHORIZATION_FAILED: ("the principal needs READ on the topic", AuthorizationError),
    codes.CORRUPT_MESSAGE: (
        "the batch is damaged on the broker's disk; seek to an offset after it, or make another replica the leader",
        BrokerError,
    ),
    codes.OFFSET_OUT_OF_RANGE: ("the log begins after this offset, or ends before this offset", BrokerError),
}


def step_for(table: Mapping[int, Step], code: int) -> Step:
    """Return the step for ``code``. If the table does not have the code, retry if Kafka calls it retriable, otherwise stop."""
    known = table.get(code)
    if known is not None:
        return known
    return Step.FIND_LEADER if codes.is_retriable(code) else Step.STOP


def refusal(code: int, partition: TopicPartition, offset: int) -> CoordinatorError:
    """Return the exception which reports that a partition is no longer fetched because of the error ``code``."""
    advice, kind = _ADVICE.get(code, ("", BrokerError))
    text = f"Fetch of {partition} at offset {offset} was refused with {codes.error_name(code)} ({code})"
    return kind(f"{text}: {advice}" if advice else text, code=code)
