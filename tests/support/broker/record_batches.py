"""Read the record batches that a test received."""

from __future__ import annotations

from collections.abc import Iterator

from consumer_coord.broker.record_batch import BatchHeader, read_header


def read_headers(data: bytes | memoryview) -> Iterator[BatchHeader]:
    """Iterate over the headers of consecutive batches that fill ``data``; raise the errors of ``read_header``."""
    position = 0
    while position < len(data):
        header = read_header(data, position)
        yield header
        position += header.size
