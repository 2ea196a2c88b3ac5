"""Carry out the group's changes at the application's poll: partitions that were lost, revoked or added.

Each kind of change calls the callback, then the data plane, then reports to the coordinator. Every callback runs and the
state is correct afterwards, whatever a callback raises; the first exception is raised.

No progress is stored: each call of :meth:`Handover.carry_out` compares the group's wish with the partitions the member holds,
takes the next step, and may be interrupted anywhere. The next call continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Set
from typing import Any, TypeAlias, TypeVar

import attrs

from consumer_coord.errors import CallbackError, CoordinatorError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.topic_partition import TopicPartition

T = TypeVar("T")

Partitions: TypeAlias = frozenset[TopicPartition]
#: Names of topics. Not any sequence: a string is a sequence too, and ``subscribe("orders")`` would pass the type checker.
Topics: TypeAlias = list[str] | tuple[str, ...] | Set[str]
#: Called with the consumer and a list of TopicPartition; the asyncio consumer also takes coroutine functions.
Callback: TypeAlias = Callable[[Any, Any], object]


def are_names(topics: object) -> bool:
    """Whether this is a collection of strings, and not a string; for callers without a type checker."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        return False
    return all(isinstance(topic, str) for topic in topics)


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
    """The application's rebalance callbacks; ``on_lost`` falls back to ``on_revoke``."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None


class PartitionHolder:
    """The holder of a group's partitions: a Spark query, or a member of a simulation. By default it reads nothing."""

    async def call(self, callback: Callback, partitions: Partitions) -> None:
        """Call the application."""
        callback(self, sorted(partitions))

    async def through(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, which runs to its end even when the waiting is cancelled."""
        await work

    async def finish(self, revoked: Partitions) -> bool:
        """Stop delivering records of exactly these, and commit what is finished if commits are automatic.

        Return True when they may be released; False to be called again when the coordinator rouses the application.
        """
        return True

    async def stop(self, partitions: Partitions) -> None:
        """Stop reading these, and drop their state; some may never have been started."""

    async def may_take_up(self, added: Partitions) -> bool:
        """Return whether the member may begin to hold these now; False to be called again."""
        return True


class Handover:
    """Reconciles the partitions the application knows about with the group's assignment."""

    def __init__(self, member: ConsumerCoordinator, holder: PartitionHolder) -> None:
        self.callbacks: Callbacks = Callbacks()
        #: Partitions reported to on_assign, and to no callback since.
        self.told: set[TopicPartition] = set()
        #: Exceptions of callbacks, wrapped, until :meth:`take_failure`.
        self.failures: list[CoordinatorError] = []
        #: Partitions whose callback was called, and which were not reported to the group yet.
        self._ending: Partitions = frozenset()
        self._member = member
        self._holder = holder

    async def carry_out(self, *, leaving: bool = False) -> bool:
        """Carry out the group's changes, or release every partition; return False when a part has to wait."""
        assignment = self._member.assignment
        if self._ending:
            # Interrupted: the callback was called, so the partitions cannot be kept.
            await self._release()
        change = assignment.change()
        if change.lost:
            await self._end("lost", change.lost)
        revoked = assignment.held if leaving else change.revoked
        if not await self._holder.finish(revoked):
            return False
        if revoked:
            await self._end("revoked", revoked)
        if leaving:
            return True
        if change.added and not await self._holder.may_take_up(change.added):
            return False
        assignment.take_up(change)
        # By difference: partitions that an interrupted call added are reported now.
        untold = assignment.held - self.told
        if untold or (change.first and not assignment.change().first):
            await self._tell("assigned", untold)
        return True

    def take_failure(self) -> CoordinatorError | None:
        """Return the first exception of a callback since the last call."""
        failures, self.failures = self.failures, []
        return failures[0] if failures else None

    async def _end(self, kind: str, partitions: Partitions) -> None:
        self._ending = partitions
        await self._tell(kind, partitions & self.told)
        await self._release()

    async def _release(self) -> None:
        await self._holder.stop(self._ending)
        self._member.let_go(self._ending)
        self._ending = frozenset()

    async def _tell(self, kind: str, partitions: Partitions) -> None:
        callbacks = self.callbacks
        if kind == "assigned":
            callback = callbacks.on_assign
            self.told |= partitions
        else:
            if not partitions:
                return
            callback = callbacks.on_revoke if kind == "revoked" else callbacks.on_lost or callbacks.on_revoke
            self.told -= partitions
        if callback is not None:
            await self._holder.through(self._call(callback, partitions, kind))

    async def _call(self, callback: Callback, partitions: Partitions, kind: str) -> None:
        began = self._member.application.clock()
        try:
            await self._holder.call(callback, partitions)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the protocol continues first, whatever was raised
            name = {"assigned": "on_assign", "revoked": "on_revoke", "lost": "on_lost"}[kind]
            failure = CallbackError(f"{name} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.failures.append(failure)
        finally:
            self._member.application.called_back(kind, began)
