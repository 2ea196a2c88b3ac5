"""The group protocol of a member, and what both protocols share.

A member *has* a protocol: the classic one (JoinGroup, SyncGroup, Heartbeat; ``classic.py``) or the consumer protocol
(ConsumerGroupHeartbeat, KIP-848).  :class:`~consumer_coord.group.coordinator.ConsumerCoordinator` makes one
:class:`MemberContext`, gives it to the protocol, and passes on what the application says.

* **The protocol tells the application** what the group wants by ``context.assignment``: ``publish(number, partitions)`` sets
  a new target, ``lose()`` after the membership was lost.  The application carries it out at its polls and answers with
  :meth:`GroupProtocol.released` for what it gave up.  ``context.application.call_attention()`` makes it look.
* **Errors** that the application has to hear of go to ``context.application.failures.set``; the next poll raises them.
* **The coordinator** is found and asked over ``context.link``.
* **Waiting**: ``context.signal.until(condition, deadline)``; code that changes what a condition reads calls
  ``context.signal.fire()``.
* **Tasks** are started by ``context.tasks.spawn``; the facade cancels them after :meth:`GroupProtocol.close`.
* **Commits**: the protocol makes its :class:`~consumer_coord.group.commits.CommitLane` and its
  :class:`~consumer_coord.group.committed_offsets.CommittedOffsets`; ``generation_state`` fences them.  In the consumer protocol
  its ``generation_id`` is the member epoch (OffsetCommit v9).
* **The lease** (until when records may be handed out) is the protocol's to renew: it knows which answers prove the session.

Neither :mod:`~consumer_coord.group.assignment` nor :mod:`~consumer_coord.group.commits` nor the consumers know
which protocol it is.  Methods run on the loop, except what is marked as thread-safe.
"""

from __future__ import annotations

import enum
from collections.abc import Coroutine
from typing import Any, Protocol

import attrs

from consumer_coord.config import CoordinatorConfig
from consumer_coord.group.application_polls import Application
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.commits import CommitLane
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.generation import Generation
from consumer_coord.group.lease import Lease
from consumer_coord.group.link import CoordinatorLink
from consumer_coord.group.member_log import MemberLog
from consumer_coord.group.metadata_watch import MetadataWatch
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.process_peers.peers import Peers
from consumer_coord.group.subscription import TopicSubscription
from consumer_coord.group.tasks import BackgroundTasks
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.signals import Signal
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen(kw_only=True, eq=False)
class MemberContext:
    """What both protocols share."""

    config: CoordinatorConfig
    cluster: ClusterClient
    #: Find the coordinator, ask it, forget it.
    link: CoordinatorLink
    #: What the group wants this member to hold, and what the application holds.
    assignment: AssignmentState
    #: Polls, failures, and how the application is woken.
    application: Application
    #: The subscription, and the topics it stands for as of the cluster's metadata.
    watch: MetadataWatch
    metrics: Metrics
    log: MemberLog
    #: Fires whenever something changed that a coroutine of this member may wait for.
    signal: Signal
    tasks: BackgroundTasks
    #: The members of this group in this process.
    peers: Peers

    def make_lease(self, *, session_timeout_ms: float, rebalance_timeout_ms: float) -> Lease:
        """A lease by the environment's clock, which the log, the metrics and the application hear of."""
        clock = self.cluster.environment.lease_clock or self.application.clock

        def suspended() -> None:
            self.metrics.record("lease-suspended")
            self.log.warning(
                "the coordinator may count this member no more: records are handed out again when it answers a heartbeat"
            )
            self.signal.fire()

        def resumed(suspended_s: float | None) -> None:
            if suspended_s is not None:
                self.log.info(
                    "the coordinator still counts this member: records are handed out again, after %.1f s", suspended_s
                )
            self.application.rouse()

        lease = Lease(
            clock,
            enabled=self.config.group_lease_enable,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            in_use=lambda: bool(self.assignment.held),
            on_suspended=suspended,
            on_resumed=resumed,
        )
        self.metrics.gauge("lease-suspended-seconds-total", lambda: lease.suspended_s)
        return lease


class GroupProtocol(Protocol):
    """How a member belongs to its group."""

    # -- read from any thread --------------------------------------------------------------------------------------------

    @property
    def generation_state(self) -> Generation:
        """Generation (or member epoch), member id and agreed assignor; replaced, never changed.  -1 outside the group."""

    @property
    def state(self) -> enum.Enum:
        """Where the member stands; the value is a text for people."""

    @property
    def is_leader(self) -> bool:
        """True while this member leads the group; always False in the consumer protocol."""

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription."""

    @property
    def joined(self) -> bool:
        """True in the group, with a target that stands: nothing has to be joined or acknowledged."""

    @property
    def rebalancing(self) -> bool:
        """True from the moment a rebalance is known to be needed until this member has its new target."""

    @property
    def lease(self) -> Lease:
        """Until when the coordinator must still count this member."""

    @property
    def commits(self) -> CommitLane:
        """The member's commits."""

    @property
    def offsets(self) -> CommittedOffsets:
        """The group's committed offsets."""

    # -- what the application says -----------------------------------------------------------------------------------------

    def subscribe(self, subscription: TopicSubscription) -> None:
        """A subscription that is new, changed or said again; joins in the background."""

    def unsubscribe(self, deadline: Deadline) -> Coroutine[Any, Any, None]:
        """End the subscription now; the coroutine finishes commits and leaves the group.

        The application gave its partitions up before.
        """

    def rejoin(self, reason: str) -> None:
        """Rejoin although nothing demands it (KIP-568); the consumer protocol sends a full heartbeat."""

    def released(self, partitions: frozenset[TopicPartition]) -> None:
        """The application gave these up, not because they were lost; ``context.assignment`` knows already."""

    def prepare_to_leave(self, polls: int) -> None:
        """The application gives everything up next, to close or to unsubscribe: do not rejoin for that.

        Taken back by :meth:`subscribe` and by a poll after poll number ``polls``.
        """

    async def hold_joins(self, polls: int) -> Generation:
        """A transaction sends its offsets: keep the generation as it is until the poll after poll number ``polls``, at most
        half the rebalance timeout; returns the generation that fences the transaction (KIP-447)."""

    def polled(self, polls: int) -> bool:
        """End what waited for a poll: poll number ``polls`` looks at the news.  Return True while something still waits for a
        later one; then these news are not seen yet.  On the application's thread."""

    def metadata_changed(self) -> None:
        """``context.cluster.metadata`` is new; missing topics are reported by the facade."""

    # -- the end -----------------------------------------------------------------------------------------------------------

    async def leave(self, reason: str, deadline: Deadline) -> None:
        """Leave, and join again only after :meth:`subscribe` or :meth:`rejoin`; a static member's session stays."""

    async def close(self, deadline: Deadline, *, leave: bool) -> None:
        """Finish commits, leave (unless told not to), and do nothing more; called once."""

    def crash(self) -> Coroutine[Any, Any, None]:
        """A background task crashed: give up the subscription now; the coroutine leaves the group.

        The failure is final and is noted already.
        """
