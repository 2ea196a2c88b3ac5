"""Commits of one query: what Spark has finished, sent in the background, again after a failure, and never for another topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from consumer_coord.consumer.blocking import BlockingCoordinator
from consumer_coord.errors import CommitFailedError, CoordinatorError, FatalError, RetriableError
from consumer_coord.offsets import CommitResult
from consumer_coord.printable import get_logger
from consumer_coord.spark.background import REQUEST_TIMEOUT_MS, Background
from consumer_coord.spark.commit_metadata import with_topic_id
from consumer_coord.spark.identity import TopicIdentity, current_ids
from consumer_coord.spark.options import Options
from consumer_coord.spark.planner import PlannedCommit, Planner
from consumer_coord.spark.start_offsets import is_other
from consumer_coord.spark.status import Status
from consumer_coord.topic_partition import TopicPartition

logger = get_logger(__name__)

#: A commit that failed is sent again after so long.
RETRY_COMMIT_S = 1.0


class Commits:
    """Which commits are due, and how they went."""

    def __init__(
        self,
        options: Options,
        planner: Planner,
        status: Status,
        identity: TopicIdentity,
        member: Callable[[], BlockingCoordinator],
    ) -> None:
        self._options = options
        self._planner = planner
        self._status = status
        self._identity = identity
        self._member = member
        #: A commit that failed is not sent again before this time.
        self._retry_s: dict[TopicPartition, float] = {}

    def finished(self, background: Background) -> None:
        """Commit what Spark has finished, in the background."""
        self.collect(background)
        commits = self.due(self._planner.uncommitted())
        if commits:
            background.commit(commits)

    def drain(self, background: Background) -> None:
        """Wait for those that are on their way."""
        background.drain(REQUEST_TIMEOUT_MS / 1000)
        self.collect(background)

    def collect(self, background: Background) -> None:
        """Note how commits went."""
        for outcome in background.outcomes():
            if outcome.error is None:
                self._planner.committed(outcome.partition, outcome.commit)
                self._status.commits += 1
                self.recovered()
            else:
                self.failed(outcome.partition, outcome.commit, outcome.error)

    def due(self, commits: Mapping[TopicPartition, PlannedCommit]) -> Mapping[TopicPartition, PlannedCommit]:
        """Those that did not fail just now."""
        now_s = time.monotonic()
        self._retry_s = {partition: at_s for partition, at_s in self._retry_s.items() if at_s > now_s}
        return {partition: commit for partition, commit in commits.items() if partition not in self._retry_s}

    def failed(self, partition: TopicPartition, commit: PlannedCommit, error: CoordinatorError) -> None:
        """It is tried again a second later; raises an error that no retry cures."""
        if isinstance(error, FatalError) and not isinstance(error, CommitFailedError):
            raise error
        self._status.commit_failed(partition, commit.offset, error)
        self._identity.hint()
        self._retry_s[partition] = time.monotonic() + RETRY_COMMIT_S

    def recovered(self) -> None:
        """Report no problem with commits any longer, unless one waits to be sent again."""
        if not self._retry_s:
            self._status.tell("commits", None)

    def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Finished records that can no longer be committed will be read again by the new owner of their partitions."""
        waiting = self._planner.uncommitted()
        config = self._options.config().coordinator
        for partition in sorted(partitions & waiting.keys()):
            error = CommitFailedError(
                "the membership was lost before Spark confirmed the batch: no planning call came for"
                f" max.poll.interval.ms={config.max_poll_interval_ms}, or no heartbeat for"
                f" session.timeout.ms={config.session_timeout_ms}; process smaller batches (maxOffsetsPerTrigger)"
            )
            self.failed(partition, waiting[partition], error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are no longer held."""
        for partition in partitions:
            self._retry_s.pop(partition, None)

    def send_now(self, commits: Mapping[TopicPartition, PlannedCommit]) -> CommitResult:
        """Send and wait, on the main thread; what may be tried again is in the result."""
        try:
            return self.send(commits)
        except (RetriableError, CommitFailedError) as refused:
            return dict.fromkeys(commits, refused)

    def send(self, commits: Mapping[TopicPartition, PlannedCommit]) -> CommitResult:
        """On the background thread, or the main one."""
        coordinator = self._member()
        # Offsets of a topic that is gone must not be committed to the one of the same name that came after it.  Brokers of
        # 4.1 and later look at the id themselves; older ones know names only.
        topics = frozenset(partition.topic for partition in commits)
        ids = current_ids(coordinator, topics, REQUEST_TIMEOUT_MS)
        gone = {
            partition
            for partition, commit in commits.items()
            if partition.topic not in ids or is_other(commit.topic_id, ids[partition.topic])
        }
        results: dict[TopicPartition, CoordinatorError | None] = {
            partition: CommitFailedError(f"the topic with the id {commits[partition].topic_id} was deleted")
            for partition in gone
        }
        kept = {partition: commit for partition, commit in commits.items() if partition not in gone}
        results |= coordinator.commit(
            {partition: with_topic_id(commit) for partition, commit in kept.items()},
            timeout_ms=REQUEST_TIMEOUT_MS,
            ownerships={partition: commit.ownership for partition, commit in kept.items()},
            topic_ids={partition: commit.topic_id for partition, commit in kept.items()},
        )
        return results
