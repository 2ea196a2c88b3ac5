"""Read ranges of offsets with librdkafka, if the columns kernel is not compiled.

One consumer reads several partitions.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Row

from consumer_coord.printable import get_logger
from consumer_coord.spark.batches import FetchHeaders, Headers, Run, to_batch
from consumer_coord.spark.packing import Range
from consumer_coord.spark.patience import Patience
from consumer_coord.spark.reading import RangesReader, named
from consumer_coord.spark.topic_ids import Answers, TopicIds
from consumer_coord.spark.user_code import with_callbacks
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.spark.range_reader import RangeReader

logger: Final = get_logger(__name__)

_HEADERS_ONLY = pa.schema(
    [("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))))]
)

#: Messages to take from librdkafka in one call.
TAKE = 10_000
#: Limits of messages, and of bytes, that are kept for a partition that no current task reads. Above a limit, the partition is
#: unassigned.
STASH_MESSAGES = 10_000
STASH_BYTES = 4 << 20
#: An Arrow batch is complete with this many records, or this many bytes of values.
BATCH_RECORDS = 10_000
BATCH_BYTES = 16 << 20

_POLL_S = 0.1
_WATERMARK_TIMEOUT_S = 30.0

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
    """Messages of one partition, in order, without errors."""

    topic: str
    partition: int
    messages: Sequence[Message]


@attrs.define
class _Position:
    """The messages received for one assigned partition: ``stash`` has every existing message in [low, next).

    All messages belong to the topic with ``topic_id`` if a task finds this id unchanged.
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
        """Return the stashed messages of [start, end), and drop the messages below ``start``."""
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


class CachedConsumer(RangesReader[_Position]):
    """One ``confluent_kafka.Consumer`` and the position in each of its partitions. Only one thread may use a reader."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        settings = self._settings = with_callbacks(config)
        if "security.protocol" in settings:
            # Rejected credentials or a missing permission end the task immediately. The import is slow, so only workers that
            # need the module import it.
            from consumer_coord.consumer.librdkafka.refusals import guarded

            settings = guarded(settings)
        self._consumer = Consumer(settings, logger=logger)
        self._topics: set[str] = set()
        self._ids = TopicIds(settings)
        #: Reads single records whose headers librdkafka's Python client cannot return.
        self._headers_reader: RangeReader | None = None

    def close(self) -> None:
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
            # Imported only by workers that need this reader, because it opens this package's own connections.
            from consumer_coord.spark.range_reader import RangeReader

            self._headers_reader = RangeReader(self._settings)
        wanted = [Range(topic, number, offset, offset + 1)]
        batches = self._headers_reader.read(wanted, _HEADERS_ONLY, fail_on_data_loss=True, timeout_ms=self._timeout_ms)
        (found,) = (cell for batch in batches for cell in batch.column(0).to_pylist())
        return [(header["key"], header["value"]) for header in found or ()]

    def forget(self) -> None:
        self._unassign(list(self._positions))

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self, ranges: Sequence[Range], schema: pa.Schema, *, fail_on_data_loss: bool, timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        waiting: list[Chunk] = []
        records = size = 0
        for chunk in self._chunks(ranges, fail_on_data_loss=fail_on_data_loss, timeout_ms=timeout_ms):
            waiting.append(chunk)
            records += len(chunk.messages)
            # Sample every 16th message: enough to limit memory. Measuring every message takes 5 % of the read time.
            size += sum(map(len, chunk.messages[::16])) * 16
            if records >= BATCH_RECORDS or size >= BATCH_BYTES:
                yield from self._checked(waiting, schema)
                waiting, records, size = [], 0, 0
        # Check even without messages: the range may end with offsets without a record, or the topic may have been recreated.
        yield from self._checked(waiting, schema)

    def _checked(self, chunks: Sequence[Chunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the batch of ``chunks``, if the topics are the planned topics."""
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

        The messages are valid only after :meth:`drop_recreated` has confirmed the topics.
        """
        pending = self._start_task(ranges, fail_on_data_loss=fail_on_data_loss, timeout_ms=timeout_ms)
        if not self._ids.asked:
            # Opens the connection before the wait for a response.
            self.ask_ids()
        yield from self._begin(pending)
        patience = Patience(timeout_ms)
        while pending:
            messages = self._receive()
            if not messages:
                if patience.ended:
                    self._drop_cut_back()
                    if pending:
                        raise self._stalled()
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
                # The queue contains only errors.
                raise self._stalled()

    def _begin(self, pending: dict[TopicPartition, Range]) -> Iterator[Chunk]:
        """Assign the partitions of all ranges; yield stashed messages that an earlier task has read."""
        for key, each in list(pending.items()):
            if key not in pending:
                continue  # The topic was recreated.
            position = self._kept(key, each) or self._assign(key, each, each.start)
            kept = position.take(each.start, each.end)
            if kept:
                yield Chunk(*key, kept)
            if position.next >= each.end:
                pending.pop(key, None)

    def _receive(self) -> list[Message]:
        """Return the messages that librdkafka has fetched, or wait briefly for messages."""
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
                # An error among these messages caused a new assignment, so the messages after the error arrive again.
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

        Raise :class:`~consumer_coord.spark.errors.DataLossError`, unless data loss is allowed. Records of all other topics
        belong to the planned topics if they were read before :meth:`ask_ids`.
        """
        others = self._ids.others(self._planned_ids, answers, self._timeout_ms / 1000)
        for topic, now in others.items():
            self._drop_topic(topic, now)
        return frozenset(others)

    def _runs(self, messages: Sequence[Message]) -> Iterator[tuple[TopicPartition, list[Message] | KafkaError]]:
        """Yield messages in runs of one partition. Errors and ends of partitions are yielded separately."""
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
                yield TopicPartition(first.topic(), first.partition()), clean[at:until]
                at = until
            if index < len(messages):
                failed = messages[index]
                error = failed.error()
                key = TopicPartition(failed.topic() or "", failed.partition() if failed.partition() is not None else -1)
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

    def _sort_in(self, key: TopicPartition, run: list[Message]) -> Chunk | None:
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

    def _on_error(self, key: TopicPartition, error: KafkaError) -> None:
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
            self._lose(f"{named(wanted)}: the topic or partition is gone ({error.str()})")
            self._drop([key])
        else:
            # librdkafka retries automatically (brokers down, leaders moving). The timeout limits the retries.
            logger.info("%s: %s", named(wanted), error)

    def _watermarks(self, key: TopicPartition) -> tuple[int, int] | None:
        try:
            low, high = self._consumer.get_watermark_offsets(Row(*key), timeout=_WATERMARK_TIMEOUT_S)
        except KafkaException as failed:
            error = failed.args[0]
            if error.code() in _FATAL or error.fatal():
                raise
            # A connection ended, or a leader moved.
            logger.info("%s: the first and last offset are unknown: %s", named(self._pending[key]), error)
            return None
        return low, high

    # -- partitions -------------------------------------------------------------------------------------------------

    def _assign(self, key: TopicPartition, wanted: Range, start: int) -> _Position:
        if key in self._positions:
            self._unassign([key])
        self._consumer.incremental_assign([Row(*key, start)])
        position = self._positions[key] = _Position(wanted.topic_id, start, start, self.used_s)
        self._topics.add(key[0])
        return position

    def _unassign(self, keys: Sequence[TopicPartition]) -> None:
        if keys:
            self._consumer.incremental_unassign([Row(*key) for key in keys])
            for key in keys:
                del self._positions[key]
            self._topics = {topic for topic, _ in self._positions}


def _batch(chunks: Sequence[Chunk], schema: pa.Schema, fetch_headers: FetchHeaders) -> pa.RecordBatch:
    runs = [Run(chunk.topic, chunk.partition, len(chunk.messages)) for chunk in chunks]
    messages = chunks[0].messages if len(chunks) == 1 else [message for chunk in chunks for message in chunk.messages]
    return to_batch(messages, runs, schema, fetch_headers)
