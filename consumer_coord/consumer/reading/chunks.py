"""What the queue of a :class:`~consumer_coord.consumer.reading.reader.Reader` contains: responses and events, per partition.

A :class:`Chunk` is one partition's part of a Fetch response. The reader's cursors tell which of its records are still to be
delivered, so a chunk does not change. A :class:`Decoding` turns chunks into columns, and changes neither chunks nor cursors:
the consumer delivers its result by storing :attr:`Decoding.cursors`. So an interrupt, or the loss of a partition, during the
decoding neither loses nor repeats records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import Columns, UnreadableRecordError
from consumer_coord.columns.decode_messages import Kept
from consumer_coord.consumer.deliveries import Delivered
from consumer_coord.consumer.message_type import MESSAGES
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch.chunk import FetchedChunk
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: Number of bytes, after decompression, that one step decodes. A step takes about a millisecond, and no heartbeat is sent
#: during a step.
_STEP_BYTES = 1 << 20
#: The end offset that :meth:`~consumer_coord.columns.Columns.append` receives if there is no end.
_NO_END = 2**63 - 1


class Cursor(NamedTuple):
    """How far one reading of a partition was decoded or delivered; replaced as a whole."""

    #: The next offset to decode, which is also the next one to deliver, unless decoded messages wait; and its leader epoch.
    next: int
    epoch: int
    #: The first offset of the reading that has a record, or that was passed without one; None before it was reached. While the
    #: message with this offset waits, no record was delivered.
    first: int | None = None
    #: The offset of the first record of the reading, or one before it; None until there is one.
    record: int | None = None

    def moved(self, to: int, epoch: int, record: int | None = None) -> Cursor:
        """Return the cursor at the position ``to``; ``record`` is the offset of the first record on the way, if any."""
        if to == self.next:
            return self
        begins = self.first if self.first is not None else record if record is not None else self.next
        return Cursor(to, epoch, begins, self.record if self.record is not None else record)

    @property
    def position(self) -> OffsetAndMetadata:
        """The cursor as a position."""
        return OffsetAndMetadata(self.next, self.epoch)


@attrs.frozen
class OutOfRange:
    """Why a reading ended: its offset is not in the log."""

    why: str
    #: The offset.
    offset: int
    #: The position at which reading may continue after a truncation, if the fetcher reports this position.
    resume_at: OffsetAndMetadata | None = None


@attrs.define(eq=False)
class ReadingEvent:
    """An event between the chunks: at the offset ``start``, the log ended, or (with a ``failure``) cannot be read.

    An event of librdkafka is a ``message``, and has no partition if it is about a broker.
    """

    at: TopicPartition | None
    start: int
    #: The number of the Fetches that brought the event.
    serial: int
    failure: CoordinatorError | None = None
    message: Any = None
    #: Whether the application has received it.
    told: bool = False

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start

    @property
    def size(self) -> int:
        """Return 0, the size in bytes."""
        return 0


@attrs.define(eq=False)
class Chunk(FetchedChunk):
    """Records of one partition in one Fetch response, for a consumer."""

    #: Decoded messages that were not taken yet; they count while the reader's cursor is at their position.
    rows: Any = attrs.field(default=None, init=False)

    def decode(self, position: int, kept: Kept) -> Any:
        """Return the next step of messages from a position on; raise UnreadableRecordError if there are none."""
        return MESSAGES.decode(self.decoder(position), kept)

    def ends_with(self, rows: Any) -> bool:
        """Return whether no record follows these rows in the chunk."""
        return self.decoder(rows.next_offset).exhausted


class _MessageRows:
    """Messages of librdkafka, with the methods of decoded rows."""

    def __init__(self, messages: Sequence[Any], position: int, next_offset: int) -> None:
        self._messages = messages
        self._taken = 0
        self.position = position if messages else next_offset
        self.next_offset = next_offset

    def __len__(self) -> int:
        return len(self._messages) - self._taken

    def take(self, most: int) -> list[Any]:
        """Return up to ``most`` further messages."""
        taken = list(self._messages[self._taken : self._taken + most])
        count = self._taken + len(taken)
        position = taken[-1].offset() + 1 if taken and count < len(self._messages) else self.next_offset
        # No signal handler runs between these stores. After an interrupt behind them, the position is not the cursor's.
        self._taken, self.position = count, position
        return taken


@attrs.define(eq=False)
class MessageChunk:
    """Messages of one partition that librdkafka has fetched, and the position behind them. It cannot become columns."""

    at: TopicPartition
    serial: int
    start: int
    end: int
    epoch: int
    messages: Sequence[Any]
    #: Size of the values, in bytes.
    size: int
    rows: Any = None

    def decode(self, position: int, kept: Kept) -> Any:
        """Return the messages from a position on, as rows."""
        return _MessageRows([one for one in self.messages if one.offset() >= position], position, self.end)

    def ends_with(self, rows: Any) -> bool:
        """Return whether no record follows these rows in the chunk."""
        return True


Item = Chunk | MessageChunk | ReadingEvent


class Decoding:
    """Decodes chunks in their order, step by step."""

    def __init__(
        self,
        items: Iterable[Chunk | ReadingEvent],
        cursors: Mapping[TopicPartition, Cursor],
        columns: Columns,
        max_records: int,
        max_bytes: int,
        end: Callable[[TopicPartition], int] | None = None,
    ) -> None:
        """Decode at most ``max_records`` records and, after decompression, about ``max_bytes`` bytes.

        ``end`` returns the offset at which the decoding of a partition stops; later records wait.
        """
        self.columns = columns
        self.records: int = 0
        #: The cursors of the partitions that were decoded, for the case that the result is delivered.
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.delivered: dict[TopicPartition, Delivered] = {}
        #: The partitions that have chunks beyond their ends.
        self.beyond: set[TopicPartition] = set()
        #: The reason why decoding stopped before the next records, and the chunk or event.
        self.failure: CoordinatorError | None = None
        self.failed: Chunk | ReadingEvent | None = None
        self._left = deque(items)
        self._before = cursors
        self._max_records = max_records
        self._bytes_left = max_bytes
        self._end = end or (lambda _: _NO_END)

    def step(self) -> bool:
        """Decode up to a megabyte; return False when decoding has ended."""
        if not self._left or self.records >= self._max_records or self._bytes_left <= 0 or self.failure is not None:
            return False
        item = self._left[0]
        if not isinstance(item, Chunk):
            self._left.popleft()
            self.failure, self.failed = item.failure, item
            return True
        cursor, end = self.cursors.get(item.at) or self._before[item.at], self._end(item.at)
        if cursor.next >= item.end:
            self._left.popleft()
        elif cursor.next >= end:
            self._left.popleft()
            self.beyond.add(item.at)
        else:
            self._decode(item, cursor, end)
        return True

    def _decode(self, chunk: Chunk, cursor: Cursor, end: int) -> None:
        fetch, at = chunk.decoder(cursor.next), chunk.at
        most, most_bytes = self._max_records - self.records, min(self._bytes_left, _STEP_BYTES)
        try:
            appended = self.columns.append(fetch, max_records=most, max_bytes=most_bytes, end_offset=end)
        except UnreadableRecordError as error:
            self.failure, self.failed = error, chunk
            appended = None
        position = chunk.end if fetch.exhausted else fetch.next_offset
        if position > cursor.next:
            first = self.delivered.get(at)
            start, epoch_before = (cursor.next, cursor.epoch) if first is None else (first.start, first.epoch_before)
            self.delivered[at] = Delivered(at, start, epoch_before, position, chunk.epoch)
            self.cursors[at] = cursor.moved(position, chunk.epoch, cursor.next if appended and appended.records else None)
        if appended is not None:
            self.records += appended.records
            self._bytes_left -= appended.bytes
