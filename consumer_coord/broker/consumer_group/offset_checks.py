"""Check the commits and fetches of a consumer group's offsets (``validateOffsetCommit``, ``validateOffsetFetch``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember
from consumer_coord.wire import error_codes

#: The first version of OffsetCommit with member epochs.
_MEMBER_EPOCHS_FROM = 9
#: The first version of TxnOffsetCommit that reports a stale member epoch as such.
_TXN_STALE_FROM = 6


def check_commit(
    group: ConsumerGroup,
    api_version: int,
    member_id: str,
    instance_id: str | None,
    member_epoch: int,
    partitions: Iterable[tuple[uuid.UUID, int]],
    *,
    transactional: bool,
    assignment_epochs: bool,
) -> int:
    """Return 0 or an error code that applies to the whole commit.

    A member commits with its epoch. With ``assignment_epochs`` (KIP-1251, Kafka 4.3), an older epoch is also accepted if the
    member has had the partitions since this epoch or longer. So a commit that was in flight while the epoch increased succeeds,
    but a commit of a former owner fails.
    """
    if member_epoch < 0 and group.is_empty:
        return error_codes.NONE
    if transactional and member_epoch == -1 and not member_id and instance_id is None:
        return error_codes.NONE
    member = group.members.get(member_id)
    if member is None:
        return error_codes.UNKNOWN_MEMBER_ID
    if not transactional and member.classic is None and api_version < _MEMBER_EPOCHS_FROM:
        return error_codes.UNSUPPORTED_VERSION
    if member_epoch == member.member_epoch:
        return error_codes.NONE
    stale = error_codes.ILLEGAL_GENERATION if transactional and api_version < _TXN_STALE_FROM else _stale(member)
    if member_epoch > member.member_epoch or not assignment_epochs:
        return stale
    for topic_id, partition in partitions:
        since = member.assignment_epoch(topic_id, partition)
        if since is None or member_epoch < since:
            return stale
    return error_codes.NONE


def check_fetch(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> int:
    """Return 0 or an error code for a fetch. Clients that are not members, such as administrators, may read all offsets."""
    if member_id is None and member_epoch < 0:
        return error_codes.NONE
    member = None if member_id is None else group.members.get(member_id)
    if member is None:
        return error_codes.UNKNOWN_MEMBER_ID
    return error_codes.NONE if member_epoch == member.member_epoch else _stale(member)


def _stale(member: ConsumerGroupMember) -> int:
    return error_codes.STALE_MEMBER_EPOCH if member.classic is None else error_codes.ILLEGAL_GENERATION
