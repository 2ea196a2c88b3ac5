"""Read ranges of offsets with librdkafka, if the columns kernel is not compiled.

One consumer holds several partitions. Records that were fetched beyond the end of a range stay in a small *stash*. The next
batch usually begins there, so no seek is needed.
"""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from consumer_coord.printable import get_logger
from consumer_coord.spark.batches import FetchHeaders, Headers, Run, to_batch
from consumer_coord.spark.errors import DataLossError, ReadStalledError
from consumer_coord.spark.packing import NO_TOPIC_ID, Range
from consumer_coord.spark.patience import Patience
from consumer_coord.spark.topic_ids import Answers, TopicIds
from consumer_coord.spark.user_code import with_callbacks

if TYPE_CHECKING:
    from consumer_coord.spark.range_reader import RangeReader

logger: Final = get_logger(__name__)

_HEADERS_ONLY = pa.schema(
    [("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))))]
)

#: Messages to take from librdkafka in one call.
TAKE = 10_000
#: Limits of messages, and of bytes, kept for a partition that no current task reads; above a limit, the partition is
#: unassigned.
STASH_MESSAGES = 10_000
STASH_BYTES = 4 << 20
#: A gap of at most this many offsets is read and skipped; a wider gap needs a seek.
SKIP = 1_000
#: A task with at least this many records drops the stashed messages of other partitions.
BIG_TASK = 20_000
#: Partitions that were not read for this time, in seconds, are unassigned.
IDLE_S = 60.0
#: An Arrow batch is complete with this many records, or this many bytes of values.
BATCH_RECORDS = 10_000
BATCH_BYTES = 16 << 20

_POLL_S = 0.1
_WATERMARK_TIMEOUT_S = 30.0

_Key = tuple[str, int]

#: Errors that no retry resolves.
_FATAL = {
    KafkaError._AUTHENTICATION,
    KafkaError._FATAL,
    KafkaError._SSL,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
}
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


@attrs.frozen
class Chunk:
    """Messages of one partition, in order, none of them an error."""

    topic: str
    partition: int
    messages: Sequence[Message]


@attrs.define
class _Position:
    """The messages received for one assigned partition: ``stash`` has every existing message in [low, next).

    All messages belong to the topic with ``topic_id``, provided that a task finds this id unchanged.
    """

    topic_id: uuid.UUID
    low: int
    next: int
    used_s: float
    stash: list[Message] = attrs.field(factory=list)
    stash_bytes: int = 0

    def keep(self, messages: Sequence[Message]) -> None:
        self.stash.extend(messages)
        self.stash_bytes += sum(map(len, messages))

    def take(self, start: int, end: int) -> Sequence[Message]:
        """Return the stashed messages of [start, end), and drop those below ``start``."""
        first = bisect_left(self.stash, start, key=Message.offset)
        last = bisect_left(self.stash, end, key=Message.offset)
        taken = self.stash[first:last]
        self.stash = self.stash[last:]
        self.stash_bytes = sum(map(len, self.stash))
        self.low = min(end, self.next)
        return taken

    @property
    def is_full(self) -> bool:
        return len(self.stash) > STASH_MESSAGES or self.stash_bytes > STASH_BYTES


class CachedConsumer:
    """A ``confluent_kafka.Consumer`` with the position of each partition. Only one thread may use an object."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = self._settings = with_callbacks(config)
        if "security.protocol" in settings:
            # Refused credentials or a missing right end the task immediately. The import is slow, so only workers that need it
            # import it.
            from consumer_coord.consumer.librdkafka.refusals import guarded

            settings = guarded(settings)
        self._consumer = Consumer(settings, logger=logger)
        self._positions: dict[_Key, _Position] = {}
        self._topics: set[str] = set()
        self.used_s: float = 0.0
        self._ids = TopicIds(settings)
        # The ranges that remain in the current task, and the topic ids of its plan.
        self._pending: dict[_Key, Range] = {}
        self._planned_ids: dict[str, uuid.UUID] = {}
        self._fail_on_data_loss = True
        self._timeout_ms = 0
        #: Reads single records whose headers librdkafka's Python client cannot return.
        self._headers_reader: RangeReader | None = None

    def close(self) -> None:
        """Close the consumer's connections."""
        self._positions.clear()
        if self._headers_reader is not None:
            self._headers_reader.close()
        self._consumer.close()

    def fetch_headers(self, message: Message) -> Headers:
        """Return the headers of a message if librdkafka's Python client cannot return them."""
        topic, number, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert number is not None
        assert offset is not None
        if self._headers_reader is None:
            # Imported only by workers that need it, because it needs this package's own connections.
            from consumer_coord.spark.range_reader import RangeReader

            self._headers_reader = RangeReader(self._settings)
        wanted = [Range(topic, number, offset, offset + 1)]
        batches = self._headers_reader.read(wanted, _HEADERS_ONLY, fail_on_data_loss=True, timeout_ms=self._timeout_ms)
        (found,) = (cell for batch in batches for cell in batch.column(0).to_pylist())
        return [(header["key"], header["value"]) for header in found or ()]

    def forget(self) -> None:
        """Unassign all partitions; the connections stay."""
        self._unassign(list(self._positions))

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self, ranges: Sequence[Range], schema: pa.Schema, *, fail_on_data_loss: bool, timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield all records of ``ranges``, with one range per partition, in offset order within each partition.

        Raise :class:`~consumer_coord.spark.errors.DataLossError` and ``ReadStalledError``, both naming topic, partition and
        offsets.
        """
        waiting: list[Chunk] = []
        records = size = 0
        for chunk in self._chunks(ranges, fail_on_data_loss=fail_on_data_loss, timeout_ms=timeout_ms):
            waiting.append(chunk)
            records += len(chunk.messages)
            # Sample every 16th message: enough to bound memory; measuring each one costs 5 % of read time.
            size += sum(map(len, chunk.messages[::16])) * 16
            if records >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield from self._checked(waiting, schema)
                waiting, records, size = [], 0, 0
        # Check even without messages: the last offsets may have none, or belong to a recreated topic.
        yield from self._checked(waiting, schema)

    def _checked(self, chunks: Sequence[Chunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the batch of ``chunks``, if their topics are those of the task's plan."""
        answers = self.ask_ids()
        # All requests wait at the same time, because each response takes about a millisecond.
        batch = _batch(chunks, schema, self.fetch_headers) if chunks else None
        recreated = self.drop_recreated(answers)
        if recreated:
            chunks = [chunk for chunk in chunks if chunk.topic not in recreated]
            batch = _batch(chunks, schema, self.fetch_headers) if chunks else None
        if batch is not None:
            yield batch

    def _chunks(self, ranges: Sequence[Range], *, fail_on_data_loss: bool, timeout_ms: int) -> Iterator[Chunk]:
        """Yield all messages of ``ranges``, with one range per partition, as they arrive.

        The messages are valid only after :meth:`drop_recreated` has confirmed their topics.
        """
        self.used_s = time.monotonic()
        self._fail_on_data_loss, self._timeout_ms = fail_on_data_loss, timeout_ms
        self._planned_ids = {each.topic: each.topic_id for each in ranges if each.topic_id != NO_TOPIC_ID}
        pending = self._pending = {(each.topic, each.partition): each for each in ranges if each.size}
        if not self._ids.asked:
            # Opens the connection before the wait for a response.
            self.ask_ids()
        self._evict(pending, sum(each.size for each in ranges))
        yield from self._begin(pending)
        patience = Patience(timeout_ms)
        while pending:
            messages = self._receive()
            if not messages:
                if patience.ended:
                    self._drop_cut_back()
                    if pending:
                        raise _stalled(pending, self._positions, timeout_ms)
                elif patience.compares_now():
                    # Records that exist according to the broker do not arrive: check that the topic is still the same.
                    self.drop_recreated(self.ask_ids())
                continue
            left, came = len(pending), False
            for chunk in self._chunks_of(messages):
                came = True
                yield chunk
            if came or len(pending) < left:
                patience.restart()
            elif patience.ended:
                # The remaining messages are errors.
                raise _stalled(pending, self._positions, timeout_ms)

    def _begin(self, pending: dict[_Key, Range]) -> Iterator[Chunk]:
        """Assign the partitions of all ranges; yield stashed messages that an earlier task has read."""
        for key, each in list(pending.items()):
            if key not in pending:
                continue  # The topic was recreated.
            position = self._go_to(key, each)
            kept = position.take(each.start, each.end)
            if kept:
                yield Chunk(*key, kept)
            if position.next >= each.end:
                pending.pop(key, None)

    def _receive(self) -> list[Message]:
        """Return the messages that librdkafka has, or wait briefly for some."""
        messages: list[Message] = self._consumer.consume(TAKE, 0)
        if not messages:
            first = self._consumer.poll(_POLL_S)
            if first is not None:
                messages = [first, *self._consumer.consume(TAKE - 1, 0)]
        return messages

    def _chunks_of(self, messages: Sequence[Message]) -> Iterator[Chunk]:
        """Yield the messages of pending ranges, and handle errors."""
        assigned = dict(self._positions)
        for key, run in self._runs(messages):
            if self._positions.get(key) is not assigned.get(key):
                # An error among these messages caused a new assignment: the messages after it arrive again.
                continue
            if isinstance(run, KafkaError):
                self._on_error(key, run)
                continue
            chunk = self._sort_in(key, run)
            if chunk is not None:
                yield chunk

    # -- whose messages these are -----------------------------------------------------------------------------------

    def ask_ids(self) -> Answers:
        """Ask the brokers for the ids of the topics that are read; :meth:`drop_recreated` reads the responses."""
        return self._ids.ask(self._planned_ids)

    def drop_recreated(self, answers: Answers) -> frozenset[str]:
        """Return the topics that were recreated since the batch was planned, whose records are therefore invalid.

        Raises :class:`~consumer_coord.spark.errors.DataLossError`, unless data loss is allowed. All records of the other topics
        that were read before :meth:`ask_ids` belong to the planned topics.
        """
        others = self._ids.others(self._planned_ids, answers, self._timeout_ms / 1000)
        for topic, now in others.items():
            planned = self._planned_ids.pop(topic)
            lost = [each for each in self._pending.values() if each.topic == topic]
            for each in lost:
                del self._pending[each.topic, each.partition]
            self._unassign([key for key in self._positions if key[0] == topic])
            self._lose(
                f"topic {topic!r}: the batch was planned from topic id {planned}, and the topic was deleted and created again"
                f" as {now}"
            )
        return frozenset(others)

    def _runs(self, messages: Sequence[Message]) -> Iterator[tuple[_Key, list[Message] | KafkaError]]:
        """Yield runs of consecutive messages of one partition; yield errors and ends of partitions separately."""
        errors = (
            [index for index, error in enumerate(map(Message.error, messages)) if error is not None]
            if any(map(Message.error, messages))
            else []
        )
        start = 0
        for index in (*errors, len(messages)):
            clean = messages[start:index] if errors else messages
            at = 0
            for until in self._cuts(clean):
                first = clean[at]
                yield (first.topic(), first.partition()), clean[at:until]
                at = until
            if index < len(messages):
                failed = messages[index]
                error = failed.error()
                key = (failed.topic() or "", failed.partition() if failed.partition() is not None else -1)
                if error.code() == KafkaError._PARTITION_EOF:
                    position = self._positions.get(key)
                    if position is not None:
                        # Everything below this offset has arrived, including offsets without a message.
                        position.next = max(position.next, failed.offset())
                yield key, error
            start = index + 1

    def _cuts(self, messages: Sequence[Message]) -> Sequence[int]:
        """Return the index of the first message of another partition, and the end."""
        if not messages:
            return ()
        count = len(messages)
        numbers = np.fromiter(map(Message.partition, messages), np.int32, count)
        changes = numbers[1:] != numbers[:-1]
        if len(self._topics) > 1:
            topics = list(map(Message.topic, messages))
            changes |= np.fromiter(map(ne, topics[1:], topics), np.bool_, count - 1)
        return (*(np.flatnonzero(changes) + 1).tolist(), count)

    def _sort_in(self, key: _Key, run: list[Message]) -> Chunk | None:
        pending = self._pending
        position = self._positions.get(key)
        if position is None:
            return None
        position.next = max(position.next, run[-1].offset() + 1)
        wanted = pending.get(key)
        if wanted is None:
            position.keep(run)
            if position.is_full:
                self._unassign([key])
            return None
        first = 0 if run[0].offset() >= wanted.start else bisect_left(run, wanted.start, key=Message.offset)
        last = len(run) if run[-1].offset() < wanted.end else bisect_left(run, wanted.end, key=Message.offset)
        position.low = min(wanted.end, position.next)
        if last < len(run):
            position.keep(run[last:])
        if position.next >= wanted.end:
            del pending[key]
        return Chunk(*key, run if last - first == len(run) else run[first:last]) if last > first else None

    # -- errors -----------------------------------------------------------------------------------------------------

    def _on_error(self, key: _Key, error: KafkaError) -> None:
        code = error.code()
        wanted = self._pending.get(key)
        if code == KafkaError._PARTITION_EOF:
            if wanted is not None and self._positions[key].next >= wanted.end:
                self._positions[key].low = wanted.end
                del self._pending[key]
            return
        if code in _FATAL or error.fatal():
            raise KafkaException(error)
        if wanted is None:
            if key in self._positions and (code in _GONE or code in _NO_TOPIC):
                self._unassign([key])
            return
        if code in _GONE or code in _NO_TOPIC:
            self.drop_recreated(self.ask_ids())
            if key not in self._pending:
                return
        if code in _GONE:
            self._on_gone(key, wanted)
        elif code in _NO_TOPIC:
            self._lose(f"{_named(wanted)}: the topic or partition is gone ({error.str()})")
            del self._pending[key]
            self._unassign([key])
        else:
            # librdkafka retries automatically (brokers down, leaders moving); the timeout limits the retries.
            logger.info("%s: %s", _named(wanted), error)

    def _on_gone(self, key: _Key, wanted: Range) -> None:
        position = self._positions[key]
        at = max(position.next, wanted.start)
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=_WATERMARK_TIMEOUT_S)
        except KafkaException as failed:
            error = failed.args[0]
            if error.code() in _FATAL or error.fatal():
                raise
            # A connection ended, or a leader moved: librdkafka fetches again, and gets the same error again.
            logger.info("%s: the first and last offset are unknown: %s", _named(wanted), error)
            self._assign(key, wanted.topic_id, at)
            return
        if low <= at <= high:
            # The leader had just moved, and the former leader did not know this offset.
            self._assign(key, wanted.topic_id, at)
            return
        what = f"{_named(wanted)}: the partition holds offsets {low} to {high} now, so {max(at, 0)} cannot be read"
        self._lose(what)
        if at < low < wanted.end:
            self._assign(key, wanted.topic_id, low)
        else:
            del self._pending[key]
            self._unassign([key])

    def _drop_cut_back(self) -> None:
        """Drop the part of the range beyond the end of a truncated log, because no record will arrive."""
        for key, wanted in list(self._pending.items()):
            try:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=_WATERMARK_TIMEOUT_S)
            except KafkaException as failed:
                logger.info("%s: the first and last offset are unknown: %s", _named(wanted), failed.args[0])
                continue
            if high < wanted.end and self._positions[key].next >= high:
                self._lose(f"{_named(wanted)}: out of range, because the log was truncated at offset {high}")
                del self._pending[key]
                self._unassign([key])

    def _lose(self, what: str) -> None:
        message = f"data loss in {what}"
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{message}. Records were deleted (retention, or the topic was deleted) before the group read them."
                " To continue with the remaining records, set failOnDataLoss=false; keep records longer than the lag"
            )
        logger.warning("%s; continuing, because failOnDataLoss=false", message)

    # -- partitions -------------------------------------------------------------------------------------------------

    def _go_to(self, key: _Key, wanted: Range) -> _Position:
        position = self._positions.get(key)
        if position is None or position.topic_id != wanted.topic_id or not position.low <= wanted.start <= position.next + SKIP:
            return self._assign(key, wanted.topic_id, wanted.start)
        position.used_s = self.used_s
        return position

    def _assign(self, key: _Key, topic_id: uuid.UUID, start: int) -> _Position:
        if key in self._positions:
            self._unassign([key])
        self._consumer.incremental_assign([TopicPartition(*key, start)])
        position = self._positions[key] = _Position(topic_id, start, start, self.used_s)
        self._topics.add(key[0])
        return position

    def _unassign(self, keys: Sequence[_Key]) -> None:
        if keys:
            self._consumer.incremental_unassign([TopicPartition(*key) for key in keys])
            for key in keys:
                del self._positions[key]
            self._topics = {topic for topic, _ in self._positions}

    def _evict(self, wanted: Mapping[_Key, Range], size: int) -> None:
        """Unassign partitions of no current task that are unused for a long time, or would slow down a big task."""
        self._unassign(
            [
                key
                for key, position in self._positions.items()
                if key not in wanted and (size >= BIG_TASK or self.used_s - position.used_s > IDLE_S)
            ]
        )


def _batch(chunks: Sequence[Chunk], schema: pa.Schema, fetch_headers: FetchHeaders) -> pa.RecordBatch:
    runs = [Run(chunk.topic, chunk.partition, len(chunk.messages)) for chunk in chunks]
    messages = chunks[0].messages if len(chunks) == 1 else [message for chunk in chunks for message in chunk.messages]
    return to_batch(messages, runs, schema, fetch_headers)


def _named(wanted: Range) -> str:
    return f"topic {wanted.topic!r}, partition {wanted.partition}, offsets {wanted.start} to {wanted.end}"


def _stalled(pending: Mapping[_Key, Range], positions: Mapping[_Key, _Position], timeout_ms: int) -> ReadStalledError:
    waiting = "; ".join(f"{_named(wanted)} (read up to {positions[key].next})" for key, wanted in sorted(pending.items()))
    return ReadStalledError(
        f"no record arrived for {timeout_ms} ms, although the broker had reported them: {waiting}."
        " Are all brokers up? kafkaConsumer.pollTimeoutMs sets how long a task waits"
    )
