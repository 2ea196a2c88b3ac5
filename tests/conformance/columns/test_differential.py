"""The C kernel, its twin and two other decoders read the same from batches drawn at random."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from consumer_coord.broker.record_batch import read_header, read_records
from consumer_coord.columns import COLUMNS, Columns, CompletedFetch, UnreadableRecordError, kernel
from consumer_coord.columns.decode_messages import Messages, kept_chunks
from consumer_coord.wire.crc32c import table_crc32c
from tests.support.broker.record_batches import read_headers
from tests.support.columns.batches import APPEND_TIME, CODECS, CONTROL, TRANSACTIONAL, Rec, batch, marker, patched
from tests.support.columns.own_message import OwnMessage, rebuilt

try:
    C = kernel.load("c")[1]
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)
TWIN = kernel.load("python")[1]

texts = st.none() | st.binary(max_size=9)
header_keys = st.binary(max_size=6) | st.sampled_from(
    [b"\xed\xa0\x80", b"\xed\xa0", b"\xf0\x90\x80", b"\xe2\x82\xac", b"\xc3\xa9"]
)
headers = st.lists(st.tuples(header_keys, texts), max_size=3).map(tuple)
times = st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100)


@st.composite
def record_lists(draw: st.DrawFn, most: int = 6) -> list[Rec]:
    deltas = sorted(draw(st.sets(st.integers(0, 200), max_size=most)))
    return [Rec(delta, draw(texts), draw(texts), draw(headers), draw(times)) for delta in deltas]


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]]]:
    """The batches of a response, some of them damaged behind a right CRC, and its aborted transactions."""
    parts: list[bytes] = []
    base = draw(st.integers(0, 5))
    aborted: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 5))):
        records = draw(record_lists())
        producer_id = draw(st.integers(-1, 2))
        kind = draw(st.sampled_from(["plain", "plain", "transactional", "marker"]))
        if kind == "marker":
            parts.append(marker(base, producer_id, commit=draw(st.booleans())))
            base += 1
            continue
        flags = draw(st.sampled_from([0, 0, APPEND_TIME])) | (TRANSACTIONAL if kind == "transactional" else 0)
        last = max([one.delta for one in records], default=0) + draw(st.integers(0, 3))
        part = batch(
            records,
            base,
            codec=draw(st.sampled_from([*CODECS, "none", "none"])),
            flags=flags,
            producer_id=producer_id,
            timestamp=draw(times),
            max_timestamp=draw(times),
            last_delta=last,
        )
        if draw(st.integers(0, 3)) == 0:
            part = patched(part, draw(st.integers(21, len(part) - 1)), draw(st.binary(min_size=1, max_size=1)))
        if draw(st.integers(0, 3)) == 0:
            aborted.append((producer_id, base))
        parts.append(part)
        base += last + 1 + draw(st.integers(0, 2))
    data = b"".join(parts)
    if draw(st.integers(0, 5)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return data, draw(st.permutations(aborted))


LARGE = 10**9


@contextlib.contextmanager
def decoding_at_once(least: int) -> Iterator[None]:
    """Let the twin decode batches of at least that number of records at once."""
    before, TWIN.MANY = TWIN.MANY, least
    try:
        yield
    finally:
        TWIN.MANY = before


def outcome(module: Any, data: bytes, columns: Iterable[str], limits: tuple[int, int], **options: Any) -> Any:
    """Everything that can be seen of reading a response in steps."""
    old, kernel.kernel = kernel.kernel, module
    try:
        fetched = CompletedFetch(data, topic="orders", partition=1, **options)
        into = Columns(list(columns), max_column_bytes=limits[1])
        seen: list[Any] = []
        problem = ""
        while not fetched.exhausted and not problem:
            try:
                # Every third call ends two offsets ahead, within a batch or a gap.
                end = fetched.next_offset + 2 if len(seen) % 3 == 2 else 2**63 - 1
                appended = into.append(fetched, max_records=limits[0], max_bytes=4 * limits[0], end_offset=end)
            except UnreadableRecordError as error:
                problem = str(error)
            else:
                seen.append((appended, fetched.next_offset))
        finished = into.finish()
    finally:
        kernel.kernel = old
    table = pa.table(finished)
    table.validate(full=True)
    chunks = [batch.num_rows for batch in table.to_batches()]
    if "timestamp" in table.column_names:
        place = table.column_names.index("timestamp")
        table = table.set_column(place, "timestamp", table["timestamp"].cast(pa.int64()))
    return seen, problem, fetched.needs_bytes, chunks, table.to_pydict()


@given(
    responses(),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True),
    st.tuples(st.sampled_from([1, 3, 1000]), st.sampled_from([20, 60, 2**31 - 1])),
)
def test_both_kernels_read_the_same(
    response: tuple[bytes, list[tuple[int, int]]],
    offset: int,
    read_committed: bool,
    check_crcs: bool,
    columns: list[str],
    limits: tuple[int, int],
) -> None:
    data, aborted = response
    options = {"offset": offset, "aborted": aborted, "read_committed": read_committed, "check_crcs": check_crcs}
    in_c = outcome(C, data, columns, limits, **options)
    for least in (1, LARGE):
        with decoding_at_once(least):
            assert outcome(TWIN, data, columns, limits, **options) == in_c


@given(st.binary(max_size=200), st.integers(0, 100))
def test_both_kernels_read_the_same_from_garbage(body: bytes, count: int) -> None:
    data = patched(batch([], last_delta=100, payload=body), 57, struct.pack(">i", count))
    in_c = outcome(C, data, COLUMNS, (1000, 2**31 - 1), offset=0)
    for least in (1, LARGE):
        with decoding_at_once(least):
            assert outcome(TWIN, data, COLUMNS, (1000, 2**31 - 1), offset=0) == in_c


def rows_outcome(module: Any, data: bytes, limits: tuple[int, int], **options: Any) -> Any:
    """Everything that can be seen of reading messages in steps."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "kernel", module)
        if module not in TYPES:
            TYPES[module] = Messages(OwnMessage, rebuilt)
        fetched, kept = CompletedFetch(data, topic="orders", partition=1, **options), kept_chunks(0)
        seen: list[Any] = []
        found: list[Any] = []
        while not fetched.exhausted:
            end = fetched.next_offset + 2 if len(seen) % 3 == 2 else 2**63 - 1
            try:
                rows = TYPES[module].decode(fetched, kept, max_records=limits[0], max_bytes=limits[1], end_offset=end)
            except UnreadableRecordError as error:
                seen.append(str(error))
                break
            seen.append((len(rows), rows.position, rows.next_offset))
            while len(rows):
                found += rows.take(2)
                seen.append((rows.position, rows.leader_epoch))
        kept.sweep()
    getters = ("offset", "timestamp", "key", "value", "headers", "leader_epoch", "topic", "partition", "error", "latency")
    return seen, [[getattr(one, name)() for name in getters] for one in found]


#: Kernel -> its class of messages, which lives as long as the process.
TYPES: dict[Any, Messages] = {}


@given(
    responses(),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
    st.tuples(st.sampled_from([1, 3, 1000]), st.sampled_from([1, 40, 10**9])),
)
def test_both_kernels_make_the_same_messages(
    response: tuple[bytes, list[tuple[int, int]]],
    offset: int,
    read_committed: bool,
    check_crcs: bool,
    limits: tuple[int, int],
) -> None:
    data, aborted = response
    options = {"offset": offset, "aborted": aborted, "read_committed": read_committed, "check_crcs": check_crcs}
    assert rows_outcome(C, data, limits, **options) == rows_outcome(TWIN, data, limits, **options)


@given(record_lists(20).filter(bool))
def test_the_twin_decodes_a_valid_batch_at_once(records: list[Rec]) -> None:
    usual = [attrs.evolve(one, timestamp_delta=one.timestamp_delta % 10**6) for one in records]
    with decoding_at_once(1):
        assert TWIN.decode_at_once(TWIN.Batches(batch(usual), 0, b"", False, True).batches[0]) is not None


def read(data: bytes) -> dict[str, list[Any]]:
    return dict(outcome(C, data, COLUMNS, (1000, 2**31 - 1), offset=0)[4])


@given(st.lists(record_lists(), max_size=4), st.sampled_from(["none", "gzip"]))
def test_the_brokers_decoder_reads_the_same(parts: list[list[Rec]], codec: str) -> None:
    parts = [[Rec(one.delta, one.key, one.value) for one in part] for part in parts]
    data = b"".join(batch(part, 1000 * i, codec=codec) for i, part in enumerate(parts))
    table = read(data)
    records = [one for header in read_headers(data) if header.count for one in read_records(data, header)]
    assert table["offset"] == [one.offset for one in records]
    assert table["key"] == [one.key for one in records]
    assert table["value"] == [one.value for one in records]


@given(record_lists(20), st.sampled_from([0, 1, 4]))
def test_kafka_pythons_batches_are_read_as_kafka_python_reads_them(records: list[Rec], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for place, one in enumerate(records):
        names = [(f"h{i}", value) for i, (_, value) in enumerate(one.headers)]
        builder.append(place, abs(one.timestamp_delta) % 10**12, one.key, one.value, names)
    data = bytes(builder.build()) if records else b""
    table = read(data)
    expected = list(DefaultRecordBatch(data)) if records else []
    assert table["offset"] == [one.offset for one in expected]
    assert table["timestamp"] == [one.timestamp * 1000 for one in expected]
    assert table["key"] == [one.key for one in expected]
    assert table["value"] == [one.value for one in expected]
    found = [[(one["key"], one["value"]) for one in row or ()] for row in table["headers"]]
    assert found == [[tuple(pair) for pair in one.headers] for one in expected]


@given(st.binary(max_size=5000))
def test_both_checksums_are_the_same(data: bytes) -> None:
    assert C.crc32c(data) == TWIN.crc32c(data) == table_crc32c(data)


def test_known_checksums() -> None:
    """RFC 3720, B.4."""
    for module in (C, TWIN):
        assert module.crc32c(bytes(32)) == 0x8A9136AA
        assert module.crc32c(b"\xff" * 32) == 0x62A8AB43
        assert module.crc32c(bytes(range(32))) == 0x46DD794E
        assert module.crc32c(b"") == 0
        long = bytes(range(256)) * 64
        for size in (1535, 1536, 1537, 3072, 16383, 16384):
            assert module.crc32c(long[:size]) == table_crc32c(long[:size])


def test_the_markers_of_these_tests_are_control_batches() -> None:
    header = read_header(marker(4, 1, commit=False))
    assert header.control
    assert header.attributes == CONTROL | TRANSACTIONAL
