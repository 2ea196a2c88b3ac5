"""Find the start of each partition: the group's commit, or the position by ``auto.offset.reset``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from consumer_coord.consumer.data_plane import EARLIEST
from consumer_coord.consumer.partitions import Origin
from consumer_coord.errors import CoordinatorError, NoOffsetError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import EARLIEST as EARLIEST_TIMESTAMP
from consumer_coord.leaders.list_offsets import LATEST as LATEST_TIMESTAMP
from consumer_coord.leaders.list_offsets import list_offsets, reset_timestamp
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.printable import get_logger
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

#: Time limit of a look-up that delays the first record, in milliseconds; librdkafka would need up to a second.
_CHECK_MS = 1_000
#: librdkafka's value for ``auto.offset.reset=none``.
NONE = "error"

Positions = Mapping[TopicPartition, OffsetAndMetadata]


@attrs.frozen
class Start:
    """The start of one partition, and how it was found."""

    #: How the start was found. A start of origin ``FIRST`` (the log's first record) is committed only after a record was
    #: delivered.
    origin: Origin | None
    #: None if there is no position, and ``auto.offset.reset`` is ``none``.
    at: OffsetAndMetadata | None
    #: The reason why there is no position.
    why: str = ""


#: Partition -> its start. Partitions whose start could not be looked up are missing.
Starts = Mapping[TopicPartition, Start]


@attrs.frozen
class ResetPolicy:
    """``auto.offset.reset``, and whether only committed records of transactions are read."""

    reset: str
    read_committed: bool
    #: Whether to check, before the data plane starts to read, that the group's committed offsets are still in the log
    #: (KIP-320), and whether to look up first offsets, for all partitions together. librdkafka would do both, but up to a
    #: second later, because it sends one request per partition, and each request can wait for a Fetch that waits for records.
    looks_up: bool = False
    #: Whether starts keep their leader epochs. This package's fetcher sends the epochs in Fetch requests, and so detects a
    #: truncation before the first record. librdkafka would check such a start again, which takes time.
    keeps_epochs: bool = False

    async def starts(self, coordinator: ConsumerCoordinator, partitions: Iterable[TopicPartition], timeout_ms: float) -> Starts:
        """Return the start of each partition (``updateFetchPositions``)."""
        wanted = frozenset(partitions)
        rows = await coordinator.committed(wanted, timeout_ms)
        committed = {partition: position for partition, position in rows.items() if position is not None}
        resets = self.resets(coordinator, wanted - committed.keys(), timeout_ms)
        if not self.looks_up:
            return {**await resets, **_by(Origin.COMMIT, committed)}
        found, checked = await asyncio.gather(resets, self._checked(coordinator, committed, timeout_ms))
        return {**found, **checked}

    async def _checked(self, coordinator: ConsumerCoordinator, committed: Positions, timeout_ms: float) -> Starts:
        """If a committed offset is after the end of its epoch, reset it to this end or by ``auto.offset.reset`` (KIP-320).

        Remove the epoch of a checked position, unless :attr:`keeps_epochs` is true. A position that could not be checked keeps
        its epoch, so that the data plane checks the position.
        """
        epochs = {partition: at.leader_epoch for partition, at in committed.items() if at.leader_epoch >= 0}
        starts = dict(_by(Origin.COMMIT, committed))
        if not epochs:
            return starts
        from consumer_coord.leaders.leader_epochs import epoch_ends

        ends = await epoch_ends(coordinator.cluster, epochs, min(timeout_ms, _CHECK_MS))
        lost: Starts = {}
        for partition, end in ends.items():
            at = committed[partition]
            if end.offset >= at.offset and end.leader_epoch >= 0:
                starts[partition] = Start(Origin.COMMIT, at if self.keeps_epochs else attrs.evolve(at, leader_epoch=-1))
                continue
            why = f"log truncation detected at offset {at.offset} of leader epoch {at.leader_epoch}, which ends at {end.offset}"
            logger.warning("%s: %s", partition, why)
            if self.reset != NONE and end.offset >= 0 and end.leader_epoch >= 0:
                epoch = end.leader_epoch if self.keeps_epochs else -1
                starts[partition] = Start(Origin.RESET, OffsetAndMetadata(end.offset, epoch))
            else:
                del starts[partition]
                lost = {**lost, partition: Start(None, None, why)}
        if lost and self.reset != NONE:
            # No record of this epoch, or of an older epoch, remains.
            lost = await self.resets(coordinator, frozenset(lost), timeout_ms)
        return {**starts, **lost}

    async def resets(
        self, coordinator: ConsumerCoordinator, partitions: frozenset[TopicPartition], timeout_ms: float
    ) -> Starts:
        """Find the starts of partitions without a commit, or with an out-of-range commit (``resetPositionsIfNeeded``).

        Return the end of a log as a numeric offset. If a member stops before it has read a record, it commits this offset, so
        that the next owner skips no records.
        """
        if not partitions:
            return {}
        since = reset_timestamp(self.reset, coordinator.cluster.environment.wall_clock_ms())
        if since is None:
            return dict.fromkeys(partitions, Start(None, None, "no committed offset"))
        if since == EARLIEST_TIMESTAMP:
            return _by(Origin.FIRST, await self._first(coordinator, partitions, timeout_ms))
        found = await self._listed(coordinator, dict.fromkeys(partitions, since), timeout_ms)
        # No record is as recent as the requested time: start at the current end, as a numeric offset.
        none = dict.fromkeys((partition for partition, at in found.items() if at.offset < 0), LATEST_TIMESTAMP)
        ends = await self._listed(coordinator, none, timeout_ms) if none else {}
        return _by(Origin.RESET, {**found, **ends})

    async def _first(
        self, coordinator: ConsumerCoordinator, partitions: frozenset[TopicPartition], timeout_ms: float
    ) -> Positions:
        logical = dict.fromkeys(partitions, EARLIEST)
        if not self.looks_up:
            return logical
        try:
            wanted = dict.fromkeys(partitions, EARLIEST_TIMESTAMP)
            return {**logical, **await self._listed(coordinator, wanted, min(timeout_ms, _CHECK_MS))}
        except CoordinatorError as error:
            logger.debug("librdkafka will look up the first offsets instead: %s", error)
            return logical

    async def _listed(
        self, coordinator: ConsumerCoordinator, wanted: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        rows = await list_offsets(coordinator.cluster, wanted, Deadline.after(timeout_ms), read_committed=self.read_committed)
        # A leader has just returned these offsets. If the epoch is omitted, librdkafka does not check the offsets again.
        keeps = self.keeps_epochs or not self.looks_up
        return {partition: OffsetAndMetadata(row.offset, row.leader_epoch if keeps else -1) for partition, row in rows.items()}


def _by(origin: Origin, positions: Positions) -> Starts:
    return {partition: Start(origin, at) for partition, at in positions.items()}


def no_offset(unknown: Mapping[TopicPartition, str]) -> NoOffsetError:
    """Return the error for partitions without a position while ``auto.offset.reset`` is none; ``unknown`` has the reasons."""
    reasons = "; ".join(sorted(set(unknown.values())))
    return NoOffsetError(
        f"no position for {listed(unknown)}, and auto.offset.reset is none: commit offsets first, seek, or set"
        f" auto.offset.reset to earliest or latest ({reasons})"
    )
