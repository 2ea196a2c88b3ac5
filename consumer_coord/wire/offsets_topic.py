"""The records of offsets and of classic groups in ``__consumer_offsets``, in Kafka's binary formats.

Kafka's schemas are ``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey`` and ``GroupMetadataValue``. Each key and
value starts with its version as two bytes. A key of version 0 or 1 belongs to an offset, a key of version 2 to a group's
metadata. Higher versions of keys belong to newer protocols (KIP-848 and later) and are valid: :func:`decode_key` returns
:class:`ForeignKey` for them. Values have the versions 0 to 4; a value of version 4 ends in tagged fields (KIP-915). Unknown
tagged fields are skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire.codec import decode_at, encode
from consumer_coord.wire.schema import BYTES, INT32, INT64, STRING, UUID, ZERO_UUID, Struct, array, field

V = TypeVar("V", bound=Struct)

_VERSION_BYTES = 2


class OffsetCommitKey(Struct, versions="0-1"):
    """The key of a committed offset."""

    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


class GroupMetadataKey(Struct, versions="2"):
    """The key of a group's metadata."""

    group: str = field(STRING, "2")


@attrs.frozen
class ForeignKey:
    """A key of a newer protocol; only its version is decoded."""

    version: int


class OffsetCommitValue(Struct, versions="0-4", flexible="4+"):
    """A committed offset; only version 1 has ``expire_timestamp_ms``, and only version 4 and later have ``topic_id``."""

    offset: int = field(INT64)
    leader_epoch: int = field(INT32, "3+", default=-1, ignorable=True)
    metadata: str = field(STRING)
    commit_timestamp_ms: int = field(INT64, default=-1)
    expire_timestamp_ms: int = field(INT64, "1", default=-1, ignorable=True)
    topic_id: uuid.UUID = field(UUID, "4+", tag=0, ignorable=True)


class MemberMetadata(Struct):
    """A member in a stored generation; ``rebalance_timeout_ms`` is -1 if decoded from version 0, which has no such field."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    session_timeout_ms: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


class GroupMetadataValue(Struct, versions="0-4", flexible="4+"):
    """A stored generation of a group."""

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+", default=None)
    leader: str | None = field(STRING, nullable="0+", default=None)
    current_state_timestamp_ms: int = field(INT64, "2+", default=-1, ignorable=True)
    members: Sequence[MemberMetadata] = field(array(MemberMetadata))


_KEYS: Mapping[int, type[OffsetCommitKey | GroupMetadataKey]] = {0: OffsetCommitKey, 1: OffsetCommitKey, 2: GroupMetadataKey}


def encode_offset_key(key: OffsetCommitKey) -> bytes:
    """Encode the key of a committed offset in version 1, which all Kafka releases use."""
    return encode_versioned(key, 1)


def encode_group_key(key: GroupMetadataKey) -> bytes:
    """Encode the key of a group's metadata in version 2."""
    return encode_versioned(key, 2)


def decode_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | ForeignKey:
    """Decode any key of the topic; raise :class:`~consumer_coord.errors.MalformedMessageError` for a malformed key."""
    version = version_of(data)
    kind = _KEYS.get(version)
    return ForeignKey(version) if kind is None else decode_at(kind, version, data, _VERSION_BYTES)[0]


def encode_offset_value(value: OffsetCommitValue, version: int | None = None) -> bytes:
    """Encode a committed offset.

    If ``version`` is None, choose the version as Kafka 4.3 does: 1 if the client requested a retention, otherwise 4 if the
    topic's id is known, otherwise 3. Raise :class:`~consumer_coord.errors.UnsupportedVersionError` for a version other than 0
    to 4.
    """
    if version is None:
        known = 3 if value.topic_id == ZERO_UUID else 4
        version = known if value.expire_timestamp_ms == -1 else 1
    return encode_versioned(value, version)


def encode_group_value(value: GroupMetadataValue, version: int = 3) -> bytes:
    """Encode a stored generation; Kafka 4.3 writes version 3.

    Raise :class:`~consumer_coord.errors.UnsupportedVersionError` for a version other than 0 to 4.
    """
    return encode_versioned(value, version)


def decode_offset_value(data: bytes) -> OffsetCommitValue:
    """Decode a committed offset; raise the errors of :func:`decode_versioned`."""
    return decode_versioned(OffsetCommitValue, data)


def decode_group_value(data: bytes) -> GroupMetadataValue:
    """Decode a stored generation; raise the errors of :func:`decode_versioned`."""
    return decode_versioned(GroupMetadataValue, data)


def encode_versioned(value: Struct, version: int) -> bytes:
    """Encode the version, then a key or value."""
    return version.to_bytes(_VERSION_BYTES, "big", signed=True) + encode(value, version)


def decode_versioned(kind: type[V], data: bytes) -> V:
    """Decode a value that follows its version.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, or :class:`~consumer_coord.errors.UnsupportedVersionError` for
    an unknown later version.
    """
    version = version_of(data)
    if version < 0:
        raise MalformedMessageError(f"a value of __consumer_offsets has the invalid version {version}")
    return decode_at(kind, version, data, _VERSION_BYTES)[0]


def version_of(data: bytes) -> int:
    """Return the version at the start of a key or value; the version of a key is the type of its record."""
    if len(data) < _VERSION_BYTES:
        raise MalformedMessageError(
            f"a version in __consumer_offsets needs {_VERSION_BYTES} bytes, but the length of the data is {len(data)}"
        )
    return int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
