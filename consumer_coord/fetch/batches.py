"""Find the end of the whole batches in a Fetch response from their headers, without decoding records.

The fetcher needs the offset after a response before the records are decoded, so that it can send the next Fetch at once.
"""

from __future__ import annotations

import struct

import attrs

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError

#: Base offset, length, leader epoch, magic, CRC, attributes and last offset delta of a batch of magic 2.
_HEADER = struct.Struct(">qiibIhi")
#: Base offset and length: the part of a batch that its length does not count.
_LOG_OVERHEAD = 12
#: Position of the magic byte in every record format.
_MAGIC_AT = 16
_MAGIC = 2
_SMALLEST_BATCH = 61
_LAST_OFFSET = 2**63 - 1


@attrs.frozen
class Reach:
    """End of the whole batches in a response: their size in bytes, the next offset, and the last batch's leader epoch."""

    size: int
    next_offset: int
    leader_epoch: int


def reach(records: bytes | memoryview, offset: int) -> Reach:
    """Return the end of the whole batches in ``records``, the response to a Fetch at ``offset``.

    The first batch may begin before ``offset``. An incomplete last batch is not included. Raise :class:`MalformedMessageError`
    for an impossible header, for decreasing offsets, and if no batch is whole (since Fetch version 3 a broker sends at least
    one). Raise :class:`UnsupportedVersionError` for batches of magic 0 and 1. The error names the next offset of the caller.
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
