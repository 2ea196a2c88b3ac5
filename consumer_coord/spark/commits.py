"""Commits of one query: what Spark has finished.

A planning call passes commits to the coordinator's commit lane, which retries them until their timeout, and does not
wait.  A later planning call looks at the outcomes.  No offset is committed to another topic of the same name.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from consumer_coord.errors import ClosedError, CommitFailedError, CoordinatorError, FatalError
from consumer_coord.offsets import CommitResult
from consumer_coord.printable import get_logger
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator
from consumer_coord.runtime.outcome import Outcome
from consumer_coord.spark.background import REQUEST_TIMEOUT_MS
from consumer_coord.spark.commit_metadata import with_topic_id
from consumer_coord.spark.identity import TopicIdentity, topic_ids
from consumer_coord.spark.options import Options
from consumer_coord.spark.planner import PlannedCommit, Planner
from consumer_coord.spark.start_offsets import is_other
from consumer_coord.spark.status import Status
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

#: Back-off before a planning call sends a failed commit again, in seconds: an idle query has 90
#: such calls a second.
RETRY_COMMIT_S = 1.0


@attrs.frozen
class _Sent:
    commits: Mapping[TopicPartition, PlannedCommit]
    outcome: Outcome[CommitResult]


class Commits:
    """The commits that are due, and the outcomes of those sent."""

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
        #: Sent, with an outcome that was not read yet.
        self._in_flight: deque[_Sent] = deque()
        #: Keeps the order of the calls.
        self._order = asyncio.Lock()
        #: A failed commit is not sent again before this time.
        self._retry_s: dict[TopicPartition, float] = {}

    def finished(self) -> None:
        """Commit the offsets that Spark has finished, without waiting for the response."""
        self.collect()
        in_flight = {partition: commit for sent in self._in_flight for partition, commit in sent.commits.items()}
        commits = {
            partition: commit
            for partition, commit in self.due(self._planner.uncommitted()).items()
            if in_flight.get(partition) != commit
        }
        if commits:
            self._in_flight.append(_Sent(commits, self._member().submit(lambda: self._send(commits))))

    def drain(self) -> None:
        """Wait for the commits in flight, and record their outcomes."""
        ends_s = time.monotonic() + REQUEST_TIMEOUT_MS / 1000
        for sent in self._in_flight:
            sent.outcome.wait(max(0.0, ends_s - time.monotonic()))
        self.collect()

    def collect(self) -> None:
        """Record the outcomes of commits."""
        while self._in_flight and self._in_flight[0].outcome.done():
            sent = self._in_flight.popleft()
            try:
                results = self._results(sent.commits, sent.outcome.result)
            except ClosedError:
                continue  # the query leaves, and sends no further commits
            for partition, commit in sent.commits.items():
                error = results[partition]
                if error is None:
                    self._planner.committed(partition, commit)
                    self._status.commits += 1
                    self.recovered()
                else:
                    self.failed(partition, commit, error)

    def due(self, commits: Mapping[TopicPartition, PlannedCommit]) -> Mapping[TopicPartition, PlannedCommit]:
        """Return the commits that did not fail just now."""
        now_s = time.monotonic()
        self._retry_s = {partition: at_s for partition, at_s in self._retry_s.items() if at_s > now_s}
        return {partition: commit for partition, commit in commits.items() if partition not in self._retry_s}

    def failed(self, partition: TopicPartition, commit: PlannedCommit, error: CoordinatorError) -> None:
        """Schedule a retry a second later; raises an error that no retry cures."""
        if isinstance(error, FatalError) and not isinstance(error, CommitFailedError):
            raise error
        self._status.commit_failed(partition, commit.offset, error)
        self._identity.hint()
        self._retry_s[partition] = time.monotonic() + RETRY_COMMIT_S

    def recovered(self) -> None:
        """Clear the reported commit problem, unless a commit waits for its retry."""
        if not self._retry_s:
            self._status.tell("commits", None)

    def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Warn that finished records can no longer be committed: the new owner of their partitions will read them again."""
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
        """Drop the state of partitions that are no longer held."""
        for partition in partitions:
            self._retry_s.pop(partition, None)

    def send_now(self, commits: Mapping[TopicPartition, PlannedCommit]) -> CommitResult:
        """Commit and wait for the response."""
        return self._results(commits, lambda: self._member().call(lambda: self._send(commits), REQUEST_TIMEOUT_MS))

    @staticmethod
    def _results(commits: Mapping[TopicPartition, PlannedCommit], answer: Callable[[], CommitResult]) -> CommitResult:
        """Return the result for each partition; an error of the whole commit counts for each partition."""
        try:
            return answer()
        except ClosedError:
            raise
        except CoordinatorError as error:
            return dict.fromkeys(commits, error)

    async def _send(self, commits: Mapping[TopicPartition, PlannedCommit]) -> CommitResult:
        """Commit on the coordinator's loop, in the order of the calls."""
        core = self._member().core
        async with self._order:
            # Offsets of a deleted topic must not be committed to the topic that has its name now.  Brokers of 4.1 and later
            # look at the id themselves; older brokers know only names.
            ids = await topic_ids(core.cluster, {partition.topic for partition in commits}, REQUEST_TIMEOUT_MS)
            kept = {
                partition: commit
                for partition, commit in commits.items()
                if partition.topic in ids and not is_other(commit.topic_id, ids[partition.topic])
            }
            answer = core.start_commit(
                {partition: with_topic_id(commit) for partition, commit in kept.items()},
                timeout_ms=REQUEST_TIMEOUT_MS,
                ownerships={partition: commit.ownership for partition, commit in kept.items()},
                topic_ids={partition: commit.topic_id for partition, commit in kept.items()},
            )
        gone = {
            partition: CommitFailedError(f"the topic with the id {commit.topic_id} was deleted")
            for partition, commit in commits.items()
            if partition not in kept
        }
        return {**gone, **await answer}
