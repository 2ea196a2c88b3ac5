"""Delayed operations in one heap of deadlines, in the time of the running event loop.

Kafka keeps delayed joins, syncs and heartbeats in purgatories on a timing wheel (``DelayedOperationPurgatory``, in 4.x
``CoordinatorTimer``). An embedded broker has one heap, and one ``call_at`` of the loop for the earliest deadline in the heap. A
heartbeat only stores a new deadline, and the heap reads the new deadline when the old deadline expires. So a heartbeat costs
O(1) for any number of members.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TypeVar

#: The heap is cleaned if it has more dead entries than this number, and more dead entries than live entries.
_SWEEP_THRESHOLD = 256


T = TypeVar("T")


def complete(waiter: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, unless the future is done."""
    if not waiter.done():
        waiter.set_result(result)


class DelayedOperation:
    """An operation that runs at its deadline, unless the operation is cancelled or postponed earlier."""

    __slots__ = ("_callback", "_deadline", "_entry", "_queued")

    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self._deadline = deadline
        self._queued = deadline  # The deadline in its heap entry; never later than _deadline.
        self._entry = 0  # The number of the valid heap entry; earlier entries of this operation are dead.

    @property
    def deadline(self) -> float:
        """The loop time at which the operation runs, in seconds."""
        return self._deadline

    @property
    def pending(self) -> bool:
        """Whether the operation has neither run nor been cancelled."""
        return self._callback is not None


class Purgatory:
    """All delayed operations of one broker.

    Delays are in the time of the running loop, so they are virtual if the loop's time is virtual. Operations with the same
    deadline run in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, DelayedOperation]] = []
        self._entries = 0
        self._dead = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def schedule(self, delay_ms: float, callback: Callable[[], None], not_before: float = 0.0) -> DelayedOperation:
        """Call ``callback`` after ``delay_ms``; return the operation, which can be postponed or cancelled.

        ``not_before`` is a loop time: the deadline of another operation that must run earlier.
        """
        loop = asyncio.get_running_loop()
        operation = DelayedOperation(max(loop.time() + delay_ms / 1000, not_before), callback)
        self._push(operation)
        self._arm(loop)
        return operation

    def put_off(self, operation: DelayedOperation, delay_ms: float) -> None:
        """Set a pending operation's deadline to ``delay_ms`` from now, which may be earlier or later than the old deadline."""
        if operation._callback is None:
            return
        loop = asyncio.get_running_loop()
        operation._deadline = loop.time() + delay_ms / 1000
        if operation._deadline < operation._queued:
            operation._queued = operation._deadline
            self._dead += 1
            self._push(operation)
            self._arm(loop)

    def cancel(self, operation: DelayedOperation | None) -> None:
        """Cancel an operation; do nothing for None, and for an operation that has run."""
        if operation is None or operation._callback is None:
            return
        operation._callback = None
        self._dead += 1
        if self._dead > _SWEEP_THRESHOLD and self._dead * 2 > len(self._heap):
            # Change the list in place: _advance may be iterating over it.
            self._heap[:] = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)
            self._dead = 0

    def close(self) -> None:
        """Cancel all operations."""
        for _, _, operation in self._heap:
            operation._callback = None
        self._heap.clear()
        self._dead = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @staticmethod
    def _counts(entry: tuple[float, int, DelayedOperation]) -> bool:
        return entry[2]._callback is not None and entry[2]._entry == entry[1]

    def _push(self, operation: DelayedOperation) -> None:
        self._entries += 1
        operation._entry = self._entries
        heapq.heappush(self._heap, (operation._queued, self._entries, operation))

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = self._heap[0][0]
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        self._timer = loop.call_at(due, self._advance)

    def _advance(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        # Use at least the scheduled time, because the loop's clock may still be before this time, by a rounding error.
        now = max(loop.time(), self._armed_for)
        # An operation that a callback schedules for "now" runs in the next call of this function, because a chain of such
        # operations must not block the loop.
        last = self._entries
        heap = self._heap
        while heap and heap[0][0] <= now and heap[0][1] <= last:
            entry = heapq.heappop(heap)
            operation = entry[2]
            if not self._counts(entry):
                self._dead -= 1
            elif operation._deadline > now:
                operation._queued = operation._deadline
                self._push(operation)
            else:
                callback = operation._callback
                operation._callback = None
                assert callback is not None
                callback()
        if heap:
            self._arm(loop)
