"""Exported arrays: their ownership, how often they can be exported, and how large columns are split."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from consumer_coord.columns import ArrowColumns, Columns, CompletedFetch, kernel
from tests.support.columns.batches import Rec, batch

pytestmark = pytest.mark.usefixtures("kernel_name")


def finished(count: int = 3, **options: Any) -> ArrowColumns:
    into = Columns(**options)
    records = [Rec(i, b"key %d" % i, b"v" * i if i % 4 else None, ((b"h", b"%d" % i),)) for i in range(count)]
    into.append(CompletedFetch(batch(records), topic="orders", partition=1, offset=0))
    return into.finish()


def test_an_array_outlives_everything_it_came_from() -> None:
    columns = finished(2000)
    expected = pa.table(columns).to_pylist()
    imported = pa.record_batch(columns)
    one_column = imported.column("headers")
    del columns
    gc.collect()
    finished(2000)  # would write into buffers that were freed
    assert imported.to_pylist() == expected
    del imported
    gc.collect()
    finished(2000)
    assert one_column.to_pylist() == [row["headers"] for row in expected]


def test_columns_can_be_exported_again_and_again() -> None:
    columns = finished()
    first, second = pa.record_batch(columns), pa.record_batch(columns)
    assert first.equals(second)
    assert first.equals(pa.table(columns).to_batches()[0])
    del first
    gc.collect()
    assert second.num_rows == len(columns) == 3


def test_exports_that_are_not_imported_are_freed() -> None:
    columns = finished()
    for _ in range(1000):
        columns.__arrow_c_schema__()
        columns.__arrow_c_array__()
        columns.__arrow_c_stream__()
    reader = pa.RecordBatchReader.from_stream(columns)
    del columns, reader  # a stream that was never read
    gc.collect()


def test_no_columns_and_no_rows() -> None:
    columns = Columns().finish()
    assert len(columns) == 0
    assert pa.record_batch(columns).num_rows == 0
    assert pa.table(columns).num_rows == 0
    assert dict(columns.positions) == {}


def test_the_response_is_not_needed_after_it_was_read() -> None:
    class Response(bytearray):
        """Bytes that allow weak references."""

    response = Response(batch([Rec(i, b"k", b"value %d" % i) for i in range(10)]))
    watched = weakref.ref(response)
    into = Columns(["value"])
    fetched = CompletedFetch(response, topic="orders", partition=1, offset=0)
    into.append(fetched)
    with pytest.raises(BufferError):
        response.clear()  # the response is in use
    del fetched, response
    gc.collect()
    assert watched() is None
    assert pa.table(into.finish())["value"].to_pylist() == [b"value %d" % i for i in range(10)]


def test_a_response_may_be_a_part_of_a_buffer() -> None:
    data = batch([Rec(0, b"k", b"here")])
    into = Columns(["value"])
    into.append(CompletedFetch(memoryview(b"before" + data + b"behind")[6:-6], topic="orders", partition=1, offset=0))
    assert pa.table(into.finish())["value"].to_pylist() == [b"here"]


@pytest.mark.parametrize("most", [60, 100, 1000])
def test_large_columns_are_cut_into_several_batches_of_the_stream(most: int) -> None:
    whole = pa.table(finished(40))
    columns = finished(40, max_column_bytes=most)
    table = pa.table(columns)
    table.validate(full=True)
    assert table.to_pylist() == whole.to_pylist()
    chunks = table["value"].chunks
    assert len(chunks) > 1 or most == 1000
    assert all(chunk.nbytes <= most + 4 * (len(chunk) + 1) + len(chunk) // 8 + 1 for chunk in chunks)
    if len(chunks) > 1:
        assert not hasattr(columns, "__arrow_c_array__")  # pyarrow and Polars then import the stream
        with pytest.raises(AttributeError, match="more than 2 GiB; only the stream"):
            columns.__arrow_c_array__()


def test_topics_alone_are_cut_too() -> None:
    columns = finished(10, columns=["topic"], max_column_bytes=20)
    assert [len(chunk) for chunk in pa.table(columns)["topic"].chunks] == [3, 3, 3, 1]


def test_pandas_takes_it() -> None:
    frame = pd.DataFrame.from_arrow(finished()) if hasattr(pd.DataFrame, "from_arrow") else pa.table(finished()).to_pandas()
    assert list(frame["offset"]) == [0, 1, 2]
    assert frame["timestamp"].dt.tz is not None


def test_two_threads_cannot_use_one_object(kernel_name: str) -> None:
    """The threads get an error, or run one after the other; memory is never damaged."""
    if kernel_name == "python":
        pytest.skip("the twin does not check, because Python objects cannot be damaged")
    count, rounds, threads = 400, 50, 4
    data = b"".join(batch([Rec(i) for i in range(count)], count * part) for part in range(rounds))
    into = Columns()
    fetched = CompletedFetch(data, topic="orders", partition=1, offset=0)
    failures: list[BaseException] = []
    start = threading.Barrier(threads)

    def use() -> None:
        start.wait(180)
        while not fetched.exhausted:
            try:
                into.append(fetched, max_records=7)
            except RuntimeError as error:
                failures.append(error)

    running = [threading.Thread(target=use, daemon=True) for _ in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join(360)
        assert not one.is_alive()
    assert all("another thread is using" in str(error) for error in failures)
    table = pa.table(into.finish())
    table.validate(full=True)
    assert table["offset"].to_pylist() == list(range(count * rounds))


def test_nothing_keeps_memory(kernel_name: str) -> None:
    """Reference counts of a caller's objects do not change, not even after errors."""
    module = kernel.kernel
    data, pairs, order = batch([Rec(0)], codec="zstd"), b"", bytes(range(8))
    payload, ends = bytearray(100), bytearray(8)

    def use() -> None:
        builder = module.Builder(order, 100)
        for _ in range(3):
            batches = module.Batches(data, 0, pairs, False, True)
            batches.compressed(100)
            batches.supply(payload, ends, False)
            for wrong in ((payload, b"\xff" * 8, False), (payload, ends, True)):
                with pytest.raises(ValueError, match=r"ends|waits"):
                    batches.supply(*wrong)
            builder.append(batches, b"topic", 1, 1, 1)
        builder.finish().stream()

    use()
    gc.collect()
    before = [sys.getrefcount(one) for one in (data, pairs, order, payload, ends)]
    for _ in range(10):
        use()
    gc.collect()
    assert [sys.getrefcount(one) for one in (data, pairs, order, payload, ends)] == before


def test_the_input_that_a_kernel_refuses(kernel_name: str) -> None:
    module: Any = kernel.kernel
    for columns, limit in ((b"\x08", 1), (b"\0\0", 1), (b"\0", 0), (b"\0", 2**31)):
        with pytest.raises(ValueError, match="column"):
            module.Builder(columns, limit)
    if kernel_name == "c":
        with pytest.raises(TypeError):
            module.Builder(b"\0", 10).append(object(), b"t", 0, 1, 1)
        with pytest.raises(TypeError):
            module.Arrays()
