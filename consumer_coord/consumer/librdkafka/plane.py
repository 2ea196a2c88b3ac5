"""librdkafka as the data plane: one ``confluent_kafka.Consumer`` with manual assignment.

One thread at a time may touch the handle: it serialises all calls, unfairly, so that a call from another thread starves
while the first sits in ``consume()``. So the engine's loop never makes a call that blocks: :class:`OnCaller` makes it on the
thread of a blocking application, :class:`Threaded` on a thread that the handle has for itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import importlib
import math
import os
import re
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, cimpl

from consumer_coord.consumer.data_plane import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Sink
from consumer_coord.consumer.librdkafka.refusals import with_tokens
from consumer_coord.errors import ConfigurationError
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.printable import get_logger
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.setting_names import KNOWN_BY, LIBRDKAFKA, did_you_mean
from consumer_coord.settings import KNOWN, as_boolean
from consumer_coord.topic_partition import TopicPartition

logger = get_logger(__name__)

T = TypeVar("T")

#: What librdkafka tells in mid-fetch through callbacks, by the setting that takes the callback.
_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")
#: How long assigning may wait for librdkafka to hear of a topic.
_LEARN_S = 0.25
#: How long it is not made to ask again when the answer takes longer than that, and when it could not ask.
_ASKED_S, _NOT_ASKED_S = 5.0, 2.0
#: librdkafka's default.
_FETCH_WAIT_MS = 500
#: More unknown topics than these are asked for in one request, for all topics of the cluster.
_ONE_BY_ONE = 4
#: More than any topic has.
_MAX_PARTITIONS = 2**31
#: So many events of a kind are kept for an application that does not poll; older ones go.
_MOST_EVENTS = 1_000

#: Those of this process.
_planes: weakref.WeakSet[Librdkafka] = weakref.WeakSet()


def _keep_handles() -> None:
    """In a forked child librdkafka's threads are missing: a handle that is destroyed there ends the process (``abort()``).

    So each gets one reference more, which is never released.
    """
    for plane in _planes:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(plane.handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_handles)


class Librdkafka:
    """The handle, and the events that it told of.

    A callback that raises inside ``consume()`` costs its whole batch, so no Python runs there: the callbacks are ``append`` of
    deques, and the consumer calls the application's own when the messages are safe (:meth:`events`).
    """

    def __init__(self, settings: Mapping[str, Any], **keywords: Any) -> None:
        self.settings = settings
        self._events: dict[str, deque[Any]] = {}
        #: The last wait for a message was in vain, so none is waiting most likely.
        self.dry = False
        #: Topics that librdkafka has heard of, and how many partitions they have.
        self._known: dict[str, int] = {}
        #: Topics that it was to ask about, without an answer in time, and until when it is not made to ask again.
        self._asked_until: dict[str, float] = {}
        #: There was an assignment, so a Fetch may be under way.
        self._has_fetched = False
        # list_topics() imports it in C code, which turns Ctrl-C in an import into an ImportError.
        importlib.import_module("confluent_kafka.admin")
        made = with_tokens(settings)
        for name in _CALLBACKS:
            if name == "error_cb" or made.get(name) is not None:
                self._events[name] = deque(maxlen=_MOST_EVENTS)
                made[name] = self._events[name].append
        try:
            # By its own name: applications, and tracing libraries, put something else in the place of confluent_kafka.Consumer.
            self.handle: Any = cimpl.Consumer(made, **keywords)
        except KafkaException as error:
            told = error.args[0].str()
            unknown = re.fullmatch(r'No such configuration property: "(.*)"', told)
            if unknown and unknown[1] in LIBRDKAFKA:
                installed = confluent_kafka.__version__
                raise ConfigurationError(
                    f"{unknown[1]} needs a newer confluent-kafka: the installed version {installed} does not know this setting,"
                    f" version {KNOWN_BY} does"
                ) from error
            hint = did_you_mean(unknown[1], KNOWN) if unknown else ""
            raise ConfigurationError(f"librdkafka refuses the settings: {told}{hint}") from error
        _planes.add(self)
        #: Ends are told once more of partitions that are assigned again.
        self._tells_ends = as_boolean("enable.partition.eof", settings.get("enable.partition.eof", False))

    @property
    def told(self) -> bool:
        """Whether there are events."""
        return any(self._events.values())

    def events(self) -> Iterator[tuple[Callable[[Any], object] | None, Any]]:
        """Return librdkafka's events since the last call: the application's callback, and its argument."""
        for name, waiting in self._events.items():
            while waiting:
                yield self.settings.get(name), waiting.popleft()

    def take(self, most: int) -> list[Any]:
        """Return available messages, without a wait."""
        messages: list[Any] = self.handle.consume(most, 0)
        if messages:
            self.dry = False
        return messages

    def fetch(self, most: int, wait_s: float) -> list[Any]:
        """Wait for one message, then take what is there: ``consume()`` alone would wait until all of ``most`` came."""
        handle = self.handle
        if wait_s <= 0 or not self.dry:
            messages = self.take(most)
            if messages or wait_s <= 0:
                return messages
        # When the last wait was in vain, an idle member's most likely, one call is enough.
        # librdkafka counts whole milliseconds: a wait for less would be none, and the caller would try again and again.
        first = handle.poll(math.ceil(wait_s * 1000 - 1e-6) / 1000)
        self.dry = first is None
        if first is None:
            return []
        return [first, *handle.consume(most - 1, 0)] if most > 1 else [first]

    def learn(self, topics: Collection[str], limit_s: float = _LEARN_S) -> bool:
        """Let librdkafka ask the cluster about topics that it has not heard of, within ``limit_s``.

        Of a partition whose topic it does not know it reads nothing before a timer of a second.  False without an answer.
        """
        ends = time.monotonic() + limit_s
        unknown = [topic for topic in topics if topic not in self._known]
        unasked = [topic for topic in unknown if self._asked_until.get(topic, 0.0) <= time.monotonic()]
        questions = [unasked] if len(unasked) > _ONE_BY_ONE else [[topic] for topic in unasked]
        answered = [self._ask(topics, max(0.001, ends - time.monotonic())) for topics in questions]
        return all(answered) and len(unasked) == len(unknown)

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether the first records of these would wait for two Fetches of idle partitions.

        On the one connection to a broker the question about a new topic waits behind the first; librdkafka sends the next one
        before it knows the answer.  False where a partition has records: what is fetched of it would be fetched again.
        """
        return self.dry and not self._tells_ends and not self._known.keys() >= _to_learn(positions)

    def _ask(self, topics: Sequence[str], limit_s: float) -> bool:
        """Ask for one topic, or for all of the cluster; False without an answer."""
        # Also for a question whose answer an interrupt loses: it reaches librdkafka all the same.
        self._asked_until.update(dict.fromkeys(topics, time.monotonic() + _ASKED_S))
        try:
            for topic in topics:
                # No wait, but librdkafka knows now that it is wanted, and asks by itself too.  What follows is lost when it
                # takes down the connection to a bootstrap server, as at each start.
                self.handle.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), cached=True)
            if len(topics) == 1:
                self._hear(self.handle.list_topics(topics[0], timeout=limit_s).topics)
            else:
                self._hear(self.handle.list_topics(timeout=limit_s).topics)
        except KafkaException as error:
            # It will hear of them by itself; what is wrong with the brokers it says through error_cb.
            logger.debug("data plane: topics could not be looked up: %s", error)
            # A question that timed out is on its way, and its answer will reach librdkafka.  Asked again and again, by each of
            # fifty members, a broker far away would have a row of questions to answer before the first Fetch.
            if error.args[0].code() != KafkaError._TIMED_OUT:
                self._asked_until.update(dict.fromkeys(topics, time.monotonic() + _NOT_ASKED_S))
            return False
        for topic in topics:
            del self._asked_until[topic]
        return True

    def _hear(self, topics: Mapping[str, Any]) -> None:
        self._known.update({name: len(topic.partitions) for name, topic in topics.items() if topic.error is None})

    def asks(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether :meth:`rows_of` asks the brokers, and so may block."""
        return not self._known.keys() >= _to_learn(positions) or any(
            at.offset in (OFFSET_BEGINNING, OFFSET_END) or not self._exists(one) for one, at in positions.items()
        )

    def rows_of(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> list[Any]:
        """Return the rows to assign; first let librdkafka learn of the topics, within a time limit."""
        # The question may wait behind a Fetch that waits for records.
        limit_s = _LEARN_S + (self._fetch_wait_s() if self._has_fetched else 0.0)
        self.learn(_to_learn(positions), limit_s)
        self._warn_of_missing(positions, limit_s)
        return self._numbers(positions, limit_s)

    def assign(self, rows: list[Any]) -> None:
        """Read these rows too."""
        self._has_fetched = True
        self.handle.incremental_assign(rows)

    def _warn_of_missing(self, positions: Iterable[TopicPartition], limit_s: float) -> None:
        """Log partitions that do not exist: librdkafka says so half a minute later, or never."""
        missing = [partition for partition in positions if not self._exists(partition)]
        # The topic may have grown since.
        for topic in {partition.topic for partition in missing}:
            self._ask([topic], limit_s)
        for partition in missing:
            if not self._exists(partition):
                logger.warning(
                    "partition %s does not exist: the topic has %d partitions. Reading begins when it is created",
                    partition,
                    self._known[partition.topic],
                )

    def _exists(self, partition: TopicPartition) -> bool:
        """Whether a partition exists as far as librdkafka knows; True for a topic that it does not know."""
        return partition.partition < self._known.get(partition.topic, _MAX_PARTITIONS)

    def _fetch_wait_s(self) -> float:
        return float(self.settings.get("fetch.wait.max.ms", _FETCH_WAIT_MS)) / 1000

    def _numbers(self, positions: Mapping[TopicPartition, OffsetAndMetadata], limit_s: float) -> list[Any]:
        """Rows of ``positions``, sorted; the beginning and the end as numbers, if a broker tells them within ``limit_s``.

        librdkafka would look them up itself.  But when the partition is unassigned and assigned again before that
        answer is there, it takes the answer for outdated, asks again, and goes on at the beginning or the end after all.
        """
        numbers = dict(positions)
        for logical in (OFFSET_BEGINNING, OFFSET_END):
            wanted = [native(partition, at) for partition, at in positions.items() if at.offset == logical]
            if not wanted:
                continue
            try:
                # A time of -2 or -1 stands for the first offset or the end (ListOffsets).
                found = self.handle.offsets_for_times(wanted, timeout=limit_s)
            except KafkaException as error:
                logger.debug("data plane: the first offsets and ends are left to librdkafka: %s", error)
                continue
            told = [row for row in found if row.error is None and row.offset >= 0]
            numbers.update({partition_of(row): OffsetAndMetadata(row.offset) for row in told})
        return [native(partition, at) for partition, at in sorted(numbers.items())]

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self.handle.incremental_unassign(rows(partitions))

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Behind the last message taken."""
        found = self.handle.position(rows(partitions))
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.offset, epoch_of(row))
            for row in found
            if row.offset >= 0
        }

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return frozenset(partition_of(row) for row in self.handle.assignment())


class OffLoop:
    """The handle for an engine on a loop: calls that block run on another thread, and only the rest runs here.

    Calls are carried out one at a time in their order, also when the task that awaits one is cancelled.
    """

    def __init__(self, librdkafka: Librdkafka) -> None:
        self._kafka = librdkafka
        self._last: asyncio.Future[Any] | None = None

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Start a call on the other thread."""
        raise NotImplementedError

    async def run(self, function: Callable[[], T]) -> T:
        """Run a call on the other thread, after those before it, and wait for it."""
        return await self._in_order(lambda: self._begin(function))

    async def _in_order(self, start: Callable[[], Awaitable[T]]) -> T:
        before = self._last

        async def whole() -> T:
            if before is not None and not before.done():
                await asyncio.wait({before})
            return await start()

        task = asyncio.get_running_loop().create_task(whole())
        # Mark an exception as retrieved: the caller that awaits it may be cancelled.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._last = task
        return await asyncio.shield(task)

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`, here and below."""
        if self._last is None or self._last.done():
            # Without a wait, and while the thread is idle, this does not block: a call on its thread would cost 0.1 ms.
            messages = self._kafka.take(most)
            if messages or wait_s <= 0:
                sink(messages)
                # The coordinator's heartbeats, and other tasks, run on this loop, however fast messages come.
                await asyncio.sleep(0)
                return

        async def fetch() -> None:
            # In one task: a call that begins between the fetch and its sink would not know what was taken.
            sink(await self._begin(lambda: self._kafka.fetch(most, wait_s)))

        await self._in_order(fetch)

    async def wait_idle(self) -> None:
        if self._last is not None and not self._last.done():
            await asyncio.wait({self._last})

    async def learn(self, topics: Collection[str], limit_s: float) -> bool:
        wanted = tuple(topics)
        return await self.run(lambda: self._kafka.learn(wanted, limit_s))

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        return self._kafka.held_up(positions)

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        kafka = self._kafka

        async def assign() -> None:
            asks = kafka.asks(positions)
            kafka.assign(await self._begin(lambda: kafka.rows_of(positions)) if asks else kafka.rows_of(positions))

        await self._in_order(assign)

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        gone = tuple(partitions)
        await self._here(lambda: self._kafka.unassign(gone))

    async def positions(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        wanted = tuple(partitions)
        return await self._here(lambda: self._kafka.positions(wanted))

    async def assignment(self) -> frozenset[TopicPartition]:
        return await self._here(self._kafka.assignment)

    async def _here(self, function: Callable[[], T]) -> T:
        """Run a call that does not block on the loop, after those before it."""

        async def call() -> T:
            return function()

        return await self._in_order(call)

    async def close(self) -> None:
        await self.run(self._kafka.handle.close)


class OnCaller(OffLoop):
    """The handle of a blocking consumer: calls run on the thread that called the consumer and waits for the engine."""

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return BlockingCall.on_caller(function)


class Threaded(OffLoop):
    """The handle on a thread of its own, unless there is an ``executor``."""

    def __init__(self, librdkafka: Librdkafka, executor: concurrent.futures.Executor | None = None, threads: int = 1) -> None:
        super().__init__(librdkafka)
        self._own = executor is None
        self.executor = executor or concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="consumer-coord-fetch")
        self._closed = False

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(self.executor.submit(function))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await super().close()
            finally:
                if self._own:
                    self.executor.shutdown(wait=False)


def _to_learn(positions: Mapping[TopicPartition, OffsetAndMetadata]) -> set[str]:
    """Return the topics that librdkafka has to know before it reads these partitions.

    Not where an epoch is to be checked (KIP-320): librdkafka checks it when it hears of a topic that is assigned.
    """
    checked = {partition.topic for partition, at in positions.items() if at.leader_epoch >= 0}
    return {partition.topic for partition in positions} - checked


#: confluent-kafka commits the metadata of a row with C's end of a text, and reads beyond that of other clients without one.
#: So rows are committed as it commits them: members of both kinds may be in one group.
_END_OF_TEXT = "\0"


def native(partition: TopicPartition, position: OffsetAndMetadata | None = None) -> confluent_kafka.TopicPartition:
    """As confluent-kafka's TopicPartition."""
    if position is None:
        return confluent_kafka.TopicPartition(partition.topic, partition.partition)
    told: dict[str, Any] = {}
    if position.metadata:
        told["metadata"] = position.metadata.removesuffix(_END_OF_TEXT)
    if position.leader_epoch >= 0:
        told["leader_epoch"] = position.leader_epoch
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, position.offset, **told)


def rows(partitions: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    """As confluent-kafka's TopicPartition, in order."""
    return [native(partition) for partition in sorted(partitions)]


def epoch_of(row: confluent_kafka.TopicPartition) -> int:
    """Return a row's leader epoch, -1 when it has none."""
    return -1 if row.leader_epoch is None else int(row.leader_epoch)


def to_native(row: Any) -> confluent_kafka.TopicPartition:
    """Return confluent-kafka's TopicPartition for any object with a topic and a partition."""
    return row if isinstance(row, confluent_kafka.TopicPartition) else native(partition_of(row), position_of(row))


def partition_of(row: Any) -> TopicPartition:
    """Return a row's topic and partition; raise TypeError for an object without them."""
    try:
        return TopicPartition(row.topic, row.partition)
    except AttributeError:
        raise TypeError(f"requires list of TopicPartition, such as [TopicPartition('orders', 0)], not {row!r}") from None


def position_of(row: Any) -> OffsetAndMetadata:
    """Return the offset, epoch and metadata of a row; ``OFFSET_INVALID`` for a partition without an offset."""
    if not isinstance(row, confluent_kafka.TopicPartition):
        offset = getattr(row, "offset", None)
        return OffsetAndMetadata(OFFSET_INVALID if offset is None else offset)
    return OffsetAndMetadata(row.offset, epoch_of(row), "" if row.metadata is None else row.metadata + _END_OF_TEXT)


def is_known(position: OffsetAndMetadata) -> bool:
    """Whether a row said where to begin."""
    return position.offset != OFFSET_INVALID
