"""The commits of one query, on its loop.

Only offsets of batches that Spark has finished are committed. Spark's planning call passes commits to the coordinator's
:class:`~consumer_coord.group.commits.CommitLane` and does not wait. The lane sends a commit again until the coordinator
answers. The next planning call checks whether the commits succeeded. A rejected commit is sent again only if the brokers did
not know the topic. If a topic was deleted and created again, the old topic's offsets are never committed to the new topic.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import (
    ClosedError,
    CommitFailedError,
    CoordinatorError,
    FatalError,
    RetriableError,
    UnknownTopicError,
)
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.net.metadata import is_other
from consumer_coord.net.topic_ids import topic_ids
from consumer_coord.offsets import CommitResult
from consumer_coord.spark.commit_metadata import with_topic_id
from consumer_coord.spark.ledger import PlannedCommit
from consumer_coord.spark.log_ends import IDS_FRESH_S, REQUEST_TIMEOUT_MS
from consumer_coord.spark.status import Status
from consumer_coord.topic_partition import TopicPartition, listed

#: Time limit of a commit, in milliseconds: a year, because a commit is sent again until the query leaves the group.
_NO_LIMIT_MS: Final = 365 * 86_400_000.0


@attrs.frozen
class _Sent:
    commits: Mapping[TopicPartition, PlannedCommit]
    outcome: asyncio.Task[CommitResult]
    at_s: float


class Commits:
    """The commits of one query: the sent commits, their outcomes, and the rejected commits."""

    def __init__(
        self,
        core: ConsumerCoordinator,
        status: Status,
        on_failure: Callable[[], None],
        committed: Callable[[TopicPartition, PlannedCommit], None],
    ) -> None:
        """Keep the dependencies; ``committed`` is called for each offset that the coordinator has accepted."""
        self._core = core
        self._status = status
        self._on_failure = on_failure
        self._committed = committed
        #: Commits whose outcome has not been read yet.
        self._in_flight: deque[_Sent] = deque()
        #: Keeps commits in the order of the calls.
        self._order = asyncio.Lock()
        #: The last failed commit of each partition, and the time until which it is not sent again.
        self._failures: dict[TopicPartition, tuple[PlannedCommit, float]] = {}

    def submit(self, commits: Mapping[TopicPartition, PlannedCommit]) -> None:
        """Send the commits that are neither in flight nor just failed, without waiting. Call :meth:`collect` first."""
        known = {partition: commit for partition, (commit, until_s) in self._failures.items() if now() < until_s}
        for sent in self._in_flight:
            known.update(sent.commits)
        fresh = {partition: commit for partition, commit in commits.items() if known.get(partition) != commit}
        if fresh:
            outcome = asyncio.get_running_loop().create_task(self._send(fresh), name="query's commit")
            # Nobody reads the outcome after the query has left.
            outcome.add_done_callback(lambda one: one.cancelled() or one.exception())
            self._in_flight.append(_Sent(fresh, outcome, now()))

    async def drain(self) -> None:
        """Wait for the commits in flight, and record their outcomes."""
        if self._in_flight:
            await asyncio.wait([sent.outcome for sent in self._in_flight], timeout=REQUEST_TIMEOUT_MS / 1000)
        self.collect()

    def collect(self) -> None:
        """Record the outcomes of commits, and report commits that the coordinator has not answered in time."""
        while self._in_flight and self._in_flight[0].outcome.done():
            self._collect(self._in_flight.popleft())
        if self._in_flight and now() - self._in_flight[0].at_s > REQUEST_TIMEOUT_MS / 1000:
            why = self._core.commits.obstacle or "the coordinator does not answer"
            self._status.report("commits", f"the offsets of {listed(self._in_flight[0].commits)} are not committed yet: {why}")

    def _collect(self, sent: _Sent) -> None:
        try:
            results: CommitResult = sent.outcome.result()
        except ClosedError:
            return  # The query leaves, and sends no further commits.
        except CoordinatorError as error:
            results = dict.fromkeys(sent.commits, error)
        for partition, commit in sent.commits.items():
            failure = results[partition]
            if failure is not None:
                self._failed(partition, commit, failure)
                continue
            self._failures.pop(partition, None)
            self._status.commits += 1
            self._committed(partition, commit)
            if not self._failures:
                self._status.report("commits", None)

    def _failed(self, partition: TopicPartition, commit: PlannedCommit, error: CoordinatorError) -> None:
        """Record that a commit failed; raise ``error`` instead if it is fatal for the whole query."""
        if isinstance(error, FatalError) and not isinstance(error, CommitFailedError):
            raise error
        self._status.commit_failed(partition, commit.offset, error)
        self._on_failure()
        if isinstance(error, UnknownTopicError):
            # A broker with old metadata does not know a new topic yet.
            self._failures[partition] = (commit, now() + IDS_FRESH_S)
        elif not isinstance(error, RetriableError):
            self._failures[partition] = (commit, math.inf)

    def lost(self, waiting: Mapping[TopicPartition, PlannedCommit]) -> None:
        """Warn that finished records can no longer be committed under this membership; other members may read them again."""
        config = self._core.config
        for partition, commit in sorted(waiting.items()):
            error = CommitFailedError(
                "the membership was lost before Spark confirmed the batch: no planning call came within"
                f" max.poll.interval.ms={config.max_poll_interval_ms}, or no heartbeat within"
                f" session.timeout.ms={config.session_timeout_ms}. A batch, and the trigger's interval, must be shorter than"
                " kafka.max.poll.interval.ms: raise it, or process smaller batches (maxOffsetsPerTrigger)"
            )
            self._failed(partition, commit, error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the state of partitions that the query no longer owns."""
        for partition in partitions:
            self._failures.pop(partition, None)

    async def _send(self, commits: Mapping[TopicPartition, PlannedCommit]) -> CommitResult:
        """Commit, in the order of the calls."""
        core = self._core
        async with self._order:
            # Do not commit offsets of a deleted topic to the new topic of the same name. Brokers from 4.1 on check the topic
            # id; older brokers know only names.
            ids = await topic_ids(core.cluster, {partition.topic for partition in commits}, REQUEST_TIMEOUT_MS)
            kept = {
                partition: commit
                for partition, commit in commits.items()
                if partition.topic in ids and not is_other(commit.topic_id, ids[partition.topic])
            }
            answer = core.start_commit(
                {partition: with_topic_id(commit) for partition, commit in kept.items()},
                timeout_ms=_NO_LIMIT_MS,
                ownerships={partition: commit.ownership for partition, commit in kept.items()},
                topic_ids={partition: commit.topic_id for partition, commit in kept.items()},
            )
        gone = {
            partition: UnknownTopicError(f"the brokers do not report the topic with the id {commit.topic_id}; was it deleted?")
            for partition, commit in commits.items()
            if partition not in kept
        }
        return {**gone, **await answer}
