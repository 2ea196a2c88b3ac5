"""Record formats 0 and 1: what is read, damage, and incomplete messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from consumer_coord.columns import Columns, CompletedFetch, UnreadableRecordError
from consumer_coord.columns.decode_messages import Messages, kept_chunks
from tests.support.columns.batches import Rec, batch
from tests.support.columns.old_messages import OFFSETS, every_kind, old_message, wrapped
from tests.support.columns.own_message import OwnMessage, rebuilt

pytestmark = pytest.mark.usefixtures("kernel_name")


def fetched(records: bytes, offset: int = 0, **options: Any) -> CompletedFetch:
    return CompletedFetch(records, topic="orders", partition=3, offset=offset, **options)


def columns(fetch: CompletedFetch) -> dict[str, list[Any]]:
    into = Columns(["offset", "timestamp", "timestampType", "key", "value"])
    into.append(fetch)
    table = pa.table(into.finish())
    return dict(table.set_column(1, "timestamp", table["timestamp"].cast(pa.int64())).to_pydict())


@pytest.mark.parametrize("check_crcs", [True, False])
def test_old_messages_are_followed_by_batches(check_crcs: bool) -> None:
    fetch = fetched(every_kind() + batch([Rec(0), Rec(1)], 30), check_crcs=check_crcs)
    found = columns(fetch)
    assert found["offset"] == [*OFFSETS, 30, 31]
    assert found["timestamp"][:7] == [-1000, -1000, 1_234_000, -1000, -1000, -1000, 1_000_000]
    assert found["timestamp"][9:14] == [7_777_000] * 3 + [55_000, 56_000]
    assert found["timestampType"] == [0] * 9 + [1] * 5 + [0] * 5
    assert found["key"][:7] == [None, b"", b"a", b"k3", b"k4", b"k6", b"k0"]
    assert found["value"][12:17] == [b"y", None, b"", b"v", b"vvv"]
    assert (fetch.next_offset, fetch.exhausted) == (32, True)


@pytest.mark.parametrize("kind", [0, 1])
def test_many_messages(kind: int) -> None:
    data = b"".join(old_message(at, kind, b"%d" % at, b"v" * 50, at) for at in range(0, 6000, 2))
    assert columns(fetched(data, 17))["offset"] == list(range(18, 6000, 2))


def test_messages_before_the_requested_offset_are_skipped(kernel_name: str) -> None:
    messages = Messages(OwnMessage, rebuilt)
    rows = messages.decode(fetched(every_kind(), 9), kept_chunks())
    assert [one.offset() for one in rows.take(100)] == [at for at in OFFSETS if at >= 9]


def test_offsets_far_apart() -> None:
    times = {5: 0, 2**40: -(2**63), 2**40 + 1: 2**63 - 1}
    data = b"".join(old_message(at, 1, b"k", b"", time) for at, time in times.items())
    assert columns(fetched(data))["offset"] == list(times)


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 25, 33])
def test_an_incomplete_message_comes_with_the_next_response(cut: int) -> None:
    second = old_message(1, 1, b"key", b"value")
    fetch = fetched(old_message(0, 1, b"key", b"value") + second[:cut])
    assert columns(fetch)["offset"] == [0]
    assert (fetch.next_offset, fetch.needs_bytes, fetch.exhausted) == (1, 0, True)


def test_an_incomplete_first_message_needs_more_bytes() -> None:
    data = old_message(0, 1, b"key", bytes(100))
    fetch = fetched(data[:50])
    assert (fetch.needs_bytes, fetch.exhausted) == (len(data), True)


INNER = old_message(0, 1, b"k", b"v")
DAMAGED = {
    "the CRC-32 of a message": old_message(7, 1, b"k", b"v")[:-1] + b"w",
    "a key or value is longer": old_message(7, 0, b"k", b"v").replace(b"\0\0\0\1k", b"\0\0\1\1k"),
    "has a negative length": old_message(7, 0, b"k", b"v").replace(b"\0\0\0\1k", b"\xff\0\0\1k"),
    "too short": old_message(7, 0, b"k", b"v")[:8] + b"\0\0\0\6" + bytes(4) + b"\0\0",
    "the length or the offset": old_message(-7, 1, b"k", b"v"),
    "cannot be decompressed (gzip": old_message(7, 1, None, b"no gzip", attributes=1),
    "the compression codec is unknown": old_message(7, 1, None, b"", attributes=7),
    "is cut off": wrapped(7, 1, "gzip", INNER[:-1]),
    "a compressed message is cut off": wrapped(7, 1, "gzip", INNER[:9]),
    "has another format": wrapped(7, 1, "gzip", old_message(0, 0, b"k", b"v")),
    "is compressed itself": wrapped(7, 1, "gzip", wrapped(0, 1, "gzip", INNER)),
    "more than 1000000 bytes": wrapped(7, 1, "gzip", old_message(0, 1, b"k", bytes(2_000_000))),
}


@pytest.mark.parametrize("problem", DAMAGED)
def test_messages_before_damage_are_read_and_the_error_names_the_place(problem: str) -> None:
    data = old_message(5, 1, b"k", b"v") + DAMAGED[problem] + batch([Rec(0)], 20)
    fetch = fetched(data, 5, max_batch_bytes=1_000_000)
    assert columns(fetch)["offset"] == [5]
    with pytest.raises(UnreadableRecordError, match=r"orders-3 cannot be read at offset 6: ") as caught:
        columns(fetch)
    assert problem in str(caught.value)
