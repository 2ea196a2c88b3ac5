"""The interface of a member's group protocol.

A member *has* a protocol: the classic protocol (JoinGroup, SyncGroup, Heartbeat; ``classic_protocol/``) or the consumer
protocol (ConsumerGroupHeartbeat, KIP-848; ``consumer_protocol/``).
:class:`~consumer_coord.group.coordinator.ConsumerCoordinator` creates one
:class:`~consumer_coord.group.member_context.MemberContext`, passes it to the protocol, and forwards the application's calls.

* **The target** reaches the application through ``context.assignment``: ``publish(number, partitions)`` sets a new target,
  ``lose()`` records the loss of the membership. At its polls, the application applies these changes, and calls
  :meth:`GroupProtocol.released` for the partitions that it revoked. ``context.application.call_attention()`` notifies the
  application.
* **Errors** for the application go to ``context.application.failures.set``; the next poll raises them.
* **The coordinator** is looked up and called through ``context.link``.
* **Waiting**: ``context.signal.until(condition, deadline)``; code that changes a value on which a condition depends calls
  ``context.signal.fire()``.
* **Tasks** are started by ``context.tasks.spawn``; the coordinator cancels them after :meth:`GroupProtocol.close`.
* **Commits**: the protocol creates its :class:`~consumer_coord.group.commits.CommitLane` and its
  :class:`~consumer_coord.group.committed_offsets.CommittedOffsets`; the broker fences both by the ``generation_state`` of the
  member. In the consumer protocol, ``generation_state.generation_id`` is the member epoch (OffsetCommit v9).
* **The lease** limits the delivery of records. The protocol renews it, because it knows which responses prove the session.

Neither :mod:`~consumer_coord.group.assignment` nor :mod:`~consumer_coord.group.commits` nor the consumers depend on the
protocol in use. Methods run on the loop, except where marked as thread-safe.
"""

from __future__ import annotations

import enum
from collections.abc import Coroutine
from typing import Any, Protocol

from consumer_coord.group.commits import CommitLane
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.generation import Generation
from consumer_coord.group.lease import Lease
from consumer_coord.group.subscription import TopicSubscription
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition


class GroupProtocol(Protocol):
    """Defines how a member joins its group and receives its partitions."""

    # -- read from any thread --------------------------------------------------------------------------------------------

    @property
    def generation_state(self) -> Generation:
        """Generation (or member epoch; -1 outside the group), member id and agreed assignor; replaced, never modified."""

    @property
    def state(self) -> enum.Enum:
        """The member's state; the value of the enum member is a text for logs and messages."""

    @property
    def is_leader(self) -> bool:
        """True while this member leads the group; always False in the consumer protocol."""

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription."""

    @property
    def joined(self) -> bool:
        """True in the group, with a current target, if no join or acknowledgement is pending."""

    @property
    def rebalancing(self) -> bool:
        """True from the moment a rebalance is known to be needed until this member has its new target."""

    @property
    def lease(self) -> Lease:
        """The time until which the coordinator cannot have removed this member."""

    @property
    def commits(self) -> CommitLane:
        """The member's commits."""

    @property
    def offsets(self) -> CommittedOffsets:
        """The group's committed offsets."""

    # -- the application's calls -------------------------------------------------------------------------------------------

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Set a new, changed or repeated subscription; the member joins in the background."""

    def unsubscribe(self, deadline: Deadline) -> Coroutine[Any, Any, None]:
        """End the subscription now; the coroutine finishes commits and leaves the group.

        The application must have revoked its partitions before this call.
        """

    def rejoin(self, reason: str) -> None:
        """Rejoin although no change requires a join (KIP-568); the consumer protocol sends a complete heartbeat instead."""

    def released(self, partitions: frozenset[TopicPartition]) -> None:
        """Report partitions that the application revoked (not lost partitions), after it has updated ``context.assignment``."""

    def prepare_to_leave(self, polls: int) -> None:
        """Prevent joins because the application will revoke all partitions, to close or to unsubscribe.

        A call of :meth:`subscribe`, or a poll after poll number ``polls``, cancels this.
        """

    async def hold_joins(self, polls: int) -> Generation:
        """Keep the generation while a transaction sends its offsets; return the generation, which the request names (KIP-447).

        The generation stays until the poll after poll number ``polls``, but for at most half the rebalance timeout.
        """

    def polled(self, polls: int) -> bool:
        """Record that poll number ``polls`` processes changes, and end waits for a poll; called on the application's thread.

        Return True while the member waits for a later poll; in that case the changes do not count as processed yet.
        """

    def metadata_changed(self) -> None:
        """Process a change of ``context.cluster.metadata``. Missing topics are reported by the caller, not here."""

    # -- the end -----------------------------------------------------------------------------------------------------------

    async def leave(self, reason: str, deadline: Deadline) -> None:
        """Leave, and join again only after :meth:`subscribe` or :meth:`rejoin`; a static member's session remains."""

    async def close(self, deadline: Deadline, *, leave_group: bool | None) -> None:
        """Finish commits, leave the group or stay in it, and stop; called once.

        ``leave_group`` is Java's ``CloseOptions.GroupMembershipOperation`` (KIP-1092). None: a dynamic member leaves, and a
        static member's place stays its own until its session expires. True: a static member leaves, too, and the group
        rebalances at once. False: a dynamic member stays as well, and the group rebalances when its session expires.
        """

    def crash(self) -> Coroutine[Any, Any, None]:
        """End the subscription after a crash of a background task; the returned coroutine leaves the group.

        The caller has already recorded the failure as final.
        """
