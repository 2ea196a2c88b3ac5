"""Error codes of a broker that a retry cannot change, as exceptions that say what to do."""

from __future__ import annotations

from typing import Final

from consumer_coord.errors import (
    AuthorizationError,
    BrokerError,
    ConfigurationError,
    CoordinatorError,
    FatalError,
    FencedError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    UnsupportedVersionError,
)
from consumer_coord.wire import error_codes as codes

#: Requests for which DESCRIBE on a topic is enough.
_LOOK_UPS: Final = ("ListOffsets", "Metadata", "OffsetForLeaderEpoch")

_ADVICE: Final[dict[int, tuple[str, type[CoordinatorError]]]] = {
    codes.GROUP_AUTHORIZATION_FAILED: ("the principal needs READ on the group (group.id)", AuthorizationError),
    codes.TOPIC_AUTHORIZATION_FAILED: ("the principal needs READ on the topic", AuthorizationError),
    codes.CLUSTER_AUTHORIZATION_FAILED: ("the principal lacks a permission on the cluster", AuthorizationError),
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("the principal may not use this transactional id", AuthorizationError),
    codes.FENCED_INSTANCE_ID: (
        "another member joined with the same group.instance.id; give each running member a different one",
        FencedError,
    ),
    codes.GROUP_MAX_SIZE_REACHED: (
        "the group is full; stop a member or raise the brokers' group.max.size",
        GroupMaxSizeReachedError,
    ),
    codes.INCONSISTENT_GROUP_PROTOCOL: (
        "the members of a group need one assignor in common, and all must be consumers; a group of the consumer protocol"
        " accepts classic members only if the brokers' group.consumer.migration.policy is downgrade or bidirectional",
        InconsistentGroupProtocolError,
    ),
    codes.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is outside the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms",
        ConfigurationError,
    ),
    codes.UNKNOWN_SERVER_ERROR: (
        "the broker's log has the reason, for example a group record larger than the brokers' message.max.bytes",
        BrokerError,
    ),
    codes.INVALID_GROUP_ID: ("group.id is empty or not allowed", ConfigurationError),
    codes.UNSUPPORTED_VERSION: ("the broker is too old for this request", UnsupportedVersionError),
    codes.INVALID_REQUEST: ("the request does not match the group", FatalError),
}


def fatal(code: int, *, group_id: str, request: str, detail: str = "") -> CoordinatorError:
    """Return the exception, with advice, for an error code that is not retried."""
    name = codes.error_name(code)
    advice, kind = _ADVICE.get(code, (detail, BrokerError))
    if code == codes.TOPIC_AUTHORIZATION_FAILED and request.startswith(_LOOK_UPS):
        advice = "the principal needs DESCRIBE on the topic"
    plane = "control plane: " if kind is AuthorizationError else ""
    of_group = f" of group {group_id!r}" if group_id else ""
    said = f"{plane}{request}{of_group} was refused with {name} ({code})"
    if detail and detail != advice:
        advice = f"{advice}; {detail}"
    return kind(f"{said}: {advice}" if advice else said, code=code)
