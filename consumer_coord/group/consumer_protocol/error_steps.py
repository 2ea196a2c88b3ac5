"""A table of the steps that error codes of ConsumerGroupHeartbeat require of a member. This module uses no I/O.

The table follows ``AbstractHeartbeatRequestManager.onErrorResponse`` of the Java client, with two differences. After
UNRELEASED_INSTANCE_ID the member retries, because the session of the instance id's former holder will expire. The member also
retries after an unknown server error, which may be temporary (a classic group cannot be converted during a rebalance).
"""

from __future__ import annotations

from consumer_coord import final_errors
from consumer_coord.errors import (
    AuthorizationError,
    ConfigurationError,
    CoordinatorError,
    FatalError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
)
from consumer_coord.group import error_steps as answers
from consumer_coord.group.error_steps import Step
from consumer_coord.wire import error_codes as codes

#: Steps of a member in the group.
HEARTBEAT = {
    codes.NONE: Step.CONTINUE,
    codes.COORDINATOR_NOT_AVAILABLE: Step.REDISCOVER,
    codes.NOT_COORDINATOR: Step.REDISCOVER,
    codes.COORDINATOR_LOAD_IN_PROGRESS: Step.BACK_OFF,
    codes.UNRELEASED_INSTANCE_ID: Step.BACK_OFF,
    codes.UNKNOWN_SERVER_ERROR: Step.BACK_OFF,
    # The group no longer exists: an operator deleted it, or its last member has left.
    codes.GROUP_ID_NOT_FOUND: Step.LOSE_GENERATION,
    codes.UNKNOWN_MEMBER_ID: Step.LOSE_GENERATION,
    codes.FENCED_MEMBER_EPOCH: Step.LOSE_GENERATION,
}

#: Steps for a heartbeat with epoch 0. Here GROUP_ID_NOT_FOUND means that a classic group has this name, and that the broker
#: cannot convert the group to this protocol.
JOIN = {**HEARTBEAT, codes.GROUP_ID_NOT_FOUND: Step.FAIL}

_KAFKA_4 = (
    "the brokers must run Kafka 4.0 or later with the feature group.version=1, and their"
    ' group.coordinator.rebalance.protocols must contain "consumer";'
    " remove group.protocol to use the classic protocol"
)

#: The usual cause of UNKNOWN_SERVER_ERROR for a join, which Kafka reports without a text.
WHY_NOT_CONVERTED = (
    "if the group has members of the classic protocol, one of them may not offer the group's present assignor"
    " (partition.assignment.strategy), so the broker cannot convert the group: let these members finish their rebalance, or"
    " stop that member. The broker keeps a static member that was stopped during its first join for five minutes"
)

_ADVICE: dict[int, tuple[str, type[CoordinatorError]]] = {
    codes.UNSUPPORTED_VERSION: (_KAFKA_4, InconsistentGroupProtocolError),
    codes.UNSUPPORTED_ASSIGNOR: (
        "group.remote.assignor must be one of the brokers' group.consumer.assignors",
        ConfigurationError,
    ),
    codes.INVALID_REGULAR_EXPRESSION: ("the broker's RE2/J does not accept the pattern", ConfigurationError),
    codes.GROUP_MAX_SIZE_REACHED: (
        "the group is full; stop a member or raise the brokers' group.consumer.max.size",
        GroupMaxSizeReachedError,
    ),
    codes.GROUP_ID_NOT_FOUND: (
        "the group has members of the classic protocol: stop all of these members first, or set the brokers'"
        " group.consumer.migration.policy to upgrade or bidirectional",
        InconsistentGroupProtocolError,
    ),
    codes.TOPIC_AUTHORIZATION_FAILED: ("the principal needs DESCRIBE on the subscribed topics", AuthorizationError),
    codes.INVALID_REQUEST: ("the request does not match the group", FatalError),
}


def step_for(code: int, *, joins: bool) -> Step:
    """Return the step for ``code``; ``joins`` means that the heartbeat had epoch 0."""
    return answers.step_for(JOIN if joins else HEARTBEAT, code)


def fatal(code: int, *, group_id: str, detail: str, request: str = "ConsumerGroupHeartbeat") -> CoordinatorError:
    """Return the exception, with advice, for a code that is not retried; ``detail`` is the broker's error message."""
    if code not in _ADVICE:
        return final_errors.fatal(code, group_id=group_id, request=request, detail=detail)
    advice, kind = _ADVICE[code]
    plane = "control plane: " if kind is AuthorizationError else ""
    said = f"{plane}{request} of group {group_id!r} was refused with {codes.error_name(code)} ({code}): {advice}"
    return kind(f"{said}; the broker reports: {detail}" if detail else said, code=code)
