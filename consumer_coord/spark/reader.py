"""The executor's side: one task reads its ranges of offsets to the end and yields Arrow batches.

A worker process keeps its librdkafka consumers, assigned and with what they fetched ahead, from batch to batch.  A range
ends by *position*: the last offsets may be control records, aborted or compacted away, and no message comes for those.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence

import attrs
import pyarrow as pa

from consumer_coord.printable import get_logger
from consumer_coord.spark.batches import FetchHeaders, Run, to_batch
from consumer_coord.spark.consumers import CachedConsumer, Chunk, cached_consumer
from consumer_coord.spark.packing import Range, ReadSpec

logger = get_logger(__name__)

#: An Arrow batch is handed over when it has this many records, or this many bytes of values.
BATCH_RECORDS = 10_000
BATCH_BYTES = 16 << 20

#: After how many tasks the frozen objects are collected.
_COLLECT_EVERY = 64


def read_ranges(ranges: Sequence[Range], spec: ReadSpec, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Every record of ``ranges`` (offsets included to not included), in the order of offsets within a partition.

    Raises :class:`~consumer_coord.spark.errors.DataLossError` and ``ReadStalledError``, both naming topic, partition
    and offsets.
    """
    with_gc = gc.isenabled()
    gc.disable()
    try:
        for part in _rounds(ranges):
            yield from _read_round(part, spec, schema)
    finally:
        _tidy(with_gc)


def _rounds(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    """Ranges in rounds that name a partition once each: a packing may put two of one partition into a task."""
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


def _read_round(ranges: Sequence[Range], spec: ReadSpec, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    consumer: CachedConsumer = cached_consumer(spec.config, time.monotonic())
    try:
        waiting: list[Chunk] = []
        records = size = 0
        for chunk in consumer.read(ranges, fail_on_data_loss=spec.fail_on_data_loss, timeout_ms=spec.poll_timeout_ms):
            waiting.append(chunk)
            records += len(chunk.messages)
            # Of every sixteenth: this bounds memory, and to ask each message costs a twentieth of reading it.
            size += sum(map(len, chunk.messages[::16])) * 16
            if records >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield from _checked(consumer, waiting, schema)
                waiting, records, size = [], 0, 0
        # Also when nothing is left: the last offsets may be there without a message, in another topic of the same name.
        yield from _checked(consumer, waiting, schema)
    except BaseException:
        # Also when Spark stops reading in the middle (GeneratorExit): what is in flight fits no next task.
        consumer.forget()
        raise


def _checked(consumer: CachedConsumer, chunks: Sequence[Chunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batch of ``chunks``, when their topics are still those that the task was planned from."""
    answers = consumer.ask_ids()
    # Meanwhile, because the answers take a millisecond.
    batch = _batch(chunks, schema, consumer.fetch_headers) if chunks else None
    recreated = consumer.drop_recreated(answers)
    if recreated:
        chunks = [chunk for chunk in chunks if chunk.topic not in recreated]
        batch = _batch(chunks, schema, consumer.fetch_headers) if chunks else None
    if batch is not None:
        yield batch


def _batch(chunks: Sequence[Chunk], schema: pa.Schema, fetch_headers: FetchHeaders) -> pa.RecordBatch:
    runs = [Run(chunk.topic, chunk.partition, len(chunk.messages)) for chunk in chunks]
    messages = chunks[0].messages if len(chunks) == 1 else [message for chunk in chunks for message in chunk.messages]
    return to_batch(messages, runs, schema, fetch_headers)


_tasks = 0


def _tidy(with_gc: bool) -> None:
    """Spark's daemon collects garbage after each task, 60-140 ms with everything that is imported here: freeze that."""
    global _tasks
    _tasks += 1
    if _tasks % _COLLECT_EVERY == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    if with_gc:
        gc.enable()
