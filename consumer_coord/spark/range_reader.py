"""Read ranges of offsets with this package's Fetch into Arrow columns.

A worker process keeps its readers, each with a :class:`~consumer_coord.fetch.Fetcher` on the process's background loop. The
fetcher reads ahead while the task's thread decodes.

A reader stops in each partition at a *position*. Records that arrived beyond the end of a range stay in a small *stash* for the
next range. The next range usually begins there, so no seek is needed.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import Columns, CompletedFetch
from consumer_coord.config import parse
from consumer_coord.errors import AuthorizationError, RetriableError
from consumer_coord.fetch import FetchConfig, FetchedRecords, Fetcher, FetchStart, Stopped, StopReason
from consumer_coord.fetch.chunk import FetchedChunk
from consumer_coord.log_text import get_logger
from consumer_coord.net.metadata import Metadata
from consumer_coord.retry import Deadline
from consumer_coord.runtime.outcome import Outcome
from consumer_coord.spark.errors import DataLossError, ReadStalledError
from consumer_coord.spark.packing import NO_TOPIC_ID, Range
from consumer_coord.spark.read_time_limits import ReadTimeLimits
from consumer_coord.spark.user_code import with_callbacks
from consumer_coord.threads.background import Runtime
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes

logger: Final = get_logger(__name__)

#: An Arrow batch is complete with this many records, or this many bytes of records.
BATCH_RECORDS = 10_000
BATCH_BYTES = 4 << 20
#: Maximum number of bytes to take from the fetcher in one call.
TAKE_BYTES = 16 << 20
#: Limits, in bytes, of the stash of one partition that no task reads, and of the stashes of all such partitions.
STASH_BYTES = 4 << 20
MOST_STASH_BYTES = 16 << 20
#: If the next range begins at most this number of offsets after the position, the reader skips the records in between, and does
#: not seek.
SKIP = 1_000
#: From this number of records on, a task stops reading all other partitions, which would compete for memory and fetches.
BIG_TASK = 20_000
#: A partition that no task has read for this time, in seconds, is no longer fetched.
IDLE_S = 60.0
_POLL_MS = 100.0
#: Time between two reports of a different topic id, in seconds. A broker may be out of date, so the reader accepts the id only
#: after the second report.
_AGAIN_S = 0.5
_LOOK_UP_TIMEOUT_MS = 30_000.0


@attrs.define
class _Position:
    """The state of one partition in the fetcher. ``stash`` has all existing records of the offsets [low, next)."""

    serial: int
    #: The id of the topic to which the records belong.
    topic_id: uuid.UUID
    next: int
    used_s: float
    stash: deque[FetchedChunk] = attrs.field(factory=deque)

    @property
    def low(self) -> int:
        """The first offset of the stash."""
        return self.stash[0].position if self.stash else self.next

    @property
    def stash_bytes(self) -> int:
        return sum(each.size for each in self.stash)


class _Batch:
    """The growing columns of a batch, and the topics of the batch's rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = Columns(schema.names)
        #: The topic and the number of rows of each decoded piece, in order.
        self._runs: list[tuple[str, int]] = []
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._columns) >= BATCH_RECORDS or self.bytes >= BATCH_BYTES

    def append(self, fetch: CompletedFetch, end: int) -> None:
        """Decode records below the offset ``end`` until the batch is full."""
        appended = self._columns.append(
            fetch,
            end_offset=end,
            max_records=max(1, BATCH_RECORDS - len(self._columns)),
            max_bytes=max(1, BATCH_BYTES - self.bytes),
        )
        self.bytes += appended.bytes
        if appended.records:
            self._runs.append((fetch.topic, appended.records))

    def finish(self, without: Iterable[str] = ()) -> Iterator[pa.RecordBatch]:
        """Return the rows, except the rows of the topics in ``without``, and start a new batch."""
        runs, self._runs, self.bytes = self._runs, [], 0
        for batch in pa.RecordBatchReader.from_stream(self._columns.finish()):
            whole = batch if batch.schema.equals(self._schema) else batch.cast(self._schema)
            if not without:
                yield whole
                continue
            at = 0
            for topic, count in runs:
                if topic not in without:
                    yield whole.slice(at, count)
                at += count


class RangeReader:
    """A fetcher of this process, and the position in each of its partitions. Only one thread may use a reader."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Create the fetcher from the settings of a query's data plane. The first range opens the connections."""
        self._positions: dict[TopicPartition, _Position] = {}
        self.used_s: float = 0.0
        # The ranges that the current task still has to read, and the ids of the planned topics.
        self._pending: dict[TopicPartition, Range] = {}
        self._planned_ids: dict[str, uuid.UUID] = {}
        self._fail_on_data_loss = True
        self._timeout_ms = 0
        parsed = parse(with_callbacks(settings))
        self._client = parsed.client
        self._read_committed = parsed.read_committed
        self._check_crcs = parsed.check_crcs
        self._gone_after_s = int(settings.get("topic.metadata.propagation.max.ms", 30_000)) / 1000
        self._runtime = Runtime.shared()

        async def make() -> Fetcher:
            return Fetcher(self._runtime.clusters.acquire(self._client), FetchConfig.of(parsed))

        self._fetcher: Fetcher = self._runtime.call(make)
        self._cluster = self._fetcher.cluster
        self._serials = itertools.count(1)
        #: The partitions to assign in the next call of :meth:`_turn`.
        self._starts: dict[TopicPartition, FetchStart] = {}
        self._left: list[TopicPartition] = []
        self._decoded: list[tuple[TopicPartition, int, int]] = []
        #: Topics of the current task: the recreated topics, and missing topic -> the time when it was first missing.
        self._recreated: set[str] = set()
        self._missing_since: dict[str, float] = {}
        #: True if an earlier task may have fetched some of this task's records.
        self._used_stash = False

    def close(self) -> None:
        """Close the connections."""
        self._positions.clear()

        async def end() -> None:
            await self._fetcher.close()
            await self._runtime.clusters.release(self._client)

        self._runtime.call(end)

    def forget(self) -> None:
        """Stop reading all partitions. The connections stay open."""
        self._unassign(list(self._positions))
        self._turn(0)

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self, ranges: Sequence[Range], schema: pa.Schema, *, fail_on_data_loss: bool, timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield all records of ``ranges``, in offset order within each partition. A partition may have only one range.

        Raise :class:`~consumer_coord.spark.errors.DataLossError`, ``ReadStalledError`` after ``timeout_ms`` without a record,
        and errors that no retry resolves.
        """
        pending = self._start_task(ranges, fail_on_data_loss=fail_on_data_loss, timeout_ms=timeout_ms)
        self._recreated, self._missing_since, self._used_stash = set(), {}, False
        for key, each in pending.items():
            if self._kept(key, each) is None:
                self._assign(key, each, each.start)
            else:
                # The fetcher's buffer may also have records that an earlier task fetched.
                self._used_stash = True
        known = self._cluster.metadata.topics.keys() >= {key.topic for key in pending}
        self._turn(0)
        # The metadata arrives while records are decoded. If some topic has no metadata yet, wait for it first.
        metadata = self._ask_metadata()
        if not known:
            metadata.result()
        batch = _Batch(schema)
        patience = ReadTimeLimits(timeout_ms)
        while True:
            yield from self._decode_stashes(batch, metadata)
            if not pending:
                break
            before = len(pending)
            came = self._take()
            if came or len(pending) < before:
                patience.restart()
            elif patience.ended:
                self._drop_cut_back()
                if pending:
                    raise self._stalled()
            elif patience.compares_now():
                self._compare_topics()
        yield from self._checked(batch, metadata)
        # The fetcher reads ahead for the next task.
        self._turn(0)

    def _start_task(self, ranges: Sequence[Range], *, fail_on_data_loss: bool, timeout_ms: int) -> dict[TopicPartition, Range]:
        """Begin a task; return the pending ranges of the task.

        Stop reading other partitions that were long unused, or all other partitions if the task is big.
        """
        self.used_s = time.monotonic()
        self._fail_on_data_loss, self._timeout_ms = fail_on_data_loss, timeout_ms
        self._planned_ids = {each.topic: each.topic_id for each in ranges if each.topic_id != NO_TOPIC_ID}
        self._pending = {each.topic_partition: each for each in ranges if each.size}
        is_big = sum(each.size for each in ranges) >= BIG_TASK
        others = [(key, position) for key, position in self._positions.items() if key not in self._pending]
        self._unassign([key for key, position in others if is_big or self.used_s - position.used_s > IDLE_S])
        return self._pending

    def _kept(self, key: TopicPartition, wanted: Range) -> _Position | None:
        """Return the position from which the reader can continue the range; None if the partition must be assigned."""
        position = self._positions.get(key)
        if position is None or position.topic_id != wanted.topic_id or not position.low <= wanted.start <= position.next + SKIP:
            return None
        position.used_s = self.used_s
        return position

    def _decode_stashes(self, batch: _Batch, metadata: Outcome[Metadata]) -> Iterator[pa.RecordBatch]:
        """Decode all stashed records of pending ranges; yield each full batch."""
        pending = self._pending
        for key in [key for key in pending if self._positions[key].stash]:
            while key in pending and self._positions[key].stash:
                self._decode(batch, key, pending[key])
                if batch.is_full:
                    yield from self._checked(batch, metadata)

    def _decode(self, batch: _Batch, key: TopicPartition, wanted: Range) -> None:
        """Decode the first chunk of a partition's stash, up to the end of the range or until the batch is full."""
        position = self._positions[key]
        chunk = position.stash[0]
        passed = chunk.end <= wanted.start
        if not passed:
            fetch = chunk.decoder(max(chunk.position, wanted.start))
            batch.append(fetch, wanted.end)
            passed = fetch.exhausted
        if passed:
            position.stash.popleft()
            self._decoded.append((key, position.serial, chunk.end))
        if position.low >= wanted.end:
            del self._pending[key]

    def _take(self) -> bool:
        """Take the fetcher's records and handle its reports. Return whether records of pending ranges arrived."""
        came = False
        stopped: list[Stopped] = []
        for item in self._turn(_POLL_MS):
            position = self._positions.get(item.partition)
            if position is None or position.serial != item.serial:
                continue
            if isinstance(item, Stopped):
                stopped.append(item)
                continue
            position.next = item.next_offset
            position.stash.append(FetchedChunk(item, self._check_crcs, self._read_committed))
            if item.partition in self._pending:
                came = True
            else:
                # Count the records as decoded, because a partition that no task reads must not block the fetcher.
                self._decoded.append((item.partition, position.serial, item.next_offset))
                if position.stash_bytes > STASH_BYTES or self._kept_bytes() > MOST_STASH_BYTES:
                    self._unassign([item.partition])
        for one in stopped:
            position = self._positions.get(one.partition)
            if position is None:
                continue
            if one.partition in self._pending and position.stash:
                # Decode the earlier records first. After the restart, the fetcher reports the same error again.
                self._restart_behind(one)
            else:
                self._on_stopped(one)
        return came

    def _kept_bytes(self) -> int:
        return sum(position.stash_bytes for key, position in self._positions.items() if key not in self._pending)

    # -- the calls on the loop --------------------------------------------------------------------------------------

    def _turn(self, wait_ms: float) -> list[FetchedRecords | Stopped]:
        """Make the recorded calls of the fetcher on the loop. Unless ``wait_ms`` is 0, wait for records and return them."""
        fetcher = self._fetcher
        starts, self._starts = self._starts, {}
        left, self._left = self._left, []
        decoded, self._decoded = self._decoded, []

        async def turn() -> list[FetchedRecords | Stopped]:
            for partition, serial, offset in decoded:
                fetcher.advance(partition, serial, offset)
            if left:
                fetcher.unassign(left)
            if starts:
                fetcher.assign(starts)
            if not wait_ms:
                return []
            await fetcher.wait(Deadline.after(wait_ms))
            return fetcher.take(TAKE_BYTES)

        return self._runtime.call(turn, timeout_ms=wait_ms)

    def _ask_metadata(self) -> Outcome[Metadata]:
        timeout_ms = self._timeout_ms

        async def ask() -> Metadata:
            return await self._cluster.refresh(Deadline.after(timeout_ms))

        return self._runtime.submit(ask)

    # -- recreated topics -------------------------------------------------------------------------------------------

    def _checked(self, batch: _Batch, metadata: Outcome[Metadata]) -> Iterator[pa.RecordBatch]:
        """Yield the batch's rows, except the rows of topics that were recreated after the batch was planned.

        A Fetch by topic id returns records of that topic only. Newer metadata must confirm two kinds of records: records that
        were fetched for an earlier task, and records from a broker before Kafka 3.1, because these requests name the topic.
        """
        by_id = self._fetcher.fetches_by_id
        if not by_id:
            metadata = self._ask_metadata()
        if self._planned_ids and (self._used_stash or not by_id):
            self._drop_recreated(metadata.result())
            yield from batch.finish(self._recreated)
        else:
            yield from batch.finish()

    def _others(self, metadata: Metadata) -> Mapping[str, uuid.UUID]:
        """Return the planned topics that now have a different id, with that id."""
        now = {topic: metadata.topics[topic].id for topic in self._planned_ids if topic in metadata.topics}
        # Brokers before 2.8 have no topic ids.
        return {topic: one for topic, one in now.items() if one != NO_TOPIC_ID and one != self._planned_ids[topic]}

    def _drop_recreated(self, metadata: Metadata) -> None:
        """Drop the ranges of topics that were deleted and created again since the batch was planned."""
        others = self._others(metadata)
        while others:
            time.sleep(_AGAIN_S)
            again = self._others(self._ask_metadata().result())
            if again == others:
                break
            others = again
        for topic, now in others.items():
            self._recreated.add(topic)
            planned = self._planned_ids.pop(topic)
            self._drop(key for key in {**self._positions, **self._pending} if key.topic == topic)
            self._lose(
                f"topic {topic!r}: the batch was planned for topic id {planned}, but the topic was deleted and created again"
                f" with id {now}"
            )

    def _compare_topics(self) -> None:
        """Check that the topics and partitions still exist. Called while no records arrive."""
        try:
            metadata = self._ask_metadata().result()
        except RetriableError as error:
            # The caller retries until the timeout of the task.
            logger.info("metadata request failed: %s", error)
            return
        self._drop_recreated(metadata)
        for key, wanted in list(self._pending.items()):
            topic = metadata.topics.get(key.topic)
            code = metadata.errors.get(key.topic, codes.NONE)
            if code == codes.TOPIC_AUTHORIZATION_FAILED:
                raise AuthorizationError(f"{named(wanted)}: the principal needs READ and DESCRIBE on the topic", code=code)
            if topic is not None and key.partition < topic.partition_count:
                self._missing_since.pop(key.topic, None)
                continue
            since = self._missing_since.setdefault(key.topic, time.monotonic())
            if time.monotonic() - since >= self._gone_after_s:
                self._drop([key])
                name = codes.error_name(codes.UNKNOWN_TOPIC_OR_PARTITION)
                self._lose(f"{named(wanted)}: the topic or partition is gone ({name})")

    # -- errors -----------------------------------------------------------------------------------------------------

    def _on_gone(self, key: TopicPartition, wanted: Range) -> None:
        """If the next offset of a range is out of range, continue at the first remaining record.

        Drop the range if no record remains.
        """
        at = max(self._positions[key].next, wanted.start)
        there = self._watermarks(key)
        if there is None or there[0] <= at <= there[1]:
            # A new leader may not know this offset yet. If the offset is really out of range, the next read has the same error.
            self._assign(key, wanted, at)
            return
        low, high = there
        self._lose(f"{named(wanted)}: the partition holds offsets {low} to {high} now, so {max(at, 0)} cannot be read")
        if at < low < wanted.end:
            self._assign(key, wanted, low)
        else:
            self._drop([key])

    def _drop_cut_back(self) -> None:
        """Drop the rest of a range that ends after the end of a log that was truncated since planning.

        These offsets have no records.
        """
        for key, wanted in list(self._pending.items()):
            there = self._watermarks(key)
            if there is not None and there[1] < wanted.end and self._positions[key].next >= there[1]:
                self._lose(f"{named(wanted)}: out of range, because the log was truncated at offset {there[1]}")
                self._drop([key])

    def _lose(self, what: str) -> None:
        """Raise :class:`~consumer_coord.spark.errors.DataLossError`, or log a warning with ``failOnDataLoss=false``."""
        message = f"data loss in {what}"
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{message}. Records were deleted (by retention, or with their topic) before the group read them. To continue"
                " with the remaining records, set failOnDataLoss=false. To prevent this, choose a longer retention"
            )
        logger.warning("%s; continuing, because failOnDataLoss=false", message)

    def _stalled(self) -> ReadStalledError:
        """Return the error for a task whose records do not arrive."""
        waiting = "; ".join(
            f"{named(wanted)} (read up to {self._positions[key].next})" for key, wanted in sorted(self._pending.items())
        )
        return ReadStalledError(
            f"no record arrived for {self._timeout_ms} ms, although the brokers reported these records: {waiting}."
            " Are all brokers up? kafkaConsumer.pollTimeoutMs sets how long a task waits"
        )

    def _restart_behind(self, stopped: Stopped) -> None:
        """Fetch the partition again from the offset after the records in the stash, and keep these records."""
        position = self._positions[stopped.partition]
        self._left.append(stopped.partition)
        position.serial = next(self._serials)
        self._starts[stopped.partition] = FetchStart(position.serial, position.next, topic_id=position.topic_id)

    def _on_stopped(self, stopped: Stopped) -> None:
        key = stopped.partition
        wanted = self._pending.get(key)
        if wanted is None:
            self._unassign([key])
        elif stopped.reason is StopReason.RECREATED:
            # This client's metadata may be older than the plan.
            self._drop_recreated(self._ask_metadata().result())
            if key in self._pending:
                self._assign(key, wanted, max(self._positions[key].next, wanted.start))
        elif stopped.reason in (StopReason.OUT_OF_RANGE, StopReason.TRUNCATED):
            self._drop_recreated(self._ask_metadata().result())
            if key in self._pending:
                self._on_gone(key, wanted)
        else:
            raise stopped.error

    def _watermarks(self, key: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the end of a pending partition. If the look-up fails, log the error and return None."""
        # Imported here, because few tasks need this module.
        from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, list_offsets

        async def ask() -> tuple[int, int]:
            deadline = Deadline.after(min(_LOOK_UP_TIMEOUT_MS, self._timeout_ms))
            low = (await list_offsets(self._cluster, {key: EARLIEST}, deadline)).complete()
            high = (await list_offsets(self._cluster, {key: LATEST}, deadline)).complete()
            return low[key].offset, high[key].offset

        try:
            return self._runtime.call(ask, timeout_ms=_LOOK_UP_TIMEOUT_MS)
        except RetriableError as error:
            logger.info("%s: the first and last offset are unknown: %s", named(self._pending[key]), error)
            return None

    # -- partitions -------------------------------------------------------------------------------------------------

    def _assign(self, key: TopicPartition, wanted: Range, start: int) -> _Position:
        serial = next(self._serials)
        position = self._positions[key] = _Position(serial, wanted.topic_id, start, self.used_s)
        self._starts[key] = FetchStart(serial, start, topic_id=wanted.topic_id)
        return position

    def _drop(self, keys: Iterable[TopicPartition]) -> None:
        """Stop reading the pending ranges of partitions."""
        gone = list(keys)
        for key in gone:
            self._pending.pop(key, None)
        self._unassign([key for key in gone if key in self._positions])

    def _unassign(self, keys: Sequence[TopicPartition]) -> None:
        for key in keys:
            del self._positions[key]
            if self._starts.pop(key, None) is None or key in self._fetcher.assignment:
                self._left.append(key)


def named(wanted: Range) -> str:
    """Return the topic, partition and offsets of a range as a text for messages."""
    return f"topic {wanted.topic!r}, partition {wanted.partition}, offsets {wanted.start} to {wanted.end}"
