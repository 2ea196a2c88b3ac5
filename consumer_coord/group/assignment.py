"""The meeting point of the protocol and the application: what the group wants a member to hold, and what it holds.

The protocol publishes one immutable :class:`Target`.  The application, whenever it polls, asks for the
:class:`Change` between what it holds and the target, carries it out (callbacks, the data plane), and reports what it
let go of and what it took up.  Changes are never queued: a partition that was taken away and given back between two
polls is no change at all, and one that was *lost* in between is lost and added, whatever the target says.

Each uninterrupted holding of a partition has an *ownership*, a number.  A commit says for each offset under which
ownership it was read; an offset read under an ownership that ended is not this member's to commit.

One lock guards the few fields, because the loop and the application's thread both write them; nothing waits inside it.
This is pure state: no I/O, no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from consumer_coord.runtime.locks import Lock
from consumer_coord.topic_partition import TopicPartition

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


@attrs.frozen
class Target:
    """What this member should hold, by the last completed sync.  ``number`` grows with every new target."""

    number: int = 0
    generation: int = -1
    partitions: frozenset[TopicPartition] = NO_PARTITIONS


@attrs.frozen
class Change:
    """What the application has to do to get to ``target``, in this order: lost, revoked, added.

    A partition may be in ``lost`` and in ``added``: it was lost and won again meanwhile.  ``first`` is true for the first
    look at a target, also when nothing changes: callbacks tell of every completed rebalance.
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
    """Target and holdings of one member; every method is atomic and may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._target = Target()
        self._seen = 0
        self._held: dict[TopicPartition, _Holding] = {}
        #: Those of them that are not lost; replaced, not changed.
        self._present = NO_PARTITIONS
        #: What the application let go of and the group does not know of yet, by ownership: commits for it are still good.
        self._let_go: dict[TopicPartition, int] = {}
        self._ownerships = 0
        self._revoke_all = False

    # -- the protocol's side ----------------------------------------------------------------------------------------

    @property
    def target(self) -> Target:
        """The last published target."""
        return self._target

    def publish(self, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """A sync completed: this is what the group wants from now on."""
        with self._lock:
            self._target = Target(self._target.number + 1, generation, frozenset(partitions))
            self._revoke_all = False

    def lose(self) -> bool:
        """The membership is gone: everything held is lost, nothing is wanted.  False if there was nothing to lose."""
        with self._lock:
            had = bool(self._target.partitions or self._held)
            self._let_go.clear()
            for holding in self._held.values():
                holding.lost = True
            self._present = NO_PARTITIONS
            self._target = Target(self._target.number + 1)
            self._seen = self._target.number
            self._revoke_all = False
            return had

    def withdraw(self) -> None:
        """The member leaves: what the application does not hold now it is not to take up, whatever comes meanwhile."""
        with self._lock:
            self._target = attrs.evolve(
                self._target, number=self._target.number + 1, partitions=self._target.partitions & self._present
            )
            self._seen = self._target.number

    def revoke_all(self) -> bool:
        """Eager: ask the application to let go of everything before the next join.  True when nothing is held."""
        with self._lock:
            # What was never taken up is given back by simply not naming it.
            self._target = attrs.evolve(
                self._target, number=self._target.number + 1, partitions=frozenset(self._target.partitions & self._held.keys())
            )
            self._revoke_all = True
            return not self._present

    def narrow(self, topics: frozenset[str]) -> None:
        """Cooperative: partitions of topics that are no longer subscribed are not wanted any more."""
        with self._lock:
            kept = frozenset(partition for partition in self._target.partitions if partition.topic in topics)
            if kept != self._target.partitions:
                seen = self._seen == self._target.number
                self._target = attrs.evolve(self._target, number=self._target.number + 1, partitions=kept)
                if seen:
                    # No rebalance was completed: there is nothing to tell but what must be given up.
                    self._seen = self._target.number

    def owned(self) -> frozenset[TopicPartition]:
        """What the next JoinGroup names as owned: the target, and what is held until it is revoked; not what is lost."""
        with self._lock:
            if self._revoke_all:
                return NO_PARTITIONS
            return self._present | self._target.partitions

    @property
    def to_revoke(self) -> frozenset[TopicPartition]:
        """What is held and not lost, and wanted back by the group."""
        with self._lock:
            return self._present if self._revoke_all else self._present - self._target.partitions

    def given_up(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """JoinGroup tells the group what is held; partitions revoked before (None: all of them) may have another owner now."""
        with self._lock:
            for partition in tuple(self._let_go) if partitions is None else partitions:
                self._let_go.pop(partition, None)

    @property
    def giving_up(self) -> frozenset[TopicPartition]:
        """What the application let go of, until :meth:`given_up`.  Look at :attr:`held` first: nothing is in neither then."""
        with self._lock:
            return frozenset(self._let_go)

    @property
    def any_lost(self) -> bool:
        """True while the application has not looked at a loss yet."""
        with self._lock:
            return len(self._present) < len(self._held)

    # -- the application's side -------------------------------------------------------------------------------------

    @property
    def reconciled(self) -> bool:
        """True when there is nothing to do for the application: a cheap look before :meth:`change`."""
        with self._lock:
            return not self._change()

    def change(self) -> Change:
        """What to do now; falsy when there is nothing."""
        with self._lock:
            return self._change()

    def _change(self) -> Change:
        target, current = self._target, self._present
        lost = NO_PARTITIONS if len(current) == len(self._held) else frozenset(self._held.keys() - current)
        if self._revoke_all:
            return Change(target, lost, current, NO_PARTITIONS, False)
        return Change(target, lost, current - target.partitions, target.partitions - current, self._seen != target.number)

    def let_go(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """The application gave these up, lost ones included; returns those that were not lost."""
        with self._lock:
            held, let_go, released = dict(self._held), dict(self._let_go), set()
            for partition in partitions:
                holding = held.pop(partition, None)
                if holding is not None and not holding.lost:
                    released.add(partition)
                    let_go[partition] = holding.ownership
            # No call between: the application's thread may be interrupted by one.
            present = self._present - released
            self._held, self._let_go, self._present = held, let_go, present
            return frozenset(released)

    def take_up(self, change: Change) -> frozenset[TopicPartition]:
        """Take up what ``change`` adds, if its target still stands; what is returned is held from now on."""
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
        """What the application holds now, lost partitions not included."""
        return self._present

    def ownership(self, partition: TopicPartition) -> int | None:
        """The ownership under which a partition is held, None when it is not held or was lost."""
        with self._lock:
            holding = self._held.get(partition)
            return None if holding is None or holding.lost else holding.ownership

    def ownerships(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """The same for many, in one look."""
        with self._lock:
            return {
                partition: None if (holding := self._held.get(partition)) is None or holding.lost else holding.ownership
                for partition in partitions
            }

    def ended(self, ownerships: Mapping[TopicPartition, int | None]) -> frozenset[TopicPartition]:
        """Those partitions whose offsets, read under these ownerships, are not this member's to commit any more: lost, or
        given up, even if they were won again since.  Without an ownership (None) only a loss that the application has not
        looked at yet counts."""
        with self._lock:
            return frozenset(partition for partition, ownership in ownerships.items() if self._ended(partition, ownership))

    def _ended(self, partition: TopicPartition, ownership: int | None) -> bool:
        holding = self._held.get(partition)
        if ownership is None:
            return holding is not None and holding.lost
        if holding is not None:
            return holding.lost or holding.ownership != ownership
        return self._let_go.get(partition) != ownership
