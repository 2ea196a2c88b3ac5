"""Read the ranges of one task to the end in an executor, and yield Arrow batches.

A worker process keeps its readers and their prefetched records from batch to batch. A range ends when the *position* reaches
the end of the range. The last offsets of a range may have no record for consumers: control records, and records that were
aborted or compacted away.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import KERNEL
from consumer_coord.log_text import get_logger
from consumer_coord.spark import kept_readers
from consumer_coord.spark.packing import Range, ReadSpec

logger: Final = get_logger(__name__)

#: Number of tasks between two garbage collections that include the frozen objects.
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
def _report_kernel() -> None:
    """Log once if this process decodes records in Python."""
    if KERNEL != "c":
        logger.warning(
            "the columns kernel is not compiled, so Python decodes the records, which is slower. Install this package from a"
            " wheel, or install a C compiler and then reinstall this package"
        )


def _read_round(ranges: Sequence[Range], spec: ReadSpec, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    _report_kernel()
    reader = kept_readers.reader_for(spec.config)
    try:
        yield from reader.read(ranges, schema, fail_on_data_loss=spec.fail_on_data_loss, timeout_ms=spec.poll_timeout_ms)
    except BaseException:
        # Also stop fetching if Spark stops reading early (GeneratorExit), because the next task does not need these records.
        reader.forget()
        raise


_tasks = 0


def _tidy(with_gc: bool) -> None:
    """Freeze imported objects; otherwise the garbage collection that Spark's daemon runs after each task takes 60-140 ms."""
    global _tasks
    _tasks += 1
    if _tasks % _COLLECT_EVERY == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    if with_gc:
        gc.enable()
