"""Find the end of the complete batches in a Fetch response from the batches' headers, without decoding records.

The fetcher needs the offset after a response before the records are decoded, because it sends the next Fetch at once.
"""

from __future__ import annotations

import struct

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import MalformedMessageError

#: The header of a batch with magic 2: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, and after
#: five other fields the number of records.
_HEADER = struct.Struct(">qiibIhi30xi")
#: The header of a message with magic 0 or 1: offset and length. A message that contains compressed messages has the last one's
#: offset.
_OLD_HEADER = struct.Struct(">qi")
#: Size of the fields base offset and length, in bytes. The value of the field length does not include these bytes.
_LOG_OVERHEAD = 12
#: Position of the magic byte in a batch; the same in all record formats.
_MAGIC_AT = 16
_MAGIC = 2
_SMALLEST_BATCH = 61
_SMALLEST_OLD_MESSAGE = 26
_LAST_OFFSET = 2**63 - 1


@attrs.frozen
class Reach:
    """The batches of a response to use: where they begin and end in bytes, the next offset, and the last batch's leader epoch.

    ``records`` is the number of records, as the headers state it; a compressed message of magic 0 or 1 counts as one.

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
    version 3, a broker sends at least one complete batch.) The error's text names the offset at which the caller would
    continue. A message of magic 0 or 1, from before Kafka 0.11, is a batch of its own.
    """
    end, begin, position, next_offset, epoch, count = len(records), 0, 0, offset, -1, 0
    while end - position > _MAGIC_AT:
        magic = records[position + _MAGIC_AT]
        if magic < _MAGIC:
            base, length = _OLD_HEADER.unpack_from(records, position)
            batch_epoch, delta, inside, smallest = -1, 0, 1, _SMALLEST_OLD_MESSAGE
        elif end - position < _HEADER.size:
            break
        else:
            base, length, batch_epoch, _, _, _, delta, inside = _HEADER.unpack_from(records, position)
            smallest = _SMALLEST_BATCH
        size = length + _LOG_OVERHEAD
        last = base + delta
        if magic > _MAGIC:
            raise MalformedMessageError(f"the record batch at offset {next_offset} has the unknown record format {magic}")
        if size < smallest or delta < 0 or base < 0 or last >= _LAST_OFFSET:
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
