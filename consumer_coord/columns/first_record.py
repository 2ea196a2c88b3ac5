"""Find the first record of a Fetch response that a member would read, and its timestamp, without decoding the others."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns.batch import MAX_BATCH_BYTES
from consumer_coord.columns.decompress import decompress
from consumer_coord.columns.old_formats import converted, is_old
from consumer_coord.columns.python_batches import COMPRESSED, FAILED, READY, WITHOUT_TIME, Batches, Problem
from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire.crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


@attrs.frozen
class FirstRecord:
    """The first record for a member (``offset`` is None without one), and the offset before which there is no other.

    ``timestamp_ms`` is in milliseconds since 1970, as the producer or the broker set it; None for a record of format 0.
    """

    next_offset: int
    offset: int | None = None
    timestamp_ms: int | None = None


def first_record(records: Buffer, offset: int, aborted: Sequence[tuple[int, int]], *, read_committed: bool) -> FirstRecord:
    """Return the first record at or after ``offset`` that is neither a marker nor, with ``read_committed``, aborted.

    ``aborted`` has the (producer id, first offset) of aborted transactions. CRCs are not checked: where a batch is damaged, a
    member cannot read on, and the time of a record matters no more. Raise :class:`MalformedMessageError` for bytes that cannot
    be decoded.
    """
    view, problem = memoryview(records).cast("B"), ""
    if is_old(view):
        view, problem = converted(view, check_crcs=False, max_batch_bytes=MAX_BATCH_BYTES, crc32c=crc32c)
    batches = Batches(view, offset, array("q", chain.from_iterable(aborted)), read_committed, False)
    try:
        while batches.state in (READY, COMPRESSED):
            if batches.state == COMPRESSED:
                found = decompress(view, batches.compressed(1), most=1, limit=MAX_BATCH_BYTES, buffer=bytearray())
                problem = found.problem
                batches.supply(found.buffer, found.ends, bool(problem))
                continue
            batch = batches.batches[batches.index]
            assert batch.payload is not None
            for _ in range(batch.count):
                row, batches.consumed = batches.read(batch, batch.payload, False)
                if row is not None:
                    without_time = batch.attributes & WITHOUT_TIME or row.timestamp_ms < 0
                    return FirstRecord(row.offset, row.offset, None if without_time else row.timestamp_ms)
            batches.next_batch()
            batches.advance()
    except Problem as error:
        raise MalformedMessageError(f"the records cannot be read at offset {batches.next_offset}: {error}") from None
    if batches.state == FAILED:
        raise MalformedMessageError(f"the records cannot be read at offset {batches.next_offset}: {problem or batches.problem}")
    return FirstRecord(batches.next_offset)
