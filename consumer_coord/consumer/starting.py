"""Starting the partitions that were taken up: the application's choice, the group's commit, or ``auto.offset.reset``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import attrs

from consumer_coord.consumer.home import Home, Pending
from consumer_coord.consumer.reader import Positions, Reader
from consumer_coord.consumer.start_positions import ResetPolicy, Starts, no_offset
from consumer_coord.errors import RetriableError
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.printable import get_logger
from consumer_coord.topic_partition import TopicPartition, listed

logger = get_logger(__name__)

T = TypeVar("T")


@attrs.frozen
class _LookUp:
    """A look-up under way, for these partitions as they are held now (by ownership)."""

    pending: Pending[Starts]
    ownerships: Mapping[TopicPartition, int | None]
    #: Of which topics: what was committed for a topic that was made again since is no position of the new one.
    topics: Mapping[TopicPartition, object]


class Starting:
    """Which partitions are held and not read yet, and why."""

    def __init__(
        self,
        core: ConsumerCoordinator,
        home: Home,
        reader: Reader,
        policy: ResetPolicy,
        on_committed: Callable[[Positions], None],
        on_reset: Callable[[Positions], None],
        topic_id: Callable[[TopicPartition], object],
    ) -> None:
        """``topic_id``: which topic bears a partition's name now.

        ``on_committed`` gets what begins at a commit of the group, ``on_reset`` what begins by the policy.
        """
        #: Held, told to the application, and waiting for their position; nothing is read from them.
        self.pending: frozenset[TopicPartition] = frozenset()
        #: Without a position, and ``auto.offset.reset`` is none: why.
        self.unknown: dict[TopicPartition, str] = {}
        #: Held, but not wanted by the application: it took a part of its assignment only.  Nothing is read from them.
        self.declined: frozenset[TopicPartition] = frozenset()
        self._core = core
        self._home = home
        self._reader = reader
        self._policy = policy
        self._chosen: dict[TopicPartition, OffsetAndMetadata] = {}
        self._look_up: _LookUp | None = None
        self._retry_at = 0.0
        self._on_committed = on_committed
        self._on_reset = on_reset
        self._topic_id = topic_id

    @property
    def busy(self) -> bool:
        """True while positions are looked up, or a moment is waited before that."""
        return self._look_up is not None or self._retry_at > self._home.now()

    def choose(self, positions: Positions) -> None:
        """The application wants to begin there."""
        self._chosen.update(positions)
        self._core.application.rouse()

    def begun_elsewhere(self, partitions: Collection[TopicPartition]) -> None:
        """These begin where the application says, or with the first record of another topic: no look-up counts."""
        self.unknown = _without(self.unknown, partitions)
        self.pending -= frozenset(partitions)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These are given up."""
        gone = frozenset(partitions)
        self._chosen = _without(self._chosen, gone)
        self.unknown = _without(self.unknown, gone)
        self.pending -= gone
        self.declined -= gone

    def raise_unknown(self) -> None:
        """Raise for partitions that have no position; they are looked up again after the backoff."""
        if self.unknown:
            unknown, self.unknown = self.unknown, {}
            self._retry_at = self._home.now() + self._core.config.retry_backoff_ms / 1000
            self._core.application.rouse()
            raise no_offset(unknown)

    async def go_on(self, told: Collection[TopicPartition]) -> None:
        """Start what can be started, and look up what is not known; the look-up is not waited for."""
        held = (self._core.assignment.held & frozenset(told)) - self.declined
        chosen = {partition: at for partition, at in self._chosen.items() if partition in held}
        await self._start(chosen, begun=chosen.keys())
        self._chosen = _without(self._chosen, chosen)
        if self._look_up is not None and self._look_up.pending.done():
            await self._take(self._look_up)
            self._look_up = None
        for partition in self._reader.lapsed.keys() - self.pending:
            why = self._reader.lapsed[partition]
            logger.warning("%s begins again by auto.offset.reset=%s: %s", partition, self._policy.reset, why)
        self.pending = (held - self._reader.assigned.keys()) | self._reader.lapsed.keys()
        wanted = self.pending - self.unknown.keys()
        if wanted and self._look_up is None:
            self._begin(wanted)

    async def _start(self, positions: Positions, *, begun: Collection[TopicPartition]) -> None:
        """Start them, or start them anew."""
        self.unknown = _without(self.unknown, positions)
        fresh = {partition: at for partition, at in positions.items() if partition not in self._reader.assigned}
        again = {partition: at for partition, at in positions.items() if partition in self._reader.assigned}
        await self._reader.start(fresh, begun=[partition for partition in begun if partition in fresh])
        if again:
            await self._reader.restart(again, begun=[partition for partition in begun if partition in again])

    def _begin(self, wanted: frozenset[TopicPartition]) -> None:
        left_s = self._retry_at - self._home.now()
        if left_s > 0:
            self._home.later(left_s, self._core.application.rouse)
            return
        core, policy, lapsed = self._core, self._policy, wanted & self._reader.lapsed.keys()
        limit_ms = core.config.default_api_timeout_ms

        async def look_up() -> Starts:
            found = await policy.starts(core, wanted - lapsed, limit_ms)
            again = await policy.resets(core, lapsed, limit_ms)
            return attrs.evolve(
                found,
                reset={**found.reset, **again.reset},
                first={**found.first, **again.first},
                unknown={**found.unknown, **again.unknown},
            )

        pending = self._home.start(look_up)
        topics = {partition: self._topic_id(partition) for partition in wanted}
        self._look_up = _LookUp(pending, core.assignment.ownerships(wanted), topics)
        pending.add_done_callback(lambda _: core.application.rouse())

    async def _take(self, look_up: _LookUp) -> None:
        """Start what was found; a partition that was given up meanwhile and came back is looked up again."""
        if look_up.pending.cancelled():
            return
        error = look_up.pending.exception()
        if isinstance(error, RetriableError):
            # The partitions wait; what is wrong stands in the log, and a later look-up may find them.
            logger.warning("where to begin %s is not known yet: %s", listed(look_up.ownerships), error)
            self._retry_at = self._home.now() + self._core.config.retry_backoff_max_ms / 1000
            return
        if error is not None:
            self._look_up = None
            raise error
        found = look_up.pending.result()
        now = self._core.assignment.ownerships(look_up.ownerships)
        still = {
            partition
            for partition, ownership in look_up.ownerships.items()
            if now[partition] == ownership
            and (ownership is not None or partition in self._reader.assigned)
            and look_up.topics[partition] == self._topic_id(partition)
            and (partition not in self._reader.assigned or partition in self._reader.lapsed)
        }
        committed = {partition: at for partition, at in found.committed.items() if partition in still}
        reset = {partition: at for partition, at in found.reset.items() if partition in still}
        unknown = {partition: why for partition, why in found.unknown.items() if partition in still}
        self.unknown.update({partition: self._reader.lapsed.get(partition, why) for partition, why in unknown.items()})
        self._on_committed(committed)
        self._on_reset(reset)
        first = {partition: at for partition, at in found.first.items() if partition in still}
        await self._start({**committed, **reset, **first}, begun=reset.keys())


def _without(values: Mapping[TopicPartition, T], gone: Collection[TopicPartition]) -> dict[TopicPartition, T]:
    return {partition: value for partition, value in values.items() if partition not in gone}
