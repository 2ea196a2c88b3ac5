"""The calls of an asyncio consumer that return columns instead of messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal, Self

from consumer_coord.column_names import COLUMNS
from consumer_coord.config import Config
from consumer_coord.confluent.rows import GivenRows, seconds
from consumer_coord.consumer.arrow_arguments import MAX_BYTES, MAX_RECORDS
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S, Engine

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from consumer_coord.columns import ArrowColumns
    from consumer_coord.consumer.arrow_reads import ArrowReads, Request
    from consumer_coord.consumer.reports import Reports
    from consumer_coord.consumer.shared_calls import SharedCalls


class AsyncArrowCalls:
    """The methods of an asyncio consumer that return columns."""

    _settings: Config
    _shared: SharedCalls
    _deliveries: Deliveries[object]
    _arrow: ArrowReads | None = None
    #: What this package's own Fetch of messages reports to callbacks; None if librdkafka reports.
    _reports: Reports | None = None
    _request: Request | None = None

    if TYPE_CHECKING:

        def _check_open(self) -> None: ...

        def _used(self, *, in_callback: bool = True) -> AbstractAsyncContextManager[Engine]: ...

    async def consume_arrow(
        self,
        max_records: int = MAX_RECORDS,
        *,
        max_bytes: int = MAX_BYTES,
        timeout: float | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> ArrowColumns:
        """Return records as Arrow columns as soon as any are available, or an empty batch after ``timeout`` seconds.

        The arguments are those of :meth:`~consumer_coord.consumer.group_consumer.GroupConsumer.consume_arrow`. Records are
        decoded on the event loop in steps of a megabyte; other tasks and heartbeats run between the steps. A cancelled call
        loses no records.
        """
        from consumer_coord.consumer.arrow_reads import Request

        request = self._request
        if request is None or not request.has(columns, max_records, max_bytes):
            request = self._request = Request.checked(columns, max_records, max_bytes)
        return await self._read_columns(request, seconds(timeout, FOREVER_S))

    def arrow_batches(
        self,
        until: Literal["now"] | GivenRows = "now",
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] = COLUMNS,
    ) -> AsyncIterator[ArrowColumns]:
        """Iterate over batches until every assigned partition has been read to its end; for batch jobs.

        The arguments are those of :meth:`~consumer_coord.consumer.group_consumer.GroupConsumer.arrow_batches`. If an ``anext``
        is cancelled, no record is lost, and the next ``anext`` continues.
        """
        from consumer_coord.consumer.arrow_reads import Bounds, Request

        self._check_open()
        bounds = Bounds.of(self._settings, until)
        return _Batches(self, Request.checked(columns, max_records, max_bytes, bounds))

    async def _read_columns(self, request: Request, timeout_s: float) -> ArrowColumns:
        bounds = request.bounds
        now = asyncio.get_running_loop().time
        ends = now() + timeout_s
        async with self._used(in_callback=False) as engine:
            engine.core.application.polls += 1
            self._deliveries.finish(asyncio.current_task())
            if self._arrow is None:
                from consumer_coord.consumer.arrow_reads import ArrowReads

                self._arrow = ArrowReads(engine)
            arrow = self._arrow
            while True:
                ready = await arrow.gather(max(0.0, ends - now()), bounds)
                if not ready:
                    if bounds is None or bounds.reached:
                        return request.empty
                    continue
                decoding = arrow.decoding(request)
                while decoding.step():
                    await asyncio.sleep(0)
                # No await between the check and the return, so the records still belong to this member.
                prepared = arrow.prepared(decoding, bounds)
                if prepared is not None:
                    arrow.reader.cursors = prepared.cursors
                    self._deliveries.last[asyncio.current_task()] = prepared.delivered
                    return prepared.batch


class _Batches(AsyncIterator["ArrowColumns"]):
    """The iterator that ``arrow_batches`` returns. A cancellation would end a generator as if all records were read."""

    def __init__(self, consumer: AsyncArrowCalls, request: Request) -> None:
        self._consumer = consumer
        self._request = request

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ArrowColumns:
        batch = await self._consumer._read_columns(self._request, FOREVER_S)
        if not len(batch):
            raise StopAsyncIteration
        return batch
