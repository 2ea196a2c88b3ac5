"""Carrying out what the group wants on the application's thread: lost, revoked, added.

For each of the three: the callback, then the data plane, then the report to the coordinator.  Every callback runs and the
state is right afterwards, whatever one of them raises; the first exception wins and leaves ``poll``.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs

from consumer_coord.blocking import BlockingCoordinator
from consumer_coord.data_plane import DataPlane
from consumer_coord.errors import CallbackError, CoordinatorError, FatalError
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.rebalance import NO_PARTITIONS, Change
from consumer_coord.start_offsets import starting_positions
from consumer_coord.topic_partition import TopicPartition, listed

#: Called with the consumer and a list of TopicPartition.
Callback: TypeAlias = Callable[[Any, Any], object]


@attrs.frozen
class Callbacks:
    """The application's; ``on_lost`` falls back to ``on_revoke``."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None


class Handover:
    """What one consumer holds for its group, on its data plane; on the polling thread only."""

    def __init__(
        self,
        coordinator: BlockingCoordinator,
        data: DataPlane,
        *,
        call: Callable[[Callback, frozenset[TopicPartition]], None],
        before_revoke: Callable[[frozenset[TopicPartition]], None],
        stopped: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        self.callbacks = Callbacks()
        #: Partitions taken up whose position is still looked up; nothing is fetched from them.
        self.pending: set[TopicPartition] = set()
        self._coordinator = coordinator
        self._data = data
        self._call = call
        self._before_revoke = before_revoke
        self._stopped = stopped
        self._chosen: dict[TopicPartition, OffsetAndMetadata] = {}
        self._lookup: concurrent.futures.Future[Mapping[TopicPartition, OffsetAndMetadata]] | None = None

    def carry_out(self, change: Change) -> CoordinatorError | None:
        """Do what ``change`` says; returns the first exception of a callback, wrapped."""
        failures: list[CoordinatorError | None] = []
        callbacks = self.callbacks
        if change.lost:
            failures.append(self._call_back(callbacks.on_lost or callbacks.on_revoke, change.lost, "on_lost"))
            self._stop(change.lost)
        if change.revoked:
            self._before_revoke(change.revoked)
            failures.append(self._call_back(callbacks.on_revoke, change.revoked, "on_revoke"))
            self._stop(change.revoked)
        taken = self._coordinator.take_up(change)
        if taken or change.first:
            self.pending |= taken
            failures.append(self._call_back(callbacks.on_assign, taken, "on_assign"))
            chosen, self._chosen = self._chosen, {}
            self.pending -= chosen.keys()
            self._data.start(chosen)
        return next((failure for failure in failures if failure is not None), None)

    def give_up_all(self) -> CoordinatorError | None:
        """Everything held is revoked, or was lost; before close and unsubscribe."""
        assignment = self._coordinator.core.assignment
        change = assignment.change()
        return self.carry_out(Change(change.target, change.lost, assignment.held, NO_PARTITIONS, False))

    def choose(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Inside on_assign: begin at these positions."""
        foreign = positions.keys() - self.pending
        if foreign:
            raise FatalError(f"{listed(foreign)} were not assigned by the group just now")
        self._chosen.update(positions)

    def begin_at(self, partition: TopicPartition, position: OffsetAndMetadata, *, later: bool) -> None:
        """A seek on a partition that is still pending: it begins there, after the callback if one is running."""
        if later:
            self._chosen[partition] = position
        else:
            self.pending.discard(partition)
            self._data.start({partition: position})

    def start_pending(self) -> None:
        """Start what was taken up once its committed position is known; nobody waits for the look-up."""
        if self._lookup is not None and self._lookup.done():
            lookup, self._lookup = self._lookup, None
            # If it failed, the next poll tries again.
            self._coordinator.core.attention = True
            found = lookup.result()
            ready = {partition: at for partition, at in found.items() if partition in self.pending}
            self.pending -= ready.keys()
            self._data.start(ready)
        if self.pending and self._lookup is None:
            wanted, settings, core = frozenset(self.pending), self._coordinator.config, self._coordinator.core
            limit_ms = settings.coordinator.default_api_timeout_ms
            self._lookup = self._coordinator.submit(
                lambda: starting_positions(core, wanted, settings.auto_offset_reset, limit_ms)
            )
            self._lookup.add_done_callback(lambda _: setattr(core, "attention", True))

    def _stop(self, partitions: frozenset[TopicPartition]) -> None:
        self._data.stop(partitions)
        self.pending -= partitions
        self._stopped(partitions)
        self._coordinator.let_go(partitions)

    def _call_back(
        self, callback: Callback | None, partitions: frozenset[TopicPartition], name: str
    ) -> CoordinatorError | None:
        if callback is None:
            return None
        try:
            self._call(callback, partitions)
        except Exception as error:  # noqa: BLE001 - whatever it is, the protocol goes on first
            failure = CallbackError(f"{name} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        return None
