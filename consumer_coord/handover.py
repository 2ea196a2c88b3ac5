"""Carrying out what the group wants where the application polls: lost, revoked, added.

For each of the three: the callback, then the data plane, then the report to the coordinator.  Every callback runs and the
state is right afterwards, whatever one of them raises; the first exception wins and leaves ``poll``.

This is written once, with coroutines, for both consumers: the asyncio one awaits it, and the blocking one, whose steps never
suspend, runs it straight through (:func:`run_through`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs

from consumer_coord.coordinator import ConsumerCoordinator
from consumer_coord.errors import CallbackError, CoordinatorError, FatalError
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.rebalance import NO_PARTITIONS, Change
from consumer_coord.topic_partition import TopicPartition, listed

T = TypeVar("T")

Partitions: TypeAlias = frozenset[TopicPartition]
Positions: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
#: Called with the consumer and a list of TopicPartition; the asyncio consumer takes coroutine functions too.
Callback: TypeAlias = Callable[[Any, Any], object]


def run_through(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a step of the blocking consumer waited for a loop")


@attrs.frozen
class Callbacks:
    """The application's; ``on_lost`` falls back to ``on_revoke``."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None


class LookUp(Protocol):
    """A future, of either kind."""

    def done(self) -> bool: ...
    def result(self) -> Positions: ...
    def add_done_callback(self, function: Callable[[Any], object], /) -> object: ...


class Holder(Protocol):
    """The consumer that holds the partitions."""

    def call(self, callback: Callback, partitions: Partitions) -> Awaitable[None]:
        """Call the application."""

    def before_revoke(self, partitions: Partitions) -> Awaitable[None]:
        """Commit what is finished, if that is automatic; logs what fails."""

    def start(self, positions: Positions) -> Awaitable[None]:
        """Fetch from these positions."""

    def stop(self, partitions: Partitions) -> Awaitable[None]:
        """Fetch these no more, and forget what is kept for them."""

    def look_up(self, partitions: Partitions) -> LookUp:
        """Where to begin each; nobody waits for it."""


class Handover:
    """What one consumer holds for its group, on its data plane; where the application polls only."""

    def __init__(self, member: ConsumerCoordinator, holder: Holder) -> None:
        self.callbacks = Callbacks()
        #: Partitions taken up whose position is still looked up; nothing is fetched from them.
        self.pending: set[TopicPartition] = set()
        self._member = member
        self._holder = holder
        self._chosen: dict[TopicPartition, OffsetAndMetadata] = {}
        self._lookup: LookUp | None = None
        #: Given up while a look-up was under way: what it finds for them is out of date, should they come back.
        self._outdated: set[TopicPartition] = set()

    async def carry_out(self, change: Change) -> CoordinatorError | None:
        """Do what ``change`` says; returns the first exception of a callback, wrapped."""
        failures: list[CoordinatorError | None] = []
        callbacks = self.callbacks
        if change.lost:
            failures.append(await self._call_back(callbacks.on_lost or callbacks.on_revoke, change.lost, "lost"))
            await self._stop(change.lost)
        if change.revoked:
            await self._holder.before_revoke(change.revoked)
            failures.append(await self._call_back(callbacks.on_revoke, change.revoked, "revoked"))
            await self._stop(change.revoked)
        taken = self._member.assignment.take_up(change)
        if taken or change.first:
            self.pending |= taken
            failures.append(await self._call_back(callbacks.on_assign, taken, "assigned"))
            chosen, self._chosen = self._chosen, {}
            self.pending -= chosen.keys()
            await self._holder.start(chosen)
        return next((failure for failure in failures if failure is not None), None)

    async def give_up_all(self) -> CoordinatorError | None:
        """Everything held is revoked, or was lost; before close and unsubscribe."""
        self._member.prepare_to_leave()
        assignment = self._member.assignment
        change = assignment.change()
        return await self.carry_out(Change(change.target, change.lost, assignment.held, NO_PARTITIONS, False))

    def choose(self, positions: Positions) -> None:
        """Inside on_assign: begin at these positions."""
        foreign = positions.keys() - self.pending
        if foreign:
            raise FatalError(f"{listed(foreign)} were not assigned by the group just now")
        self._chosen.update(positions)

    async def begin_at(self, partition: TopicPartition, position: OffsetAndMetadata, *, later: bool) -> None:
        """A seek on a partition that is still pending: it begins there, after the callback if one is running."""
        if later:
            self._chosen[partition] = position
        else:
            self.pending.discard(partition)
            await self._holder.start({partition: position})

    async def start_pending(self) -> None:
        """Start what was taken up once its committed position is known; nobody waits for the look-up."""
        if self._lookup is not None and self._lookup.done():
            lookup, self._lookup = self._lookup, None
            # If it failed, the next poll tries again.
            self._member.attention = True
            found = lookup.result()
            ready = {tp: at for tp, at in found.items() if tp in self.pending and tp not in self._outdated}
            self.pending -= ready.keys()
            await self._holder.start(ready)
        if self.pending and self._lookup is None:
            self._outdated.clear()
            self._lookup = self._holder.look_up(frozenset(self.pending))
            self._lookup.add_done_callback(lambda _: self._member.rouse())

    async def _stop(self, partitions: Partitions) -> None:
        await self._holder.stop(partitions)
        self.pending -= partitions
        self._outdated |= partitions
        self._member.let_go(partitions)

    async def _call_back(
        self, callback: Callback | None, partitions: Partitions, kind: str
    ) -> CoordinatorError | None:
        if callback is None:
            return None
        began = self._member.clock()
        try:
            await self._holder.call(callback, partitions)
        except Exception as error:  # noqa: BLE001 - whatever it is, the protocol goes on first
            name = {"assigned": "on_assign", "revoked": "on_revoke", "lost": "on_lost"}[kind]
            failure = CallbackError(f"{name} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        finally:
            self._member.called_back(kind, began)
        return None
