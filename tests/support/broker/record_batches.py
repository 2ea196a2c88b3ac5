"""Read the record batches that a test received, and build those of producers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from consumer_coord.broker.record_batch import BatchHeader, build_batch, read_header
from consumer_coord.wire.crc32c import crc32c


def read_headers(data: bytes | memoryview) -> Iterator[BatchHeader]:
    """Iterate over the headers of consecutive batches that fill ``data``; raise the errors of ``read_header``."""
    position = 0
    while position < len(data):
        header = read_header(data, position)
        yield header
        position += header.size


def producer_batch(count: int, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> bytes:
    """Return a batch of ``count`` records of an idempotent or transactional producer, whose first has this sequence number."""
    records = [(b"k", b"v")] * count
    batch = bytearray(
        build_batch(records, base_offset=0, timestamp_ms=5, leader_epoch=-1, producer_id=producer_id, producer_epoch=epoch)
    )
    struct.pack_into(">h", batch, 21, 0x10 if transactional else 0)
    struct.pack_into(">i", batch, 53, sequence)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)
