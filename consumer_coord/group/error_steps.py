"""Tables of the steps that error codes of the group coordinator require of a member.

The tables follow ``AbstractCoordinator`` and ``ConsumerCoordinator`` of the Java client: JoinGroupResponseHandler,
SyncGroupResponseHandler, HeartbeatResponseHandler, OffsetCommitResponseHandler.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import (
    InconsistentGroupProtocolError,
)
from consumer_coord.group.classic_protocol import requests
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import JoinGroupResponse, SyncGroupResponse


class Step(enum.Enum):
    """The member's next step."""

    #: No error.
    CONTINUE = "continue"
    #: Send the request again after the backoff; keep all state.
    BACK_OFF = "back off"
    #: Look up the coordinator again; keep generation and member id.
    REDISCOVER = "rediscover"
    #: Use the member id in the response, and join again at once.
    ADOPT_MEMBER_ID = "adopt member id"
    #: Join again at once; keep generation and member id.
    REJOIN = "rejoin"
    #: Lose the generation and the owned partitions; keep the member id.
    LOSE_GENERATION = "lose generation"
    #: Lose the generation, the member id and the owned partitions.
    LOSE_MEMBERSHIP = "lose membership"
    #: Raise; a retry does not help.
    FAIL = "fail"


_EVERYWHERE = {
    codes.NONE: Step.CONTINUE,
    codes.COORDINATOR_NOT_AVAILABLE: Step.REDISCOVER,
    codes.NOT_COORDINATOR: Step.REDISCOVER,
    codes.COORDINATOR_LOAD_IN_PROGRESS: Step.BACK_OFF,
    codes.REBALANCE_IN_PROGRESS: Step.REJOIN,
    codes.UNKNOWN_MEMBER_ID: Step.LOSE_MEMBERSHIP,
    codes.ILLEGAL_GENERATION: Step.LOSE_GENERATION,
}

JOIN_GROUP = {
    **_EVERYWHERE,
    codes.MEMBER_ID_REQUIRED: Step.ADOPT_MEMBER_ID,
    codes.REBALANCE_IN_PROGRESS: Step.BACK_OFF,
}
SYNC_GROUP = {
    **_EVERYWHERE,
    # After the JoinGroup response, the group was converted to the consumer protocol (KIP-848), which uses the first assignor of
    # a member's list. Another JoinGroup shows whether the group still accepts the member.
    codes.INCONSISTENT_GROUP_PROTOCOL: Step.BACK_OFF,
}
HEARTBEAT = _EVERYWHERE


def step_for(table: dict[int, Step], code: int) -> Step:
    """Return the step for ``code``. If the table does not have the code, retry if Kafka calls it retriable, otherwise fail."""
    known = table.get(code)
    if known is not None:
        return known
    return Step.BACK_OFF if codes.is_retriable(code) else Step.FAIL


def check_protocol(
    request: str, group_id: str, answer: JoinGroupResponse | SyncGroupResponse, ours: Collection[str | None]
) -> None:
    """Raise an error if the response names another protocol type than ``consumer``, or an assignor that is not in ``ours``."""
    if answer.protocol_type not in (None, requests.PROTOCOL_TYPE) or answer.protocol_name not in ours:
        raise InconsistentGroupProtocolError(
            f"{request} of group {group_id!r} was answered with protocol type {answer.protocol_type!r} and assignor"
            f" {answer.protocol_name!r}, but this member joined with protocol type {requests.PROTOCOL_TYPE!r} and the assignors"
            f" {', '.join(name for name in ours if name is not None)}"
            " (partition.assignment.strategy)"
        )


def refused_value(code: int, config: CoordinatorConfig, assignors: Collection[str]) -> str:
    """Return the setting of this member for which JoinGroup or SyncGroup was refused; empty if no setting is the cause."""
    if code == codes.INCONSISTENT_GROUP_PROTOCOL:
        return f"this member offers {', '.join(assignors)} (partition.assignment.strategy)"
    if code == codes.INVALID_SESSION_TIMEOUT:
        return f"session.timeout.ms={config.session_timeout_ms} in this member"
    if code == codes.FENCED_INSTANCE_ID:
        return f"group.instance.id={config.group_instance_id} in this member"
    return ""
