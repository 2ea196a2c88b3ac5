"""A data plane in virtual time that behaves like librdkafka.

The engine of a simulation reads from :class:`SimulatedPlane`. Like librdkafka, the plane fetches records into a queue before
the caller requests them. A partition's position changes when the caller takes a message from the queue. Errors arrive as
messages. ``tests/simulation/test_data_plane_contract.py`` applies the same contract to this plane and to the real librdkafka.

No Fetch requests are sent. A fetch reads the cluster's logs after the delay of a request, and the records arrive after the
delay of a response, if the links and the leader work at that moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from consumer_coord import lazy_attrs as attrs
from consumer_coord.broker.topics import Partition
from consumer_coord.confluent.types import KafkaError, KafkaException
from consumer_coord.consumer.data_plane import Sink
from consumer_coord.consumer.deliveries import Span
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.process import Process
from consumer_coord.topic_partition import TopicPartition

#: Seconds until the next attempt if the leader is unreachable or the topic is missing.
_RETRY_S = 0.4

#: Seconds between librdkafka's look-ups of topics that librdkafka does not know yet.
_UNKNOWN_TOPIC_S = 1.0


@attrs.define(eq=False, repr=False)
class SimulatedMessage(Span):
    """A message of the simulated librdkafka: a record or an event."""

    _epoch: int = -1
    _error: KafkaError | None = None
    #: The log of the record, for checkers. A recreated topic has a different log.
    log: object = None

    def leader_epoch(self) -> int | None:
        return None if self._epoch < 0 else self._epoch

    def error(self) -> KafkaError | None:
        return self._error

    def __repr__(self) -> str:
        what = "" if self._error is None else f" {self._error.name()}"
        return f"{self.at}@{self.start}{what}"


@attrs.frozen(kw_only=True)
class PlaneConfig:
    """Settings of librdkafka, and the delays that the simulation draws."""

    #: The setting ``enable.partition.eof``.
    eof: bool = False
    #: The setting ``queued.min.messages``.
    queued: int = 200
    #: Maximum number of a partition's records in one response.
    batch: int = 50
    latency_ms: float = 1.0
    #: Maximum duration of a call on the handle's thread, in milliseconds.
    call_ms: float = 0.0
    #: Maximum delay of the first message of a topic that the handle does not know, in seconds.
    unknown_topic_s: float = _UNKNOWN_TOPIC_S


@attrs.define(eq=False)
class Reading:
    """The state in which one assigned partition is fetched."""

    partition: TopicPartition
    #: The next offset to fetch.
    next: int
    #: The version of the assignment, by which librdkafka recognizes outdated fetches and messages.
    version: int
    known_at: float
    #: The offset after the last message that the caller took; None before the first message.
    position: int | None = None
    #: True if the offset is out of range and no reset policy applies. The partition is then not fetched until its next
    #: assignment.
    stopped: bool = False
    #: The offset at which the end of the partition was reported.
    eof_at: int = -1


class _Answer(NamedTuple):
    """The result of the fetch of one partition. ``next`` is the next offset, or None if the offset did not change."""

    reading: Reading
    version: int
    messages: list[SimulatedMessage]
    next: int | None = None
    eof_at: int = -1
    stopped: bool = False


@attrs.define(eq=False)
class _Call:
    """An operation for the handle's thread."""

    #: The caller's future. If the caller is cancelled, the call continues.
    waiter: asyncio.Future[Any]
    work: Callable[[], Any] | None
    most: int = 0
    wait_s: float = 0.0
    sink: Sink | None = None
    timer: asyncio.TimerHandle | None = None
    #: Whether the call has ended; and a future for callers that wait until no call is in progress, or None.
    done: bool = False
    over: asyncio.Future[None] | None = None


class SimulatedPlane:
    """The simulated :class:`~consumer_coord.consumer.data_plane.DataPlane`.

    Like ``Threaded``, the plane runs one call at a time.
    """

    rings = False
    ready = False

    def __init__(self, process: Process, brokers: SimulatedCluster, random: Random, config: PlaneConfig | None = None) -> None:
        self.config: PlaneConfig = config or PlaneConfig()
        self.closed: bool = False
        self._process = process
        self._brokers = brokers
        self._random = random
        self._readings: dict[TopicPartition, Reading] = {}
        self._queue: deque[tuple[int, Reading, SimulatedMessage]] = deque()
        self._versions = 0
        self._known: set[str] = set()
        self._calls: deque[_Call] = deque()
        self._running: _Call | None = None
        self._last: _Call | None = None
        #: Whether a request or its response is in flight.
        self._asking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        brokers.on_records[self] = self._on_records

    # -- the data plane's calls -----------------------------------------------------------------------------------------

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        await self._begin(_Call(self._process.create_future(), None, most, wait_s, sink))

    async def wait_idle(self) -> None:
        last = self._last
        if last is not None and not last.done:
            if last.over is None:
                last.over = self._process.create_future()
            await asyncio.wait({last.over})

    async def learn(self, topics: Collection[str], limit_s: float) -> bool:
        return True

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        return not self._queue and not self.config.eof and any(one.topic not in self._known for one in positions)

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        wanted = dict(sorted(positions.items()))
        await self._run(lambda: self._assign(wanted))

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = sorted(partitions)
        await self._run(lambda: self._unassign(gone))

    async def positions(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        wanted = sorted(partitions)
        found: Mapping[TopicPartition, OffsetAndMetadata] = await self._run(lambda: self._positions(wanted))
        return found

    async def assignment(self) -> frozenset[TopicPartition]:
        found: frozenset[TopicPartition] = await self._run(lambda: frozenset(self._readings))
        return found

    def queues(self, partition: TopicPartition) -> Mapping[str, int]:
        """Return nothing, because no statistics are simulated."""
        return {}

    def fetch_metrics(self) -> Mapping[str, float]:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        return {}

    def log_ends(self) -> None:
        """Return None, as for librdkafka."""

    def taken(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return nothing, as for librdkafka."""
        return {}

    async def close(self) -> None:
        if not self.closed:
            await self._run(self._close)

    def has_event(self, partition: TopicPartition) -> bool:
        """Return whether the queue has an event about a partition."""
        return any(
            message.error() is not None and (message.topic(), message.partition()) == (partition.topic, partition.partition)
            for _, _, message in self._queue
        )

    def reading(self, partition: TopicPartition) -> Reading | None:
        """Return the state in which a partition is fetched now, for checkers."""
        return self._readings.get(partition)

    # -- one call after the other ---------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await self._begin(_Call(self._process.create_future(), work))

    def _begin(self, call: _Call) -> asyncio.Future[Any]:
        if self.closed:
            raise RuntimeError("Consumer closed")
        self._last = call
        self._calls.append(call)
        if self._running is None:
            self._next()
        return call.waiter

    def _next(self) -> None:
        self._running = self._calls.popleft() if self._calls else None
        if self._running is not None:
            takes_s = self._random.random() * self.config.call_ms / 1000 if self.config.call_ms else 0.0
            if takes_s:
                self._process.call_later(takes_s, self._perform, self._running)
            else:
                self._process.call_soon(self._perform, self._running)

    def _perform(self, call: _Call) -> None:
        if call.work is None:
            if not self._queue and call.wait_s > 0:
                call.timer = self._process.call_later(call.wait_s, self._fetched, call)
            else:
                self._fetched(call)
            return
        try:
            result = call.work()
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self._done(call, None, error)
        else:
            self._done(call, result)

    def _done(self, call: _Call, result: Any, error: Exception | None = None) -> None:
        call.done = True
        if not call.waiter.done():
            self._process.call_soon(_answer, call.waiter, result, error)
        if call.over is not None:
            call.over.set_result(None)
        self._next()

    def _fetched(self, call: _Call) -> None:
        """End a fetch because messages are available, or because the time limit has passed."""
        if call is not self._running:
            return
        if call.timer is not None:
            call.timer.cancel()
        taken: list[Any] = []
        while self._queue and len(taken) < call.most:
            version, reading, message = self._queue.popleft()
            assert reading.version == version or _is_out_of_range(message)
            if message.error() is None:
                reading.position = message.offset() + 1
            taken.append(message)
        if call.sink is not None:
            call.sink(taken)
        self._done(call, None)
        self._look_soon()

    # -- the work of the calls ------------------------------------------------------------------------------------------

    def _version(self) -> int:
        self._versions += 1
        return self._versions

    def _assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for partition in positions:
            if partition in self._readings:
                raise KafkaException(KafkaError(KafkaError._CONFLICT, f"{partition} is already part of the assignment"))
        moment = self._process.time()
        for partition, at in positions.items():
            known_at = moment
            if partition.topic not in self._known:
                # The topic becomes known at the handle's first metadata request, or at its next look-up of unknown topics.
                known_at += self._random.choice((0.02, self._random.random() * self.config.unknown_topic_s))
            reading = Reading(partition, at.offset, self._version(), known_at)
            # An out-of-range event of an earlier assignment may also stop the new fetch of the partition.
            reading.stopped = self.has_event(partition) and self._random.random() < 0.5
            self._readings[partition] = reading
        self._look_soon()

    def _unassign(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition not in self._readings:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"{partition} is not in the current assignment"))
        for partition in partitions:
            reading = self._readings.pop(partition)
            # Unassigning drops the partition's fetched records, but not the events about an offset out of range.
            old, reading.version = reading.version, self._version()
            if self._queue:
                self._queue = deque(entry for entry in self._queue if entry[0] != old or _is_out_of_range(entry[2]))

    def _positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition in partitions:
            reading = self._readings.get(partition)
            if reading is not None and reading.position is not None:
                found[partition] = OffsetAndMetadata(reading.position)
        return found

    def _close(self) -> None:
        self.closed = True
        self._readings.clear()
        self._queue.clear()
        self._brokers.on_records.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    # -- fetching -------------------------------------------------------------------------------------------------------

    def _on_records(self, partition: TopicPartition) -> None:
        """Answer a fetch that waits at the broker for records. A paused process receives the response after the pause."""
        if partition in self._readings:
            self._process.call_soon(self._look_soon)

    def _look_soon(self, after_s: float = 0.0) -> None:
        """Schedule a fetch after ``after_s`` seconds, unless an earlier fetch is scheduled."""
        if self.closed or (self._asking and not after_s):
            return
        moment = self._process.time() + after_s
        if self._timer is not None:
            if self._timer_at <= moment:
                return
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._process.call_at(moment, self._ask)

    def _latency_s(self) -> float:
        return self.config.latency_ms / 1000 * (0.5 + self._random.random())

    def _ask(self) -> None:
        self._timer = None
        if self._asking or self.closed:
            return
        moment = self._process.time()
        room = self.config.queued - len(self._queue)
        if room <= 0:
            return
        wanted, later = [], []
        for reading in self._readings.values():
            if reading.known_at > moment:
                later.append(reading.known_at)
            elif not reading.stopped:
                wanted.append((reading, reading.version))
        if later:
            self._look_soon(min(later) - moment + 0.001)
        if wanted:
            self._asking = True
            # The brokers continue even if the client's process is paused.
            self._process.loop.call_later(self._latency_s(), self._served, wanted, room)

    def _served(self, wanted: list[tuple[Reading, int]], room: int) -> None:
        """Read from the leaders that can be reached, and send the responses."""
        answers: list[_Answer] = []
        retry = False
        self._random.shuffle(wanted)
        reached, host, batch = self._brokers.reached, self._process.name, self.config.batch
        for reading, version in wanted:
            found = reached(reading.partition, host)
            if found is not None:
                answer = self._read(reading, version, found, min(room, batch))
                room -= len(answer.messages)
                answers.append(answer)
                continue
            # Retry also for a deleted topic, because librdkafka reports the deletion only after half a minute.
            retry = True
        self._process.call_later(self._latency_s(), self._arrived, answers, retry)

    def _read(self, reading: Reading, version: int, found: Partition, most: int) -> _Answer:
        """Return the next records of one partition, or an event."""
        partition, log, offset = reading.partition, found.log, reading.next
        first, end = log.log_start_offset, log.end_offset
        if not first <= offset <= end:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, f"{partition}: {offset} is out of range")
            return _Answer(reading, version, [SimulatedMessage(partition, offset, error=error)], stopped=True)
        messages = []
        last = offset
        if offset < end and most > 0:
            last = min(end, offset + most)
            messages = [SimulatedMessage(partition, number, found.leader_epoch, log=log) for number in range(offset, last)]
        eof_at = last if self.config.eof and last == end else -1
        if eof_at >= 0 and eof_at != reading.eof_at:
            messages.append(SimulatedMessage(partition, last, error=KafkaError(KafkaError._PARTITION_EOF)))
        return _Answer(reading, version, messages, last, eof_at)

    def _arrived(self, answers: list[_Answer], retry: bool) -> None:
        self._asking = False
        if self.closed:
            return
        more = False
        for answer in answers:
            reading = answer.reading
            if reading.version != answer.version:
                # The response belongs to an assignment that has ended.
                more = True
                continue
            reading.stopped = answer.stopped
            if answer.next is not None:
                self._known.add(reading.partition.topic)
                more = more or answer.next != reading.next
                reading.next, reading.eof_at = answer.next, answer.eof_at
            if answer.messages:
                self._queue.extend([(reading.version, reading, message) for message in answer.messages])
        waiting = self._running
        if self._queue and waiting is not None and waiting.timer is not None:
            self._fetched(waiting)
        if more:
            self._look_soon()
        elif retry:
            self._look_soon(_RETRY_S)


def _is_out_of_range(message: SimulatedMessage) -> bool:
    """Return whether a message reports an offset out of range. librdkafka delivers such events even if they are outdated."""
    error = message.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET


def _answer(waiter: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """Set the outcome of a call, unless the caller was cancelled."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)
