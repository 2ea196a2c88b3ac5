"""Build ConsumerGroupHeartbeat for one member: with all fields in a join or after an error, otherwise with changed fields.

As in ``ConsumerHeartbeatRequestManager.HeartbeatState`` of the Java client, None in a field means that the value in the last
heartbeat still applies.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from consumer_coord import lazy_attrs as attrs
from consumer_coord.config import CoordinatorConfig
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

#: Member epochs with a special meaning.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

#: From this version on, a member creates its id itself (KIP-1082), and can send a pattern.
OWN_ID_AND_REGEX_FROM = 1

#: The owned partitions: for each topic, its id and the partition numbers.
Owned = Sequence[tuple[uuid.UUID, Sequence[int]]]


@attrs.frozen
class HeartbeatFields:
    """The fields of a heartbeat that may change; the member's identity and settings are not included."""

    topics: Sequence[str] = ()
    #: The pattern that the broker resolves; None if there is no such pattern.
    regex: str | None = None
    owned: Owned = ()


def heartbeat(
    config: CoordinatorConfig,
    member_id: str,
    member_epoch: int,
    says: HeartbeatFields,
    reported: HeartbeatFields,
    *,
    everything: bool,
    version: int,
) -> ConsumerGroupHeartbeatRequest:
    """Return a heartbeat with those fields of ``says`` that differ from ``reported``, the last report that was confirmed.

    If ``everything`` is True, for instance after an error, the heartbeat has all fields, because the coordinator may have other
    values than ``reported``. A heartbeat that joins always has all fields.
    """
    joins = member_epoch == JOIN_EPOCH
    everything = everything or joins
    topics = says.topics if everything or says.topics != reported.topics else None
    regex = says.regex if everything or says.regex != reported.regex else None
    if says.regex is None and reported.regex and not joins:
        # None would mean that the earlier pattern still applies.
        regex = ""
    owned: Owned | None = says.owned if everything or says.owned != reported.owned else None
    if joins:
        owned = ()
    return ConsumerGroupHeartbeatRequest(
        group_id=config.group_id,
        member_id=member_id,
        member_epoch=member_epoch,
        instance_id=config.group_instance_id,
        rack_id=config.client_rack if everything else None,
        rebalance_timeout_ms=config.rebalance_timeout_ms if everything else -1,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex if version >= OWN_ID_AND_REGEX_FROM else None,
        server_assignor=config.group_remote_assignor if everything else None,
        topic_partitions=None if owned is None else _rows(owned),
    )


def goodbye(config: CoordinatorConfig, member_id: str, *, for_good: bool) -> ConsumerGroupHeartbeatRequest:
    """Return the leave heartbeat; a static member keeps its place in the group (epoch -2) unless it leaves ``for_good``."""
    static = config.group_instance_id is not None and not for_good
    return ConsumerGroupHeartbeatRequest(
        group_id=config.group_id,
        member_id=member_id,
        member_epoch=LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH,
        instance_id=config.group_instance_id,
    )


def new_member_id(bits: Callable[[int], int]) -> str:
    """Return a member id of 128 random bits; ``bits`` is ``random.Random.getrandbits``."""
    return str(uuid.UUID(int=bits(128), version=4))


def _rows(owned: Owned) -> Sequence[ConsumerGroupHeartbeatRequestTopicPartitions]:
    return tuple(
        ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=tuple(numbers))
        for topic_id, numbers in owned
    )
