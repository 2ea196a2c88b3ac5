"""The columns of a blocking consumer, which are read in the same turns, and after the same waits, as its messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, Self

from consumer_coord.config import Config
from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions, raise_cause, to_kafka_exception
from consumer_coord.confluent.topic_partitions import GivenRows
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S, Engine
from consumer_coord.consumer.thread_turns import ThreadTurns
from consumer_coord.consumer.thread_waits import ThreadWaits
from consumer_coord.errors import CallbackError, ConcurrentUseError

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.consumer.arrow_reads import ArrowReads, Bounds, Prepared, Request


class ThreadColumns:
    """Reads columns for the thread that has the turn of a blocking consumer."""

    def __init__(
        self,
        settings: Config,
        engine: Engine,
        turns: ThreadTurns,
        waits: ThreadWaits,
        deliveries: Deliveries[int],
    ) -> None:
        self.at_hand: Any = engine.reader.at_hand
        self.turns = turns
        self.deliveries = deliveries
        self._settings = settings
        self._engine = engine
        self._waits = waits
        self._application = engine.core.application
        self._outcomes = engine.commits
        #: None before the first read.
        self._reads: ArrowReads | None = None
        self._request: Request | None = None

    def request(self, columns: Sequence[str], max_records: int, max_bytes: int) -> Request:
        """Check the arguments of a read; return those of the former read if they are equal."""
        former = self._request
        if former is None or not former.has(columns, max_records, max_bytes):
            from consumer_coord.consumer.arrow_reads import Request

            self.turns.check_open()
            with drop_in_exceptions():
                former = self._request = Request.checked(columns, max_records, max_bytes)
        return former

    def batches(
        self, until: Literal["now"] | GivenRows, columns: Sequence[str], max_records: int, max_bytes: int
    ) -> Iterator[ArrowColumns]:
        """Check the arguments of a bounded read, and return its iterator."""
        from consumer_coord.consumer.arrow_reads import Bounds, Request

        self.turns.check_open()
        with drop_in_exceptions():
            bounds = Bounds.of(self._settings, until)
            return _Batches(self, Request.checked(columns, max_records, max_bytes, bounds))

    def wait_for_turn(self, me: int) -> None:
        """Wait until the caller may take the turn in its next statement; raise ConcurrentUseError inside a callback."""
        if self.turns.in_callback:
            raise to_kafka_exception(ConcurrentUseError("consume_arrow may not be called inside a callback"))
        self.turns.wait(me)

    def next_batch(self, request: Request, timeout_s: float) -> Prepared:
        """Return the next batch (empty after the time limit or at the end); the calling thread must have its turn."""
        turns, bounds, reads = self.turns, request.bounds, self._reads
        if turns.quiet is self._application.news and reads is not None and bounds is None and not self._outcomes.unreported:
            timeout_s = self._waits.wait_quietly(timeout_s, columns=True)
            if timeout_s <= 0 and turns.quiet is self._application.news:
                return reads.nothing(request)
        ends = time.monotonic() + timeout_s
        while True:
            with drop_in_exceptions():
                reads = self._reads or self._begin()
                ready = self._gather(reads, max(0.0, ends - time.monotonic()), bounds)
            if not ready:
                if bounds is None or bounds.reached or turns.closed:
                    return reads.nothing(request)
                continue
            decoding = reads.decoding(request)
            while decoding.step():
                pass
            with drop_in_exceptions():
                prepared = reads.prepared(decoding, bounds)
            if prepared is not None:
                return prepared

    def _begin(self) -> ArrowReads:
        from consumer_coord.consumer.arrow_reads import ArrowReads

        self.turns.check_open()
        self._reads = ArrowReads(self._engine)
        return self._reads

    def _gather(self, reads: ArrowReads, timeout_s: float, bounds: Bounds | None) -> bool:
        turns = self.turns
        turns.check_open()
        notes = self._application.failures.notes
        if notes:
            raise notes.popleft()
        try:
            turns.check_process()
            engine, reader, quiet = self._engine, reads.reader, False
            if bounds is None and engine.tracker is None and not turns.calls:
                if engine.fast_path:
                    timeout_s = self._waits.look(1, 0, timeout_s, columns=True)
                    quiet = timeout_s <= 0 and turns.quiet is self._application.news
                else:
                    reader.pull(0)
                found = reader.found(1, columns=True)
                if quiet or (found and not turns.calls and engine.at_hand):
                    # A step on the loop would take four times as long as a small batch.
                    return found
            ready = turns.on_loop(lambda: reads.gather(timeout_s, bounds))
            if turns.requested:
                turns.on_loop(turns.do_requested)
                ready = ready and not turns.closed and reads.reader.pending
            return ready
        except CallbackError as error:
            raise_cause(error)


class _Batches(Iterator["ArrowColumns"]):
    """The iterator that ``arrow_batches`` returns. A generator would lose a batch if an interrupt came after its ``yield``."""

    def __init__(self, columns: ThreadColumns, request: Request) -> None:
        self._columns = columns
        self._request = request

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ArrowColumns:
        columns, at_hand = self._columns, self._columns.at_hand
        me, mine = get_ident(), False
        try:
            if at_hand.user:
                columns.wait_for_turn(me)
            at_hand.user = me
            mine = True
            at_hand.messages = None
            at_hand.polls += 1
            columns.deliveries.finish(me)
            batch, delivered, reader, cursors = columns.next_batch(self._request, FOREVER_S)
            if not delivered:
                raise StopIteration
            last = columns.deliveries.last
            # No function is called from here to the return, because a signal handler may raise in one (see ``thread_turns``).
            at_hand.user = 0
            last[me] = delivered
            reader.cursors = cursors
            return batch
        finally:
            if mine and at_hand.user == me:
                at_hand.user = 0
