"""Commits of a consumer: automatic ones, and asynchronous ones whose outcome a later poll tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import attrs

from consumer_coord.consumer.data_plane import OFFSET_INVALID
from consumer_coord.consumer.home import Home, Pending
from consumer_coord.consumer.recreated_topics import RecreatedTopics
from consumer_coord.errors import CoordinatorError, RequestTimedOutError
from consumer_coord.group.committed_offsets import CommitResult, OffsetAndMetadata
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.printable import get_logger
from consumer_coord.topic_partition import TopicPartition, listed

logger = get_logger(__name__)

Positions = Mapping[TopicPartition, OffsetAndMetadata]

#: More asynchronous commits than this wait for the coordinator: then the next one waits for the oldest.
MOST_ASYNCHRONOUS = 1_000


def outcome(wanted: Positions, pending: Pending[CommitResult]) -> CommitResult:
    """How a commit went that is done, for each partition; a foreign exception is raised."""
    error = RequestTimedOutError("the commit was given up") if pending.cancelled() else pending.exception()
    if error is None:
        return pending.result()
    if not isinstance(error, CoordinatorError):
        raise error
    return dict.fromkeys(wanted, error)


def warn_of_failed(what: str, result: CommitResult) -> None:
    """Log what could not be committed: it will be processed again if the partitions move now."""
    failed = {partition: error for partition, error in result.items() if error is not None}
    if failed:
        logger.warning("%s of %s failed: %s", what, listed(failed), next(iter(failed.values())))


#: Called with what an automatic commit is about, and the commit that is under way.
Follow = Callable[[Positions, Pending[CommitResult]], None]


@attrs.define
class _Timer:
    """Rings for the next automatic commit; holds no consumer, so that one that is dropped can be collected."""

    core: ConsumerCoordinator
    due: bool = False
    stopped: bool = False

    def ring(self) -> None:
        """It is time."""
        if not self.stopped:
            self.due = True
            self.core.application.rouse()


class AutoCommit:
    """``enable.auto.commit``: every ``auto.commit.interval.ms`` what was finished at the poll is committed."""

    def __init__(
        self, core: ConsumerCoordinator, home: Home, recreated: RecreatedTopics, follow: Follow | None = None
    ) -> None:
        """``follow`` gets each commit that was started."""
        self.enabled = core.config.enable_auto_commit
        self._follow = follow
        self._core = core
        self._home = home
        self._recreated = recreated
        self._interval_s = max(0.001, core.config.auto_commit_interval_ms / 1000)
        self._timer = _Timer(core)
        self._running = False
        #: What needs no commit any more: committed, on its way, or where the group's commit was found.
        self._last: dict[TopicPartition, OffsetAndMetadata] = {}

    def begin(self) -> None:
        """Start, with the first subscription or assignment."""
        # An interval of 0 leaves the commits before partitions are given up, as in librdkafka.
        if self.enabled and not self._running and self._core.config.auto_commit_interval_ms > 0:
            self._running = True
            self._home.later(self._interval_s, self._timer.ring)

    def stop(self) -> None:
        """End."""
        self._timer.stopped = True

    @property
    def due(self) -> bool:
        """True when it is time."""
        return self._timer.due

    def started(self, committed: Positions) -> None:
        """These begin at a commit of the group."""
        self._last.update(committed)

    def began_at(self, partition: TopicPartition) -> int:
        """The group's commit that a partition began at, or the last one that was sent; ``OFFSET_INVALID`` without one."""
        at = self._last.get(partition)
        return OFFSET_INVALID if at is None else at.offset

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """These are not read any more: another member may commit them."""
        for partition in partitions:
            self._last.pop(partition, None)

    def commit(
        self, finished: Positions, timeout_ms: float, *, what: str = "automatic commit"
    ) -> Pending[CommitResult] | None:
        """Start a commit of what is not committed yet; None when there is nothing.  ``what`` stands in the log if it fails."""
        wanted = {partition: at for partition, at in finished.items() if self._last.get(partition) != at}
        if not wanted:
            return None
        self._last.update(wanted)
        pending = self._recreated.commit(wanted, timeout_ms)
        last = self._last
        pending.add_done_callback(lambda done: _answered(done, wanted, last, what))
        if self._follow is not None:
            self._follow(wanted, pending)
        return pending

    def tick(self, finished: Positions) -> None:
        """It was time: commit, without waiting for the answer, and set the timer anew."""
        self._timer.due = False
        self._home.later(self._interval_s, self._timer.ring)
        self.commit(finished, self._core.config.default_api_timeout_ms)


def _answered(
    done: Pending[CommitResult], wanted: Positions, last: dict[TopicPartition, OffsetAndMetadata], what: str
) -> None:
    if done.cancelled():
        return
    result = outcome(wanted, done)
    warn_of_failed(what, result)
    for partition, error in result.items():
        if error is not None and last.get(partition) == wanted[partition]:
            last.pop(partition, None)


#: Called with what was to be committed and how it went.
Tell = Callable[[Positions, CommitResult], None]


class AsynchronousCommits:
    """Asynchronous commits: the outcome of each is reported exactly once, in the order of the calls."""

    def __init__(self, core: ConsumerCoordinator, home: Home, tell: Tell, recreated: RecreatedTopics) -> None:
        self._core = core
        self._recreated = recreated
        self._home = home
        self._tell = tell
        self._flying: deque[tuple[Positions, Pending[CommitResult]]] = deque()

    @property
    def full(self) -> bool:
        """True when the next one has to wait for the oldest."""
        return len(self._flying) >= MOST_ASYNCHRONOUS

    async def make_room(self) -> None:
        """Wait for the oldest, and tell of it."""
        if self.full:
            await self._home.wait(self._flying[0][1], self._core.config.default_api_timeout_ms / 1000)
            self.tell()

    def start(self, wanted: Positions) -> Pending[CommitResult]:
        """Commit, without waiting."""
        core = self._core
        pending = self._recreated.commit(wanted, core.config.default_api_timeout_ms)
        self.follow(wanted, pending)
        return pending

    def follow(self, wanted: Positions, pending: Pending[CommitResult]) -> None:
        """Tell of this commit, too, when it is answered."""
        self._flying.append((wanted, pending))
        pending.add_done_callback(lambda _: self._core.application.rouse())

    def tell(self) -> None:
        """Tell of those that were answered."""
        while self._flying and self._flying[0][1].done():
            wanted, pending = self._flying.popleft()
            self._tell(wanted, outcome(wanted, pending))

    async def finish(self, ends: float) -> None:
        """Wait for all of them until ``ends``, of the home's clock, and tell of all; before close."""
        while self._flying:
            wanted, pending = self._flying[0]
            if await self._home.wait(pending, max(0.0, ends - self._home.now())):
                self.tell()
                continue
            self._flying.popleft()
            late = RequestTimedOutError("the commit was not answered before the consumer was closed")
            self._tell(wanted, dict.fromkeys(wanted, late))
