"""Build the requests of the classic protocol for one member. This module uses no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from assignors.base import Assignor
from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import AssignorError, ConfigurationError
from consumer_coord.group.generation import Generation
from consumer_coord.net.connection import Versioned
from consumer_coord.wire.embedded_protocol import Subscription, encode_subscription
from consumer_coord.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

PROTOCOL_TYPE = "consumer"

#: Maximum length of a reason, in characters; brokers cut longer reasons (KIP-800).
MOST_REASON_CHARACTERS = 255


def join_group(
    config: CoordinatorConfig,
    generation: Generation,
    assignors: Iterable[Assignor],
    topics: Sequence[str],
    owned: Mapping[str, Sequence[int]],
    reason: str,
) -> JoinGroupRequest:
    """Return JoinGroup with one subscription for each assignor, the preferred one first."""
    protocols = []
    for assignor in assignors:
        try:
            user_data = assignor.user_data(topics)
        except Exception as error:
            raise AssignorError(f"assignor {assignor.name!r} raised in user_data: {error!r}") from error
        if user_data is not None and not isinstance(user_data, bytes):
            raise ConfigurationError(
                f"assignor {assignor.name!r}: user_data must return bytes or None, not {type(user_data).__name__}"
            )
        subscription = Subscription(
            topics=topics,
            user_data=user_data,
            owned_partitions=owned,
            generation_id=generation.generation_id,
            rack_id=config.client_rack,
        )
        protocols.append(JoinGroupRequestProtocol(name=assignor.name, metadata=encode_subscription(subscription)))
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason[:MOST_REASON_CHARACTERS],
    )


def sync_group(
    config: CoordinatorConfig, generation: Generation, assignments: Sequence[SyncGroupRequestAssignment]
) -> SyncGroupRequest:
    """Return SyncGroup. The leader's request has every member's assignment, a follower's request has none."""
    return SyncGroupRequest(
        group_id=config.group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=generation.protocol_name,
        assignments=assignments,
    )


def heartbeat(config: CoordinatorConfig, generation: Generation) -> HeartbeatRequest:
    """Return a Heartbeat request."""
    return HeartbeatRequest(
        group_id=config.group_id,
        generation_id=generation.generation_id,
        member_id=generation.member_id,
        group_instance_id=config.group_instance_id,
    )


def leave_group(config: CoordinatorConfig, member_id: str, reason: str) -> Versioned:
    """Return LeaveGroup: one member up to v2, a list of members from v3 (KIP-345), and a reason from v5 (KIP-800)."""

    def build(version: int) -> LeaveGroupRequest:
        if version < 3:
            return LeaveGroupRequest(group_id=config.group_id, member_id=member_id)
        identity = MemberIdentity(
            member_id=member_id,
            group_instance_id=config.group_instance_id,
            reason=reason[:MOST_REASON_CHARACTERS],
        )
        return LeaveGroupRequest(group_id=config.group_id, members=[identity])

    return Versioned(LeaveGroupRequest, build)
