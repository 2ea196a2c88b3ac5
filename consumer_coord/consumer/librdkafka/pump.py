"""Fetch with librdkafka: a thread that takes messages from the handle, with the methods of a fetcher.

The reader calls the methods on the loop. Commands (``assign``, ``unassign``) reach the thread through a queue, and are executed
in order, between two calls of ``consume()``. So each message that the thread takes belongs to the assignment that it has made
last, and gets that assignment's serial number. The thread waits while enough messages wait for the reader, so the rest stay in
librdkafka's bounded queue. It only holds what :class:`Pump` has, so a consumer that was dropped can be collected.

librdkafka reports an offset out of range with an event, also for an earlier assignment. If the event does not name the present
position, the thread assigns the partition again at that position, and librdkafka reports once more if it is out of range.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.confluent.topic_partitions import is_out_of_range
from consumer_coord.consumer.librdkafka.handle import Librdkafka
from consumer_coord.consumer.reading.chunks import MessageChunk, ReadingEvent
from consumer_coord.errors import CoordinatorError, FatalError
from consumer_coord.fetch import FetchStart, Stopped, StopReason
from consumer_coord.offsets import OffsetAndMetadata, partition_of_message
from consumer_coord.runtime.locks import Bell
from consumer_coord.topic_partition import TopicPartition

#: Maximum number of messages of one call, and the number of messages and bytes that may wait for the reader.
_BATCH: Final = 500
_MOST_MESSAGES: Final = 2_000
_MOST_BYTES: Final = 4 << 20
#: Maximum wait in librdkafka, which nothing can end, and interval at which the events of an idle handle are served, in seconds.
_SLICE_S: Final = 0.05


@attrs.define(eq=False)
class _Assigned:
    """A partition as the thread has assigned it."""

    serial: int
    #: The position: the start, or the offset after the last message or marker.
    at: OffsetAndMetadata


class Pump:
    """See the module; created and used on one loop, and ended with :meth:`close`."""

    def __init__(self, librdkafka: Librdkafka, *, on_ready: Callable[[], object], on_event: Callable[[], object]) -> None:
        """Begin to serve the handle. ``on_ready`` is called on the loop when :meth:`take` has something new.

        ``on_event``: called on any thread when librdkafka has reported something to a callback of the settings.
        """
        self._librdkafka = librdkafka
        self._loop = asyncio.get_running_loop()
        self._on_ready = on_ready
        self._on_event = on_event
        self._commands: deque[Callable[[], object]] = deque()
        self._bell = Bell()
        self._out: deque[MessageChunk | ReadingEvent | Stopped] = deque()
        #: Numbers of messages and bytes that were ever put out, and taken.
        self._put = [0, 0]
        self._taken = [0, 0]
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._watermarks: dict[TopicPartition, tuple[int, int]] = {}
        self._failure: CoordinatorError | None = None
        self._closed = False
        #: Completed when the thread has ended.
        self._ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name="consumer-coord-librdkafka", daemon=True).start()

    # -- on the loop --------------------------------------------------------------------------------------------------

    def assign(self, starts: Mapping[TopicPartition, FetchStart]) -> None:
        """Read these partitions from these positions, also those that are assigned already."""
        positions = {one: _Assigned(at.serial, OffsetAndMetadata(at.offset, at.leader_epoch)) for one, at in starts.items()}
        self._command(lambda: self._assign(positions))

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = tuple(partitions)
        self._command(lambda: self._unassign(gone))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions; what was taken from librdkafka is still delivered to the reader."""
        paused = tuple(partitions)
        self._command(lambda: self._again(paused, self._librdkafka.pause))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""
        resumed = tuple(partitions)
        self._command(lambda: self._again(resumed, self._librdkafka.resume))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of new connections."""
        self._command(lambda: self._librdkafka.handle.set_sasl_credentials(username, password))

    def _command(self, command: Callable[[], object]) -> None:
        if not self._closed:
            self._commands.append(command)
            self._bell.set()

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` has something to return or to raise; readable from any thread."""
        return bool(self._out) or self._failure is not None

    def take(self, max_bytes: int) -> list[MessageChunk | ReadingEvent | Stopped]:
        """Return what was fetched, in order, up to ``max_bytes``, but at least one item if there is one."""
        if self._failure is not None and not self._out:
            raise self._failure
        found: list[MessageChunk | ReadingEvent | Stopped] = []
        while self._out and max_bytes > 0:
            item = self._out.popleft()
            found.append(item)
            if isinstance(item, MessageChunk):
                max_bytes -= item.size
                self._taken[0] += len(item.messages)
                self._taken[1] += item.size
        if found:
            self._bell.set()
        return found

    def failure(self) -> CoordinatorError | None:
        """Return the error that ended the pump's thread."""
        return self._failure

    def advance(self, partition: TopicPartition, serial: int, next_offset: int) -> None:
        """Do nothing, because messages count only until they are taken."""

    def log_ends(self) -> None:
        """Return None: librdkafka's cached watermarks do not tell how old they are, nor what the last stable offset is."""

    def watermarks(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the high watermark that librdkafka knew a moment ago; None if it knew neither."""
        return self._watermarks.get(partition)

    def queues(self, partition: TopicPartition) -> Mapping[str, int]:
        """Return nothing, because librdkafka's statistics have these figures."""
        return {}

    async def close(self) -> None:
        """Close the handle, and wait for the end of the thread; idempotent."""
        self._closed = True
        self._bell.set()
        await asyncio.shield(self._ended)

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed:
                while self._commands:
                    self._commands.popleft()()
                self._step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the application's next call raises it
            failure = error if isinstance(error, CoordinatorError) else FatalError(f"librdkafka: {error}")
            failure.__cause__ = None if failure is error else error
            self._failure = failure
            self._call(self._on_ready)
        finally:
            try:
                self._librdkafka.handle.close()
            finally:
                self._call(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _step(self) -> None:
        """Take messages, or wait until there is room for them."""
        full = self._put[0] - self._taken[0] >= _MOST_MESSAGES or self._put[1] - self._taken[1] >= _MOST_BYTES
        if full or not self._assigned:
            self._bell.wait(_SLICE_S)
        if not full:
            self._sort(self._librdkafka.fetch(_BATCH, _SLICE_S if self._assigned else 0.0))
        if self._librdkafka.reported:
            self._on_event()

    def _sort(self, messages: list[Any]) -> None:
        """Put out the messages by partition, as records or as events."""
        waiting = bool(self._out)
        for event, run in itertools.groupby(messages, lambda one: one.error() is not None):
            if event:
                for message in run:
                    self._put_event(message)
            else:
                for partition, records in itertools.groupby(run, partition_of_message):
                    self._put_records(partition, list(records))
        if not messages:
            self._pass_markers()
        # With new messages in any case, because the loop may have taken those that waited a moment ago.
        if self._out and (messages or not waiting):
            self._call(self._on_ready)

    def _put_records(self, partition: TopicPartition, messages: list[Any]) -> None:
        one = self._assigned.get(partition)
        if one is None:
            return
        last = messages[-1]
        epoch = last.leader_epoch()
        start, size = one.at.offset, sum(map(len, messages))
        one.at = OffsetAndMetadata(last.offset() + 1, -1 if epoch is None else epoch)
        self._put[0] += len(messages)
        self._put[1] += size
        self._out.append(MessageChunk(partition, one.serial, start, one.at.offset, one.at.leader_epoch, messages, size))

    def _put_event(self, message: Any) -> None:
        error = message.error()
        if not message.topic():
            # Some events name no partition, for example when the group coordinator rejects librdkafka.
            self._out.append(ReadingEvent(None, 0, 0, message=message))
            return
        partition = partition_of_message(message)
        one = self._assigned.get(partition)
        if one is None:
            return
        if not is_out_of_range(error):
            self._out.append(ReadingEvent(partition, one.at.offset, one.serial, message=message))
        elif message.offset() == one.at.offset:
            self._out.append(
                Stopped(partition, one.serial, StopReason.OUT_OF_RANGE, one.at.offset, CoordinatorError(error.str()))
            )
        else:
            # The event is about an earlier assignment, but librdkafka may have stopped the present one as well.
            self._assign({partition: one})

    def _pass_markers(self) -> None:
        """Put out the positions that librdkafka has moved past transaction markers and aborted records."""
        if not self._assigned:
            return
        for partition, at in self._librdkafka.positions(self._assigned).items():
            one = self._assigned[partition]
            if at.offset > one.at.offset:
                epoch = max(at.leader_epoch, one.at.leader_epoch)
                self._out.append(MessageChunk(partition, one.serial, one.at.offset, at.offset, epoch, [], 0))
                one.at = OffsetAndMetadata(at.offset, epoch)
            if (found := self._librdkafka.watermarks(partition)) is not None:
                self._watermarks[partition] = found

    def _assign(self, wanted: Mapping[TopicPartition, _Assigned]) -> None:
        again = wanted.keys() & self._assigned.keys()
        if again:
            self._librdkafka.unassign(again)
        self._assigned.update(wanted)
        self._librdkafka.assign({partition: one.at for partition, one in wanted.items()})

    def _unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = [one for one in partitions if self._assigned.pop(one, None) is not None]
        if gone:
            self._librdkafka.unassign(gone)

    def _again(self, partitions: Iterable[TopicPartition], call: Callable[[Iterable[TopicPartition]], object]) -> None:
        if present := [one for one in partitions if one in self._assigned]:
            call(present)

    def _call(self, function: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)
