"""Join the group for the first time: report a failure within seconds, and wait for the first partitions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from consumer_coord.errors import RetriableError
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator
from consumer_coord.spark.options import Options
from consumer_coord.spark.status import Status

#: Time until a failure that delays the first join is reported, in milliseconds.
JOIN_WAIT_MS = 3_000
#: Time to wait for partitions that other members must revoke, when the first assignment is empty, in seconds. Without the wait,
#: the first batch would be empty, and the partitions would wait until the next trigger.
SHARE_WAIT_S = 3.0
#: Interval between checks of the group or the cluster, in seconds.
LOOK_EVERY_S = 0.02

#: A separate function, because a test counts its calls.
pause: Callable[[float], None] = time.sleep


class Joining:
    """The progress of one query's first join."""

    def __init__(self, options: Options, status: Status) -> None:
        self._options = options
        self._status = status
        self._joined = False
        self._awaited = False
        #: Deadline of the first join; None until the first attempt.
        self._join_by_s: float | None = None
        self._seen_metadata = -1
        self._missing: str | None = None

    def join(self, coordinator: BlockingCoordinator) -> bool:
        """Wait for the first assignment. If the join fails and is retried, report the failure and return False."""
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
                self._status.report("join", f"{error}. {self._where()}")
                if coordinator.core.application.failures.obstacle:
                    return False
            else:
                self._joined = True
                self._status.report("join", None)
                return True

    def _where(self) -> str:
        return (
            f"The query could not join group.id={self._options.group!r} with {self._options.subscription()} at"
            f" kafka.bootstrap.servers={self._options.bootstrap_servers!r}: is the address right, and are the brokers up?"
        )

    def await_share(self, coordinator: BlockingCoordinator, wait_s: float) -> None:
        """Wait once for a first assignment: a member receives partitions only after their former owners have revoked them."""
        if self._awaited:
            return
        self._awaited = True
        deadline = time.monotonic() + wait_s
        while not coordinator.change().target.partitions and self._missing is None and time.monotonic() < deadline:
            pause(LOOK_EVERY_S)

    def report_missing_topics(self, coordinator: BlockingCoordinator) -> None:
        """Report a topic that does not exist. The query waits for the topic, but the name may be misspelled."""
        metadata = coordinator.metadata
        if metadata.version == self._seen_metadata:
            return
        self._seen_metadata = metadata.version
        # ``errors`` contains only topics that this member requested. The first metadata may be older than the subscription.
        missing = sorted(set(self._options.topics) & metadata.errors.keys() - metadata.topics.keys())
        pattern = self._options.pattern
        if missing:
            problem = f"{', '.join(missing)}: the topic does not exist; the query reads it once it exists (option subscribe)"
        elif pattern is not None and not metadata.matching(re.compile(pattern), exclude_internal=True):
            problem = f"{self._options.subscription()} matches no topic; the query reads a matching topic once it exists"
        else:
            problem = None
        self._status.report("topics", problem)
        self._missing = problem
