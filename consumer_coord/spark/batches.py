"""Build Arrow batches from librdkafka's messages, in an executor's worker.

Most columns need no Python object per cell: keys and values are joined into one buffer, the topic is repeated, and offsets and
partitions are numpy arrays. Only the columns that the query reads are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
from confluent_kafka import Message

Headers: TypeAlias = list[tuple[str, bytes | None]]
#: Returns the headers of a message if librdkafka's Python client cannot return them.
FetchHeaders: TypeAlias = Callable[[Message], Headers]

#: The range of milliseconds whose microseconds fit into 64 bits, as Spark's timestamps require.
_MOST_MS = np.iinfo(np.int64).max // 1000
_LEAST_MS = -_MOST_MS


@attrs.frozen
class Run:
    """Consecutive messages of one partition."""

    topic: str
    partition: int
    count: int


def to_batch(
    messages: Sequence[Message], runs: Sequence[Run], schema: pa.Schema, fetch_headers: FetchHeaders
) -> pa.RecordBatch:
    """Return one Arrow batch of messages without errors; ``runs`` names their partitions, in order."""
    cells = {"timestamp", "timestampType"} & set(schema.names) and list(map(Message.timestamp, messages))
    arrays = []
    for field in schema:
        if field.name in ("key", "value"):
            accessor = Message.key if field.name == "key" else Message.value
            array = _binary(list(map(accessor, messages)))
        elif field.name == "topic":
            array = _topics(runs)
        elif field.name == "partition":
            array = pa.array(np.repeat([run.partition for run in runs], [run.count for run in runs]).astype(np.int32))
        elif field.name == "offset":
            array = pa.array(_offsets(messages, runs))
        elif field.name == "timestamp":
            millis = np.fromiter(map(itemgetter(1), cells), np.int64, len(messages))
            array = pa.array(np.clip(millis, _LEAST_MS, _MOST_MS) * 1000).cast(field.type)
        elif field.name == "timestampType":
            # librdkafka counts from 0 (none), Java from -1.
            array = pa.array(np.fromiter(map(itemgetter(0), cells), np.int32, len(messages)) - np.int32(1))
        else:
            array = _headers(_header_lists(messages, fetch_headers), field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


#: Not ``message.headers()``: for a key that is not UTF-8, this function returns a result and also sets an exception. CPython
#: checks for both after an ordinary call from C, but not after a call that its interpreter has specialized. In that case the
#: exception appears at a later instruction.
_headers_of = methodcaller("headers")


def _header_lists(messages: Sequence[Message], fetch: FetchHeaders) -> list[Headers | None]:
    found: list[Headers | None] = []
    for message in messages:
        try:
            found.append(_headers_of(message))
        except SystemError:
            # A key that is not UTF-8.
            found.append(fetch(message))
    return found


def _binary(cells: list[bytes | None]) -> pa.Array:
    try:
        joined = b"".join(cells)  # type: ignore[arg-type]  # a None among them raises, and is dealt with
    except TypeError:
        return pa.array(cells, type=pa.binary())
    ends = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, cells), np.int64, len(cells)), out=ends[1:])  # type: ignore[arg-type]
    if ends[-1] > np.iinfo(np.int32).max:
        return pa.array(cells, type=pa.binary())
    return pa.Array.from_buffers(pa.binary(), len(cells), [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(joined)])


def _topics(runs: Sequence[Run]) -> pa.Array:
    if len({run.topic for run in runs}) == 1:
        return pa.repeat(runs[0].topic, sum(run.count for run in runs))
    return pa.concat_arrays([pa.repeat(run.topic, run.count) for run in runs])


def _offsets(messages: Sequence[Message], runs: Sequence[Run]) -> Any:
    parts = []
    at = 0
    for run in runs:
        first, last = messages[at].offset(), messages[at + run.count - 1].offset()
        if last - first + 1 == run.count:  # The offsets increase without a gap.
            parts.append(np.arange(first, last + 1, dtype=np.int64))
        else:
            part = messages[at : at + run.count]
            parts.append(np.fromiter(map(Message.offset, part), np.int64, run.count))
        at += run.count
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _headers(cells: Sequence[Headers | None], kind: pa.ListType) -> pa.Array:
    """Return a list of structs for each message, null for one without headers."""
    has = np.fromiter(map(bool, cells), np.bool_, len(cells))
    validity = None if has.all() else pa.py_buffer(np.packbits(has, bitorder="little"))
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) if cell else 0 for cell in cells], out=ends[1:])
    flat = list(chain.from_iterable(filter(None, cells)))
    keys = pa.array(list(map(itemgetter(0), flat)), pa.string())
    pairs = pa.StructArray.from_arrays([keys, _binary(list(map(itemgetter(1), flat)))], fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, len(cells), [validity, pa.py_buffer(ends)], children=[pairs])
