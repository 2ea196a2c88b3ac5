"""Consumer group metadata for librdkafka's transactions, with this member's generation and member id (KIP-447).

librdkafka's serialised form is private: ``CGMDv2:``, the generation as a native 32-bit integer, then group id, member id and
instance id as zero-terminated strings, the last after a flag. A test with a real broker checks this form.
"""

from __future__ import annotations

import struct
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import FatalError
from consumer_coord.group.generation import Generation

_MAGIC = b"CGMDv2:"
_GENERATION: Final = struct.Struct("=i")


@attrs.frozen
class ConsumerGroupMetadata:
    """What the metadata contains; generation -1 and an empty member id mean that the broker fences nothing."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None


def encode(group_id: str, state: Generation, instance_id: str | None) -> bytes:
    """Return the bytes for ``Producer.send_offsets_to_transaction``.

    Raise :class:`~consumer_coord.errors.FatalError` outside the group: librdkafka would accept metadata without a generation,
    which does not fence the transaction.
    """
    if state.generation_id < 0:
        raise FatalError("no group metadata outside the group: poll until partitions are assigned, then begin a transaction")
    return _bytes(group_id, state.generation_id, state.member_id, instance_id)


def unfenced(group_id: str) -> bytes:
    """Return the bytes for a manual assignment, as librdkafka does: no generation, so the broker fences nothing."""
    return _bytes(group_id, -1, "", None)


def _bytes(group_id: str, generation_id: int, member_id: str, instance_id: str | None) -> bytes:
    instance = b"\x01" if instance_id is None else b"\x00" + instance_id.encode() + b"\x00"
    return b"".join(
        (
            _MAGIC,
            _GENERATION.pack(generation_id),
            group_id.encode() + b"\x00",
            member_id.encode() + b"\x00",
            instance,
        )
    )


def decode(metadata: bytes) -> ConsumerGroupMetadata:
    """Return what :func:`encode` wrote; raise :class:`ValueError` for other bytes."""
    start = len(_MAGIC) + _GENERATION.size
    if not metadata.startswith(_MAGIC) or len(metadata) < start:
        raise ValueError("this is no group metadata: pass what consumer_group_metadata() returned")
    (generation_id,) = _GENERATION.unpack_from(metadata, len(_MAGIC))
    group_id, member_id, rest = metadata[start:].split(b"\0", 2)
    instance_id = None if rest == b"\x01" else rest[1:-1].decode()
    return ConsumerGroupMetadata(group_id.decode(), generation_id, member_id.decode(), instance_id)
