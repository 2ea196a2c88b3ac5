"""The consumer coordinator: one member of one group, and what its application may ask of it.

How it joins its group and what it holds then is :mod:`consumer_coord.group.classic`.  Everything here runs on one event loop,
except what is marked as thread-safe.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from consumer_coord.environment import now
from consumer_coord.errors import (
    FatalError,
    RequestTimedOutError,
)
from consumer_coord.group.assignment import Target
from consumer_coord.group.classic import RebalancingMember
from consumer_coord.group.committed_offsets import CommitResult, OffsetAndMetadata
from consumer_coord.group.generation import Generation
from consumer_coord.group.membership import MemberState
from consumer_coord.group.subscription import NOTHING, TopicSubscription, to_pattern, to_topics
from consumer_coord.list_offsets import ListedOffset, list_offsets
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition


class ConsumerCoordinator(RebalancingMember):
    """One member of a consumer group.  Make it on the loop that it will live on.

    ``assignors`` come in the order of preference; the rebalance protocol is the highest that all of them support.
    Errors of the background surface in :meth:`polled` and in whoever waits.
    """

    # -- what the application says ---------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to named topics, instead of what was subscribed to before."""
        self._subscribe(to_topics(topics))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Subscribe to every topic whose whole name matches, now and later (Java's ``subscribe(Pattern)``)."""
        self._subscribe(to_pattern(pattern))

    def _subscribe(self, subscription: TopicSubscription) -> None:
        self._check_open()
        self._leaving_at = None
        if subscription == self._subscription:
            self._signal.fire()
            return
        self._subscription = subscription
        self._watch.subscribe(subscription)
        self._failures.went_on()
        self._heartbeat.poll_restarts()
        self._start()
        if not subscription.pattern or self._generation.has_member_id:
            self.request_rejoin("the subscription changed")
        else:
            self.request_rejoin("subscribed to a pattern")

    async def unsubscribe(self, timeout_ms: float | None = None) -> None:
        """End the subscription and leave the group; the application has let go of its partitions before.

        A cancelled call goes on in the background, as those of :meth:`leave_group` and :meth:`close` do.
        """
        if self._subscription:
            self._subscription = NOTHING
            self._rejoin_reason = None
            await self._to_the_end(self._unsubscribe(self._deadline(timeout_ms)), "unsubscribe")

    async def _unsubscribe(self, deadline: Deadline) -> None:
        # A commit that waits for a sync waits for nothing now.
        self._ending = True
        try:
            await self._stop_driver()
            self._signal.fire()
            await self.offsets.drained(deadline)
        finally:
            self._ending = False
        await self._leave("the consumer unsubscribed from all topics", deadline)
        if not self._subscription:
            # Else it subscribed again meanwhile.
            self._lease.not_needed()
            self._watch.subscribe(NOTHING)

    def let_go(self, partitions: Iterable[TopicPartition]) -> None:
        """The application gave these partitions up (revoked, or lost); thread-safe."""
        self.gave_up(self.assignment.let_go(partitions))

    def gave_up(self, partitions: frozenset[TopicPartition]) -> None:
        """These are held no more, and the group has to hear of it; thread-safe."""
        self._call(lambda: self._on_released(partitions))

    def prepare_to_leave(self) -> None:
        """The application is about to give everything up and to close or unsubscribe: no join for that; thread-safe.

        A static member's place is kept for its return with the partitions it had, so it must not join without them.  If it
        polls or subscribes again, it does not leave after all.
        """
        polls = self.polls

        def note() -> None:
            self._leaving_at = polls
            self.attention = True

        self._call(note)

    def _on_released(self, released: frozenset[TopicPartition]) -> None:
        if released and self._leaving_at is None and self._state is MemberState.STABLE and self._rejoin_reason is None:
            if not self._released:
                self._released_at = now()
            self._released |= released
            self.request_rejoin("partitions were given up")
        self._peers.released()

    async def hold_joins(self) -> Generation:
        """A transaction is about to send its offsets: send no JoinGroup until the next poll, at most half the rebalance
        timeout, and return the generation that fences what the application holds (KIP-447).

        A join that is already under way is waited for, unless the coordinator is away for so long that the lease passed:
        whatever the group does meanwhile, the broker refuses a generation that ended.  When the partitions were lost since
        the last poll the generation is the lost one, which the broker refuses: what was read under it is not this
        member's to commit.
        """
        half = Deadline.after(self.config.rebalance_timeout_ms / 2)
        self._held_at, self._held_until = self.polls, half.at
        self.attention = True
        await self._signal.until(lambda: not self._past_hold or self.lease_clock() >= self.lease_until, half)
        return self._lost_generation if self.assignment.any_lost else self._generation

    def enforce_rebalance(self, reason: str = "") -> None:
        """Rejoin although nothing demands it (KIP-568), with a reason for the broker's log (KIP-800)."""
        self._check_open()
        self.request_rejoin(reason or "rebalance enforced by user")

    # -- the sequence ----------------------------------------------------------------------------------------------------

    async def join_group_if_needed(self, timeout_ms: float | None = None) -> Target:
        """Wait until this member is in the group with an assignment, or has something to let go of first.

        Returns the target.  Raises what failed in the background, or
        :class:`~consumer_coord.errors.RequestTimedOutError` with what stands in the way; then the join goes on, and
        another call waits for the same one.
        """
        self._check_open()
        if not self._subscription:
            raise FatalError("subscribe first: without topics there is nothing to join for")
        deadline = self._deadline(timeout_ms)
        self.polled()

        def done() -> bool:
            return (
                self._failures.current is not None
                or (self._state is MemberState.STABLE and self._rejoin_reason is None)
                or bool(self.assignment.to_revoke)
                or bool(self.assignment.change().lost)
            )

        if not await self._signal.until(done, deadline):
            self.polled()
            raise RequestTimedOutError(
                f"group {self.group_id!r} was not joined in time ({self._state.value}"
                + (f"; {self._failures.obstacle})" if self._failures.obstacle else ")")
            )
        self.polled()
        return self.assignment.target

    # -- offsets ---------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_ms: float | None = None,
        ownerships: Mapping[TopicPartition, int | None] | None = None,
        topic_ids: Mapping[TopicPartition, uuid.UUID] | None = None,
    ) -> CommitResult:
        """Commit positions with our generation; for each partition None, or why not.  See ``offsets.py``."""
        limit = self._timeout(timeout_ms)
        return await self.offsets.commit(offsets, timeout_ms=limit, ownerships=ownerships, topic_ids=topic_ids)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one."""
        return await self.offsets.committed(partitions, timeout_ms=self._timeout(timeout_ms))

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Offsets by time: partition -> milliseconds since 1970, or LATEST or EARLIEST of ``list_offsets.py``."""
        return await list_offsets(self.cluster, wanted, self._deadline(timeout_ms), read_committed=read_committed)

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def leave_group(self, reason: str = "", timeout_ms: float | None = None) -> None:
        """Leave (``maybeLeaveGroup``); a static member stays in the group until its session ends.

        What the application still holds is lost.  Its next poll finds that, and the group is joined again only by
        :meth:`subscribe` or :meth:`enforce_rebalance`.
        """
        await self._to_the_end(self._leave_group(reason, self._deadline(timeout_ms)), "leave")

    async def _leave_group(self, reason: str, deadline: Deadline) -> None:
        await self._stop_driver()
        self._rejoin_reason = None
        await self._leave(reason or "leave_group was called", deadline, rejoin=False)
        self._start()

    async def close(self, timeout_ms: float | None = None, *, leave: bool = True) -> None:
        """Finish commits, leave, and end every task; idempotent.  All of it within ``timeout_ms``.

        The application lets go of its partitions before (and commits what it wants committed).
        """
        if self._closed:
            return
        if self._closing is None or self._closing.done():
            work = self._close(self._deadline(timeout_ms), leave=leave)
            self._closing = self._loop.create_task(work, name=f"close {self.group_id}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: Deadline, *, leave: bool) -> None:
        self._rejoin_reason = None
        self._ending = True
        await self._stop_driver()
        self._signal.fire()
        await self.offsets.close(deadline)
        if leave:
            await self._leave("the consumer is being closed", deadline, rejoin=False)
        self._closed = True
        self._lease.close()
        if self._peers.remove(self) and self.cluster.groups.get(self.group_id) is self._peers:
            del self.cluster.groups[self.group_id]
        self._watch.close()
        tasks = [task for task in (*self._tasks, self._beating) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._signal.fire()

    async def leave_at_exit(self, timeout_ms: float) -> None:
        """Leave over a connection that is open, or not at all: at interpreter exit nothing may wait for a look-up."""
        broker = self._lookup.coordinator
        if self._closed or broker is None or self.cluster.open_connection(broker) is None:
            return
        await self.close(timeout_ms)

    async def _to_the_end(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Wait for ``work``, which is not cancelled with its caller."""
        await asyncio.shield(self._spawn(work, name))
