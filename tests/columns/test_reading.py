"""Record batches of Fetch responses as columns."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from consumer_coord.columns import COLUMNS, Columns, CompletedFetch, UnreadableRecordError
from consumer_coord.errors import ConfigurationError
from tests.support.columns.batches import APPEND_TIME, CODECS, TRANSACTIONAL, Rec, batch, marker

pytestmark = pytest.mark.usefixtures("kernel_name")


def fetch(records: bytes, offset: int = 0, **options: Any) -> CompletedFetch:
    return CompletedFetch(records, topic="orders", partition=3, offset=offset, **options)


def rows(records: bytes | CompletedFetch, columns: Sequence[str] = COLUMNS, **options: Any) -> list[dict[str, Any]]:
    """Read all records."""
    fetched = records if isinstance(records, CompletedFetch) else fetch(records, **options)
    into = Columns(columns)
    into.append(fetched)
    assert fetched.exhausted
    table = pa.table(into.finish())
    table.validate(full=True)
    return list(table.to_pylist())


def offsets(records: bytes | CompletedFetch, **options: Any) -> list[int]:
    return [row["offset"] for row in rows(records, ["offset"], **options)]


def test_a_record_has_the_columns_of_sparks_source() -> None:
    data = batch([Rec(0, b"key", b"value", ((b"h", b"1"), (b"h", None)), 1)], 42, timestamp=1_700_000_000_000)
    time = datetime.datetime(2023, 11, 14, 22, 13, 20, 1000, datetime.UTC)
    assert rows(data) == [
        {
            "key": b"key",
            "value": b"value",
            "topic": "orders",
            "partition": 3,
            "offset": 42,
            "timestamp": time,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        }
    ]


def test_the_types_are_those_of_the_documentation() -> None:
    schema = pa.schema(Columns().finish())
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", header))),
        ]
    )
    assert schema.field("headers").type.value_field.name == "element"


@pytest.mark.parametrize("chosen", [[name] for name in COLUMNS] + [["offset", "key"], ["headers", "value", "topic"]])
def test_columns_that_are_not_chosen_are_not_built(chosen: list[str]) -> None:
    data = batch([Rec(i, b"k%d" % i, None, ((b"h", b"%d" % i),)) for i in range(3)], 7)
    every = rows(data)
    assert rows(data, chosen) == [{name: row[name] for name in chosen} for row in every]


def test_a_column_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"no column 'time'.*timestampType"):
        Columns(["key", "time"])
    with pytest.raises(ConfigurationError, match="named twice"):
        Columns(["key", "key"])
    with pytest.raises(ConfigurationError, match="choose a list from"):
        Columns("key")
    with pytest.raises(ConfigurationError, match="choose at least one"):
        Columns([])


def test_null_and_empty_differ() -> None:
    records = [Rec(0, None, None), Rec(1, b"", b""), Rec(2, b"k", None), Rec(3, None, b"v"), Rec(4, b"k", b"v")]
    pairs = [(row["key"], row["value"]) for row in rows(batch(records))]
    assert pairs == [(None, None), (b"", b""), (b"k", None), (None, b"v"), (b"k", b"v")]


def test_the_first_null_may_come_late_and_in_another_batch() -> None:
    count = 5000
    data = batch([Rec(i) for i in range(count)]) + batch([Rec(i, None, b"v" if i % 3 else None) for i in range(count)], count)
    table = rows(data, ["key", "value"])
    assert [row["key"] for row in table] == [b"k"] * count + [None] * count
    assert [row["value"] for row in table] == [b"v"] * count + [b"v" if i % 3 else None for i in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec(codec: str) -> None:
    parts = [[Rec(i, b"key %d" % i, b"value" * i, ((b"a", b"b"),)) for i in range(40)] for _ in range(3)]
    plain = b"".join(batch(part, 40 * i) for i, part in enumerate(parts))
    packed = b"".join(batch(part, 40 * i, codec=codec) for i, part in enumerate(parts))
    assert rows(packed) == rows(plain)


def test_codecs_may_change_from_batch_to_batch() -> None:
    data = b"".join(
        batch([Rec(i, b"%d" % i) for i in range(9)], 9 * i, codec=codec) for i, codec in enumerate([*CODECS, *CODECS])
    )
    assert offsets(data) == list(range(90))


def test_snappy_without_javas_framing() -> None:
    import cramjam

    from tests.support.columns.batches import record

    packed = bytes(cramjam.snappy.compress_raw(record(Rec(0, b"k", b"v" * 100))))
    assert rows(batch(codec="snappy", payload=packed), ["value"]) == [{"value": b"v" * 100}]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_may_begin_before_the_offset_that_was_asked_for(codec: str) -> None:
    data = batch([Rec(i) for i in range(10)], 100, codec=codec)
    assert offsets(data, offset=107) == [107, 108, 109]
    before = fetch(data, 110)
    assert before.exhausted
    assert before.next_offset == 110


def test_gaps_of_a_compacted_log() -> None:
    data = batch([Rec(2), Rec(5)], 10, last_delta=9) + batch([], 20, last_delta=4) + batch([Rec(0)], 31, last_delta=3)
    fetched = fetch(data, 10)
    assert offsets(fetched) == [12, 15, 31]
    assert fetched.next_offset == 35


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_append_time_is_that_of_the_batch(codec: str) -> None:
    data = batch([Rec(0, timestamp_delta=5), Rec(1, timestamp_delta=6)], codec=codec, flags=APPEND_TIME, max_timestamp=77_000)
    table = rows(data, ["timestamp", "timestampType"])
    assert [row["timestamp"].timestamp() for row in table] == [77, 77]
    assert [row["timestampType"] for row in table] == [1, 1]


def test_timestamps_are_64_bits_wide_and_end_at_what_arrow_can_hold() -> None:
    deltas = [0, -1, 2**40, -(2**40), 2**62, 2**63 - 1, -(2**63)]
    data = batch([Rec(i, timestamp_delta=delta) for i, delta in enumerate(deltas)], timestamp=0)
    into = Columns(["timestamp"])
    into.append(fetch(data))
    found = pa.table(into.finish())["timestamp"].cast(pa.int64()).to_pylist()
    most = (2**63 - 1) // 1000 * 1000
    assert found == [0, -1000, 2**40 * 1000, -(2**40) * 1000, most, most, -most]
    wrapped = batch([Rec(0, timestamp_delta=2**63 - 1)], timestamp=2)  # Java's long overflows
    into.append(fetch(wrapped))
    assert pa.table(into.finish())["timestamp"].cast(pa.int64()).to_pylist() == [-most]


#: Header key -> Java's String for it: one U+FFFD for each maximal part of a character, one for an encoded surrogate.
JAVA_TEXTS = {
    b"": "",
    b"plain": "plain",
    b"nul\0inside": "nul\0inside",
    "größe €🎉".encode(): "größe €🎉",
    b"\xff": "�",
    b"a\xc3": "a�",
    b"\xc3(": "�(",
    b"\xe2\x82": "�",
    b"\xe2\x82(": "�(",
    b"\xe2(\xa1": "�(�",
    b"\xf0\x90\x80": "�",
    b"\xf0\x90(": "�(",
    b"\xf0\x80\x80\x80": "����",
    b"\xf4\x90\x80\x80": "����",
    b"\xf8\x88": "��",
    b"\xc0\xaf": "��",
    b"\xe0\x9f\x80": "���",
    b"\xed\xa0\x80": "�",
    b"\xed\xa0\x80\xed\xb0\x80": "��",
    b"\xed\xa0": "�",
    b"\xed\xbf(": "�(",
    b"\xed\x9f\xbf": "\ud7ff",
    b"\xed": "�",
}


@pytest.mark.parametrize("key", JAVA_TEXTS)
def test_header_keys_are_decoded_as_java_does(key: bytes) -> None:
    data = batch([Rec(headers=((key, b"1"), (b"next", b"2")))])
    assert rows(data, ["headers"])[0]["headers"] == [{"key": JAVA_TEXTS[key], "value": b"1"}, {"key": "next", "value": b"2"}]


def test_headers_of_some_records() -> None:
    many = tuple((b"h%d" % i, None if i % 5 == 0 else b"%d" % i) for i in range(200))
    records = [Rec(i, headers=many[: i % 7] if i != 50 else many) for i in range(1000)]
    for row, rec in zip(rows(batch(records), ["headers"]), records, strict=True):
        assert row["headers"] == ([{"key": key.decode(), "value": value} for key, value in rec.headers] or None)


def test_control_batches_are_skipped_and_the_position_is_behind_them() -> None:
    data = batch([Rec(0)], 0, flags=TRANSACTIONAL, producer_id=7) + marker(1, 7, commit=True)
    for read_committed in (False, True):
        fetched = fetch(data, read_committed=read_committed)
        assert offsets(fetched) == [0]
        assert fetched.next_offset == 2


def test_records_of_aborted_transactions_are_skipped_whatever_the_order_of_the_list() -> None:
    def part(base: int, producer_id: int, codec: str = "none") -> bytes:
        return batch([Rec(0), Rec(1)], base, flags=TRANSACTIONAL, producer_id=producer_id, codec=codec)

    data = b"".join(
        [
            part(0, 1),  # aborted
            part(2, 2, "zstd"),  # committed
            batch([Rec(0)], 4),  # of no transaction
            part(5, 3, "lz4"),  # aborted; the compressed bytes are never read
            marker(7, 1, commit=False),
            part(8, 1),  # the next transaction of this producer: committed
            marker(10, 2, commit=True),
            part(11, 2),  # aborted
            marker(13, 3, commit=False),
            marker(14, 1, commit=True),
            marker(15, 2, commit=False),
            part(16, 1),  # aborted; its marker is in the next response
        ]
    )
    aborted = [(2, 11), (1, 16), (3, 5), (1, 0)]
    expected = [2, 3, 4, 8, 9]
    for order in (aborted, aborted[::-1], sorted(aborted)):
        fetched = fetch(data, read_committed=True, aborted=order)
        assert offsets(fetched) == expected
        assert fetched.next_offset == 18
    assert len(offsets(fetch(data, aborted=aborted))) == 13  # read_uncommitted


def test_a_transaction_that_began_before_the_response() -> None:
    data = batch([Rec(0)], 50, flags=TRANSACTIONAL, producer_id=4) + marker(51, 4, commit=False) + batch([Rec(0)], 52)
    assert offsets(data, offset=50, read_committed=True, aborted=[(4, 10)]) == [52]


@pytest.mark.parametrize("cut", [1, 11, 16, 17, 60, 61, 69])
def test_a_last_batch_that_is_cut_off_comes_with_the_next_response(cut: int) -> None:
    whole, second = batch([Rec(0)], 0), batch([Rec(0)], 1)
    fetched = fetch(whole + second[:cut])
    assert offsets(fetched) == [0]
    assert (fetched.next_offset, fetched.needs_bytes) == (1, 0)


@pytest.mark.parametrize("cut", [1, 11, 16, 17, 60, 61, 69])
def test_a_first_batch_that_is_cut_off_needs_more_bytes(cut: int) -> None:
    data = batch([Rec(0)], 0)
    fetched = fetch(data[:cut])
    assert fetched.needs_bytes == (len(data) if cut >= 12 else 61)
    assert fetched.exhausted
    assert offsets(fetched) == []


def test_an_empty_response() -> None:
    fetched = fetch(b"", 5)
    assert fetched.exhausted
    assert (fetched.next_offset, fetched.needs_bytes) == (5, 0)
    assert rows(fetched) == []


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_reading_in_steps_yields_the_same(step: int, codec: str) -> None:
    data = b"".join(batch([Rec(i, b"%d" % i, b"v" * i) for i in range(0, 20, 2)], 20 * part, codec=codec) for part in range(8))
    fetched, found = fetch(data, 3), []
    into = Columns()
    while not fetched.exhausted:
        before = len(into)
        assert into.append(fetched, max_records=step).records == len(into) - before <= step
        part = into.finish()
        found += pa.table(part).to_pylist()
        assert list(part.positions.values()) == [fetched.next_offset]
        assert fetched.exhausted or found[-1]["offset"] < fetched.next_offset
    assert found == rows(data, offset=3)
    assert fetched.next_offset == 8 * 20 - 1


def test_the_last_record_may_exceed_max_bytes() -> None:
    fetched = fetch(batch([Rec(i, b"", b"v" * 91) for i in range(6)]))  # 100 bytes each, with the length
    into = Columns()
    assert [into.append(fetched, max_bytes=most).records for most in (1, 100, 101, 1000)] == [1, 1, 2, 2]
    with pytest.raises(ValueError, match="at least 1"):
        into.append(fetched, max_records=0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_records_from_the_end_offset_on_are_left_for_a_later_call(codec: str, step: int) -> None:
    """Offsets 0, 2, 4 to 14, then 16, 18 to 30: the end may be at a record, in a gap, between batches, or after all."""
    data = b"".join(batch([Rec(i) for i in range(0, 15, 2)], 16 * part, codec=codec) for part in range(2))
    for end in range(36):
        fetched, into = fetch(data), Columns(["offset"])
        while fetched.next_offset < end and not fetched.exhausted:
            into.append(fetched, end_offset=end, max_records=step)
        assert pa.table(into.finish())["offset"].to_pylist() == [i for i in range(0, 31, 2) if i < end]
        assert fetched.next_offset == min(end, 31)
        assert into.append(fetched, end_offset=end).records == 0
        into.append(fetched)
        assert pa.table(into.finish())["offset"].to_pylist() == [i for i in range(0, 31, 2) if i >= end]


def test_damage_at_or_behind_the_end_offset_is_no_error() -> None:
    damaged = bytearray(batch([Rec(0)], 5))
    damaged[-1] ^= 1
    fetched = fetch(batch([Rec(i) for i in range(5)]) + bytes(damaged))
    into = Columns()
    assert into.append(fetched, end_offset=5).records == 5
    assert into.append(fetched, end_offset=5).records == 0
    with pytest.raises(UnreadableRecordError):
        into.append(fetched, end_offset=6)


def test_one_builder_takes_many_partitions() -> None:
    into = Columns(["topic", "partition", "offset"])
    for number in range(20):
        data = batch([Rec(i) for i in range(number)], 100)
        into.append(CompletedFetch(data, topic="t" * (number + 1), partition=number, offset=100))
    finished = into.finish()
    assert pa.table(finished).to_pylist() == [
        {"topic": "t" * (number + 1), "partition": number, "offset": 100 + i} for number in range(20) for i in range(number)
    ]
    assert {one.partition: offset for one, offset in finished.positions.items()} == {
        0: 101,
        **{n: 100 + n for n in range(1, 20)},
    }


def test_a_topic_need_not_be_ascii() -> None:
    into = Columns(["topic"])
    into.append(CompletedFetch(batch([Rec(0), Rec(1)]), topic="größe", partition=0, offset=0))
    assert pa.table(into.finish())["topic"].to_pylist() == ["größe", "größe"]
