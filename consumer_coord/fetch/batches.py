"""Find the end of the complete batches in a Fetch response from the batches' headers, without decoding records.

The fetcher needs the offset after a response before the records are decoded, because it sends the next Fetch at once.
"""

from __future__ import annotations

import struct

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError

#: The header of a batch with magic 2: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, and after
#: five other fields the number of records.
_HEADER = struct.Struct(">qiibIhi30xi")
#: Size of the fields base offset and length, in bytes. The value of the field length does not include these bytes.
_LOG_OVERHEAD = 12
#: Position of the magic byte in a batch; the same in all record formats.
_MAGIC_AT = 16
_MAGIC = 2
_SMALLEST_BATCH = 61
_LAST_OFFSET = 2**63 - 1


@attrs.frozen
class Reach:
    """The batches of a response to use: where they begin and end in bytes, the next offset, and the last batch's leader epoch.

    ``records`` is the number of records, as the batches' headers state it.

    There is no batch to use if ``begin`` equals ``end``.
    """

    begin: int
    end: int
    next_offset: int
    leader_epoch: int
    records: int = 0


def reach(records: bytes | memoryview, offset: int) -> Reach:
    """Return the part of ``records``, the response to a Fetch at ``offset``, from which to read.

    Batches that end before ``offset`` are not included: with tiered storage, a response may begin with some, and librdkafka
    skips them as well. The next batch may begin before ``offset``. An incomplete last batch is not included. Raise
    :class:`MalformedMessageError` for an impossible header, for decreasing offsets, and if no batch is complete. (Since Fetch
    version 3, a broker sends at least one complete batch.) Raise :class:`UnsupportedVersionError` for batches of magic 0 and 1.
    The error's text names the offset at which the caller would continue.
    """
    end, begin, position, next_offset, epoch, count = len(records), 0, 0, offset, -1, 0
    while end - position > _MAGIC_AT:
        magic = records[position + _MAGIC_AT]
        if magic != _MAGIC:
            raise UnsupportedVersionError(
                f"the batch at offset {next_offset} has record format {magic}, from before Kafka 0.11, but this client reads"
                " only format 2: copy the topic with a client that can read the old format"
            )
        if end - position < _HEADER.size:
            break
        base, length, batch_epoch, _, _, _, delta, inside = _HEADER.unpack_from(records, position)
        size = length + _LOG_OVERHEAD
        last = base + delta
        if size < _SMALLEST_BATCH or delta < 0 or base < 0 or last >= _LAST_OFFSET:
            raise MalformedMessageError(
                f"the record batch at offset {next_offset} is invalid: its header states a size of {size} bytes, base offset"
                f" {base} and last offset delta {delta}"
            )
        if position > begin and base < next_offset:
            raise MalformedMessageError(f"the batch at offset {next_offset} has the wrong offsets {base} to {last}")
        if size > end - position:
            break
        position += size
        if last < offset:
            begin = position
            continue
        next_offset, epoch, count = last + 1, batch_epoch, count + max(0, inside)
    if not position:
        raise MalformedMessageError(f"the response has no complete record batch at offset {offset}, only {end} bytes")
    return Reach(begin, position, next_offset, epoch, count)
