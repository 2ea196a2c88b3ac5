"""Damaged and hostile responses: the error names the place, and all records before it are still read."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import pyarrow as pa
import pytest

from consumer_coord.columns import COLUMNS, Columns, CompletedFetch, UnreadableRecordError
from consumer_coord.topic_partition import TopicPartition
from tests.support.columns.batches import (
    APPEND_TIME,
    CONTROL,
    TRANSACTIONAL,
    Rec,
    batch,
    field,
    marker,
    patched,
    record,
    varint,
)

pytestmark = pytest.mark.usefixtures("kernel_name")

#: An endless varint, and varints with a bit beyond the 64th (or the 32nd).
ENDLESS = b"\x80" * 11


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


def old_message(magic: int) -> bytes:
    """Return a message in the formats before Kafka 0.11."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 0) if magic else b"") + struct.pack(">ii", -1, 1) + b"v"
    return struct.pack(">qiI", 10, len(body) + 4, 0) + body


def after(first: int) -> dict[str, bytes]:
    """Return batches that begin at this offset and cannot be read, by their problem."""
    good = batch([Rec(0), Rec(1)], first)
    gzip_bomb = bytes(cramjam.gzip.compress(bytes(3_000_000)))
    return {
        "record format is 0 or 1": old_message(0),
        "older than Kafka 0.11": old_message(1),
        "format is unknown": patched(good, 16, b"\3"),
        "length of the batch": patched(good, 8, struct.pack(">i", 48)),
        "smaller than its header": patched(good, 8, struct.pack(">i", -1)),
        "CRC-32C": good[:-1] + b"?",
        "offsets of the batch": patched(good, 0, struct.pack(">q", -1)),
        "are out of range": patched(good, 23, struct.pack(">i", -1)),
        "the offsets of the batch are out of range": patched(good, 0, struct.pack(">q", 2**63 - 1)),
        "before the end of the previous batch": batch([Rec(0)], 1),
        "as many records": patched(good, 57, struct.pack(">i", 3)),
        "cannot hold as many records": patched(good, 57, struct.pack(">i", -1)),
        "the batch cannot hold as many records": batch([Rec(0)], first, count=2**31 - 1, last_delta=2**31 - 2),
        "the batch cannot hold as many records as its header says": batch(
            [Rec(0)], first, codec="zstd", count=2**31 - 1, last_delta=2**31 - 2
        ),
        "compression codec": patched(good, 21, struct.pack(">h", 5)),
        "the control batch": batch([framed(b"\0\0\0\1\1\0")], first, flags=CONTROL, last_delta=0),
        "control batch is malformed": patched(
            marker(first, 1, commit=True), 21, struct.pack(">h", TRANSACTIONAL | CONTROL | 2)
        ),
        "cannot be decompressed": batch([], first, codec="lz4", payload=b"\x04\x22\x4d\x18garbage", count=1, last_delta=0),
        "the batch cannot be decompressed (gzip": batch([], first, codec="gzip", payload=b"no gzip", count=1, last_delta=0),
        "the batch cannot be decompressed (zstd": batch([], first, codec="zstd", payload=b"no zstd", count=1, last_delta=0),
        "the batch cannot be decompressed (snappy": batch(
            [], first, codec="snappy", payload=b"\xff" * 9, count=1, last_delta=0
        ),
        "a block is longer than the stream": batch(
            [], first, codec="snappy", payload=b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 9), count=1, last_delta=0
        ),
        "ends inside the length of a block": batch(
            [], first, codec="snappy", payload=b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"\0", count=1, last_delta=0
        ),
        "more than 1000000 bytes": batch([], first, codec="gzip", payload=gzip_bomb, count=1, last_delta=0),
        "length of a record": batch(
            [framed(b"\0" + varint(0) * 2 + field(b"k") + field(b"v") + varint(0) + b"?")], first, last_delta=0
        ),
        "does not fit its content": batch([b"\x7e" + bytes(6)], first, last_delta=0),
        "the length of a record": batch([varint(-1) + bytes(7)], first, last_delta=0),
        "a varint": batch([framed(b"\0" + ENDLESS)], first, last_delta=0),
        "a varint is too long": batch([b"\xff\xff\xff\xff\x10" + bytes(9)], first, last_delta=0),
        "does not end within its record": batch([framed(b"\0\0\0\1\1") + bytes(3)], first, last_delta=0),
        "outside its batch": batch([Rec(0), Rec(5)], first, last_delta=4),
        "not behind the previous record": batch([Rec(0), Rec(0)], first, last_delta=4),
        "the offset of a record": batch([Rec(-1)], first, last_delta=4),
        "a key, value or header": batch([framed(b"\0\0\0" + varint(9) + b"k" * 3 + bytes(3))], first, last_delta=0),
        "has a negative length": batch([framed(b"\0\0\0\3" + bytes(4))], first, last_delta=0),
        "as many headers": batch([framed(b"\0\0\0\1\1" + varint(-1))], first, last_delta=0),
        "cannot hold as many headers": batch([framed(b"\0\0\0\1\1" + varint(2**31 - 1))], first, last_delta=0),
        "a header has no key": batch([framed(b"\0\0\0\1\1" + varint(1) + field(None) + field(b"v"))], first, last_delta=0),
        "header is longer than its record": batch(
            [framed(b"\0\0\0\1\1" + varint(1) + b"\2" + field(b"v"))], first, last_delta=0
        ),
        "bytes remain": patched(good, 57, struct.pack(">i", 1)),
    }


def read(fetched: CompletedFetch, **limits: int) -> tuple[list[int], UnreadableRecordError]:
    """Read until the error; return the offsets before it."""
    into = Columns()
    while True:
        try:
            into.append(fetched, **limits)
        except UnreadableRecordError as error:
            table = pa.table(into.finish())
            table.validate(full=True)
            return table["offset"].to_pylist(), error
        assert not fetched.exhausted


@pytest.mark.parametrize("problem", after(10))
@pytest.mark.parametrize("max_records", [1, 1000])
def test_records_before_damage_are_read_and_the_error_names_the_place(problem: str, max_records: int) -> None:
    data = batch([Rec(i) for i in range(10)]) + after(10)[problem] + batch([Rec(i) for i in range(20)], 20)
    fetched = CompletedFetch(data, topic="orders", partition=3, offset=5, read_committed=True, max_batch_bytes=1_000_000)
    found, error = read(fetched, max_records=max_records)
    assert found[:5] == [5, 6, 7, 8, 9]
    assert problem in str(error)
    assert str(error).startswith(f"orders-3 cannot be read at offset {found[-1] + 1}: ")
    assert "Seek to a later offset" in str(error)
    assert error.partition == TopicPartition("orders", 3)
    assert error.partition.offset == found[-1] + 1 == fetched.next_offset
    assert not fetched.exhausted
    assert len(found) <= 7  # no offset after the damage
    again = Columns()
    with pytest.raises(UnreadableRecordError):
        again.append(fetched)
    assert len(again) == 0


def test_columns_stay_usable_after_damage() -> None:
    into = Columns(["offset", "key", "headers"])
    hidden = Rec(2, b"k", b"v", ((b"a", None),))
    broken = record(hidden)[:-1] + b"\3"  # its header's value has the length -2
    fetched = CompletedFetch(batch([Rec(0), Rec(1), broken], last_delta=9), topic="orders", partition=3, offset=0)
    into.append(fetched)
    with pytest.raises(UnreadableRecordError, match="at offset 2: a key, value or header"):
        into.append(fetched)
    into.append(CompletedFetch(batch([Rec(0, headers=((b"a", b"1"),))], 7), topic="orders", partition=4, offset=7))
    finished = into.finish()
    assert pa.table(finished)["headers"].to_pylist() == [None, None, [{"key": "a", "value": b"1"}]]
    assert dict(finished.positions) == {TopicPartition("orders", 3): 2, TopicPartition("orders", 4): 8}


def test_crcs_are_checked_unless_the_caller_says_no() -> None:
    data = batch([Rec(0, b"k", b"v" * 50)])
    for at in range(21, len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(UnreadableRecordError, match="CRC-32C"):
            Columns().append(CompletedFetch(damaged, topic="orders", partition=3, offset=0))
    unchecked = CompletedFetch(data[:-9] + b"w" + data[-8:], topic="orders", partition=3, offset=0, check_crcs=False)
    assert Columns().append(unchecked).records == 1


def test_crcs_of_batches_of_every_size_are_computed() -> None:
    for size in (*range(0, 700, 13), *range(4_000, 4_600, 37), 1_000_003):
        data = batch([Rec(0, b"k", bytes(index % 251 for index in range(size)))])
        assert Columns().append(CompletedFetch(data, topic="orders", partition=3, offset=0)).records == 1
        damaged = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
        with pytest.raises(UnreadableRecordError, match="CRC-32C"):
            Columns().append(CompletedFetch(damaged, topic="orders", partition=3, offset=0))


def test_a_batch_that_unpacks_to_exactly_the_limit_is_read() -> None:
    size = len(record(Rec(0, b"k", b"v" * 100_000)))
    data = batch([Rec(0, b"k", b"v" * 100_000)], codec="gzip")
    for limit, fits in ((size, True), (size - 1, False)):
        fetched = CompletedFetch(data, topic="orders", partition=3, offset=0, max_batch_bytes=limit)
        into = Columns()
        if fits:
            assert into.append(fetched).records == 1
        else:
            with pytest.raises(UnreadableRecordError, match=f"more than {limit} bytes"):
                into.append(fetched)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_output_grows_from_its_first_guess(codec: str) -> None:
    """Each codec's error for a full output is recognised by its text, which cramjam defines."""
    value = bytes(5_000_000)
    into = Columns(["value"])
    data = batch([Rec(0, b"k", value)], codec=codec)
    if codec == "snappy":
        packed = bytes(cramjam.snappy.compress_raw(record(Rec(0, b"k", value))))
        data = batch([Rec(0)], codec=codec, payload=packed)
    into.append(CompletedFetch(data, topic="orders", partition=3, offset=0))
    assert pa.table(into.finish())["value"].to_pylist() == [value]


def test_a_record_larger_than_a_column_may_be() -> None:
    into = Columns(["value"], max_column_bytes=10)
    fetched = CompletedFetch(batch([Rec(0, b"", b"v" * 10), Rec(1, b"", b"v" * 11)]), topic="orders", partition=3, offset=0)
    assert into.append(fetched).records == 1
    with pytest.raises(UnreadableRecordError, match="at offset 1: a record is too large for an Arrow column"):
        into.append(fetched)


def test_every_cut_of_a_response_is_survived() -> None:
    data = batch([Rec(i, headers=((b"h", b"x"),)) for i in range(3)], flags=APPEND_TIME) + batch([Rec(0)], 3, codec="lz4")
    for cut in range(len(data)):
        fetched = CompletedFetch(data[:cut], topic="orders", partition=3, offset=0)
        into = Columns()
        into.append(fetched)
        assert fetched.exhausted
        assert len(into) in (0, 3)


def fetch_with_repaired_crc(data: bytes, at: int, byte: int) -> CompletedFetch:
    return CompletedFetch(patched(data, at, bytes([byte])), topic="orders", partition=3, offset=0)


@pytest.mark.parametrize("codec", ["none", "zstd", "snappy", "lz4", "gzip"])
def test_every_byte_of_a_batch_may_have_any_of_some_values(codec: str) -> None:
    """A response with a correct CRC gives records, or the error: never another exception, never a wrong array."""
    data = batch([Rec(0, headers=((b"h", b"x"),)), Rec(1, None, None), Rec(2, b"k" * 70)], codec=codec)
    for at in [8, 9, 10, 11, *range(21, len(data))]:
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            fetched = fetch_with_repaired_crc(data, at, byte)
            into = Columns(COLUMNS)
            problems: list[Any] = []
            while not fetched.exhausted and not problems:
                try:
                    into.append(fetched)
                except UnreadableRecordError as error:
                    problems.append(error)
            pa.table(into.finish()).validate(full=True)


def test_offsets_near_the_largest_number() -> None:
    base = 2**63 - 10
    fetched = CompletedFetch(
        batch([Rec(0), Rec(8), Rec(2**31 - 1)], base, last_delta=8), topic="orders", partition=3, offset=base
    )
    found, error = read(fetched)
    assert found == [base, base + 8]
    assert "outside its batch" in str(error)


def test_an_error_before_a_batch_that_cannot_be_decompressed_is_its_own() -> None:
    later = batch([], 30, codec="zstd", payload=b"no zstd", count=1, last_delta=0)
    data = batch([Rec(0), Rec(1)], 10, codec="zstd") + batch([Rec(0), Rec(0)], 20, codec="lz4", last_delta=4) + later
    found, error = read(CompletedFetch(data, topic="orders", partition=3, offset=10))
    assert found == [10, 11, 20]
    assert "not behind the previous record. Seek" in str(error)
