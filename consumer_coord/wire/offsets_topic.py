"""The records of ``__consumer_offsets``: keys and values in Kafka's binary formats.

Kafka's schemas are ``OffsetCommitKey``, ``OffsetCommitValue``, ``GroupMetadataKey`` and ``GroupMetadataValue``. Each key and
value starts with its version as two bytes. Keys 0 and 1 are offsets, 2 is a group's metadata. Higher versions belong to newer
protocols (KIP-848 and later) and are valid: :func:`decode_key` returns :class:`ForeignKey` for them. Offset values and group
metadata values have versions up to 4; version 4 ends in tagged fields (KIP-915). Unknown tagged fields are kept, so that no
data is lost if a record is read and written again.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire import lazy_attrs as attrs
from consumer_coord.wire.varint import write_uvarint

_OFFSET_KEY_VERSIONS = (0, 1)
_GROUP_KEY_VERSION = 2
_FIRST_FLEXIBLE_VALUE = 4
_NEWEST_VALUE = 4
_TOPIC_ID_TAG = 0
_NO_TOPIC = uuid.UUID(int=0)

#: (tag, bytes) of fields that this version of the schema does not have, in the order of their tags.
TaggedFields = tuple[tuple[int, bytes], ...]


@attrs.frozen
class OffsetCommitKey:
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


@attrs.frozen
class GroupMetadataKey:
    """The key of a group's metadata."""

    group: str


@attrs.frozen
class ForeignKey:
    """A key of another protocol, of which only the version is decoded."""

    version: int


@attrs.frozen
class OffsetCommitValue:
    """A committed offset; ``expire_timestamp_ms`` exists in version 1 only, ``topic_id`` from version 4."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    topic_id: uuid.UUID = _NO_TOPIC
    tagged_fields: TaggedFields = ()


@attrs.frozen
class MemberMetadata:
    """A member in a stored generation; ``rebalance_timeout_ms`` is -1 in version 0, which does not have the field."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    group_instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    tagged_fields: TaggedFields = ()


@attrs.frozen
class GroupMetadataValue:
    """A stored generation of a group."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp_ms: int = -1
    members: tuple[MemberMetadata, ...] = ()
    tagged_fields: TaggedFields = ()


def encode_offset_key(key: OffsetCommitKey) -> bytes:
    """Encode the key of a committed offset in version 1, as all Kafka versions do."""
    return b"\0\1" + _string(key.group) + _string(key.topic) + struct.pack(">i", key.partition)


def encode_group_key(key: GroupMetadataKey) -> bytes:
    """Encode the key of a group's metadata in version 2."""
    return b"\0\2" + _string(key.group)


def decode_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | ForeignKey:
    """Decode any key of the topic; raise :class:`~consumer_coord.errors.MalformedMessageError` if it is malformed."""
    reader = _Reader(data)
    version = reader.int16()
    if version in _OFFSET_KEY_VERSIONS:
        return OffsetCommitKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY_VERSION:
        return GroupMetadataKey(reader.string())
    return ForeignKey(version)


def encode_offset_value(value: OffsetCommitValue, version: int | None = None) -> bytes:
    """Encode a committed offset.

    Without a ``version``, choose the version that Kafka 4.3 chooses: 1 for a client that requested its own retention, otherwise
    4 if the topic's id is known, otherwise 3. Raise :class:`~consumer_coord.errors.UnsupportedVersionError` for a version other
    than 0 to 4.
    """
    if version is None:
        if value.expire_timestamp_ms != -1:
            version = 1
        else:
            version = 3 if value.topic_id == _NO_TOPIC and not value.tagged_fields else 4
    _check_writable(version)
    flexible = version >= _FIRST_FLEXIBLE_VALUE
    parts = [struct.pack(">hq", version, value.offset)]
    if version >= 3:
        parts.append(struct.pack(">i", value.leader_epoch))
    parts.append(_compact_string(value.metadata) if flexible else _string(value.metadata))
    parts.append(struct.pack(">q", value.commit_timestamp_ms))
    if version == 1:
        parts.append(struct.pack(">q", value.expire_timestamp_ms))
    if flexible:
        known = () if value.topic_id == _NO_TOPIC else ((_TOPIC_ID_TAG, value.topic_id.bytes),)
        parts.append(_tagged(known + value.tagged_fields))
    return b"".join(parts)


def decode_offset_value(data: bytes) -> OffsetCommitValue:
    """Decode a committed offset of versions 0 to 4.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, and :class:`~consumer_coord.errors.UnsupportedVersionError`
    for an unknown later version.
    """
    reader = _Reader(data)
    version = _check_readable(reader.int16())
    flexible = version >= _FIRST_FLEXIBLE_VALUE
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.compact_string() if flexible else reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else -1
    topic_id, unknown = _NO_TOPIC, []
    for tag, payload in reader.tagged() if flexible else ():
        if tag == _TOPIC_ID_TAG and len(payload) == 16:
            topic_id = uuid.UUID(bytes=payload)
        else:
            unknown.append((tag, payload))
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id, tuple(unknown))


def encode_group_value(value: GroupMetadataValue, version: int = 3) -> bytes:
    """Encode a stored generation; Kafka 4.3 writes version 3.

    Raise :class:`~consumer_coord.errors.UnsupportedVersionError` for a version other than 0 to 4.
    """
    _check_writable(version)
    flexible = version >= _FIRST_FLEXIBLE_VALUE
    string: Callable[[str], bytes] = _compact_string if flexible else _string
    nullable: Callable[[str | None], bytes] = _compact_nullable if flexible else _nullable
    binary: Callable[[bytes], bytes] = _compact_bytes if flexible else _bytes
    parts = [
        struct.pack(">h", version),
        string(value.protocol_type),
        struct.pack(">i", value.generation),
        nullable(value.protocol),
        nullable(value.leader),
    ]
    if version >= 2:
        parts.append(struct.pack(">q", value.current_state_timestamp_ms))
    parts.append(write_uvarint(len(value.members) + 1) if flexible else struct.pack(">i", len(value.members)))
    for member in value.members:
        parts.append(string(member.member_id))
        if version >= 3:
            parts.append(nullable(member.group_instance_id))
        parts.append(string(member.client_id))
        parts.append(string(member.client_host))
        if version >= 1:
            parts.append(struct.pack(">i", member.rebalance_timeout_ms))
        parts.append(struct.pack(">i", member.session_timeout_ms))
        parts.append(binary(member.subscription))
        parts.append(binary(member.assignment))
        if flexible:
            parts.append(_tagged(member.tagged_fields))
    if flexible:
        parts.append(_tagged(value.tagged_fields))
    return b"".join(parts)


def decode_group_value(data: bytes) -> GroupMetadataValue:
    """Decode a stored generation of versions 0 to 4.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, and :class:`~consumer_coord.errors.UnsupportedVersionError`
    for an unknown later version.
    """
    reader = _Reader(data)
    version = _check_readable(reader.int16())
    flexible = version >= _FIRST_FLEXIBLE_VALUE
    string = reader.compact_string if flexible else reader.string
    nullable = reader.compact_nullable if flexible else reader.nullable
    binary = reader.compact_bytes if flexible else reader.binary
    protocol_type, generation, protocol, leader = string(), reader.int32(), nullable(), nullable()
    timestamp_ms = reader.int64() if version >= 2 else -1
    count = reader.unsigned() - 1 if flexible else reader.int32()
    if not 0 <= count <= reader.remaining:
        raise MalformedMessageError(f"a group of {count} members in {reader.remaining} bytes")
    members = []
    for _ in range(count):
        member_id = string()
        instance_id = nullable() if version >= 3 else None
        client_id, client_host = string(), string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        subscription, assignment = binary(), binary()
        members.append(
            MemberMetadata(
                member_id,
                client_id,
                client_host,
                session_timeout_ms,
                subscription,
                assignment,
                instance_id,
                rebalance_timeout_ms,
                tuple(reader.tagged()) if flexible else (),
            )
        )
    tagged = tuple(reader.tagged()) if flexible else ()
    return GroupMetadataValue(protocol_type, generation, protocol, leader, timestamp_ms, tuple(members), tagged)


def _check_writable(version: int) -> None:
    if not 0 <= version <= _NEWEST_VALUE:
        raise UnsupportedVersionError(f"values of __consumer_offsets are written in version 0 to 4, not {version}")


def _check_readable(version: int) -> int:
    if version < 0:
        raise MalformedMessageError(f"a value of __consumer_offsets has version {version}")
    if version > _NEWEST_VALUE:
        raise UnsupportedVersionError(f"a value of __consumer_offsets has version {version}; up to 4 is known")
    return version


def _string(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _nullable(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else _string(value)


def _bytes(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _compact_string(value: str) -> bytes:
    return _compact_bytes(value.encode())


def _compact_nullable(value: str | None) -> bytes:
    return b"\0" if value is None else _compact_string(value)


def _compact_bytes(value: bytes) -> bytes:
    return write_uvarint(len(value) + 1) + value


def _tagged(fields: TaggedFields) -> bytes:
    parts = [write_uvarint(len(fields))]
    for tag, payload in sorted(fields):
        parts += [write_uvarint(tag), write_uvarint(len(payload)), payload]
    return b"".join(parts)


class _Reader:
    """A reader of a value from its beginning; allocates nothing that the remaining bytes do not cover."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.remaining:
            raise MalformedMessageError(f"a field of {length} bytes where {self.remaining} remain")
        self._position += length
        return self._data[self._position - length : self._position]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedMessageError("an unsigned varint of more than five bytes")

    def nullable(self) -> str | None:
        length = self.int16()
        return None if length == -1 else self._text(length)

    def string(self) -> str:
        return self._text(self.int16())

    def binary(self) -> bytes:
        return self.take(self.int32())

    def compact_nullable(self) -> str | None:
        length = self.unsigned() - 1
        return None if length == -1 else self._text(length)

    def compact_string(self) -> str:
        return self._text(self.unsigned() - 1)

    def compact_bytes(self) -> bytes:
        return self.take(self.unsigned() - 1)

    def tagged(self) -> list[tuple[int, bytes]]:
        count = self.unsigned()
        if count > self.remaining:
            raise MalformedMessageError(f"{count} tagged fields in {self.remaining} bytes")
        return [(self.unsigned(), self.take(self.unsigned())) for _ in range(count)]

    def _text(self, length: int) -> str:
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedMessageError(f"a string that is not UTF-8: {error}") from error
