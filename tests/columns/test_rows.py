"""Messages as rows of decoded chunks: steps, positions, and the memory of messages that the application keeps."""

from __future__ import annotations

import gc
import itertools
import os
import platform
import subprocess
import sys
import threading
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.columns import CompletedFetch, UnreadableRecordError, kernel
from consumer_coord.columns.decode_messages import KEPT_BYTES, STEP_BYTES, Kept, Messages, Rows, first_messages, kept_chunks
from tests.support.columns.batches import CODECS, TRANSACTIONAL, Rec, batch, marker
from tests.support.columns.own_message import OwnMessage, rebuilt
from tests.support.consumer.signal_points import interrupted

pytestmark = pytest.mark.usefixtures("kernel_name")


@pytest.fixture
def messages(kernel_name: str) -> Messages:
    if kernel_name not in TYPES:
        TYPES[kernel_name] = Messages(OwnMessage, rebuilt)
    return TYPES[kernel_name]


#: A class of messages lives as long as the process.
TYPES: dict[str, Messages] = {}


def fetched(records: bytes | bytearray, offset: int = 0, **options: Any) -> CompletedFetch:
    return CompletedFetch(records, topic="orders", partition=3, offset=offset, **options)


def chunks(messages: Messages, fetch: CompletedFetch, kept: Kept | None = None, **limits: int) -> Iterator[Rows]:
    kept = kept or kept_chunks()
    while not fetch.exhausted:
        yield messages.decode(fetch, kept, **limits)


def offsets(messages: Messages, records: bytes, offset: int = 0, **options: Any) -> list[int]:
    return [one.offset() for rows in chunks(messages, fetched(records, offset, **options)) for one in rows.take(10**6)]


def log(count: int, *, value: int = 100, in_batch: int = 200, codec: str = "none") -> bytes:
    records = [Rec(at, b"%08d" % at, bytes(value), ((b"h", b"header"),)) for at in range(in_batch)]
    return b"".join(batch(records, first, codec=codec) for first in range(0, count, in_batch))


# ---- what is decoded


@pytest.mark.parametrize("codec", CODECS)
def test_every_record_becomes_a_message(messages: Messages, codec: str) -> None:
    found = [one for rows in chunks(messages, fetched(log(600, codec=codec))) for one in rows.take(10**6)]
    assert [one.offset() for one in found] == list(range(600))
    assert {(one.topic(), one.partition(), one.value(), one.error()) for one in found} == {("orders", 3, bytes(100), None)}
    assert [one.key() for one in found] == [b"%08d" % (at % 200) for at in range(600)]
    assert all(one.headers() == [("h", b"header")] for one in found)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_large_response_is_decoded_in_steps(messages: Messages, codec: str) -> None:
    """So the first message does not wait for the last one."""
    fetch, kept = fetched(log(100_000, in_batch=1000, codec=codec)), kept_chunks()
    rows = messages.decode(fetch, kept)
    assert STEP_BYTES / 200 < len(rows) < STEP_BYTES / 100
    assert rows.next_offset == fetch.next_offset == len(rows) < 100_000
    assert kept.chunk_bytes < 3 * STEP_BYTES
    assert len(messages.decode(fetch, kept, max_records=7)) == 7
    assert len(messages.decode(fetch, kept, end_offset=fetch.next_offset + 5)) == 5


def test_the_position_is_behind_the_last_taken_message(messages: Messages) -> None:
    data = batch([Rec(2), Rec(5)], 10, last_delta=9) + marker(20, 1, commit=True) + batch([Rec(0)], 31, last_delta=3)
    fetch = fetched(data, 11)
    rows = messages.decode(fetch, kept_chunks())
    assert (rows.position, rows.next_offset, len(rows), rows.leader_epoch) == (11, 35, 3, -1)
    assert [rows.take_one().offset(), rows.position] == [12, 13]
    assert [one.offset() for one in rows.take(1)] + [rows.position] == [15, 16]
    assert [one.offset() for one in rows.take(100)] + [rows.position] == [31, 35]
    assert (rows.take(5), rows.take_one(), len(rows), rows.leader_epoch) == ([], None, 0, 0)
    assert rows.take(-1) == []


def test_rows_can_be_taken_after_an_interrupt_anywhere(messages: Messages) -> None:
    """The kernel in C has no points at which a signal handler may run."""
    for at in itertools.count():
        rows = messages.decode(fetched(log(200)), kept_chunks())
        with interrupted(at) as points:
            rows.take(1)
        assert len(rows.take(200)) in (199, 200), points.raised_at
        if points.raised_at is None:
            break


def test_the_first_message_of_each_partition_is_found_also_behind_errors_and_among_chunks(messages: Messages) -> None:
    records = log(600)
    first, second = (list(messages.decode(fetched(records, at), kept_chunks()).take(3)) for at in (0, 300))
    other = CompletedFetch(records, topic="orders", partition=4, offset=7)
    others = list(messages.decode(other, kept_chunks()).take(2))
    error = OwnMessage("orders", 5, 1, error="an error")
    alone = OwnMessage("bills", 5, 2)
    mixed = [error, *second[1:], *others, alone, *first, *second]
    assert first_messages(mixed) == {("orders", 3): second[1], ("orders", 4): others[0], ("bills", 5): alone}
    assert first_messages([]) == {}


def test_records_that_are_not_for_the_application_move_the_position(messages: Messages) -> None:
    data = batch([Rec(0)], 0, flags=TRANSACTIONAL, producer_id=7) + marker(1, 7, commit=False)
    rows = messages.decode(fetched(data, read_committed=True, aborted=[(7, 0)]), kept_chunks())
    assert (len(rows), rows.position, rows.next_offset) == (0, 2, 2)


def test_aborted_records_and_markers_are_skipped(messages: Messages) -> None:
    def part(base: int, producer_id: int, codec: str = "none") -> bytes:
        return batch([Rec(0), Rec(1)], base, flags=TRANSACTIONAL, producer_id=producer_id, codec=codec)

    data = part(0, 1) + part(2, 2, "zstd") + batch([Rec(0)], 4) + part(5, 3, "lz4") + marker(7, 1, commit=False) + part(8, 1)
    assert offsets(messages, data, read_committed=True, aborted=[(1, 0), (3, 5)]) == [2, 3, 4, 8, 9]
    assert len(offsets(messages, data)) == 9


def test_messages_before_damage_are_delivered_first(messages: Messages) -> None:
    damaged = batch([Rec(i) for i in range(5)]) + batch([Rec(0), b"\x7e" + bytes(6)], 5, last_delta=1, count=2)
    fetch, kept = fetched(damaged, 2), kept_chunks()
    assert [one.offset() for one in messages.decode(fetch, kept).take(100)] == [2, 3, 4, 5]
    for _ in range(2):
        with pytest.raises(UnreadableRecordError, match="orders-3 cannot be read at offset 6"):
            messages.decode(fetch, kept)
    assert kept.chunk_bytes == 0


def test_a_large_value_is_handed_on_without_a_second_copy(messages: Messages) -> None:
    records = [Rec(0, b"k", b"a" * 50_000, ((b"h", b"1"),)), Rec(1, None, b"b"), Rec(2, b"", b"c" * 300_000), Rec(3, b"last")]
    kept = kept_chunks()
    found = [one for rows in chunks(messages, fetched(batch(records)), kept) for one in rows.take(2)]
    assert [(one.key(), one.value(), one.headers()) for one in found[:2]] == [
        (b"k", b"a" * 50_000, [("h", b"1")]),
        (None, b"b", None),
    ]
    rest = fetched(batch(records), 2)
    del found
    gc.collect()
    before = kept.chunk_bytes
    rows = messages.decode(rest, kept, max_bytes=10**9)
    assert kept.chunk_bytes - before < 310_000
    assert [(one.key(), one.value()) for one in rows.take(9)] == [(b"", b"c" * 300_000), (b"last", b"v")]


#: Reads the file of the argument again and again, and prints the page faults of ten rounds.
_ROUNDS = """
import mmap, resource, sys
from consumer_coord.columns import CompletedFetch
from consumer_coord.columns.decode_messages import Messages, kept_chunks
from tests.support.columns.own_message import OwnMessage, rebuilt
from tests.support.consumer.signal_points import interrupted

messages, kept = Messages(OwnMessage, rebuilt), kept_chunks()
with open(sys.argv[1], "rb") as file:
    response = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
for count in range(20):
    if count == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    fetch, found = CompletedFetch(response, topic="orders", partition=0, offset=0), []
    while not fetch.exhausted:
        found += messages.decode(fetch, kept).take(10)
    assert [len(one.value()) for one in found] == [1_000_000] * 8
    del found
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep freed memory by rules of their own")
def test_large_values_reuse_the_memory_of_earlier_ones(in_c: Messages, tmp_path: Path) -> None:
    file = tmp_path / "response"
    file.write_bytes(log(8, value=1_000_000, in_batch=1))
    # Limits in the environment would be kept.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", _ROUNDS, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | {"CONSUMER_COORD_KERNEL": "c"})
    # In fresh memory, the 80 values would need one fault for each of their 19,531 pages.
    assert int(done.stdout) < 2000


def test_taken_rows_are_not_extended(messages: Messages) -> None:
    fetch = fetched(log(400))
    rows = messages.decode(fetch, kept_chunks(), max_records=10)
    rows.take(1)
    with pytest.raises(ValueError, match="taken already"):
        fetch.append_to(rows, 1, 1, 100)


def test_a_message_outlives_the_response(messages: Messages) -> None:
    response = bytearray(log(200))
    fetch = fetched(response)
    found = messages.decode(fetch, kept_chunks()).take(200)
    del fetch
    response[:] = bytes(len(response))
    assert {one.value() for one in found} == {bytes(100)}
    assert [one.key() for one in found] == [b"%08d" % at for at in range(200)]


# ---- rule 1: messages that the application keeps


COUNT = 40_000


@pytest.fixture(scope="module")
def records() -> bytes:
    return log(COUNT, in_batch=1000)


@pytest.fixture
def in_c(messages: Messages, kernel_name: str) -> Messages:
    if kernel_name == "python":
        pytest.skip("messages of the twin own their bytes from the start")
    return messages


def read(messages: Messages, records: bytes, kept: Kept, use: Callable[[Rows], object]) -> None:
    for rows in chunks(messages, fetched(records, check_crcs=False), kept):
        while len(rows):
            use(rows)


@pytest.mark.parametrize("batch_size", [100, 1000, 5000, 30_000])
def test_an_ordinary_loop_copies_nothing(in_c: Messages, records: bytes, batch_size: int) -> None:
    kept, before = kept_chunks(), 0
    batch_now: list[Any] = []
    for rows in chunks(in_c, fetched(records, check_crcs=False), kept):
        while len(rows):
            if len(batch_now) >= batch_size:
                batch_now = []  # as `batch = consume(n)`, after the call has returned
            taken = rows.take(batch_size - len(batch_now))
            batch_now = [*batch_now, *taken]
            before += len(taken)
    assert before == COUNT
    assert kept.copied_total == 0


def test_a_loop_of_polls_copies_nothing(in_c: Messages, records: bytes) -> None:
    kept = kept_chunks()
    last: list[Any] = []
    read(in_c, records, kept, lambda rows: last.__setitem__(slice(None), [rows.take_one()]))
    assert kept.copied_total == 0
    assert last[0].offset() == COUNT - 1


def test_messages_that_are_processed_one_by_one_are_not_copied_while_they_are_processed(in_c: Messages, records: bytes) -> None:
    kept, waiting = kept_chunks(), deque[Any]()
    read(in_c, records, kept, lambda rows: waiting.extend(rows.take(10**6)))
    while waiting:
        waiting.popleft()
    assert (kept.copied_total, kept.chunk_bytes) == (0, 0)


@pytest.mark.parametrize("keep_one_of", [1000, 100, 10, 3, 2, 1])
def test_kept_messages_keep_three_times_their_own_bytes_at_most(in_c: Messages, records: bytes, keep_one_of: int) -> None:
    kept = kept_chunks(1 << 20)
    cache: list[Any] = []

    def use(rows: Rows) -> None:
        batch_now = rows.take(500)
        cache.extend(one for one in batch_now if one.offset() % keep_one_of == 0)

    read(in_c, records, kept, use)
    kept.sweep()
    own = sum(len(one.key()) + len(one.value()) + len(b"hheader") for one in cache)
    assert kept.chunk_bytes + kept.copied_bytes <= 2 * (1 << 20) + 3 * own + 200 * len(cache)
    assert [(one.value(), one.headers()) for one in cache] == [(bytes(100), [("h", b"header")])] * len(cache)
    assert [one.key() for one in cache] == [b"%08d" % (one.offset() % 1000) for one in cache]
    del cache[:]
    assert kept.chunk_bytes == kept.copied_bytes == 0


def test_the_last_message_of_each_key_keeps_no_chunks(in_c: Messages, records: bytes) -> None:
    kept = kept_chunks(0)
    cache: dict[int, Any] = {}

    def use(rows: Rows) -> None:
        for one in rows.take(500):
            cache[one.offset() % 997] = one

    read(in_c, records, kept, use)
    assert kept.chunk_bytes + kept.copied_bytes <= 4 * STEP_BYTES + 3 * 115 * 997 + 200 * 997


def test_small_kept_messages_next_to_large_ones_do_not_keep_the_large_ones(in_c: Messages) -> None:
    """Half of the rows may have a thousandth of the bytes."""
    records = [Rec(at, b"%d" % at, b"" if at % 2 else bytes(10_000)) for at in range(100)]
    kept, cache = kept_chunks(0), []
    for rows in chunks(in_c, fetched(b"".join(batch(records, 100 * part) for part in range(20))), kept):
        cache += [one for one in rows.take(1000) if one.offset() % 2]
    kept.sweep()
    assert len(cache) == 1000
    assert kept.chunk_bytes + kept.copied_bytes <= 200 * 1000 + 3 * 1000 * 2


def test_what_was_read_before_is_not_copied(in_c: Messages) -> None:
    kept = kept_chunks(0)
    [rows] = chunks(in_c, fetched(log(200, value=1000)), kept)
    found = rows.take(200)[::10]
    values = [(one.value(), one.key(), one.headers()) for one in found]
    kept.sweep()
    assert 0 < kept.copied_total < 20 * 200
    assert all(
        one.value() is value and one.headers() is headers for one, (value, _, headers) in zip(found, values, strict=True)
    )


def test_after_close_a_chunk_goes_without_another_poll(messages: Messages) -> None:
    kept = kept_chunks()
    [rows] = chunks(messages, fetched(log(1000)), kept)
    found = rows.take(1000)
    kept.close()
    del found[1:]
    assert kept.chunk_bytes == 0
    assert (found[0].key(), found[0].value()) == (b"00000000", bytes(100))


def test_rows_that_are_dropped_keep_nothing(messages: Messages) -> None:
    kept = kept_chunks(0)
    [rows] = chunks(messages, fetched(log(1000)), kept)
    first = rows.take_one()
    rows.close()
    assert (len(rows), rows.position, rows.take_one(), rows.take(5)) == (0, 1, None, [])
    assert kept.chunk_bytes == 0
    assert first.value() == bytes(100)
    [rows] = chunks(messages, fetched(log(1000)), kept)
    second = rows.take_one()
    del rows
    gc.collect()
    assert kept.chunk_bytes == 0
    assert (first, second) == (second, first)


def test_the_counters_outlive_the_consumer(messages: Messages) -> None:
    found = [one for rows in chunks(messages, fetched(log(1000))) for one in rows.take(1000)]
    del found[10:]
    gc.collect()
    assert [one.value() for one in found] == [bytes(100)] * 10


def test_nothing_is_leaked(messages: Messages) -> None:
    kind = type(messages.create(*[None] * 7, (0, 0), *[None] * 3))

    def use() -> None:
        kept = kept_chunks(0)
        for rows in chunks(messages, fetched(log(40, value=20_000, in_batch=10)), kept):
            found = rows.take(3)
            found[0].set_value(found)
            found[1].set_topic("other")
            found[2].headers()
        rows.close()

    use()
    gc.collect()
    before = sys.getrefcount(kind)
    for _ in range(10):
        use()
    gc.collect()
    assert sys.getrefcount(kind) == before


def test_threads_read_kept_messages_while_chunks_are_let_go(messages: Messages) -> None:
    """Reading one message in many threads always returns the same object, before and after its chunk is gone."""
    kept, shared = kept_chunks(0), deque[Any](maxlen=300)
    done = threading.Event()
    wrong: list[object] = []

    def use() -> None:
        while not done.is_set():
            for one in list(shared)[::7]:
                value, headers = one.value(), one.headers()
                if value != bytes(100) or value is not one.value() or headers is not one.headers():
                    wrong.append(one)

    threads = [threading.Thread(target=use, daemon=True) for _ in range(8)]
    for one in threads:
        one.start()
    try:
        for rows in chunks(messages, fetched(log(10_000)), kept, max_records=500):
            while len(rows):
                shared.extend(rows.take(100)[:20])
    finally:
        done.set()
    for one in threads:
        one.join(360)
        assert not one.is_alive()
    assert not wrong


def test_two_threads_cannot_take_the_same_row(messages: Messages) -> None:
    [rows] = chunks(messages, fetched(log(2000, value=1)), max_bytes=10**9)
    taken: list[list[int]] = [[] for _ in range(4)]

    def use(mine: list[int]) -> None:
        while len(rows):
            try:
                mine += [one.offset() for one in rows.take(3)]
            except RuntimeError:  # another thread was taking
                continue

    threads = [threading.Thread(target=use, args=(mine,), daemon=True) for mine in taken]
    for one in threads:
        one.start()
    for one in threads:
        one.join(360)
        assert not one.is_alive()
    assert sorted(at for mine in taken for at in mine) == list(range(2000))


def test_kept_messages_of_the_twin_keep_their_own_bytes_only(messages: Messages, kernel_name: str) -> None:
    if kernel_name == "c":
        pytest.skip("tracemalloc does not see the memory of the kernel in C")
    records, kept = log(4000, value=1000), kept_chunks()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = [one for rows in chunks(messages, fetched(records, check_crcs=False), kept) for one in rows.take(10**6)[::100]]
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(cache) > 40
    assert used < 4 * len(cache) * 1000


# ---- the class


def test_a_class_with_room_for_attributes_is_refused(kernel_name: str) -> None:
    if kernel_name == "python":
        pytest.skip("messages of the twin have room for them")

    class WithDict(OwnMessage):
        """A class whose instances have a ``__dict__``."""

    with pytest.raises(TypeError, match="needs __slots__"):
        Messages(WithDict, rebuilt)
    with pytest.raises(TypeError, match="expected a type"):
        kernel.kernel.Rows(OwnMessage, kept_chunks(), "orders", 0)


def test_neither_pyarrow_nor_numpy_is_imported(kernel_name: str) -> None:
    program = """
import sys
before = set(sys.modules)
from consumer_coord.columns import CompletedFetch
from consumer_coord.columns.decode_messages import Messages, kept_chunks
from tests.support.columns.own_message import OwnMessage, rebuilt
from tests.support.consumer.signal_points import interrupted
data = bytes.fromhex(sys.argv[1])
rows = Messages(OwnMessage, rebuilt).decode(CompletedFetch(data, topic="t", partition=0, offset=0), kept_chunks())
print(len(rows.take(100)), sorted({"pyarrow", "numpy", "cramjam", "confluent_kafka"} & (set(sys.modules) - before)))
"""
    data = batch([Rec(at) for at in range(64)])
    ran = subprocess.run(
        [sys.executable, "-c", program, data.hex()],
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
        env={"CONSUMER_COORD_KERNEL": kernel_name, "PYTHONPATH": ":".join(sys.path)},
    )
    assert ran.stdout == "64 []\n", ran.stderr


def test_the_newest_chunks_stay_for_programs_that_keep_a_few_messages_for_a_moment(in_c: Messages, records: bytes) -> None:
    kept, last = kept_chunks(), deque[Any](maxlen=100)
    read(in_c, records, kept, lambda rows: last.append(rows.take(100)[0]))
    assert kept.copied_total == 0
    assert kept.chunk_bytes <= KEPT_BYTES + STEP_BYTES


def test_calls_that_return_nothing_keep_the_count_of_none() -> None:
    """Headers of Python 3.12 and later leave it out, and a binary that was compiled with them also runs on 3.11."""
    kept = kept_chunks()
    before = sys.getrefcount(None)
    for _ in range(10_000):
        kept.sweep()
    assert sys.getrefcount(None) > before - 1_000
