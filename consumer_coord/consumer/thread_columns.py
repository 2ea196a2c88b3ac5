"""The calls of a blocking consumer that return columns instead of messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, Self

from consumer_coord.column_names import COLUMNS
from consumer_coord.config import Config
from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions, raise_cause, to_kafka_exception
from consumer_coord.confluent.rows import GivenRows, seconds
from consumer_coord.consumer.arrow_arguments import MAX_BYTES, MAX_RECORDS
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S, Engine
from consumer_coord.consumer.thread_turns import Turns
from consumer_coord.errors import CallbackError, ConcurrentUseError

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.consumer.arrow_reads import ArrowReads, Bounds, Prepared, Request
    from consumer_coord.consumer.shared_calls import SharedCalls
    from consumer_coord.group.application_polls import Application


class ArrowCalls(Turns):
    """The methods of a blocking consumer that return columns."""

    _settings: Config
    _engine: Engine
    _shared: SharedCalls
    #: The owner of librdkafka's handle.
    _librdkafka: Any
    _deliveries: Deliveries[int]
    #: The state of consume_arrow; None before its first call.
    _arrow: ArrowReads | None = None
    _application: Application
    _request: Request | None = None
    _then: list[Callable[[], Coroutine[Any, Any, None]]]

    if TYPE_CHECKING:

        async def _do_what_callbacks_asked(self) -> None: ...

        def _wait_quietly(self, timeout: float | None, *, columns: bool = False) -> float: ...

        def _look(self, least: int, most: int, timeout: float | None, *, columns: bool = False) -> float: ...

    def consume_arrow(
        self,
        max_records: int = MAX_RECORDS,
        *,
        max_bytes: int = MAX_BYTES,
        timeout: float | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> ArrowColumns:
        """Return records as Arrow columns as soon as any are available, or an empty batch after ``timeout`` seconds.

        A batch has at most ``max_records`` records and, after decompression, about ``max_bytes`` bytes. If ``timeout`` is None
        or negative, the call waits for ever. ``columns`` selects from ``consumer_coord.columns.COLUMNS``. pyarrow, Polars and
        DuckDB import the result without a copy. With automatic commits, the records count as finished when this thread requests
        the next records.

        Calls for messages and for columns may be mixed: they share the positions, and each record is delivered once. (If
        librdkafka fetches, ``IllegalStateError`` is raised.) Raise
        :class:`~consumer_coord.columns.UnreadableRecordError` for damaged records, after the records before them were
        delivered. To skip damaged records, seek.
        """
        me, mine = get_ident(), False
        try:
            request = self._request
            if request is None or not request.has(columns, max_records, max_bytes):
                request = self._request = self._checked(columns, max_records, max_bytes, None)
            timeout_s = seconds(timeout, FOREVER_S)
            if self._at_hand.user:
                self._wait_to_read(me)
            self._at_hand.user = me
            mine = True
            self._at_hand.messages = None
            self._at_hand.polls += 1
            self._deliveries.finish(me)
            application = self._application
            if self._quiet is application.news and self._arrow is not None and not self._engine.commits.unreported:
                timeout_s = self._wait_quietly(timeout_s, columns=True)
                if timeout_s <= 0 and self._quiet is application.news:
                    return request.empty
            batch, delivered, reader, cursors = self._next_batch(request, timeout_s)
            # No function is called from here to the return, because a signal handler may raise in one (see ``thread_turns``).
            self._at_hand.user = 0
            if delivered:
                self._deliveries.last[me] = delivered
                reader.cursors = cursors
            return batch
        finally:
            if mine and self._at_hand.user == me:
                self._at_hand.user = 0

    def arrow_batches(
        self,
        until: Literal["now"] | GivenRows = "now",
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[ArrowColumns]:
        """Iterate over batches until every assigned partition has been read to its end; for batch jobs.

        With ``until="now"``, the end of a partition is the end of its log when this call first saw the partition assigned. With
        a list of TopicPartition, for instance the result of ``offsets_for_times``, only these partitions are read, each up to
        its offset (exclusive); ``OFFSET_END`` means the same end as ``"now"``. Reading ends when the position reaches the end,
        so the call does not wait for records that were compacted, aborted, or removed by a truncation. While a partition is
        paused, the call waits. If the group assigns no partition to the member, the iteration ends after ten seconds. Raise
        ``ConfigurationError`` if a partition of the list has no offset.
        """
        from consumer_coord.consumer.arrow_reads import Bounds

        with drop_in_exceptions():
            bounds = Bounds.of(self._settings, until)
        return _Batches(self, self._checked(columns, max_records, max_bytes, bounds))

    def _checked(self, columns: Sequence[str], max_records: int, max_bytes: int, bounds: Bounds | None) -> Request:
        from consumer_coord.consumer.arrow_reads import Request

        self._check_open()
        with drop_in_exceptions():
            return Request.checked(columns, max_records, max_bytes, bounds)

    def _wait_to_read(self, me: int) -> None:
        if self._in_callback:
            raise to_kafka_exception(ConcurrentUseError("consume_arrow may not be called inside a callback"))
        self._wait_for_turn(me)

    def _next_batch(self, request: Request, timeout_s: float) -> Prepared:
        """Return the next batch (empty after the time limit or at the end); the calling thread must have its turn."""
        ends, bounds = time.monotonic() + timeout_s, request.bounds
        while True:
            with drop_in_exceptions():
                arrow = self._arrow or self._begin_arrow()
                ready = self._gather_columns(arrow, max(0.0, ends - time.monotonic()), bounds)
            if not ready:
                if bounds is None or bounds.reached or self._closed:
                    return arrow.nothing(request)
                continue
            decoding = arrow.decoding(request)
            while decoding.step():
                pass
            with drop_in_exceptions():
                prepared = arrow.prepared(decoding, bounds)
            if prepared is not None:
                return prepared

    def _begin_arrow(self) -> ArrowReads:
        from consumer_coord.consumer.arrow_reads import ArrowReads

        self._check_open()
        self._arrow = ArrowReads(self._engine)
        return self._arrow

    def _gather_columns(self, arrow: ArrowReads, timeout_s: float, bounds: Bounds | None) -> bool:
        self._check_open()
        notes = self._core.application.failures.notes
        if notes:
            raise notes.popleft()
        try:
            self._coordinator.check_process()
            engine, reader, quiet = self._engine, arrow.reader, False
            if bounds is None and engine.tracker is None and not self._calls:
                if engine.fast_path:
                    timeout_s = self._look(1, 0, timeout_s, columns=True)
                    quiet = timeout_s <= 0 and self._quiet is self._application.news
                else:
                    reader.pull(0)
                found = reader.found(1, columns=True)
                if quiet or (found and not self._calls and not engine.attention and engine.deliverable):
                    # A step on the loop would take four times as long as a small batch.
                    return found
            ready = self._on_loop(lambda: arrow.gather(timeout_s, bounds))
            if self._then:
                self._on_loop(self._do_what_callbacks_asked)
                ready = ready and not self._closed and arrow.reader.pending
            return ready
        except CallbackError as error:
            raise_cause(error)


class _Batches(Iterator["ArrowColumns"]):
    """The iterator that ``arrow_batches`` returns. A generator would lose a batch if an interrupt came after its ``yield``."""

    def __init__(self, consumer: ArrowCalls, request: Request) -> None:
        self._consumer = consumer
        self._request = request

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ArrowColumns:
        consumer = self._consumer
        me, mine = get_ident(), False
        try:
            if consumer._at_hand.user:
                consumer._wait_to_read(me)
            consumer._at_hand.user = me
            mine = True
            consumer._at_hand.messages = None
            consumer._at_hand.polls += 1
            consumer._deliveries.finish(me)
            batch, delivered, reader, cursors = consumer._next_batch(self._request, FOREVER_S)
            if not delivered:
                raise StopIteration
            # No function is called from here to the return, because a signal handler may raise in one (see ``thread_turns``).
            consumer._at_hand.user = 0
            consumer._deliveries.last[me] = delivered
            reader.cursors = cursors
            return batch
        finally:
            if mine and consumer._at_hand.user == me:
                consumer._at_hand.user = 0
