"""AsyncGroupConsumer: the same consumer for asyncio, on the application's own loop.

A skin over the engine for tasks.  The coordinator runs on that loop.  librdkafka's handle lives on a thread of its own, one per
consumer, because its calls block; the loop never waits for it.  Nothing is fetched ahead of the application beyond a batch
and librdkafka's own bounded queue, so a slow application slows the fetching down.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import confluent_kafka
from confluent_kafka import Message

from assignors.base import Assignor
from consumer_coord.config import Config, parse
from consumer_coord.consumer import group_metadata
from consumer_coord.consumer.async_home import AsyncHome
from consumer_coord.consumer.blocking import choose_assignors
from consumer_coord.consumer.data_plane import DataPlane
from consumer_coord.consumer.engine import FOREVER_S, Engine, EngineSettings
from consumer_coord.consumer.handover import Callback, Callbacks, Partitions
from consumer_coord.consumer.librdkafka.exceptions import kafka_exceptions, to_kafka_exception
from consumer_coord.consumer.librdkafka.plane import Librdkafka, Threaded, native, partition_of, position_of, rows
from consumer_coord.consumer.librdkafka.rows import (
    Positions,
    Rows,
    committed_rows,
    is_lapsed,
    known_positions_of,
    nothing_to_commit,
    raise_if_all_failed,
    seconds,
    to_commit,
    to_rows,
)
from consumer_coord.consumer.librdkafka.security import message_failure, raise_if_refused
from consumer_coord.consumer.runtime import Clusters, shared_clusters
from consumer_coord.consumer.start_positions import ResetPolicy
from consumer_coord.errors import ClosedError, ConcurrentUseError, CoordinatorError, FatalError
from consumer_coord.group.committed_offsets import CommitResult
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.group.subscription import librdkafka_pattern

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How many messages are fetched at a time.
_BATCH = 500


class AsyncGroupConsumer:
    """Consume as a member of a group from asyncio code::

        async with AsyncGroupConsumer(config, assignors=[MyAssignor()]) as consumer:
            await consumer.subscribe(["orders"])
            async for message in consumer:
                await work_on(message)

    ``config`` is one dictionary of Kafka's settings for both planes.  Tasks that use it at the same time wait for each other;
    commits of given offsets do not wait.  Callbacks may be coroutine functions; they run inside ``poll``, ``consume``,
    iteration, ``unsubscribe`` and ``close``.  With automatic commits a message counts as finished when the next one is asked
    for.  A call that is cancelled loses nothing.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        assignors: Sequence[Assignor | type[Assignor]] | None = None,
        **keywords: Any,
    ) -> None:
        settings = dict(config)
        self._on_commit: Callable[[Any, Rows], object] | None = settings.pop("on_commit", None)
        self._auto_store = str(settings.get("enable.auto.offset.store", True)).lower() in ("true", "1", "t")
        with kafka_exceptions():
            parsed = parse(settings)
            chosen = choose_assignors(settings, parsed, assignors)
            self._librdkafka = Librdkafka(parsed.librdkafka, **keywords)
        self._set_up(parsed, chosen, Threaded(self._librdkafka), shared_clusters)

    def _set_up(
        self,
        settings: Config,
        assignors: Sequence[Assignor],
        plane: DataPlane,
        clusters: Callable[[], Clusters],
    ) -> None:
        """The parts; a simulation has a plane and cluster clients of its own."""
        self._settings = settings
        self._assignors = assignors
        self._plane = plane
        self._clusters = clusters
        self._made: Engine | None = None
        self._home: AsyncHome | None = None
        self._turn = asyncio.Lock()
        self._closing: asyncio.Task[CoordinatorError | None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self) -> Engine:
        """The engine, made on the loop that the consumer is first used on."""
        if self._closing is not None:
            raise to_kafka_exception(ClosedError("the consumer is closed"))
        if self._made is None:
            cluster = self._clusters().acquire(self._settings.client)
            core = ConsumerCoordinator(self._settings.coordinator, cluster, self._assignors)
            self._home = AsyncHome(core)
            self._made = Engine(
                core,
                self._plane,
                self._home,
                EngineSettings(
                    reset=ResetPolicy(self._settings.auto_offset_reset, self._settings.isolation_level == "read_committed"),
                    auto_store=self._auto_store,
                    resets_itself=self._settings.librdkafka.get("auto.offset.reset") == "error",
                    is_lapsed=is_lapsed,
                ),
                call=self._call,
                told=self._tell_commit,
                events=self._tell_events,
            )
        return self._made

    @property
    def _core(self) -> ConsumerCoordinator:
        return self._start().core

    @property
    def _in_callback(self) -> bool:
        return self._home is not None and self._home.in_callback.get()

    @contextlib.asynccontextmanager
    async def _used(self, *, in_callback: bool = True) -> AsyncIterator[Engine]:
        """The engine, when it is this task's turn; inside a callback it is the turn of the callback's caller."""
        with kafka_exceptions():
            engine = self._start()
            if self._in_callback:
                if not in_callback:
                    raise ConcurrentUseError("poll, consume, subscribe and close may not be called inside a rebalance callback")
                yield engine
                return
            async with self._turn:
                # It may have been closed meanwhile.
                yield self._start()

    async def close(self, timeout: float | None = None) -> None:
        """Commit what is finished (automatic commits), revoke, leave the group, end; at most ``timeout`` seconds.

        A close that is cancelled goes on; another call waits for it.
        """
        if self._in_callback:
            raise to_kafka_exception(ConcurrentUseError("close may not be called inside a rebalance callback"))
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout))
        elif self._closing.done():
            return
        failure = await asyncio.shield(self._closing)
        if failure is not None:
            raise to_kafka_exception(failure)

    async def _close(self, timeout: float | None) -> CoordinatorError | None:
        limit_s = seconds(timeout, self._settings.coordinator.default_api_timeout_ms / 1000)
        engine, failure = self._made, None
        loop = asyncio.get_running_loop()
        ends = loop.time() + limit_s
        try:
            if engine is not None:
                # A poll that waits ends at its next look.
                engine.closing = True
                engine.core.application.rouse()
                async with self._turn:
                    failure = await engine.finish(max(0.0, ends - loop.time()))
        except CoordinatorError as error:
            failure = error
        finally:
            try:
                if engine is not None:
                    await engine.core.close(max(0.0, ends - loop.time()) * 1000)
                    await self._clusters().release(self._settings.client)
            finally:
                await self._plane.close()
        return failure

    # -- subscription -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics; one that starts with ``^`` is a pattern.  Replaces the former subscription."""
        async with self._used(in_callback=False) as engine:
            if isinstance(topics, str):
                raise TypeError(f"subscribe takes a list of topics, not the text {topics!r}")
            if any(topic.startswith("^") for topic in topics):
                engine.core.subscribe_pattern(librdkafka_pattern(topics))
            else:
                engine.core.subscribe(topics)
            engine.subscribed(Callbacks(on_assign, on_revoke, on_lost))

    async def unsubscribe(self) -> None:
        """Commit what is finished, give everything up, and leave the group."""
        async with self._used(in_callback=False) as engine:
            limit_s = self._settings.coordinator.default_api_timeout_ms / 1000
            failure = await engine.give_up_all(asyncio.get_running_loop().time() + limit_s)
            await engine.core.unsubscribe()
            if failure is not None:
                raise failure

    async def _call(self, callback: Callback, partitions: Partitions) -> None:
        returned = callback(self, rows(partitions))
        if inspect.isawaitable(returned):
            await returned

    # -- messages -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after ``timeout`` seconds (None or negative: wait for ever)."""
        engine = self._made
        if engine is not None and self._closing is None and not self._turn.locked():
            core = engine.core
            ahead = engine.reader.ahead
            if ahead and not core.application.attention and core.lease.clock() < core.lease.until and not self._in_callback:
                core.application.polls += 1
                message: Message = ahead.popleft()
                return message
        messages = await self._take(1, 1, timeout)
        return messages[0] if messages else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """At least one and at most ``num_messages`` messages, or none after ``timeout`` seconds (negative: for ever)."""
        return await self._take(1, num_messages, timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, however long it takes; a message with an error is raised as KafkaException."""
        try:
            message = await self.poll()
        except ClosedError:
            if self._closing is None:
                raise
            message = None
        if message is None:
            raise StopAsyncIteration
        if message.error() is not None:
            raise message_failure(message, self._settings.librdkafka)
        return message

    async def _take(self, least: int, most: int, timeout: float | None) -> list[Message]:
        async with self._used(in_callback=False) as engine:
            engine.core.application.polls += 1
            if await engine.gather(least, max(most, _BATCH), seconds(timeout, FOREVER_S)):
                return engine.take(most)
            return []

    async def _tell_events(self) -> None:
        for callback, what in self._librdkafka.events():
            if callback is not None:
                returned = callback(what)
                if inspect.isawaitable(returned):
                    await returned
            if isinstance(what, confluent_kafka.KafkaError):
                raise_if_refused(what, self._librdkafka.settings)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self, message: Message | None = None, offsets: Rows | None = None, timeout: float | None = None
    ) -> Rows:
        """Commit a message's offset + 1, given offsets, or everything handed out so far; rows tell each ``error``.

        Raises when nothing could be committed at all.
        """
        with kafka_exceptions():
            engine = self._start()
            wanted: Positions | None = to_commit(message, offsets)
            if wanted is None:
                async with self._used() as engine:
                    wanted = await engine.finished_now()
                if not wanted:
                    raise nothing_to_commit()
            result = await engine.commit(wanted, None if timeout is None else timeout * 1000)
            raise_if_all_failed(result)
            return to_rows(wanted, result)

    def _tell_commit(self, wanted: Positions, result: CommitResult) -> None:
        raise AssertionError("every commit of this consumer is awaited")

    async def store_offsets(self, message: Message | None = None, offsets: Rows | None = None) -> None:
        """Say what is finished, for the next commit without arguments; needs ``enable.auto.offset.store=false``."""
        async with self._used() as engine:
            wanted = to_commit(message, offsets)
            engine.store(await engine.finished_now() if wanted is None else wanted)

    async def committed(self, partitions: Rows, timeout: float | None = None) -> Rows:
        """The group's committed offsets, ``OFFSET_INVALID`` where there are none."""
        with kafka_exceptions():
            wanted = [partition_of(row) for row in partitions]
            return committed_rows(await self._core.committed(wanted, None if timeout is None else timeout * 1000))

    async def position(self, partitions: Rows) -> Rows:
        """Behind the last message handed out, ``OFFSET_INVALID`` before the first."""
        async with self._used() as engine:
            wanted = [partition_of(row) for row in partitions]
            found = await engine.positions(wanted)
            return [native(partition, found.get(partition)) for partition in wanted]

    async def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        """Go on at another offset of an assigned partition; inside on_assign, begin there."""
        async with self._used() as engine:
            await engine.seek(partition_of(partition), position_of(partition), in_callback=self._in_callback)

    async def incremental_assign(self, partitions: Rows) -> None:
        """Inside on_assign: the offsets to start at."""
        async with self._used() as engine:
            if not self._in_callback:
                raise FatalError("incremental_assign belongs inside on_assign: the group assigns partitions")
            engine.choose(known_positions_of(partitions))

    async def pause(self, partitions: Rows) -> None:
        """Hand out nothing of these partitions until :meth:`resume`, what was fetched ahead included."""
        async with self._used() as engine:
            await engine.pause({partition_of(row) for row in partitions})

    async def resume(self, partitions: Rows) -> None:
        """Hand out messages of these partitions again."""
        async with self._used() as engine:
            await engine.resume({partition_of(row) for row in partitions})

    # -- what it is ---------------------------------------------------------------------------------------------------

    def assignment(self) -> Rows:
        """What this consumer holds now."""
        return rows(self._core.assignment.held)

    def memberid(self) -> str:
        """The member id that the coordinator gave, empty before."""
        return self._core.member_id

    def generation(self) -> int:
        """The group's generation as of the last join, -1 outside the group."""
        return self._core.generation

    def metrics(self) -> Mapping[str, float]:
        """The coordinator's counters and timings under the Java client's names."""
        return self._core.metrics()

    async def consumer_group_metadata(self) -> Any:
        """For ``Producer.send_offsets_to_transaction``; see :class:`~consumer_coord.consumer.group_consumer.GroupConsumer`."""
        with kafka_exceptions():
            core = self._core
            return group_metadata.encode(core.config.group_id, await core.hold_joins(), core.config.group_instance_id)

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance (KIP-568)."""
        with kafka_exceptions():
            self._core.enforce_rebalance(reason)
