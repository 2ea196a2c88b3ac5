"""The fetcher, which reads assigned partitions from their brokers into a bounded buffer.

Theory of operation
-------------------

*Assignments.* The caller assigns partitions, each with a start and a serial number (:class:`FetchStart`). Each assignment
creates a :class:`FetchState`. For a seek or a reset, the caller assigns the partition again, with a different serial number.
All records and events carry the serial number of their assignment, so records of an earlier assignment cannot be mistaken for
records of the current assignment.

*Brokers.* Each assigned partition belongs to one broker: the leader of the partition or, for a limited time, a replica in the
client's rack (KIP-392). For each broker, :class:`BrokerFetches` sends Fetches within fetch sessions (KIP-227). All fetchers of
one client with the same settings share these Fetches (:class:`SharedFetches`), so a Fetch names the partitions of all consumers
of the process. When a response arrives, the next offset is read from the headers of the batches (``batches.py``). So the next
Fetch leaves before the records of the response are decoded, in the same turn of the loop (``_Exchange``).

*Lanes.* A broker answers a Fetch at once if one of its partitions has records, and otherwise keeps it for
``fetch.wait.max.ms``. So that a partition with records never waits for the others, a Fetch either waits or does not
(``lanes.py``): while one that waits is in flight, another connection carries the Fetches of the partitions that have records,
or that begin to be read. A partition is at its end if its position is the high watermark or, with ``read_committed``, the last
stable offset: from there on, brokers wait, even if an open transaction has more records.

*The buffer.* The caller takes the records of whole responses (:meth:`Fetcher.take`) and decodes the records. Then it reports
its progress (:meth:`Fetcher.advance`), which frees the bytes of these records. Each fetcher has its own buffer, and every
broker has an equal share of the fetcher's ``queued_max_bytes`` (``read_ahead.py``):

1. A Fetch omits a partition of which ``queued_min_messages`` records wait to be taken.
2. A Fetch omits the partitions of a fetcher whose records from this broker use more than half of the broker's share, and
   requests at most half of the share.
3. A Fetch omits the partitions of a fetcher that nobody has used for half a minute.
4. If the application pauses a partition (:meth:`Fetcher.pause`), its records are dropped, and are fetched again after
   :meth:`Fetcher.resume`.

*Truncation.* A Fetch names the leader epoch of the last record before the fetch offset. If the leader's log differs from the
fetched records, the response has the point of divergence (``diverging_epoch``). Brokers below Fetch version 12 do not return
this point, so the fetcher checks the position with OffsetForLeaderEpoch whenever the leader epoch changes.

*Errors.* ``error_steps.py`` has the step for every error code. Temporary errors are retried with Kafka's backoff. If the caller
must decide what to do after an error, the partition stops, and the caller receives a :class:`Stopped` after the last records of
the partition. An error that ends a broker's task, such as refused credentials, is raised by :meth:`Fetcher.take`. Meanwhile the
fetcher tries again with back-off, because the password may be corrected, and drops an error that was not raised before the
broker answers; only a crash is raised by every further call.

The fetcher runs on one event loop, and reads time and randomness from the loop and the :class:`ClusterClient`'s environment.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from consumer_coord.environment import now
from consumer_coord.errors import ClosedError, CoordinatorError, FatalError
from consumer_coord.fetch import read_ahead
from consumer_coord.fetch.buffer import Buffer
from consumer_coord.fetch.fetch_metrics import FetchMetrics
from consumer_coord.fetch.partition_state import Fetches, FetchState
from consumer_coord.fetch.shared_fetches import SharedFetches
from consumer_coord.fetch.values import FetchConfig, FetchedRecords, FetchStart, LogEnd, Stopped, StopReason
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Metadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wake_ups import WakeUp
from consumer_coord.wire.schema import ZERO_UUID

logger: Final = get_logger(__name__)

#: A fetcher sends no request after this time without a call, in seconds, until the next call.
_UNUSED_S = 30.0
_TWICE = 2


class Fetcher:
    """Fetches assigned partitions. Create and use a fetcher on one event loop, and end it with :meth:`close`."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: FetchConfig | None = None,
        *,
        on_ready: Callable[[], object] = lambda: None,
        reports_ends: bool = False,
    ) -> None:
        """Prepare the fetcher. On its loop, it calls ``on_ready`` when :meth:`take` has something new to return or to raise.

        ``reports_ends``: whether :meth:`take` also reports, once for each offset, that a position is at the end of its log.
        """
        self.cluster = cluster
        self.config: FetchConfig = config or FetchConfig()
        self._states: dict[TopicPartition, FetchState] = {}
        self._shared = SharedFetches.join(self, cluster, self.config)
        self._leaders = self._shared.leaders
        #: The brokers from which this fetcher's partitions are fetched, with their numbers of these partitions.
        self._brokers: Counter[Fetches] = Counter()
        self._buffer = Buffer()
        #: What :meth:`advance` reported and the buffer does not know yet, and whether a Fetch waits for it.
        self._passed: deque[tuple[TopicPartition, int, int]] = deque()
        self._held_back = False
        self._loop = asyncio.get_running_loop()
        self.metrics: FetchMetrics = FetchMetrics(now)
        self._ready = WakeUp()
        self._on_ready = on_ready
        self._reports_ends = reports_ends
        #: Broker -> the error that ended its Fetches, until it answers one, the last error last; and whether to raise it.
        self._failures: dict[Fetches, CoordinatorError] = {}
        self._unraised = False
        self._closed = False
        #: Whether records arrived that were not announced.
        self._delivered = False
        #: Whether a call was made since ``_used_at`` (loop's clock, in seconds), the number of calls that wait, and whether the
        #: last call was so long ago that no request is sent.
        self._used = True
        self._used_at = 0.0
        self._waiting = 0
        self._unused = False
        #: Number of consecutive metadata updates that lacked the leader of an assigned partition.
        self._leaderless = 0
        self._watch = cluster.watch(frozenset(), self._metadata_changed)

    def __repr__(self) -> str:
        paused = sum(state.paused for state in self._states.values())
        closed = ", closed" if self._closed else ""
        return f"<Fetcher of {len(self._states)} partitions, {paused} paused, from {len(self._brokers)} brokers{closed}>"

    # -- assignment ---------------------------------------------------------------------------------------------------

    def assign(self, starts: Mapping[TopicPartition, FetchStart]) -> None:
        """Start to fetch these partitions, in addition to the partitions that are already assigned.

        A partition that is already assigned starts again, with the new start and serial number.
        """
        self._check_open()
        for partition, start in starts.items():
            self._drop(partition)
            topic_id = self._leaders.topic_id(partition.topic) if start.topic_id == ZERO_UUID else start.topic_id
            self._states[partition] = FetchState.starting(self, partition, start, topic_id, now())
        self._watch_topics()
        fresh = [self._states[partition] for partition in starts]
        self._compare_topic_ids(fresh)
        for state in fresh:
            self.place(state)

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop their records."""
        for partition in partitions:
            self._drop(partition)
        self._watch_topics()
        self._look()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions until :meth:`resume`, and drop their records that were not taken."""
        for state in self._assigned(partitions):
            state.paused = True
            self._buffer.rewind(state)
        self._look()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again, from the first record that was not taken."""
        for state in self._assigned(partitions):
            state.paused = False
            self.place(state)

    @property
    def assignment(self) -> Mapping[TopicPartition, int]:
        """Partition -> the serial number of its current assignment."""
        return {partition: state.serial for partition, state in self._states.items()}

    @property
    def fetches_by_id(self) -> bool:
        """True if all Fetch requests named topics by id (version 13, Kafka 3.1), so that records match the topic ids."""
        return self._shared.by_id

    def watermarks(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the high watermark in a partition's last response; None if there was no response.

        Readable from any thread.
        """
        state = self._states.get(partition)
        return None if state is None else state.watermarks

    def queues(self, partition: TopicPartition) -> Mapping[str, int]:
        """Return librdkafka's figures of a partition: records and bytes fetched ahead, and the log's offsets (if known)."""
        state = self._states.get(partition)
        if state is None:
            return {}
        found = {"fetchq_cnt": state.untaken_records, "fetchq_size": state.untaken, "next_offset": state.offset}
        if state.watermarks is not None:
            found |= {"lo_offset": state.watermarks[0], "hi_offset": state.watermarks[1]}
            found |= {"ls_offset": state.last_stable_offset}
        return found

    def log_ends(self) -> Mapping[TopicPartition, LogEnd]:
        """Return what the brokers' responses say about the end of each assigned partition's log, without a request."""
        self._settle()
        held: Counter[Fetches] = Counter()
        for state in self._states.values():
            if state.broker is not None:
                held[state.broker] += state.held
        full = {broker for broker, size in held.items() if read_ahead.is_full(size, self.share_bytes())}
        return {partition: self._log_end(state, state.broker in full) for partition, state in self._states.items()}

    def _log_end(self, state: FetchState, full: bool) -> LogEnd:
        broker, watermarks, end = state.broker, state.watermarks, -1 if state.unanswered else state.end_offset
        if watermarks is not None:
            end = state.last_stable_offset if self.config.read_committed else watermarks[1]
        return LogEnd(
            fetched=state.offset,
            end=None if end < 0 else max(end, state.offset),
            high_watermark=None if watermarks is None else watermarks[1],
            answered_at=state.answered_at,
            wait_s=self.config.fetch_wait_max_ms / 1000,
            broker=None if broker is None else broker.broker_id,
            held_back=full or self._unused or read_ahead.has_enough(self.config, state),
            throttled_until=0.0 if broker is None else broker.throttled_until,
            obstacle=state.obstacle,
        )

    # -- records ------------------------------------------------------------------------------------------------------

    def take(self, max_bytes: int) -> list[FetchedRecords | Stopped]:
        """Return fetched records, and reports that partitions stopped, in order of arrival, without waiting.

        Return up to ``max_bytes`` of record batches, but at least one item if there is one. Call :meth:`advance` for each
        :class:`FetchedRecords` when its records are decoded. If an error ended the Fetches from a broker, raise it.
        """
        self._check_open()
        self._use()
        found = self._buffer.take(max_bytes)
        if found:
            for broker in tuple(self._brokers):
                broker.freed()
        elif self._unraised and (failure := self.failure()) is not None:
            raise failure
        return found

    def failure(self) -> CoordinatorError | None:
        """Return the last error that ended the Fetches from a broker, unless the broker has answered since.

        :meth:`take` does not raise this error again, unless it is a crash.
        """
        failure = next(reversed(self._failures.values()), None)
        self._unraised = failure is not None and not isinstance(failure, FatalError)
        return failure

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` has something to return or to raise; readable from any thread.

        Also true if no request was sent for some time, because nobody used the fetcher: a call begins to fetch again.
        """
        self._used = True
        return bool(self._buffer) or self._unraised or self._closed or self._unused

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until :meth:`take` has something to return or to raise; return False if ``deadline`` passes first."""
        self._check_open()
        self._use()
        self._waiting += 1
        try:
            return await self._ready.until(lambda: self.ready, deadline)
        finally:
            self._waiting -= 1

    def _use(self) -> None:
        """Send requests again if nobody used the fetcher for some time."""
        self._used = True
        if self._unused:
            self._unused = False
            self._look()

    def _announce(self) -> None:
        self._ready.fire()
        self._on_ready()

    def advance(self, partition: TopicPartition, serial: int, next_offset: int) -> None:
        """Free the bytes of a partition's records before ``next_offset``; ignore a serial that is no longer current.

        Any thread may call this. The loop is woken only if a Fetch waits for these bytes.
        """
        self._passed.append((partition, serial, next_offset))
        # First the append, then this check. hold_back() does it in the other order, so one of the two notices the other.
        if self._held_back and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        """Free the bytes that :meth:`advance` reported."""
        self._held_back, passed = False, self._passed
        while passed:
            partition, serial, next_offset = passed.popleft()
            state = self._states.get(partition)
            if state is not None and state.serial == serial:
                self._buffer.advance(state, next_offset)
        for broker in tuple(self._brokers):
            # If the partitions are still held back, the check finds this, and calls hold_back() again.
            broker.freed()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop fetching, drop the buffer, and end the fetch sessions at brokers to which a connection is open."""
        if self._closed:
            return
        self._closed = True
        self.cluster.unwatch(self._watch)
        for partition in tuple(self._states):
            self._drop(partition)
        await self._shared.leave(self)
        self._buffer = Buffer()
        self._announce()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this fetcher was closed")

    # -- for the Fetches from a broker: see ``Owner`` in partition_state.py ------------------------------------------------

    def share_bytes(self) -> int:
        return read_ahead.share_bytes(self.config, len(self._brokers))

    def hold_back(self) -> None:
        self._held_back = True
        if self._passed:
            self._loop.call_soon(self._settle)

    def in_use(self, moment: float) -> bool:
        if self._used or self._waiting:
            self._used, self._used_at = False, moment
        self._unused = moment - self._used_at > _UNUSED_S
        return not self._unused

    def is_current(self, state: FetchState) -> bool:
        return state.active and self._states.get(state.partition) is state

    def deliver(self, state: FetchState, records: FetchedRecords, size: int, count: int) -> None:
        self._buffer.add(state, records, size, count)
        self.metrics.delivered(size, count)
        state.offset, state.leader_epoch = records.next_offset, records.leader_epoch
        # Move the partition to the end, so that the next request begins with the partitions that waited longest for records.
        if state.broker is not None:
            queue = state.broker.partitions
            queue[state] = queue.pop(state)
        self._delivered = True

    def answered(self, broker: Fetches, latency_ms: float) -> None:
        self.metrics.answered(latency_ms)
        if self._failures:
            self._drop_failure(broker)
        if self._passed:
            self._settle()
        if self._delivered:
            self._delivered = False
            self._announce()

    def stop(self, state: FetchState, reason: StopReason, error: CoordinatorError, end: tuple[int, int] = (-1, -1)) -> None:
        state.stopped = True
        state.obstacle = str(error)
        logger.debug("%s is no longer fetched: %s", state.partition, error)
        stopped = Stopped(state.partition, state.serial, reason, state.offset, error, *end)
        self._buffer.add(state, stopped, 0, 0)
        self._announce()

    def reach_end(self, state: FetchState) -> None:
        if self._reports_ends and state.reported_end != state.offset:
            state.reported_end = state.offset
            at = {"offset": state.offset, "next_offset": state.offset, "leader_epoch": state.leader_epoch}
            ends = {"high_watermark": state.end_offset, "last_stable_offset": state.end_offset, "log_start_offset": -1}
            self._buffer.add(state, FetchedRecords(state.partition, state.serial, records=b"", aborted=(), **at, **ends), 0, 0)
            self._announce()

    def place(self, state: FetchState) -> None:
        crashed = any(not isinstance(error, FatalError) for error in self._failures.values())
        if crashed or self._states.get(state.partition) is not state:
            return
        broker_id = self._broker_for(state)
        broker = None if broker_id is None else self._shared.fetches_from(broker_id)
        self._move(state, broker)
        if broker is None:
            self.cluster.refresh_later(self.cluster.backoff.ms(self._leaderless))
        else:
            broker.check()

    def _move(self, state: FetchState, broker: Fetches | None) -> None:
        """Fetch a partition from another broker; None: from no broker."""
        before, state.broker = state.broker, broker
        if before is broker:
            return
        if before is not None:
            del before.partitions[state]
            self._brokers[before] -= 1
            if not self._brokers[before]:
                del self._brokers[before]
                self._drop_failure(before)
        if broker is not None:
            broker.partitions[state] = None
            self._brokers[broker] += 1

    def fail(self, broker: Fetches, error: CoordinatorError) -> None:
        self._failures.pop(broker, None)
        self._failures[broker], self._unraised = error, True
        self._announce()

    def _drop_failure(self, broker: Fetches) -> None:
        """Forget the error of a broker that answers, or from which nothing is fetched; a crash remains."""
        if isinstance(self._failures.get(broker), FatalError):
            del self._failures[broker]
            self._unraised = self._unraised and bool(self._failures)

    def _broker_for(self, state: FetchState) -> int | None:
        if state.preferred is not None:
            if self._leaders.broker(state.preferred[0]) is not None:
                return state.preferred[0]
            # The replica's address is unknown, so do as Java does: refresh the metadata, and fetch from the leader.
            self.cluster.refresh_soon()
            state.preferred = None
        leader = self._leaders.of(state.partition).broker
        return None if leader is None else leader.id

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _metadata_changed(self, metadata: Metadata) -> None:
        self._leaders.metadata_changed()
        states = tuple(self._states.values())
        self._compare_topic_ids(states)
        waiting = any(self._leaders.of(state.partition).broker is None for state in states)
        self._leaderless = self._leaderless + 1 if waiting else 0
        for state in states:
            self._warn_if_missing(state, metadata)
            self.place(state)

    def _warn_if_missing(self, state: FetchState, metadata: Metadata) -> None:
        """Log a partition that two metadata in a row did not have; the first may be older than the partition."""
        topic = metadata.topics.get(state.partition.topic)
        missing = topic is not None and state.partition.partition >= topic.partition_count
        state.missing = state.missing + 1 if missing else 0
        if topic is not None and state.missing == _TWICE:
            logger.warning(
                "partition %s does not exist: the topic's partition count is %d. Reading begins when the partition is created",
                state.partition,
                topic.partition_count,
            )

    def _compare_topic_ids(self, states: Iterable[FetchState]) -> None:
        """Stop the partitions of topics that were deleted and created again; record topic ids that became known."""
        for state in states:
            known = self._leaders.topic_id(state.partition.topic)
            if state.topic_id == ZERO_UUID:
                state.topic_id = known
            elif known not in (ZERO_UUID, state.topic_id) and not state.stopped:
                error = CoordinatorError(
                    f"topic {state.partition.topic} was deleted and created again: {state.partition} was read up to offset"
                    f" {state.offset} under topic id {state.topic_id}, but the topic id is now {known}"
                )
                self.stop(state, StopReason.RECREATED, error)

    def _watch_topics(self) -> None:
        self.cluster.change_watch(self._watch, frozenset(partition.topic for partition in self._states))

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[FetchState]:
        return [self._states[partition] for partition in partitions if partition in self._states]

    def _drop(self, partition: TopicPartition) -> None:
        state = self._states.pop(partition, None)
        if state is not None:
            self._buffer.forget(state)
            self._move(state, None)

    def _look(self) -> None:
        """Check again whether to send a Fetch."""
        for broker in tuple(self._brokers):
            broker.check()
