"""The calls that both consumers share: each is written once, as a coroutine over the engine.

``AsyncGroupConsumer`` awaits a call. ``GroupConsumer`` runs it on the calling thread: its :class:`Access` blocks where that of
the other consumer suspends. A call without I/O is a plain function, because a step on the loop takes 55 us.
``docs/asyncio.md`` has the differences between the consumers that are meant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from consumer_coord.config import Config
from consumer_coord.confluent.arguments import Topics, subscription_arguments
from consumer_coord.confluent.kafka_exceptions import kafka_exceptions
from consumer_coord.confluent.topic_partitions import (
    GivenRows,
    Row,
    Rows,
    assigned_rows,
    distinct_positions_of,
    milliseconds,
    native,
    nothing_to_commit,
    partition_of,
    position_of,
    rows,
    to_commit,
    to_rows,
    to_store,
)
from consumer_coord.confluent.types import Message
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.consumer import cluster_queries, group_metadata
from consumer_coord.consumer.arrow_arguments import entries_of
from consumer_coord.consumer.callback_types import Callback, Callbacks
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Phase, Table
from consumer_coord.errors import ConfigurationError, RetriableError
from consumer_coord.group.commits import Entry
from consumer_coord.group.member_lag import member_lag
from consumer_coord.group.subscription import NOTHING, TopicSubscription
from consumer_coord.net.metadata import Metadata
from consumer_coord.offsets import CommitResult
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.health import Health
    from consumer_coord.lag.partition_lag import PartitionLag

T = TypeVar("T")

#: How long the loop may take to say how healthy a consumer is, in milliseconds. With librdkafka it asks the leaders.
_HEALTH_MS: Final = 5_000


class Access(Protocol):
    """How a caller of a consumer reaches the engine, which one caller at a time may use.

    Callers are threads or tasks. Inside a callback, the caller has the turn already.
    """

    def opened(self) -> Engine:
        """Return the engine, to read it or for its methods that any thread may call; raise ClosedError after a close."""

    def given(self, partitions: Any) -> list[Any]:
        """Return partitions of the application's; raise TypeError for objects that this consumer does not accept."""

    @property
    def callback(self) -> Phase | None:
        """The phase of the partitions whose rebalance callback makes this call; None outside a rebalance callback."""

    def finish(self) -> None:
        """Count the last records of this caller as finished, unless it handles an exception."""

    def use(self, work: Callable[[Engine], T]) -> Awaitable[T]:
        """Call a function in the caller's turn."""

    def run(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Run a coroutine on the loop, in the caller's turn."""

    def change(self, work: Callable[[Engine], Coroutine[Any, Any, None]], *, in_callback: bool = True) -> Awaitable[None]:
        """Run a coroutine like :meth:`run`, to change what is assigned; ``in_callback``: whether a callback's task may."""

    def beside(self, work: Callable[[Engine], Coroutine[Any, Any, T]], limit_ms: float | None = None) -> Awaitable[T]:
        """Run a coroutine on the loop, also while another caller has the turn.

        ``limit_ms`` is the coroutine's own time limit; None stands for ``default.api.timeout.ms``.
        """

    def commit(self, entries: Mapping[TopicPartition, Entry], timeout_ms: float | None) -> Awaitable[CommitResult]:
        """Commit and wait for the response, also while another caller has the turn."""


class SharedCalls:
    """The calls of one consumer, and the state that only they have."""

    def __init__(self, access: Access, settings: Config, raise_failures: Callable[[CommitResult], None]) -> None:
        """Keep the way to the engine; ``raise_failures`` raises the error of a commit, or returns."""
        self._access = access
        self._settings = settings
        self._raise_failures = raise_failures
        #: What the application subscribed to.
        self.subscribed: TopicSubscription = NOTHING
        #: Whether the running on_assign has called ``assign`` before; reset before each callback.
        self.took_part: bool = False

    # -- subscription, assignment ---------------------------------------------------------------------------------------

    async def subscribe(
        self, topics: Topics, on_assign: Callback | None, on_revoke: Callback | None, on_lost: Callback | None
    ) -> None:
        """Subscribe to topics; a topic that starts with ``^`` is a pattern. Replace the former subscription, or assignment."""
        engine = self._access.opened()
        wanted = subscription_arguments(topics, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

        async def subscribe(engine: Engine) -> None:
            self.subscribed = await engine.subscribe(wanted, Callbacks(on_assign, on_revoke, on_lost))

        if engine.manual:
            self._access.finish()
        await self._access.change(subscribe, in_callback=False)

    async def end_subscription(self, engine: Engine) -> None:
        """Commit finished records, revoke all partitions, and leave the group, on the loop; do nothing after ``assign``."""
        if engine.manual:
            return
        loop, before = asyncio.get_running_loop(), self.subscribed
        ends = loop.time() + self._settings.coordinator.default_api_timeout_ms / 1000
        failure = await engine.revoke_all(ends)
        # Keep a subscription that on_revoke has made.
        if self.subscribed is before:
            self.subscribed = NOTHING
            await engine.core.unsubscribe(max(0.0, ends - loop.time()) * 1000)
        if failure is not None:
            raise failure

    async def assign(self, partitions: GivenRows, *, instead: bool) -> None:
        """Assign partitions manually, in addition to the assigned partitions or ``instead`` of them.

        While subscribed, select which of the partitions that the group has assigned are read; without ``instead``, also add
        partitions that the group has not assigned.
        """
        access = self._access
        access.opened()
        if instead:
            access.finish()
        with kafka_exceptions():
            positions = distinct_positions_of(access.given(partitions), "assign" if instead else "incremental_assign")
        callback = access.callback

        async def assign(engine: Engine) -> None:
            held = engine.core.assignment.held
            if not engine.core.protocol.subscribed:
                await engine.assign(positions, instead=instead)
                return
            if not instead and (added := positions.keys() - held):
                await engine.add({partition: positions.pop(partition) for partition in added})
                if not positions:
                    return
            if callback is Phase.TAKEN:
                # The first call inside on_assign selects a part of the assignment. Further calls add partitions to this part.
                first, self.took_part = not self.took_part, True
                await engine.select(positions, engine.called if first or instead else frozenset(positions))
            elif callback is None:
                declined = held - engine.assigned
                await engine.select(positions, held if instead else held & (positions.keys() | declined))

        await access.change(assign)

    async def unassign(self, partitions: GivenRows | None = None) -> None:
        """End the manual assignment of ``partitions``, or of all if None; while subscribed, stop reading them.

        In ``on_revoke`` and ``on_lost`` the group's partitions are about to go, so they are left alone.
        """
        access = self._access
        engine = access.opened()
        wanted: Collection[TopicPartition] | None = None
        if partitions is not None:
            with kafka_exceptions():
                wanted = distinct_positions_of(access.given(partitions), "incremental_unassign").keys()
        if access.callback in (Phase.REVOKED, Phase.LOST):
            # The group's assignment changes when the callback returns.
            wanted = frozenset(wanted or ()) & engine.added
        access.finish()

        async def unassign(engine: Engine) -> None:
            assigned = engine.assigned
            gone = frozenset(assigned if wanted is None else wanted)
            if not gone <= assigned:
                raise ConfigurationError("incremental_unassign: not all of these partitions are assigned")
            if engine.core.protocol.subscribed:
                await engine.unassign(gone & engine.added)
                await engine.select({}, gone & engine.core.assignment.held)
            else:
                await engine.unassign(gone)

        await access.change(unassign)

    async def pause(self, partitions: GivenRows) -> None:
        """Stop delivering messages of these partitions, including fetched ones."""
        wanted = self._partitions(partitions)
        await self._access.use(lambda engine: engine.pause(wanted))

    async def resume(self, partitions: GivenRows) -> None:
        """Deliver messages of these partitions again."""
        wanted = self._partitions(partitions)
        await self._access.use(lambda engine: engine.resume(wanted))

    # -- offsets ----------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        message: Message | ArrowColumns | None,
        offsets: GivenRows | None,
        asynchronous: bool,
        timeout: float | None = None,
    ) -> Rows | None:
        """Commit a message's offset + 1, a batch of columns, given offsets, or all delivered records."""
        access = self._access
        engine = access.opened()
        with kafka_exceptions():
            entries = entries_of(message)
            wanted = None
            if entries is None:
                wanted = to_commit(message, offsets)
                if wanted is None:
                    wanted = await access.use(Engine.finished)
                if not wanted:
                    if asynchronous or offsets == []:
                        return None
                    raise nothing_to_commit()
            elif not entries:
                return None if asynchronous else []
            # Before any wait, because a partition that is lost meanwhile must not be committed.
            entries = entries or engine.entries(wanted or {})
            if asynchronous and engine.commits.full:
                await access.beside(lambda engine: engine.commits.make_room())
            if asynchronous:
                engine.commit_later(entries)
                return None
            result = await access.commit(entries, milliseconds(timeout))
            self._raise_failures(result)
            return to_rows(entries, result)

    def store_offsets(self, message: Message | None, offsets: GivenRows | None) -> None:
        """Store finished positions for the next ``commit()`` without offsets."""
        engine = self._access.opened()
        with kafka_exceptions():
            engine.store(to_store(message, offsets))

    async def committed(self, partitions: GivenRows, timeout: float | None) -> Rows:
        """Return the group's committed offsets; ``OFFSET_INVALID`` for a partition without a committed offset."""
        self._access.opened()
        wanted, limit_ms = [partition_of(row) for row in self._access.given(partitions)], milliseconds(timeout)
        found = await self._access.beside(lambda engine: engine.core.committed(frozenset(wanted), limit_ms), limit_ms)
        return [native(partition, found[partition]) for partition in wanted]

    async def position(self, partitions: GivenRows) -> Rows:
        """Return the positions after the last delivered messages; ``OFFSET_INVALID`` before the first message."""
        self._access.opened()
        wanted = [partition_of(row) for row in self._access.given(partitions)]
        found = await self._access.use(lambda engine: engine.positions(wanted))
        return [native(partition, found.get(partition)) for partition in wanted]

    async def seek(self, partition: Row) -> None:
        """Continue at another offset of an assigned partition."""
        self._access.opened()
        (row,) = self._access.given([partition])
        await self._access.run(lambda engine: engine.seek(partition_of(row), position_of(row)))

    async def seek_by_time(self, partitions: Iterable[Row], timestamp: int, what: str) -> None:
        """Continue at the offsets of a time, LATEST or EARLIEST, of these partitions, or (if empty) of all assigned ones."""
        named = self._partitions(partitions)

        async def seek(engine: Engine) -> None:
            engine.must_hold(named, what)
            # Unlike librdkafka's logical offsets, numeric offsets change the position at once and can be committed.
            found = await cluster_queries.listed(engine, named or engine.assigned, timestamp)
            for partition, position in sorted(found.items()):
                await engine.seek(partition, position)

        await self._access.run(seek)

    async def seek_to_committed(self, partitions: Iterable[Row]) -> dict[Row, int | None]:
        """Continue at the group's committed offsets; the keys are the caller's objects, if it passed any."""
        named = {partition_of(row): row for row in self._access.given(partitions)}

        def held(engine: Engine) -> tuple[Mapping[TopicPartition, Row], Table]:
            engine.must_hold(named, "seek_to_committed")
            return named or {partition: native(partition) for partition in engine.table}, engine.table

        keys, before = await self._access.use(held)
        found = await self._access.beside(lambda engine: engine.core.committed(frozenset(keys)))

        async def seek(engine: Engine) -> None:
            positions = {partition: at for partition, at in found.items() if at is not None}
            engine.must_hold(positions, "seek_to_committed")
            for partition, position in sorted(positions.items()):
                # A partition that was lost and assigned again meanwhile begins at a later commit.
                if engine.table[partition].ownership == before[partition].ownership:
                    await engine.seek(partition, position)

        await self._access.run(seek)
        return {key: None if (at := found[partition]) is None else at.offset for partition, key in keys.items()}

    async def offsets(self, partitions: Iterable[Row], timestamp: int) -> dict[Row, int]:
        """Return the offsets of a time, LATEST or EARLIEST; the keys are the caller's objects."""
        self._access.opened()
        keys = {partition_of(row): row for row in self._access.given(list(partitions))}
        found = await self._access.beside(lambda engine: cluster_queries.listed(engine, keys, timestamp))
        return {key: found[partition].offset for partition, key in keys.items()}

    # -- look-ups ---------------------------------------------------------------------------------------------------------

    async def get_watermark_offsets(self, partition: Row, timeout: float | None, cached: bool) -> tuple[int, int] | None:
        """Return (first offset, end offset) of a partition; with ``cached``, from memory, without a request to a broker."""
        self._access.opened()
        (row,) = self._access.given([partition])
        return await self._access.beside(
            lambda engine: cluster_queries.watermarks(engine, row, timeout, cached), milliseconds(timeout)
        )

    async def offsets_for_times(self, partitions: GivenRows, timeout: float | None) -> Rows:
        """For each row, return the first offset at or after the time in the row's ``offset`` (in ms since 1970)."""
        self._access.opened()
        wanted = self._access.given(partitions)
        return await self._access.beside(
            lambda engine: cluster_queries.offsets_for_times(engine, wanted, timeout), milliseconds(timeout)
        )

    async def list_topics(self, topic: str | None, timeout: float) -> Any:
        """Return the cluster's metadata, as confluent-kafka's ClusterMetadata."""
        self._access.opened()
        return await self._access.beside(
            lambda engine: cluster_queries.list_topics(engine, topic, timeout), milliseconds(timeout)
        )

    async def cluster_id(self, timeout: float) -> str | None:
        """Return the cluster's id; None if no broker reports it within ``timeout`` seconds (negative: wait for ever)."""
        cluster, limit_ms = self._access.opened().core.cluster, milliseconds(timeout)
        if limit_ms is None:
            limit_ms = self._settings.coordinator.default_api_timeout_ms

        async def refresh(engine: Engine) -> Metadata:
            return await engine.core.cluster.refresh(Deadline.after(limit_ms))

        if cluster.metadata.cluster_id is None:
            try:
                await self._access.beside(refresh, limit_ms)
            except RetriableError:
                return None
        return cluster.metadata.cluster_id

    async def lag(self, timeout: float | None, *, seconds: bool) -> Mapping[TopicPartition, PartitionLag]:
        """Return how far the group is behind in each assigned partition."""
        self._access.opened()
        limit_ms = milliseconds(timeout)

        def look_up(engine: Engine) -> Coroutine[Any, Any, Mapping[TopicPartition, PartitionLag]]:
            committed = engine.read_committed
            return member_lag(engine.core, engine.assigned, read_committed=committed, seconds=seconds, timeout_ms=limit_ms)

        return await self._access.beside(look_up, limit_ms)

    async def health(self, limit: float) -> Health:
        """Return whether this consumer receives what its partitions have."""
        # Imported here, because most consumers are never asked.
        from consumer_coord.consumer.health_watch import watch_of

        self._access.opened()
        return await self._access.beside(lambda engine: watch_of(engine).look(limit), _HEALTH_MS)

    async def consumer_group_metadata(self) -> Any:
        """Return metadata for ``Producer.send_offsets_to_transaction``."""
        engine, config = self._access.opened(), self._settings.coordinator
        with kafka_exceptions():
            engine.check_may_commit_in_transaction()
            if engine.manual:
                return group_metadata.unfenced(config.group_id)
            state = await self._access.beside(lambda engine: engine.core.hold_joins(), config.rebalance_timeout_ms)
            return group_metadata.encode(config.group_id, state, config.group_instance_id)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of new connections; mechanisms without passwords ignore them."""
        self._access.opened()
        if not isinstance(username, str) or not isinstance(password, str):
            raise TypeError("set_sasl_credentials expects two strings: username and password")

        async def use(engine: Engine) -> None:
            engine.core.cluster.use_credentials(username, password)
            engine.reader.use_credentials(username, password)

        await self._access.beside(use)

    # -- state, without I/O -----------------------------------------------------------------------------------------------

    def assignment(self, engine: Engine) -> Rows:
        """Return the partitions that this consumer owns now."""
        return assigned_rows(engine.assigned, engine.chosen)

    def paused(self, engine: Engine) -> frozenset[NativePartition]:
        """Return the paused partitions."""
        return frozenset(rows(engine.paused))

    def subscription(self) -> frozenset[str]:
        """Return the topics that this consumer subscribes to; with a pattern, the matching topics."""
        exclude = self._settings.coordinator.exclude_internal_topics
        metadata = self._access.opened().core.cluster.metadata
        return frozenset(self.subscribed.wanted(metadata, exclude_internal=exclude))

    def memberid(self) -> str | None:
        """Return the member id that the coordinator assigned, or None before the first join."""
        return self._access.opened().core.member_id or None

    def generation(self) -> int:
        """Return the group's generation at this member's last join; -1 outside the group."""
        return self._access.opened().core.generation

    def report_handlers(
        self, report: Callable[[], Mapping[TopicPartition, float]], figures: Callable[[], Mapping[str, float]]
    ) -> None:
        """Let :meth:`health` know of handlers that run, and ``metrics`` of their figures."""
        engine = self._access.opened()
        engine.handling, engine.figures = report, figures

    def _partitions(self, partitions: Iterable[Any]) -> frozenset[TopicPartition]:
        self._access.opened()
        return frozenset(partition_of(row) for row in self._access.given(partitions))
