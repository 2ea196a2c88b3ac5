"""How far the batches in a Fetch response reach: read from their headers, without their records.

The fetcher needs the offset behind a response before anyone decodes it, so that the next Fetch can leave at once.
"""

from __future__ import annotations

import struct

import attrs

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError

#: Base offset, length, leader epoch, magic, CRC, attributes and last offset delta of a batch of magic 2.
_HEADER = struct.Struct(">qiibIhi")
#: Base offset and length: the part of a batch that its length does not count.
_LOG_OVERHEAD = 12
#: The magic byte has this place in every format.
_MAGIC_AT = 16
_MAGIC = 2
_SMALLEST_BATCH = 61
_LAST_OFFSET = 2**63 - 1


@attrs.frozen
class Reach:
    """The end of the whole batches in a response: their size in bytes, the next offset, and the last batch's leader epoch."""

    size: int
    next_offset: int
    leader_epoch: int


def reach(records: bytes | memoryview, offset: int) -> Reach:
    """Return how far the whole batches of ``records`` reach, which a Fetch at ``offset`` brought.

    The first batch may begin before ``offset``, and the last one may be cut off; the cut one does not count.  Raises
    :class:`MalformedMessageError` for a batch that cannot be one, for offsets that go back, and when no batch is whole, which
    a broker does not send since Fetch version 3; :class:`UnsupportedVersionError` for batches of magic 0 and 1.  The error
    names the offset at which the caller stands.
    """
    end, position, next_offset, epoch = len(records), 0, offset, -1
    while end - position > _MAGIC_AT:
        magic = records[position + _MAGIC_AT]
        if magic != _MAGIC:
            raise UnsupportedVersionError(
                f"at offset {next_offset} is a batch of record format {magic}, written before Kafka 0.11; only format 2 can be"
                " read: copy the topic with a client that reads it"
            )
        if end - position < _HEADER.size:
            break
        base, length, batch_epoch, _, _, _, delta = _HEADER.unpack_from(records, position)
        size = length + _LOG_OVERHEAD
        last = base + delta
        if size < _SMALLEST_BATCH or delta < 0 or base < 0 or last >= _LAST_OFFSET:
            raise MalformedMessageError(
                f"at offset {next_offset} is no record batch: {size} bytes, base offset {base}, last offset delta {delta}"
            )
        if last < next_offset or (position and base < next_offset):
            raise MalformedMessageError(f"the batch at offset {next_offset} has the offsets {base} to {last}")
        if size > end - position:
            break
        position += size
        next_offset, epoch = last + 1, batch_epoch
    if not position:
        raise MalformedMessageError(f"at offset {offset} no record batch is whole: {end} bytes came")
    return Reach(position, next_offset, epoch)
