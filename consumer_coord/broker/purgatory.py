"""Delayed operations on one heap of deadlines, over the running loop's time.

Kafka keeps delayed joins, syncs and heartbeats in purgatories on a timing wheel (``DelayedOperationPurgatory``, in 4.x
``CoordinatorTimer``). Here it is one heap for a whole broker and one ``call_at`` of the loop for its earliest deadline.
A heartbeat only writes a new deadline down, and the heap notices when the old one comes up. That keeps a heartbeat
O(1) however many members there are.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TypeVar

#: Dead entries are swept out of the heap when there are more than this many of them, and more than live ones.
_SWEEP_THRESHOLD = 256


T = TypeVar("T")


def complete(waiter: asyncio.Future[T], result: T) -> None:
    """Give a waiter its result, unless it stopped waiting."""
    if not waiter.done():
        waiter.set_result(result)


class DelayedOperation:
    """Something that happens at a deadline, unless it is cancelled or put off before."""

    __slots__ = ("_callback", "_deadline", "_entry", "_queued")

    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self._deadline = deadline
        self._queued = deadline  # the deadline under which it stands in the heap: never later than _deadline
        self._entry = 0  # the number of the heap entry that counts; earlier entries of this operation are dead

    @property
    def deadline(self) -> float:
        """When it happens, in the loop's time."""
        return self._deadline

    @property
    def pending(self) -> bool:
        """Whether it may still happen."""
        return self._callback is not None


class Purgatory:
    """All delayed operations of one broker.

    It reads the time of the loop it is used on, so that on a virtual-time loop its delays are virtual. Operations with
    one deadline happen in the order in which they were scheduled.
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
        """Call ``callback`` after ``delay_ms``; the answer is the handle with which to put it off or cancel it.

        ``not_before`` is a time of the loop: the deadline of another operation that is to happen first.
        """
        loop = asyncio.get_running_loop()
        operation = DelayedOperation(max(loop.time() + delay_ms / 1000, not_before), callback)
        self._push(operation)
        self._arm(loop)
        return operation

    def put_off(self, operation: DelayedOperation, delay_ms: float) -> None:
        """Move a pending operation's deadline to ``delay_ms`` from now, later or earlier than before."""
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
        """Let an operation never happen. Nothing to do for ``None``, or when it has happened."""
        if operation is None or operation._callback is None:
            return
        operation._callback = None
        self._dead += 1
        if self._dead > _SWEEP_THRESHOLD and self._dead * 2 > len(self._heap):
            # In place, because _advance may be iterating over this very list.
            self._heap[:] = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)
            self._dead = 0

    def close(self) -> None:
        """Forget everything; nothing happens any more."""
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
        # Never before the time we asked for: clocks of event loops may be a rounding error early.
        now = max(loop.time(), self._armed_for)
        # What callbacks schedule "now" belongs to the next round: a chain of zero delays must not hold the loop.
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
