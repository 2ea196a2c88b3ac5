"""The records of consumer groups (KIP-848) in ``__consumer_offsets``: types 3 to 8 and 16, in Kafka's formats.

Each key starts with its type, and each value with its version (always 0), as two bytes. The classes have the names of Kafka's
schemas (``group-coordinator/src/main/resources/common/message``) and the fields have the attributes of these schemas.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from consumer_coord.wire.codec import decode_at, encode
from consumer_coord.wire.offsets_topic import decode_versioned, encode_versioned, version_of
from consumer_coord.wire.schema import BYTES, INT8, INT32, INT64, STRING, UUID, Struct, array, field

_VERSION_BYTES = 2


class ConsumerGroupMetadataKey(Struct, versions="0"):
    """Key of a record of type 3, which stores the epoch of a group."""

    group_id: str = field(STRING)


class ConsumerGroupMetadataValue(Struct, versions="0", flexible="0+"):
    """The group epoch, and a hash of the topics that the group subscribes to (KIP-1101)."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, default=0, tag=0)


class ConsumerGroupPartitionMetadataKey(Struct, versions="0"):
    """Key of a record of type 4: brokers before 4.1 stored the topics' partitions here; later brokers write only tombstones."""

    group_id: str = field(STRING)


class ConsumerGroupMemberMetadataKey(Struct, versions="0"):
    """Key of a record of type 5, which stores what a member sent about itself."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)


class ClassicProtocol(Struct):
    name: str = field(STRING)
    metadata: bytes = field(BYTES)


class ClassicMemberMetadata(Struct):
    """The data that a member of the classic protocol sent in JoinGroup."""

    session_timeout_ms: int = field(INT32)
    supported_protocols: Sequence[ClassicProtocol] = field(array(ClassicProtocol))


class ConsumerGroupMemberMetadataValue(Struct, versions="0", flexible="0+"):
    """The data that a member sent about itself; ``classic_member_metadata`` is None for members of the consumer protocol."""

    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: Sequence[str] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = field(ClassicMemberMetadata, nullable="0+", default=None, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Struct, versions="0"):
    """Key of a record of type 6, which stores the epoch of a group's target assignment."""

    group_id: str = field(STRING)


class ConsumerGroupTargetAssignmentMetadataValue(Struct, versions="0", flexible="0+"):
    """The epoch of the target assignment, and the time when the target was computed (KIP-1263; 0: unknown)."""

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, default=0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Struct, versions="0"):
    """Key of a record of type 7, which stores the target assignment of a member."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)


class TargetTopicPartition(Struct):
    topic_id: uuid.UUID = field(UUID)
    partitions: Sequence[int] = field(array(INT32))


class ConsumerGroupTargetAssignmentMemberValue(Struct, versions="0", flexible="0+"):
    """The target assignment of a member."""

    topic_partitions: Sequence[TargetTopicPartition] = field(array(TargetTopicPartition))


class ConsumerGroupCurrentMemberAssignmentKey(Struct, versions="0"):
    """Key of a record of type 8, which stores the current assignment of a member."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)


class CurrentTopicPartitions(Struct):
    """Partitions of one topic; ``assignment_epochs`` has one epoch for each partition (KIP-1251)."""

    topic_id: uuid.UUID = field(UUID)
    partitions: Sequence[int] = field(array(INT32))
    assignment_epochs: Sequence[int] | None = field(array(INT32), nullable="0+", default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Struct, versions="0", flexible="0+"):
    """A member's current assignment, and the member's progress to its target; ``state`` is Kafka's ``MemberState``."""

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    assigned_partitions: Sequence[CurrentTopicPartitions] = field(array(CurrentTopicPartitions))
    partitions_pending_revocation: Sequence[CurrentTopicPartitions] = field(array(CurrentTopicPartitions))


class ConsumerGroupRegularExpressionKey(Struct, versions="0"):
    """Key of a record of type 16, which stores the topics that a regular expression matched."""

    group_id: str = field(STRING)
    regular_expression: str = field(STRING)


class ConsumerGroupRegularExpressionValue(Struct, versions="0", flexible="0+"):
    """The topics that a regular expression matched, the version of the cluster's metadata, and the time of the match."""

    topics: Sequence[str] = field(array(STRING))
    version: int = field(INT64)
    timestamp: int = field(INT64)


Key: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

_KEYS: Mapping[int, type[Key]] = {
    3: ConsumerGroupMetadataKey,
    4: ConsumerGroupPartitionMetadataKey,
    5: ConsumerGroupMemberMetadataKey,
    6: ConsumerGroupTargetAssignmentMetadataKey,
    7: ConsumerGroupTargetAssignmentMemberKey,
    8: ConsumerGroupCurrentMemberAssignmentKey,
    16: ConsumerGroupRegularExpressionKey,
}
_TYPE_OF: Mapping[type[Key], int] = {key: number for number, key in _KEYS.items()}
#: Key -> the table of its values. There is no table for type 4, whose values are not read.
_VALUES: Mapping[type[Key], type[Value]] = {
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}

#: The types of records that belong to consumer groups.
TYPES = frozenset(_KEYS)


def encode_key(key: Key) -> bytes:
    """Encode a key, preceded by its type."""
    return _TYPE_OF[type(key)].to_bytes(_VERSION_BYTES, "big") + encode(key, 0)


def encode_value(value: Value) -> bytes:
    """Encode a value, preceded by its version, 0."""
    return encode_versioned(value, 0)


def decode_key(data: bytes) -> Key:
    """Decode a key whose type is in :data:`TYPES`.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, or :class:`KeyError` for any other type.
    """
    return decode_at(_KEYS[version_of(data)], 0, data, _VERSION_BYTES)[0]


def decode_value(key: Key, data: bytes) -> Value | None:
    """Decode the value of a record with ``key``; return None for the partition metadata of old brokers, which is not used.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, or :class:`~consumer_coord.errors.UnsupportedVersionError` for
    an unknown later version.
    """
    value = _VALUES.get(type(key))
    return None if value is None else decode_versioned(value, data)
