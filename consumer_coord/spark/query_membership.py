"""A query inside its planner process, which Spark starts: blocking calls of :class:`~consumer_coord.spark.query.Query`.

Calls come from the planner's main thread, one at a time, between micro-batches. The query itself runs on the process's
background loop. Any thread may call :meth:`QueryMembership.leave`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from consumer_coord.errors import CoordinatorError, FatalError
from consumer_coord.log_text import get_logger
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.options import Options
from consumer_coord.spark.query import Query
from consumer_coord.spark.status import Status
from consumer_coord.spark.user_code import with_callbacks
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: Time limit for leaving the group, in milliseconds, so that leaving does not delay the end of the process.
LEAVE_TIMEOUT_MS = 1_500
#: Time that a call may take in addition to its own time limits, in milliseconds.
_GRACE_MS = 60_000.0


class QueryMembership:
    """The membership of one query. The constructor does no I/O; the first call that needs the group joins the group."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.status: Status = Status(options.group)
        self._coordinator: BlockingCoordinator | None = None
        self._query: Query | None = None
        #: Protects the order of joining and leaving. After leaving, the query never joins again.
        self._gate = threading.Lock()
        self._left = False

    def open(self) -> BlockingCoordinator:
        """Subscribe at the first call, and return the coordinator. The member joins in the background."""
        if self._coordinator is not None and not self._left:
            return self._coordinator
        options = self._options
        assignors = options.assignors()
        with self._gate:
            if self._left:
                raise FatalError("this query has left its group")
            self._coordinator = coordinator = BlockingCoordinator(with_callbacks(options.settings), assignors=assignors)

            async def begin() -> Query:
                query = Query(coordinator.core, options, self.status)
                query.begin()
                return query

            self._query = coordinator.call(begin)
        return coordinator

    def leave(self) -> None:
        """Leave the group within about a second, without further commits. Any thread may call this method.

        All callers wait for the end of one common operation.
        """
        with self._gate:
            self._left = True
        coordinator, query = self._coordinator, self._query
        if coordinator is None:
            return
        if query is not None:
            coordinator.on_loop(query.end)
        try:
            coordinator.close(LEAVE_TIMEOUT_MS)
        except CoordinatorError as error:
            logger.info(
                "leaving group %r: %s; the broker removes the member when its session expires", self._options.group, error
            )

    def _call(self, work: Callable[[Query], Coroutine[Any, Any, T]]) -> T:
        coordinator = self.open()
        query = self._query
        assert query is not None
        config = coordinator.config.coordinator
        limit_ms = config.default_api_timeout_ms + config.rebalance_timeout_ms + config.session_timeout_ms + _GRACE_MS
        return coordinator.call(lambda: work(query), limit_ms)

    # -- Spark's calls ----------------------------------------------------------------------------------------------

    def prepare_available_now(self) -> None:
        """Set the end offsets of a Trigger.AvailableNow run. The query reads no record that is written after this call."""
        self._call(lambda query: query.prepare_available_now())

    def next_batch(self, start: Offsets, *, once: bool = False) -> Offsets | None:
        """Plan the next batch; see :meth:`Query.next_batch`. Return None if there is nothing new."""
        return self._call(lambda query: query.next_batch(start, once=once))

    def is_planned(self, end: Offsets) -> bool:
        """Return True for the last planned batch until the batch is finished."""
        batch = None if self._query is None else self._query.ledger.batch
        return batch is not None and batch.end == end

    def check_replay(self, end: Offsets) -> Offsets:
        """Return the part of a recorded batch that can be read again; see :meth:`Query.check_replay`."""
        return self._call(lambda query: query.check_replay(end))
