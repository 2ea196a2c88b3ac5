"""Read the ranges of one task to the end in an executor, and yield Arrow batches.

A worker process keeps its readers and their prefetched records from batch to batch: this package's own Fetch if the columns
kernel is compiled, otherwise librdkafka's consumers. A range ends when the *position* reaches the end of the range. The last
offsets of a range may have no record for consumers: control records, and records that were aborted or compacted away.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import pyarrow as pa

from consumer_coord.columns import KERNEL
from consumer_coord.printable import get_logger
from consumer_coord.spark import kept_readers
from consumer_coord.spark.packing import Range, ReadSpec

logger: Final = get_logger(__name__)

#: Number of tasks after which the frozen objects are collected.
_COLLECT_EVERY = 64


def read_ranges(ranges: Sequence[Range], spec: ReadSpec, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield every record of ``ranges`` (start included, end not included), in offset order within each partition.

    Raise :class:`~consumer_coord.spark.errors.DataLossError` or ``ReadStalledError``. Both errors name topic, partition and
    offsets.
    """
    with_gc = gc.isenabled()
    gc.disable()
    try:
        for part in _rounds(ranges):
            yield from _read_round(part, spec, schema)
    finally:
        _tidy(with_gc)


def _rounds(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    """Return rounds of ranges in which each partition occurs once, because a task may have two ranges of a partition."""
    left = sorted(ranges)
    while left:
        this: dict[tuple[str, int], Range] = {}
        later = []
        for each in left:
            key = (each.topic, each.partition)
            if key not in this:
                this[key] = each
            elif this[key].end == each.start:
                this[key] = attrs.evolve(this[key], end=each.end)
            else:
                later.append(each)
        yield list(this.values())
        left = later


@functools.cache
def reads_natively() -> bool:
    """Return whether this process reads with the package's own Fetch. Log once which reader is used."""
    if KERNEL != "c":
        logger.warning(
            "librdkafka reads: the columns kernel is not compiled, so records are read more slowly; install a wheel, or a C"
            " compiler and this package again"
        )
        return False
    if importlib.util.find_spec("cramjam") is None:
        logger.warning("librdkafka reads, because cramjam is not installed. Install 'consumer-coord[spark]' to read faster")
        return False
    logger.info("this package's own Fetch reads, into Arrow columns")
    return True


def _read_round(ranges: Sequence[Range], spec: ReadSpec, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    reader = kept_readers.reader_for(spec.config, native=reads_natively())
    try:
        yield from reader.read(ranges, schema, fail_on_data_loss=spec.fail_on_data_loss, timeout_ms=spec.poll_timeout_ms)
    except BaseException:
        # Also if Spark stops reading early (GeneratorExit): the next task does not need the records in flight.
        reader.forget()
        raise


_tasks = 0


def _tidy(with_gc: bool) -> None:
    """Freeze imported objects. Spark's daemon collects garbage after each task, which takes 60-140 ms with these imports."""
    global _tasks
    _tasks += 1
    if _tasks % _COLLECT_EVERY == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    if with_gc:
        gc.enable()
