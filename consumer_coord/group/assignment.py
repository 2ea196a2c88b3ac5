"""The target assignment and the partitions that the application owns: the interface between protocol and application.

The protocol publishes one immutable :class:`Target`. At each poll the application requests the difference (:class:`Change`)
between the partitions that it owns and the target. The application applies the change (it calls the callbacks and adjusts the
data plane), and reports the released and the added partitions. Changes are never queued: a partition that was revoked and
assigned again between two polls is not a change, and a partition that was *lost* between two polls is reported as lost before
it can be added again.

Each period in which the member owns a partition without interruption has a number, the *ownership*. For each offset, a commit
carries the ownership under which the offset was read. A member must not commit an offset that was read under an ownership that
has ended.

One lock guards the fields, because both the loop and the application's thread write to these fields. No code waits while it has
the lock. This module uses no I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.runtime.locks import Lock
from consumer_coord.topic_partition import TopicPartition

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


@attrs.frozen
class Target:
    """The partitions that this member should own, according to its last assignment. ``number`` grows with every new target."""

    number: int = 0
    generation: int = -1
    partitions: frozenset[TopicPartition] = NO_PARTITIONS


@attrs.frozen
class Change:
    """The steps by which the application reaches ``target``, in this order: lost, revoked, added.

    A partition may be in both ``lost`` and ``added``, if it was lost and assigned again. ``first`` is true until the
    application has reached the target, even if nothing changes, because the callbacks report every completed rebalance.
    """

    target: Target
    lost: frozenset[TopicPartition]
    revoked: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    first: bool

    def __bool__(self) -> bool:
        return bool(self.first or self.lost or self.revoked or self.added)


@attrs.define
class _Holding:
    ownership: int
    lost: bool = False


class AssignmentState:
    """The target and the owned partitions of one member. Every method is atomic, and any thread may call it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._target = Target()
        self._seen = 0
        self._held: dict[TopicPartition, _Holding] = {}
        #: The owned partitions, without lost partitions. This set is replaced, never modified.
        self._present = NO_PARTITIONS
        #: Partition -> ownership, for revoked partitions that the group still counts as owned by this member, so that their
        #: commits are valid.
        self._revoked: dict[TopicPartition, int] = {}
        self._ownerships = 0
        #: Number of times that owned partitions were lost.
        self.losses: int = 0
        self._revoke_all = False

    # -- the protocol's side ----------------------------------------------------------------------------------------

    @property
    def target(self) -> Target:
        """The last published target."""
        return self._target

    def publish(self, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """Set the target to the assignment that this member received."""
        with self._lock:
            self._target = Target(self._target.number + 1, generation, frozenset(partitions))
            self._revoke_all = False

    def lose(self) -> bool:
        """Lose every owned partition and empty the target, after the membership ended; return False if both were empty."""
        with self._lock:
            had = bool(self._target.partitions or self._held)
            self._revoked.clear()
            for holding in self._held.values():
                holding.lost = True
            self.losses += bool(self._held)
            self._present = NO_PARTITIONS
            self._target = Target(self._target.number + 1)
            self._seen = self._target.number
            self._revoke_all = False
            return had

    def withdraw(self) -> None:
        """Remove from the target every partition that the application does not own, so that a leaving member adds none."""
        with self._lock:
            self._aim_at(self._target.partitions & self._present)
            self._seen = self._target.number

    def _aim_at(self, partitions: frozenset[TopicPartition]) -> None:
        self._target = attrs.evolve(self._target, number=self._target.number + 1, partitions=partitions)

    def revoke_all(self) -> bool:
        """Request the revocation of all partitions before an eager member joins; return True if none is owned."""
        with self._lock:
            # To release partitions of the target that the application never owned, it is enough not to name them in JoinGroup.
            self._aim_at(frozenset(self._target.partitions & self._held.keys()))
            self._revoke_all = True
            return not self._present

    def narrow(self, topics: frozenset[str]) -> None:
        """In the target of a cooperative member, keep only partitions of ``topics``, the subscription."""
        with self._lock:
            kept = frozenset(partition for partition in self._target.partitions if partition.topic in topics)
            if kept != self._target.partitions:
                seen = self._seen == self._target.number
                self._aim_at(kept)
                if seen:
                    # No rebalance completed, so the application receives a change only if it must revoke partitions.
                    self._seen = self._target.number

    def owned(self) -> frozenset[TopicPartition]:
        """Return the partitions that the next JoinGroup names as owned: of the target, those neither revoked nor lost."""
        with self._lock:
            if self._revoke_all:
                return NO_PARTITIONS
            return self._present | self._target.partitions

    @property
    def to_revoke(self) -> frozenset[TopicPartition]:
        """The partitions that the application owns and must revoke, without lost partitions."""
        with self._lock:
            return self._present if self._revoke_all else self._present - self._target.partitions

    def drop_revoked(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Remove ``partitions`` (None: all) from :attr:`revoked`.

        Call this when the member no longer names the partitions as owned, because the group may then assign them to another
        member.
        """
        with self._lock:
            for partition in tuple(self._revoked) if partitions is None else partitions:
                self._revoked.pop(partition, None)

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """The revoked partitions that :meth:`drop_revoked` has not removed yet.

        A caller that needs :attr:`held`, too, must read :attr:`held` first. Otherwise a partition that is revoked between the
        two reads is missing in both values.
        """
        with self._lock:
            return frozenset(self._revoked)

    @property
    def any_lost(self) -> bool:
        """True while the application has not yet processed a loss of partitions."""
        with self._lock:
            return len(self._present) < len(self._held)

    # -- the application's side -------------------------------------------------------------------------------------

    @property
    def reconciled(self) -> bool:
        """True if the application has nothing to do; a cheap check before :meth:`change`."""
        with self._lock:
            return not self._change()

    def change(self) -> Change:
        """Return the change to apply now; falsy if there is no change."""
        with self._lock:
            return self._change()

    def _change(self) -> Change:
        target, current = self._target, self._present
        lost = NO_PARTITIONS if len(current) == len(self._held) else frozenset(self._held.keys() - current)
        if self._revoke_all:
            return Change(target, lost, current, NO_PARTITIONS, False)
        return Change(target, lost, current - target.partitions, target.partitions - current, self._seen != target.number)

    def release(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Release partitions, including lost partitions; return the partitions that were not lost."""
        with self._lock:
            held, revoked, released = dict(self._held), dict(self._revoked), set()
            for partition in partitions:
                holding = held.pop(partition, None)
                if holding is not None and not holding.lost:
                    released.add(partition)
                    revoked[partition] = holding.ownership
            # Do not call a function between these statements, because a signal handler may interrupt the application's thread
            # at a call.
            present = self._present - released
            self._held, self._revoked, self._present = held, revoked, present
            return frozenset(released)

    def accept(self, change: Change) -> frozenset[TopicPartition]:
        """Own the added partitions of ``change``, if its target is still current; return the newly owned partitions."""
        with self._lock:
            if change.target.number != self._target.number or self._revoke_all:
                return NO_PARTITIONS
            taken, held = frozenset(change.added - self._held.keys()), dict(self._held)
            for ownership, partition in enumerate(sorted(taken), start=self._ownerships + 1):
                held[partition] = _Holding(ownership)
            present, ownerships = self._present | taken, self._ownerships + len(taken)
            self._held, self._present, self._ownerships, self._seen = held, present, ownerships, change.target.number
            return taken

    @property
    def held(self) -> frozenset[TopicPartition]:
        """The partitions that the application owns now, without lost partitions."""
        return self._present

    def ownership(self, partition: TopicPartition) -> int | None:
        """Return the current ownership of a partition, or None if the partition is not owned or was lost."""
        return self.ownerships([partition])[partition]

    def ownerships(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """Return the ownership of each partition at one moment, None for a partition that is not owned or was lost."""
        with self._lock:
            return {
                partition: None if (holding := self._held.get(partition)) is None or holding.lost else holding.ownership
                for partition in partitions
            }

    def ended(self, ownerships: Mapping[TopicPartition, int | None]) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets must not be committed, given the ownership under which each offset was read.

        Such a partition was lost or revoked after the offset was read, even if it was assigned to this member again. If the
        ownership is None, return the partition only if it was lost and the application has not processed the loss yet.
        """
        with self._lock:
            return frozenset(partition for partition, ownership in ownerships.items() if self._ended(partition, ownership))

    def _ended(self, partition: TopicPartition, ownership: int | None) -> bool:
        holding = self._held.get(partition)
        if ownership is None:
            return holding is not None and holding.lost
        if holding is not None:
            return holding.lost or holding.ownership != ownership
        return self._revoked.get(partition) != ownership
