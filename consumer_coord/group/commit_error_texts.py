"""Errors that explain to the application why an offset was not committed."""

from __future__ import annotations

from consumer_coord.errors import CommitFailedError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes


def given_away(group_id: str, partition: TopicPartition, code: int) -> CommitFailedError:
    """Return the error for a partition that the group assigned to another member without a revoke."""
    return CommitFailedError(
        f"the commit of {partition} was refused with {codes.error_name(code)}: the group {group_id!r} has assigned the"
        " partition to another member, because this member was silent for session.timeout.ms or did not poll for"
        " max.poll.interval.ms. Records processed since the last commit will be processed again; poll to rejoin",
        code=code,
    )


def not_held(group_id: str, partition: TopicPartition, code: int) -> CommitFailedError:
    """Return the error for a partition that the member did not own at the commit, after the generation ended."""
    return CommitFailedError(
        f"the offset of {partition} was not committed to group {group_id!r}: this member did not own the partition when"
        f" commit was called, and the group has rebalanced since ({codes.error_name(code)}). Commit pending offsets of a"
        " revoked partition in on_revoke, which any call of poll or consume may run",
        code=code,
    )


def not_committed(group_id: str, partition: TopicPartition, why: str) -> CommitFailedError:
    """Return the error for a commit that was not sent, although the broker would have accepted it."""
    return CommitFailedError(
        f"the offset of {partition} was not committed to group {group_id!r}: {why}. Records processed"
        " since the last commit will be processed again; poll to continue"
    )


def deleted_topic(partition: TopicPartition) -> CommitFailedError:
    """Return the error for a deleted topic; another topic may now have the same name."""
    return CommitFailedError(f"the offset of {partition} was not committed: its topic was deleted", code=codes.UNKNOWN_TOPIC_ID)


def metadata_too_long(partition: TopicPartition) -> CommitFailedError:
    """Return the error for commit metadata longer than the brokers allow; a client cannot query this limit."""
    return CommitFailedError(
        f"the metadata committed with {partition} is longer than the brokers' offset.metadata.max.bytes",
        code=codes.OFFSET_METADATA_TOO_LARGE,
    )
