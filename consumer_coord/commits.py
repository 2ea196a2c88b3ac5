"""The blocking consumer's commits: automatic ones, and asynchronous ones whose outcome a later poll tells."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import deque
from collections.abc import Callable, Mapping

import confluent_kafka
from confluent_kafka import KafkaError

from consumer_coord.blocking import BlockingCoordinator
from consumer_coord.data_plane import DataPlane, native
from consumer_coord.errors import CoordinatorError, FatalError, RequestTimedOutError, RetriableError
from consumer_coord.kafka_exceptions import to_kafka_error
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition, listed

logger = logging.getLogger(__name__)

Positions = Mapping[TopicPartition, OffsetAndMetadata]

#: More asynchronous commits than this wait for the coordinator: then the next one waits for the oldest.
MOST_ASYNCHRONOUS = 1_000


def nothing_to_commit() -> CoordinatorError:
    """librdkafka's _NO_OFFSET."""
    return FatalError("there is nothing to commit: no message was handed out yet", code=KafkaError._NO_OFFSET)


class _FailedPartition(confluent_kafka.TopicPartition):  # type: ignore[misc]  # confluent-kafka has no types
    """A row with an error: confluent-kafka's own attribute can be set by librdkafka alone."""

    def __init__(self, row: confluent_kafka.TopicPartition, error: KafkaError) -> None:
        epoch = {} if row.leader_epoch is None else {"leader_epoch": row.leader_epoch}
        super().__init__(row.topic, row.partition, row.offset, metadata=row.metadata or "", **epoch)
        self._error = error

    @property
    def error(self) -> KafkaError:
        """Why it was not committed."""
        return self._error


def to_rows(wanted: Positions, result: CommitResult) -> list[confluent_kafka.TopicPartition]:
    """The outcome as confluent-kafka gives it: rows with an ``error``."""
    rows = []
    for partition, position in wanted.items():
        row = native(partition, position)
        error = result.get(partition)
        rows.append(row if error is None else _FailedPartition(row, to_kafka_error(error)))
    return rows


def warn_of_failed(result: CommitResult) -> None:
    """Log what could not be committed before partitions are given up: it will be processed again."""
    failed = {partition: error for partition, error in result.items() if error is not None}
    if failed:
        logger.warning("commit of %s before giving them up failed: %s", listed(failed), next(iter(failed.values())))


class AutoCommit:
    """``enable.auto.commit``: every ``auto.commit.interval.ms`` what was finished at the poll is committed.

    A timer of the background loop raises the consumer's flag, so that a poll needs no look at the clock.
    """

    def __init__(self, coordinator: BlockingCoordinator, data: DataPlane) -> None:
        self._coordinator = coordinator
        self._data = data
        self._enabled = coordinator.config.coordinator.enable_auto_commit
        self._interval_s = coordinator.config.coordinator.auto_commit_interval_ms / 1000
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._last: dict[TopicPartition, OffsetAndMetadata] = {}

    def start(self) -> None:
        """Begin, with the first subscription."""
        if self._enabled and not self._running:
            self._running = True
            self._coordinator.on_loop(self._schedule)

    def stop(self) -> None:
        """End the timer."""
        if self._running:
            self._running = False
            self._coordinator.on_loop(self._cancel)

    def _schedule(self) -> None:
        if self._running:
            self._timer = asyncio.get_running_loop().call_later(max(0.001, self._interval_s), self._tick)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._due = True
        self._coordinator.core.rouse()

    def poll(self, finished: Callable[[], Positions]) -> None:
        """Commit what is finished, if it is time, without waiting for the answer."""
        if not self._due:
            return
        self._due = False
        wanted = {partition: at for partition, at in finished().items() if self._last.get(partition) != at}
        self._last.update(wanted)
        if wanted:
            ownerships = self._coordinator.core.assignment.ownerships(wanted)
            limit_ms = self._coordinator.config.coordinator.default_api_timeout_ms
            future = self._coordinator.submit(
                lambda: self._coordinator.core.commit(wanted, timeout_ms=limit_ms, ownerships=ownerships)
            )
            future.add_done_callback(lambda done: self._answered(done, wanted))
        self._coordinator.on_loop(self._schedule)

    def _answered(self, done: concurrent.futures.Future[CommitResult], wanted: Positions) -> None:
        if done.cancelled():
            return
        error = done.exception()
        failed = list(wanted) if error is not None else [tp for tp, failure in done.result().items() if failure is not None]
        if failed:
            why = error if error is not None else done.result()[failed[0]]
            logger.warning("automatic commit of %s failed: %s", listed(failed), why)
            for partition in failed:
                self._last.pop(partition, None)

    def commit_now(self, finished: Positions, timeout_ms: float) -> None:
        """Commit and wait, before partitions are given up; what cannot be committed is logged and processed again."""
        for partition in finished:
            self._last.pop(partition, None)
        if not finished:
            return
        try:
            result = self._coordinator.commit(finished, timeout_ms=timeout_ms)
        except CoordinatorError as error:
            result = dict.fromkeys(finished, error)
        warn_of_failed(result)


class AsynchronousCommits:
    """Commits in flight, in order; their outcome is told inside a later poll."""

    def __init__(
        self,
        coordinator: BlockingCoordinator,
        tell: Callable[[list[confluent_kafka.TopicPartition], CoordinatorError | None], None],
    ) -> None:
        self._coordinator = coordinator
        self._tell = tell
        self._flying: deque[tuple[Positions, concurrent.futures.Future[CommitResult]]] = deque()

    def start(self, wanted: Positions) -> None:
        """Send ``wanted``; when far too many are in flight, wait for the oldest first."""
        core = self._coordinator.core
        limit_ms = self._coordinator.config.coordinator.default_api_timeout_ms
        if len(self._flying) >= MOST_ASYNCHRONOUS:
            self._wait(self._flying[0][1], limit_ms)
            self.poll()
        ownerships = core.assignment.ownerships(wanted)
        future = self._coordinator.submit(lambda: core.commit(wanted, timeout_ms=limit_ms, ownerships=ownerships))
        self._flying.append((wanted, future))
        future.add_done_callback(lambda _: core.rouse())

    def poll(self) -> None:
        """Tell of those that were answered, in their order."""
        while self._flying and self._flying[0][1].done():
            wanted, future = self._flying.popleft()
            if future.cancelled():
                continue
            error = future.exception()
            if isinstance(error, CoordinatorError):
                self._tell(to_rows(wanted, dict.fromkeys(wanted, error)), error)
            elif error is not None:
                raise error
            else:
                result = future.result()
                first = next((failure for failure in result.values() if failure is not None), None)
                self._tell(to_rows(wanted, result), first)

    def finish(self, timeout_ms: float | None) -> None:
        """Wait for all of them, before close."""
        limit_ms = self._coordinator.config.coordinator.default_api_timeout_ms if timeout_ms is None else timeout_ms
        for _, future in tuple(self._flying):
            try:
                self._wait(future, limit_ms)
            except RetriableError as error:
                logger.warning("a commit was not answered before close: %s", error)
                break
        self.poll()

    @staticmethod
    def _wait(future: concurrent.futures.Future[CommitResult], timeout_ms: float) -> None:
        done, _ = concurrent.futures.wait([future], timeout_ms / 1000)
        if not done:
            raise RequestTimedOutError(f"no answer to a commit within {timeout_ms:.0f} ms")
