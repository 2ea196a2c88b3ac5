"""The consumer coordinator: one member of one group, with the calls of its application.

:class:`~consumer_coord.group.member_context.MemberContext` has the parts that any group protocol needs.
:class:`~consumer_coord.group.protocol.GroupProtocol` defines how the member joins its group and owns partitions. This module
runs on one event loop, except for methods that are marked as thread-safe.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from assignors.base import Assignor
from consumer_coord.config import CoordinatorConfig
from consumer_coord.errors import ClosedError, CoordinatorError, FatalError, RequestTimedOutError
from consumer_coord.group.application_polls import Application
from consumer_coord.group.assignment import AssignmentState, Target
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.commits import CommitLane
from consumer_coord.group.committed_offsets import CommittedOffsets, Fetched
from consumer_coord.group.generation import Generation
from consumer_coord.group.heartbeat_clock import answer_in_time_ms
from consumer_coord.group.lease import Lease
from consumer_coord.group.link import CoordinatorLink
from consumer_coord.group.member_context import MemberContext
from consumer_coord.group.member_log import MemberLog
from consumer_coord.group.metadata_watch import MetadataWatch
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.process_peers.registry import forget_peers, peers_of
from consumer_coord.group.protocol import GroupProtocol
from consumer_coord.group.subscription import TopicSubscription, to_pattern, to_topics
from consumer_coord.group.tasks import BackgroundTasks
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata
from consumer_coord.offsets import CommitResult, OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.settings import CONSUMER
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wake_ups import WakeUp
from consumer_coord.wire.messages.group import JoinGroupResponse, SyncGroupRequestAssignment

T = TypeVar("T")

#: How long a close without a time limit waits for its last commits while no broker responds, in seconds: long enough for the
#: restart of a broker or the move of a coordinator, and short enough for the 30 s after which Kubernetes kills a process.
_SILENT_S = 10.0
#: The same for a member whose session has ended, and whom the coordinator may have removed.
_REMOVED_S = 2.0


class ConsumerCoordinator:
    """A member of a consumer group; create it on its loop.

    ``assignors`` are in the order of preference; the rebalance protocol is the highest that all assignors support. Errors of
    background tasks are raised by ``application.record_poll`` and by the calls that wait.
    """

    def __init__(self, config: CoordinatorConfig, cluster: ClusterClient, assignors: Sequence[Assignor]) -> None:
        self.config = config
        self.cluster = cluster
        #: The target of the group, and the partitions that the application owns; thread-safe.
        self.assignment: AssignmentState = AssignmentState()
        self._loop = asyncio.get_running_loop()
        metrics, signal = Metrics(self._loop.time), WakeUp()
        metrics.gauge("assigned-partitions", lambda: float(len(self.assignment.held)))
        log = MemberLog(get_logger(__name__), config.group_id, config.group_instance_id, lambda: self.protocol.generation_state)
        #: The application's polls, failures and wake-ups; thread-safe.
        self.application: Application = Application(
            config.group_id,
            self.assignment,
            metrics,
            signal,
            patience_ms=config.default_api_timeout_ms,
            on_poll=lambda polls: self.protocol.polled(polls),
        )
        peers = peers_of(cluster, config.group_id, answer_in_time_ms(config.request_timeout_ms, config.session_timeout_ms))
        context = self._context = MemberContext(
            config=config,
            cluster=cluster,
            link=CoordinatorLink(cluster, peers.lookup, metrics, log, self._note_obstacle),
            assignment=self.assignment,
            application=self.application,
            watch=MetadataWatch(
                cluster, config.group_id, exclude_internal=config.exclude_internal_topics, on_change=self._on_metadata
            ),
            metrics=metrics,
            log=log,
            signal=signal,
            tasks=BackgroundTasks(config.group_id, log, self._on_crash),
            peers=peers,
        )
        #: The group protocol of this member.
        self.protocol: GroupProtocol = (
            _consumer_member(context) if config.group_protocol == CONSUMER else ClassicProtocol(context, assignors)
        )
        #: Time limit for delivering records of owned partitions; thread-safe.
        self.lease: Lease = self.protocol.lease
        #: The member's commits, and the group's committed offsets.
        self.commits: CommitLane = self.protocol.commits
        self.offsets: CommittedOffsets = self.protocol.offsets
        self._recreations = cluster.metadata.recreations
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        peers.enter()

    def __repr__(self) -> str:
        return f"<ConsumerCoordinator {self.described()}>"

    def described(self) -> str:
        """Return in a few words which member this is, and how it is; thread-safe."""
        held = len(self.assignment.held)
        member = f"member {self.member_id}, generation {self.generation}" if self.member_id else "not a member yet"
        doing = ", closed" if self._closed else ", rebalancing" if self.rebalancing else ""
        return f"of group {self.config.group_id!r}: {member}, {held} partition{'' if held == 1 else 's'}{doing}"

    def show_steps(self, receiver: Callable[[str, str], None] | None) -> None:
        """Call ``receiver`` with every step of the membership (``debug=cgrp``): its name, as in librdkafka, and a text."""
        self._context.log.steps = receiver

    # -- state; thread-safe ------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation id; -1 outside the group."""
        return self.protocol.generation_state.generation_id

    @property
    def member_id(self) -> str:
        """The member id; empty before the first join."""
        return self.protocol.generation_state.member_id

    @property
    def rebalancing(self) -> bool:
        """True from the moment a rebalance is known to be needed until this member has its new target."""
        return self.protocol.rebalancing

    def metrics(self) -> Mapping[str, float]:
        """Return counters and timings under the Java client's names; see ``metrics.py``."""
        return self._context.metrics.snapshot()

    # -- the application's calls -----------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to named topics, replacing the previous subscription."""
        self.subscribe_to(to_topics(topics))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to every topic whose whole name matches, now and later (Java's ``subscribe(Pattern)``)."""
        self.subscribe_to(to_pattern(pattern))

    def subscribe_to(self, subscription: TopicSubscription) -> None:
        """Replace the previous subscription."""
        self._check_open()
        self.protocol.subscribe(subscription)

    async def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """End the subscription and leave the group, after the application has revoked its partitions.

        A cancelled call continues in the background, as with :meth:`leave_group` and :meth:`close`.
        """
        if self.protocol.subscribed:
            leaving = self.protocol.unsubscribe(self._deadline(timeout_ms))
            # An application that subscribes again before the member has left must not receive partitions of the old membership.
            self.assignment.withdraw()
            await self._to_the_end(leaving, "unsubscribe")

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the application released these partitions (revoked or lost); thread-safe and idempotent."""
        gone = frozenset(partitions)
        self.assignment.release(gone)
        released = gone & self.assignment.revoked
        self.application.call(lambda: self.protocol.released(released))

    def prepare_to_leave(self) -> None:
        """Delay joins because the application is about to revoke all partitions and to close or unsubscribe; thread-safe.

        A later poll or subscription of the application ends the delay.
        """
        polls = self.application.polls

        def note() -> None:
            self.protocol.prepare_to_leave(polls)
            self.application.look_again()

        self.application.call(note)

    async def hold_joins(self) -> Generation:
        """Keep the generation while a transaction sends its offsets; return the generation, which the request names (KIP-447).

        The generation stays until the next poll, but for at most half the rebalance timeout.
        """
        self.application.look_again()
        return await self.protocol.hold_joins(self.application.polls)

    def enforce_rebalance(self, reason: str = "") -> None:
        """Rejoin although no change requires a join (KIP-568), with a reason for the broker's log (KIP-800)."""
        self._check_open()
        self.protocol.rejoin(reason or "rebalance enforced by user")

    # -- the sequence ----------------------------------------------------------------------------------------------------

    async def ensure_coordinator_ready(self, timeout_ms: float | None = None) -> Broker:
        """Find the coordinator if it is not known (``ensureCoordinatorReady``, ``lookupCoordinator``).

        Raise :class:`~consumer_coord.errors.CoordinatorNotAvailableError` after ``timeout_ms`` (by default
        ``default.api.timeout.ms``), and authorisation or authentication errors at once.
        """
        return await self._context.link.find(self._deadline(timeout_ms))

    async def join_group_if_needed(self, timeout_ms: float | None = None) -> Target:
        """Wait until this member has an assignment or must revoke partitions first; return the target.

        Raise the failure of a background task, if there is one. At the timeout, raise
        :class:`~consumer_coord.errors.RequestTimedOutError` with the reason. The join continues after a timeout, so the caller
        can call this method again to wait for the same join.
        """
        self._check_open()
        if not self.protocol.subscribed:
            raise FatalError("subscribe first: a member without topics cannot join")
        deadline = self._deadline(timeout_ms)
        application, failures = self.application, self.application.failures
        application.record_poll()

        def done() -> bool:
            return (
                failures.current is not None
                or self.protocol.joined
                or bool(self.assignment.to_revoke)
                or bool(self.assignment.change().lost)
            )

        if not await self._context.signal.until(done, deadline):
            application.record_poll()
            obstacle = f"; {failures.obstacle}" if failures.obstacle else ""
            raise RequestTimedOutError(
                f"group {self.config.group_id!r} was not joined in time ({self.protocol.state.value}{obstacle})"
            )
        application.record_poll()
        return self.assignment.target

    async def on_join_prepare(self) -> tuple[str, ...]:
        """Run the classic protocol's step before JoinGroup; see :meth:`ClassicProtocol.on_join_prepare`."""
        return await self._classic().on_join_prepare()

    async def perform_assignment(self, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        """Run the classic protocol's step of the leader; see :meth:`ClassicProtocol.perform_assignment`."""
        return await self._classic().perform_assignment(joined)

    def on_join_complete(self, generation: int, topics: tuple[str, ...], assignment: Mapping[str, Sequence[int]]) -> None:
        """Run the classic protocol's step after SyncGroup; see :meth:`ClassicProtocol.on_join_complete`."""
        self._classic().on_join_complete(generation, topics, assignment)

    def _classic(self) -> ClassicProtocol:
        if not isinstance(self.protocol, ClassicProtocol):
            raise FatalError("only the classic protocol has this step")
        return self.protocol

    # -- offsets ---------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float | None = None,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> CommitResult:
        """Commit positions with the current generation; return None or the error for each partition. See ``commits.py``."""
        return await self.start_commit(offsets, timeout_ms=timeout_ms, ownerships=ownerships, topic_ids=topic_ids)

    def start_commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float | None = None,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> asyncio.Future[CommitResult]:
        """Start a commit as :meth:`commit` does, but do not wait. Commits start in the order of the calls.

        Call this method only on the loop. The future receives every failure, even if the coordinator is closed or too many
        commits wait.
        """
        limit = self._timeout(timeout_ms)
        return self.commits.start(offsets, timeout_ms=limit, ownerships=ownerships, topic_ids=topic_ids)

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for a partition without a committed offset.

        ``topic_ids``: the ids of the partitions' topics. With ids, brokers from 4.1 on return no offsets of a deleted topic
        that had the same name.
        """
        return await self.offsets.committed(partitions, timeout_ms=self._timeout(timeout_ms), topic_ids=topic_ids)

    async def committed_available(self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None) -> Fetched:
        """Return the committed offsets as soon as the coordinator has answered for any partition, with the others' errors."""
        return await self.offsets.fetched(partitions, timeout_ms=self._timeout(timeout_ms), some=True)

    def look_up(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Start a look-up for the application, on the loop; :meth:`close` cancels it before the member leaves."""
        return self._context.tasks.look_up(work())

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def leave_group(self, reason: str = "", timeout_ms: float | None = None) -> None:
        """Leave the group (``maybeLeaveGroup``). A static member stays in the group until its session expires.

        Partitions that the application still owns are lost, and the next poll reports the loss. Only :meth:`subscribe` or
        :meth:`enforce_rebalance` joins the group again.
        """
        leaving = self.protocol.leave(reason or "leave_group was called", self._deadline(timeout_ms))
        await self._to_the_end(leaving, "leave")

    def prepare_to_close(self) -> None:
        """Limit the time that :meth:`close` may wait while no broker responds; called if the caller sets no time limit.

        Without the limit, a process that is stopped while its brokers are away would wait for ``default.api.timeout.ms``, and
        be killed first. A broker that responds, even with an error, is waited for.
        """
        removed = self.protocol.subscribed and self.lease.passed
        self.commits.need_brokers(_REMOVED_S if removed else _SILENT_S)

    async def close(self, timeout_ms: float | None = None, *, leave_group: bool | None = None, at_exit: bool = False) -> None:
        """Finish commits, leave and end every task within ``timeout_ms``; idempotent.

        The application must have revoked its partitions and committed its offsets before this call. ``leave_group``: see
        :meth:`~consumer_coord.group.protocol.GroupProtocol.close`. ``at_exit``: leave only if a connection to the coordinator
        is open, because a look-up at interpreter exit would take too long.
        """
        if self._closed:
            return
        coordinator = self._context.link.coordinator
        if at_exit and (coordinator is None or self.cluster.open_connection(coordinator) is None):
            return
        if timeout_ms is None:
            self.prepare_to_close()
        if self._closing is None or self._closing.done():
            work = self._close(self._deadline(timeout_ms), leave_group)
            self._closing = self._loop.create_task(work, name=f"close {self.config.group_id}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: Deadline, leave_group: bool | None) -> None:
        context = self._context
        await context.tasks.end_look_ups()
        await self.protocol.close(deadline, leave_group=leave_group)
        self._closed = True
        if context.peers.leave():
            forget_peers(self.cluster, self.config.group_id, context.peers)
        context.watch.close()
        await context.tasks.end()
        context.signal.fire()

    async def _to_the_end(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Wait for ``work``, which continues even if the caller is cancelled."""
        await asyncio.shield(self._context.tasks.spawn(work, name))

    # -- reports of the parts --------------------------------------------------------------------------------------------

    def _note_obstacle(self, what: str) -> None:
        wanted = self.protocol.subscribed and not self.protocol.joined
        self.application.failures.note_obstacle(what, wanted=wanted)

    def _on_metadata(self, metadata: Metadata) -> None:
        if metadata.recreations != self._recreations or self.application.awaits_topic_id:
            # The consumer reads a recreated topic from its first record, and commits carry the topic id, so the application
            # must process this change.
            self._recreations = metadata.recreations
            self.application.call_attention()
        if not self.protocol.subscribed:
            return
        failures = self.application.failures
        if failures.current is None:
            at_once = failures.notes is not None and not self.cluster.config.allow_auto_create_topics
            missing = self._context.watch.missing(self.config.default_api_timeout_ms, at_once=at_once)
            if missing is not None:
                failures.set_missing(missing, as_note=at_once)
        self.protocol.metadata_changed()

    def _on_crash(self, error: CoordinatorError) -> None:
        self.application.failures.set(error, final=True)
        self._context.tasks.spawn(self.protocol.crash(), "leave")

    def _timeout(self, timeout_ms: float | None) -> float:
        return self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline.after(self._timeout(timeout_ms))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the coordinator is closed")


def _consumer_member(context: MemberContext) -> GroupProtocol:
    # Import the module only here, so that a process with only classic members starts sooner.
    from consumer_coord.group.consumer_protocol.heartbeats import ConsumerMember

    return ConsumerMember(context)
