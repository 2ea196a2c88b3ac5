"""The coordinator for threads: :class:`~consumer_coord.group.coordinator.ConsumerCoordinator` with blocking methods.

:class:`BlockingCoordinator` is for applications with their own data plane (:class:`~consumer_coord.GroupConsumer` is built on
it). :meth:`BlockingCoordinator.pending_change` returns the steps to the group's target. Apply and report them in this order::

    change = coordinator.pending_change()
    if change.lost:
        stop_reading(change.lost)
        coordinator.release(change.lost)
    if change.revoked:
        coordinator.commit(positions_of(change.revoked))
        stop_reading(change.revoked)
        coordinator.release(change.revoked)
    start_reading(coordinator.accept(change))
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import uuid
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from assignors.base import Assignor
from consumer_coord.assignor_loading import choose_assignors
from consumer_coord.config import Config, parse
from consumer_coord.errors import ClosedError
from consumer_coord.group.assignment import Change, Target
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.group.generation import Generation
from consumer_coord.leaders.list_offsets import ListedOffset, list_offsets
from consumer_coord.log_text import get_logger
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.runtime.outcome import Outcome
from consumer_coord.threads.background import EXIT_TIMEOUT_S, Leave, Runtime
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: Time limit for the commits and the leave of a member that was garbage-collected without close(), in milliseconds.
_DROPPED_TIMEOUT_MS = 5_000


class BlockingCoordinator:
    """A member of a group, which any thread may use; its coroutines run on the process's shared background thread.

    ``settings`` is one dictionary with Kafka's names; ``assignors`` replaces ``partition.assignment.strategy``. Methods raise
    the errors of :class:`~consumer_coord.group.coordinator.ConsumerCoordinator`, and end at their timeout. The object is also a
    context manager.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        assignors: Sequence[Assignor | type[Assignor]] | None = None,
        needs_brokers: bool = True,
    ) -> None:
        """Create the member; with ``needs_brokers=False`` a missing ``bootstrap.servers`` is only a warning."""
        self.config: Config = parse(settings, needs_brokers=needs_brokers)
        self._assignors = choose_assignors(settings, self.config, assignors)
        self._runtime = Runtime.shared()
        self._closed = False
        #: The task that closes the member; a member has at most one, on the loop.
        self._closing: asyncio.Task[None] | None = None
        self._coordinator: ConsumerCoordinator = self._runtime.call(self._make)
        #: These functions refer only to the core and not to this object, so that a dropped object can be garbage-collected.
        self._leave_at_exit = functools.partial(self._coordinator.close, EXIT_TIMEOUT_S * 1000, at_exit=True)
        self._runtime.on_exit(self._leave_at_exit)
        self._runtime.applications.add(self._coordinator.application)
        self._finalizer = weakref.finalize(
            self, _dropped, self._runtime, self._coordinator, self.config.client, self._leave_at_exit
        )
        self._finalizer.atexit = False

    async def _make(self) -> ConsumerCoordinator:
        cluster = self._runtime.clusters.acquire(self.config.client)
        try:
            return ConsumerCoordinator(self.config.coordinator, cluster, self._assignors)
        except BaseException:
            await self._runtime.clusters.release(self.config.client)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def core(self) -> ConsumerCoordinator:
        """The coordinator itself; only thread-safe methods and attributes may be used from here."""
        self._runtime.check_process()
        return self._coordinator

    @property
    def cluster(self) -> ClusterClient:
        """The cluster client, which belongs to the background loop."""
        return self.core.cluster

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_ms: float | None = None) -> T:
        """Run a coroutine of this coordinator on the background loop."""
        if self._closed:
            raise ClosedError("the coordinator is closed")
        limit = self.config.coordinator.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return self._runtime.call(work, timeout_ms=limit)

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Outcome[T]:
        """Start a coroutine on the background loop without waiting for it."""
        self._runtime.check_process()
        return self._runtime.submit(work)

    def on_loop(self, function: Callable[[], object]) -> None:
        """Run a function soon on the background loop, without waiting until it returns."""
        self._runtime.check_process()
        self._runtime.loop.call_soon_threadsafe(function)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The background loop."""
        return self._runtime.loop

    def check_process(self) -> None:
        """Raise :class:`~consumer_coord.errors.ForkedError` in a forked child."""
        self._runtime.check_process()

    def _soon(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            work()

        self.call(run)

    # -- the application's calls --------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to named topics, replacing the previous subscription."""
        wanted = topics if isinstance(topics, str) else list(topics)
        self._soon(lambda: self._coordinator.subscribe(wanted))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to every topic whose whole name matches."""
        self._soon(lambda: self._coordinator.subscribe_pattern(pattern))

    def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """End the subscription and leave the group."""
        self.call(lambda: self._coordinator.unsubscribe(timeout_ms), timeout_ms)

    def record_poll(self) -> None:
        """Record a poll of the application; raise the failure of a background task, if there is one."""
        self.core.application.record_poll()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Rejoin although no change requires a join (KIP-568)."""
        self._soon(lambda: self._coordinator.enforce_rebalance(reason))

    def hold_joins(self) -> Generation:
        """Delay JoinGroup until the next poll, but for at most half the rebalance timeout; return the generation."""
        return self.call(self._coordinator.hold_joins, self.config.coordinator.rebalance_timeout_ms)

    # -- the sequence -------------------------------------------------------------------------------------------------

    def ensure_coordinator_ready(self, timeout_ms: float | None = None) -> Broker:
        """Find the group's coordinator."""
        return self.call(lambda: self._coordinator.ensure_coordinator_ready(timeout_ms), timeout_ms)

    def join_group_if_needed(self, timeout_ms: float | None = None) -> Target:
        """Wait until this member has an assignment, or must revoke partitions first."""
        return self.call(lambda: self._coordinator.join_group_if_needed(timeout_ms), timeout_ms)

    def pending_change(self) -> Change:
        """Return the steps from the owned partitions to the group's target; falsy if there are no steps."""
        return self.core.assignment.change()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Report that the application no longer reads these partitions."""
        self.core.release(partitions)

    def accept(self, change: Change) -> frozenset[TopicPartition]:
        """Own the partitions that ``change`` adds, if its target is still current; return the newly owned partitions."""
        return self.core.assignment.accept(change)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float | None = None,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> CommitResult:
        """Commit positions; return None or the error for each partition."""
        return self.call(
            lambda: self._coordinator.commit(offsets, timeout_ms=timeout_ms, ownerships=ownerships, topic_ids=topic_ids),
            timeout_ms,
        )

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for a partition without a committed offset."""
        wanted = frozenset(partitions)
        return self.call(lambda: self._coordinator.committed(wanted, timeout_ms, topic_ids=topic_ids), timeout_ms)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return the offset for each partition's time (ms since 1970, or LATEST or EARLIEST of ``leaders/list_offsets.py``).

        Raise the error of the first partition without an offset, for example a retriable error at the time limit.
        """
        limit = self.config.coordinator.default_api_timeout_ms if timeout_ms is None else timeout_ms

        async def look_up() -> Mapping[TopicPartition, ListedOffset]:
            # Create the deadline on the loop, because it uses the loop's time.
            deadline = Deadline.after(limit)
            return (await list_offsets(self._coordinator.cluster, wanted, deadline, read_committed=read_committed)).complete()

        return self.call(look_up, timeout_ms)

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata:
        """The cluster's last metadata."""
        return self.core.cluster.metadata

    def refresh_metadata(self, timeout_ms: float | None = None) -> Metadata:
        """Return metadata that was requested after this call began."""
        limit = self.config.coordinator.default_api_timeout_ms if timeout_ms is None else timeout_ms

        async def refresh() -> Metadata:
            return await self._coordinator.cluster.refresh(Deadline.after(limit))

        return self.call(refresh, timeout_ms)

    @property
    def generation(self) -> int:
        """The generation id; -1 outside the group."""
        return self.core.generation

    @property
    def member_id(self) -> str:
        """The member id; empty before the coordinator assigned an id."""
        return self.core.member_id

    @property
    def is_leader(self) -> bool:
        """True while this member leads the group."""
        return self.core.protocol.is_leader

    @property
    def owned_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that the application owns now."""
        return self.core.assignment.held

    def metrics(self) -> Mapping[str, float]:
        """Return counters and timings under the Java client's names."""

        async def read() -> Mapping[str, float]:
            return self._coordinator.metrics()

        return self.call(read)

    # -- leaving ------------------------------------------------------------------------------------------------------

    def leave_group(self, reason: str = "", timeout_ms: float | None = None) -> None:
        """Leave the group; partitions still held are lost."""
        self.call(lambda: self._coordinator.leave_group(reason, timeout_ms), timeout_ms)

    def close(self, timeout_ms: float | None = None, *, leave_group: bool | None = None) -> None:
        """Finish commits, leave, and release all resources; idempotent.

        ``leave_group``: see :meth:`~consumer_coord.group.protocol.GroupProtocol.close`. The member is closed once: a second
        call, from another thread or after an interrupt, waits until the first call has finished.
        """
        closing = self._closing
        if closing is not None and closing.done():
            return
        self._runtime.check_process()
        limit = self.config.coordinator.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self._closed = True
        self._runtime.call(lambda: self.end(timeout_ms, leave_group=leave_group), timeout_ms=limit)

    async def end(self, timeout_ms: float | None, *, leave_group: bool | None = None) -> None:
        """Close the member; like :meth:`close`, but on the loop."""
        self._closed = True
        self._finalizer.detach()
        if self._closing is None:
            end = _end(self._runtime, self._coordinator, self.config.client, self._leave_at_exit, timeout_ms, leave_group)
            self._closing = asyncio.get_running_loop().create_task(end, name="close")
        # The leave continues after an interrupt or a timeout of the caller.
        await asyncio.shield(self._closing)


async def _end(
    runtime: Runtime,
    core: ConsumerCoordinator,
    client: ClientConfig,
    leave_at_exit: Leave,
    timeout_ms: float | None,
    leave_group: bool | None = None,
) -> None:
    try:
        await core.close(timeout_ms, leave_group=leave_group)
    finally:
        # Until this line, the interpreter's exit waits for the leave.
        runtime.forget(leave_at_exit)
        await runtime.clusters.release(client)


def _dropped(runtime: Runtime, core: ConsumerCoordinator, client: ClientConfig, leave_at_exit: Leave) -> None:
    """Make the member of a garbage-collected coordinator leave its group; otherwise its heartbeats would continue."""
    if runtime.pid != os.getpid() or runtime.loop.is_closed():
        return

    async def leave() -> None:
        logger.warning(
            "a member of group %r was dropped without close(): the member leaves the group now", core.config.group_id
        )
        await _end(runtime, core, client, leave_at_exit, _DROPPED_TIMEOUT_MS)

    # The garbage collector may call this function on any thread, so the rest runs on the loop.
    runtime.submit(leave)
