"""The first join of a query: what stands in its way is told within seconds, and its first share is waited for."""

from __future__ import annotations

import re
import time

from consumer_coord.errors import RetriableError
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator
from consumer_coord.spark.options import Options
from consumer_coord.spark.status import Status

#: The first join is waited for so long; then what stands in its way is told.
JOIN_WAIT_MS = 3_000
#: A query that was given nothing at first waits so long for what others hand over to it.  A batch without a share would
#: hold its first one up by its own length, or until the next trigger.
SHARE_WAIT_S = 3.0
#: Time between two looks at the group or the cluster, in seconds.
LOOK_EVERY_S = 0.02

#: A test counts its calls.
pause = time.sleep


class Joining:
    """How far one query's first join has come."""

    def __init__(self, options: Options, status: Status) -> None:
        self._options = options
        self._status = status
        self._joined = False
        self._awaited = False
        #: When the first join fails for good, None before it is tried.
        self._join_by_s: float | None = None
        self._seen_metadata = -1
        self._missing: str | None = None

    def join(self, coordinator: BlockingCoordinator) -> bool:
        """Wait for the first assignment.  False when something stands in the way: it is told, and tried again meanwhile."""
        if self._joined:
            return True
        config = coordinator.config.coordinator
        if self._join_by_s is None:
            self._join_by_s = time.monotonic() + (config.default_api_timeout_ms + config.rebalance_timeout_ms) / 1000
        while True:
            left_ms = max(1.0, (self._join_by_s - time.monotonic()) * 1000)
            try:
                coordinator.join_group_if_needed(min(left_ms, JOIN_WAIT_MS))
            except RetriableError as error:
                if left_ms <= JOIN_WAIT_MS:
                    raise type(error)(f"{error}. {self._where()}", code=error.code) from error
                self._status.tell("join", f"{error}. {self._where()}")
                if coordinator.core.application.failures.obstacle:
                    return False
            else:
                self._joined = True
                self._status.tell("join", None)
                return True

    def _where(self) -> str:
        return (
            f"The query could not join group.id={self._options.group!r} with {self._options.subscription()} at"
            f" kafka.bootstrap.servers={self._options.bootstrap_servers!r}: is the address right, are the brokers up?"
        )

    def await_share(self, coordinator: BlockingCoordinator, wait_s: float) -> None:
        """Once: a member that joins a running group gets its partitions once their owners have revoked them."""
        if self._awaited:
            return
        self._awaited = True
        deadline = time.monotonic() + wait_s
        while not coordinator.change().target.partitions and self._missing is None and time.monotonic() < deadline:
            pause(LOOK_EVERY_S)

    def tell_missing(self, coordinator: BlockingCoordinator) -> None:
        """A topic that does not exist is waited for; but it may be a misspelled one."""
        metadata = coordinator.metadata
        if metadata.version == self._seen_metadata:
            return
        self._seen_metadata = metadata.version
        # What the brokers were asked for: the first answer may be older than the subscription.
        missing = sorted(set(self._options.topics) & metadata.errors.keys() - metadata.topics.keys())
        pattern = self._options.pattern
        if missing:
            told = f"{', '.join(missing)}: no such topic; the query begins with it when it is made (option subscribe)"
        elif pattern is not None and not metadata.matching(re.compile(pattern), exclude_internal=True):
            told = f"{self._options.subscription()} matches no topic; the query begins with one when it is made"
        else:
            told = None
        self._status.tell("topics", told)
        self._missing = told
