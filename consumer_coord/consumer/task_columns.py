"""The columns of an asyncio consumer, which are read in the same turns as its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal, Self

from consumer_coord.config import Config
from consumer_coord.confluent.topic_partitions import GivenRows
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S
from consumer_coord.consumer.task_access import Turn

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.consumer.arrow_reads import ArrowReads, Request


class TaskColumns:
    """Reads columns for the task that has the turn of an asyncio consumer."""

    def __init__(self, settings: Config, turn: Turn, deliveries: Deliveries[object]) -> None:
        self._settings = settings
        self._turn = turn
        self._deliveries = deliveries
        #: None before the first read.
        self._reads: ArrowReads | None = None
        self._request: Request | None = None

    def request(self, columns: Sequence[str], max_records: int, max_bytes: int) -> Request:
        """Check the arguments of a read; return those of the former read if they are equal."""
        former = self._request
        if former is None or not former.has(columns, max_records, max_bytes):
            from consumer_coord.consumer.arrow_reads import Request

            former = self._request = Request.checked(columns, max_records, max_bytes)
        return former

    def batches(
        self, until: Literal["now"] | GivenRows, columns: Sequence[str], max_records: int, max_bytes: int
    ) -> AsyncIterator[ArrowColumns]:
        """Check the arguments of a bounded read, and return its iterator."""
        from consumer_coord.consumer.arrow_reads import Bounds, Request

        return _Batches(self, Request.checked(columns, max_records, max_bytes, Bounds.of(self._settings, until)))

    async def read(self, request: Request, timeout_s: float) -> ArrowColumns:
        """Return the next batch (empty after the time limit or at the end), which counts as delivered to this task."""
        bounds = request.bounds
        now = asyncio.get_running_loop().time
        ends = now() + timeout_s
        async with self._turn(in_callback=False) as engine:
            engine.core.application.polls += 1
            self._deliveries.finish(asyncio.current_task())
            if self._reads is None:
                from consumer_coord.consumer.arrow_reads import ArrowReads

                self._reads = ArrowReads(engine)
            reads = self._reads
            while True:
                ready = await reads.gather(max(0.0, ends - now()), bounds)
                if not ready:
                    if bounds is None or bounds.reached:
                        return request.empty
                    continue
                decoding = reads.decoding(request)
                while decoding.step():
                    await asyncio.sleep(0)
                # No await between the check and the return, so the records still belong to this member.
                prepared = reads.prepared(decoding, bounds)
                if prepared is not None:
                    reads.reader.cursors = prepared.cursors
                    self._deliveries.last[asyncio.current_task()] = prepared.delivered
                    return prepared.batch


class _Batches(AsyncIterator["ArrowColumns"]):
    """The iterator that ``arrow_batches`` returns. A cancellation would end a generator as if all records were read."""

    def __init__(self, columns: TaskColumns, request: Request) -> None:
        self._columns = columns
        self._request = request

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ArrowColumns:
        batch = await self._columns.read(self._request, FOREVER_S)
        if not len(batch):
            raise StopAsyncIteration
        return batch
