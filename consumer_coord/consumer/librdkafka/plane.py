"""librdkafka as the data plane: one ``confluent_kafka.Consumer`` with manual assignment.

Only one thread at a time may use the handle. The handle runs one call at a time, and in no fixed order, so a call from one
thread may wait for a long time while another thread calls ``consume()``. Therefore the engine's loop makes no blocking calls.
:class:`OnCaller` makes these calls on the thread of a blocking application, :class:`Threaded` on a separate thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import math
import os
import re
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from consumer_coord.confluent.rows import epoch_of, native, partition_of, rows
from consumer_coord.confluent.types import KafkaError, KafkaException, own_because
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.consumer.data_plane import Sink
from consumer_coord.consumer.librdkafka.refusals import with_tokens
from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.setting_names import KNOWN_BY, LIBRDKAFKA, did_you_mean
from consumer_coord.settings import KNOWN, as_boolean, refuse_unknown
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: Settings whose callbacks librdkafka calls during a fetch.
_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")
#: How long an assignment may wait for librdkafka's metadata of a topic, in seconds.
_LEARN_S = 0.25
#: Time before a metadata look-up is repeated, in seconds: after a timeout, and after any other failure.
_ASKED_S, _NOT_ASKED_S = 5.0, 2.0
#: librdkafka's default of ``fetch.wait.max.ms``.
_FETCH_WAIT_MS = 500
#: Above this number of unknown topics, one request looks up all topics; otherwise there is one request for each topic.
_ONE_BY_ONE = 4
#: Larger than the number of partitions of any topic.
_MAX_PARTITIONS = 2**31
#: Maximum number of events kept for an application that does not poll; older events are dropped.
_MOST_EVENTS = 1_000

#: All instances of :class:`Librdkafka` in this process.
_planes: weakref.WeakSet[Librdkafka] = weakref.WeakSet()


def _keep_handles() -> None:
    """Keep librdkafka's handles alive in a forked child, where their destruction would end the process (``abort()``).

    librdkafka's threads do not exist in the child. Each handle gets one more reference, which is never released.
    """
    for plane in _planes:
        # Imported here, because few processes fork.
        ctypes = importlib.import_module("ctypes")
        if plane.is_open:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(plane.handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_handles)


class Librdkafka:
    """librdkafka's handle, and the events that librdkafka reported.

    If a callback raised an exception inside ``consume()``, the whole batch would be lost. So librdkafka calls no Python code:
    its callbacks are the ``append`` method of a deque. The consumer calls the application's callbacks after it has stored the
    messages (:meth:`events`).
    """

    def __init__(self, settings: Mapping[str, Any], *, fetches: bool = True, **keywords: Any) -> None:
        """Check the settings, and create the handle if it ``fetches`` the messages."""
        self.settings = settings
        needed = own_because is None and fetches
        #: The arguments of librdkafka's callbacks since the last :meth:`events`.
        self.reported: deque[Any] = deque(maxlen=_MOST_EVENTS)
        #: True if the last wait returned no message, so that probably no message is available.
        self.dry: bool = False
        #: The number of partitions of each topic that librdkafka knows.
        self._known: dict[str, int] = {}
        #: Topic whose look-up had no response -> the time before which the look-up is not repeated (``time.monotonic``).
        self._asked_until: dict[str, float] = {}
        #: True after the first assignment. From then on, a Fetch may be in flight.
        self._has_fetched = False
        made = self._prepared(settings, needed)
        for name in _CALLBACKS:
            if name == "error_cb" or made.get(name) is not None:
                made[name] = self.reported.append
        self._made_of = made, keywords
        #: librdkafka's handle; after :meth:`release`, the next use creates another handle.
        self.handle: Any = self._make() if needed else _Released(self)
        _planes.add(self)
        #: Whether librdkafka reports that it has reached the end of a partition. After another assignment of the partition,
        #: librdkafka reports the end again.
        self._reports_ends = as_boolean("enable.partition.eof", settings.get("enable.partition.eof", False))

    def _prepared(self, settings: Mapping[str, Any], needed: bool) -> dict[str, Any]:
        """Return the settings of the handle. Check their names if there is no handle, which would check them."""
        if not needed:
            refuse_unknown(settings)
        if own_because is not None:
            return dict(settings)
        # list_topics() imports this module in C code, which turns Ctrl-C during the import into an ImportError.
        importlib.import_module("confluent_kafka.admin")
        return with_tokens(settings)

    def require(self) -> None:
        """Raise ImportError if librdkafka is not installed."""
        if own_because is not None:
            raise ImportError(
                f"reading messages needs librdkafka, which is in confluent-kafka 2.x, but {own_because}:"
                " pip install 'confluent-kafka>=2.8,<3'. consume_arrow reads without it",
                name="confluent_kafka",
            ) from own_because

    def _make(self) -> Any:
        self.require()
        from confluent_kafka import __version__ as installed
        from confluent_kafka import cimpl

        made, keywords = self._made_of
        try:
            # The C class, because applications and tracing libraries may replace confluent_kafka.Consumer.
            return cimpl.Consumer(made, **keywords)
        except KafkaException as error:
            reason = error.args[0].str()
            unknown = re.fullmatch(r'No such configuration property: "(.*)"', reason)
            if unknown and unknown[1] in LIBRDKAFKA:
                raise ConfigurationError(
                    f"{unknown[1]} needs a newer confluent-kafka: the installed version {installed} does not know this setting,"
                    f" version {KNOWN_BY} does"
                ) from error
            hint = did_you_mean(unknown[1], KNOWN) if unknown else ""
            raise ConfigurationError(f"librdkafka refuses the settings: {reason}{hint}") from error

    @property
    def is_open(self) -> bool:
        """Whether there is a handle."""
        return not isinstance(self.handle, _Released)

    def release(self) -> None:
        """Destroy the handle, with its threads and connections, because the consumer reads without it.

        If the application has callbacks for librdkafka's events, the handle remains.
        """
        if not any(self.settings.get(name) is not None for name in (*_CALLBACKS, "oauth_cb")):
            self.handle = _Released(self)

    def close(self) -> None:
        """Close the handle; idempotent."""
        if self.is_open:
            self.handle.close()

    def serve(self) -> None:
        """Let librdkafka report its events. Without an assignment, it reports events only during a call to the handle."""
        if self.is_open:
            self.take(1)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of new connections, of this handle and of later handles."""
        self._made_of[0].update({"sasl.username": username, "sasl.password": password})
        if self.is_open:
            self.handle.set_sasl_credentials(username, password)

    def events(self) -> Iterator[tuple[Callable[[Any], object] | None, Any]]:
        """Yield librdkafka's events since the last call: the application's callback, and its argument."""
        while self.reported:
            what = self.reported.popleft()
            name = "error_cb" if isinstance(what, KafkaError) else "stats_cb" if isinstance(what, str) else "throttle_cb"
            yield self.settings.get(name), what

    def take(self, most: int) -> list[Any]:
        """Return available messages, without a wait."""
        messages: list[Any] = self.handle.consume(most, 0)
        if messages:
            self.dry = False
        return messages

    def fetch_now(self, most: int, wait_s: float) -> list[Any]:
        """Wait for one message, then return all available messages; ``consume()`` would wait for ``most`` messages."""
        if wait_s <= 0 or not self.dry:
            messages = self.take(most)
            if messages or wait_s <= 0:
                return messages
        # If the last wait returned nothing, the member is probably idle, so wait without another call of consume(). librdkafka
        # truncates the time to whole milliseconds: with a time below 1 ms it would not wait, and the caller would spin.
        first = self.handle.poll(math.ceil(wait_s * 1000 - 1e-6) / 1000)
        self.dry = first is None
        return [] if first is None else self.with_others(first, most)

    def wait(self, most: int, wait_s: float) -> list[Any]:
        """Wait for one message, at most ``wait_s`` seconds, then return all available messages; with no other call."""
        first = self.handle.poll(wait_s)
        return [] if first is None else self.with_others(first, most)

    def with_others(self, first: Any, most: int) -> list[Any]:
        """Return ``first``, the message that a wait returned, and all other available messages; at most ``most`` messages."""
        self.dry = False
        return [first, *self.handle.consume(most - 1, 0)] if most > 1 else [first]

    def learn(self, topics: Collection[str], limit_s: float = _LEARN_S) -> bool:
        """Make librdkafka look up unknown topics, within ``limit_s`` seconds; return False if a response is missing.

        Otherwise librdkafka would begin to read a partition of an unknown topic up to a second later.
        """
        ends = time.monotonic() + limit_s
        unknown = [topic for topic in topics if topic not in self._known]
        unasked = [topic for topic in unknown if self._asked_until.get(topic, 0.0) <= time.monotonic()]
        questions = [unasked] if len(unasked) > _ONE_BY_ONE else [[topic] for topic in unasked]
        answered = [self._ask(topics, max(0.001, ends - time.monotonic())) for topics in questions]
        return all(answered) and len(unasked) == len(unknown)

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return whether the first records of these partitions would wait for two Fetch requests of idle partitions.

        On a broker's single connection, the look-up of a new topic waits for the first Fetch, and librdkafka sends the second
        Fetch before the response to the look-up arrives. Return False while messages arrive, because the caller assigns all
        partitions again, and librdkafka would fetch these messages again.
        """
        return self.dry and not self._reports_ends and not self._known.keys() >= _to_learn(positions)

    def _ask(self, topics: Sequence[str], limit_s: float) -> bool:
        """Look up one topic, or all topics of the cluster; return False if no response arrived."""
        # Set before the request, so that an interrupted request is not repeated. Its response still reaches librdkafka.
        self._asked_until.update(dict.fromkeys(topics, time.monotonic() + _ASKED_S))
        try:
            for topic in topics:
                # This call does not wait, but makes librdkafka look up the topic as well. The request below is lost if
                # librdkafka closes its connection to a bootstrap server, as it does at each start.
                self.handle.get_watermark_offsets(NativePartition(topic, 0), cached=True)
            if len(topics) == 1:
                self._record(self.handle.list_topics(topics[0], timeout=limit_s).topics)
            else:
                self._record(self.handle.list_topics(timeout=limit_s).topics)
        except KafkaException as error:
            # librdkafka learns of the topics later, and reports errors of brokers through error_cb.
            logger.debug("data plane: topics could not be looked up: %s", error)
            # The response to a request that timed out still reaches librdkafka. If each of fifty members repeated its request,
            # a distant broker would have a queue of requests before the first Fetch.
            if error.args[0].code() != KafkaError._TIMED_OUT:
                self._asked_until.update(dict.fromkeys(topics, time.monotonic() + _NOT_ASKED_S))
            return False
        for topic in topics:
            del self._asked_until[topic]
        return True

    def _record(self, topics: Mapping[str, Any]) -> None:
        self._known.update({name: len(topic.partitions) for name, topic in topics.items() if topic.error is None})

    def asks(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return whether :meth:`rows_of` sends requests to brokers, and so may block."""
        return not self._known.keys() >= _to_learn(positions) or any(not self._exists(one) for one in positions)

    def rows_of(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> list[Any]:
        """Make librdkafka look up the topics, within a time limit; then return the rows to assign."""
        # The look-up may wait for a Fetch that waits for new records.
        limit_s = _LEARN_S + (self._fetch_wait_s() if self._has_fetched else 0.0)
        self.learn(_to_learn(positions), limit_s)
        self._warn_of_missing(positions, limit_s)
        return [native(partition, at) for partition, at in sorted(positions.items())]

    def assign(self, rows: list[Any]) -> None:
        """Also read these partitions, which are not assigned yet."""
        self._has_fetched = True
        self.handle.incremental_assign(rows)

    def _warn_of_missing(self, positions: Iterable[TopicPartition], limit_s: float) -> None:
        """Log partitions that do not exist, because librdkafka reports such partitions half a minute later, or never."""
        missing = [partition for partition in positions if not self._exists(partition)]
        # Look up the topics again, because they may have new partitions.
        for topic in {partition.topic for partition in missing}:
            self._ask([topic], limit_s)
        for partition in missing:
            if not self._exists(partition):
                logger.warning(
                    "partition %s does not exist: the topic's partition count is %d. Reading begins when the"
                    " partition is created",
                    partition,
                    self._known[partition.topic],
                )

    def _exists(self, partition: TopicPartition) -> bool:
        """Return whether librdkafka's metadata has this partition; return True if the topic is unknown."""
        return partition.partition < self._known.get(partition.topic, _MAX_PARTITIONS)

    def _fetch_wait_s(self) -> float:
        return float(self.settings.get("fetch.wait.max.ms", _FETCH_WAIT_MS)) / 1000

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self.handle.incremental_unassign(rows(partitions))

    def positions_now(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position after each partition's last message; omit partitions without a message."""
        found = self.handle.position(rows(partitions))
        return {
            TopicPartition(row.topic, row.partition): OffsetAndMetadata(row.offset, epoch_of(row))
            for row in found
            if row.offset >= 0
        }

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return frozenset(partition_of(row) for row in self.handle.assignment()) if self.is_open else frozenset()


class _Released:
    """Takes the place of a handle that was destroyed, or cannot be made; its use creates another handle, or raises."""

    def __init__(self, librdkafka: Librdkafka) -> None:
        self._librdkafka = librdkafka

    def __getattr__(self, name: str) -> Any:
        self._librdkafka.handle = self._librdkafka._make()
        return getattr(self._librdkafka.handle, name)


class OffLoop:
    """librdkafka's handle for an engine on a loop: blocking calls run on another thread, all other calls on the loop.

    Calls run one at a time in the order of their start, even if the task that awaits a call is cancelled.
    """

    def __init__(self, librdkafka: Librdkafka) -> None:
        self._kafka = librdkafka
        self._last: asyncio.Future[Any] | None = None

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Start a call on the other thread."""
        raise NotImplementedError

    async def run(self, function: Callable[[], T]) -> T:
        """Run a call on the other thread, after all earlier calls, and wait for its end."""
        return await self._in_order(lambda: self._begin(function))

    async def _in_order(self, start: Callable[[], Awaitable[T]]) -> T:
        before = self._last

        async def whole() -> T:
            if before is not None and not before.done():
                await asyncio.wait({before})
            return await start()

        task = asyncio.get_running_loop().create_task(whole())
        # Mark an exception as retrieved, because the caller that awaits it may be cancelled.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._last = task
        return await asyncio.shield(task)

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        if (self._last is None or self._last.done()) and (wait_s <= 0 or not self._kafka.dry):
            # Without a wait and with an idle thread, this call does not block. A call on the thread would cost 0.1 ms.
            messages = self._kafka.take(most)
            if messages or wait_s <= 0:
                sink(messages)
                # Let the coordinator's heartbeats and other tasks of this loop run, even if messages arrive fast.
                await asyncio.sleep(0)
                return

        async def fetch() -> None:
            # Run this in one task, because otherwise another call could begin after the fetch and before ``sink`` has the
            # messages.
            sink(await self._begin(lambda: self._wait(most, wait_s)))

        await self._in_order(fetch)

    def _wait(self, most: int, wait_s: float) -> list[Any]:
        """Wait for messages on the other thread."""
        return self._kafka.fetch_now(most, wait_s)

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
        return await self._here(lambda: self._kafka.positions_now(wanted))

    async def assignment(self) -> frozenset[TopicPartition]:
        return await self._here(self._kafka.assignment)

    async def _here(self, function: Callable[[], T]) -> T:
        """Run a non-blocking call on the loop, after all earlier calls."""

        async def call() -> T:
            return function()

        return await self._in_order(call)

    async def close(self) -> None:
        await self.run(self._kafka.close)


class OnCaller(OffLoop):
    """librdkafka's handle for a blocking consumer: blocking calls run on the thread that waits in the consumer's method."""

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return BlockingCall.on_caller(function)


class Threaded(OffLoop):
    """librdkafka's handle: blocking calls run on a separate thread, or in the given ``executor``."""

    def __init__(self, librdkafka: Librdkafka, executor: concurrent.futures.Executor | None = None, threads: int = 1) -> None:
        super().__init__(librdkafka)
        self._own = executor is None
        self.executor: concurrent.futures.Executor = executor or concurrent.futures.ThreadPoolExecutor(
            threads, thread_name_prefix="consumer-coord-fetch"
        )
        self._closed = False
        #: A function that the thread calls after a wait without a message. The result is the time to wait again, in seconds, or
        #: 0 to end the wait. If the loop started each wait, this would take ten times as much processor time.
        self.next_wait_s: Callable[[], float] = _end_of_wait

    def _wait(self, most: int, wait_s: float) -> list[Any]:
        messages = self._kafka.fetch_now(most, wait_s)
        while not messages and (next_s := self.next_wait_s()) > 0:
            messages = self._kafka.fetch_now(most, next_s)
        return messages

    def _begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(self.executor.submit(function))

    async def release(self) -> None:
        """See :meth:`Librdkafka.release`; in a thread, because the end of librdkafka's threads may wait for a name server."""
        await asyncio.to_thread(self._kafka.release)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                if self._kafka.is_open:
                    await super().close()
            finally:
                if self._own:
                    self.executor.shutdown(wait=False)


def _end_of_wait() -> float:
    return 0.0


def _to_learn(positions: Mapping[TopicPartition, OffsetAndMetadata]) -> set[str]:
    """Return the topics that librdkafka must know before it reads these partitions.

    Omit topics with a leader epoch to check (KIP-320), because librdkafka checks epochs when it learns of an assigned topic.
    """
    checked = {partition.topic for partition, at in positions.items() if at.leader_epoch >= 0}
    return {partition.topic for partition in positions} - checked
