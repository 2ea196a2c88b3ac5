"""Where to begin reading a partition: the group's commit, or what ``auto.offset.reset`` says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import attrs

from consumer_coord.consumer.data_plane import EARLIEST
from consumer_coord.consumer.partitions import Origin
from consumer_coord.errors import CoordinatorError, NoOffsetError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.leader_epochs import epoch_ends
from consumer_coord.leaders.list_offsets import EARLIEST as EARLIEST_TIMESTAMP
from consumer_coord.leaders.list_offsets import LATEST as LATEST_TIMESTAMP
from consumer_coord.leaders.list_offsets import list_offsets, reset_timestamp
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.printable import get_logger
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed

logger = get_logger(__name__)

#: How long such a look-up may hold up the beginning; librdkafka would take up to a second.
_CHECK_MS = 1_000
#: ``auto.offset.reset=none``, in librdkafka's word.
NONE = "error"

Positions = Mapping[TopicPartition, OffsetAndMetadata]


@attrs.frozen
class Starts:
    """Where each partition begins, by how that was found out."""

    committed: Positions = attrs.field(factory=dict)
    #: By ``auto.offset.reset``.
    reset: Positions = attrs.field(factory=dict)
    #: At the first record, which is no position to commit before something was read.
    first: Positions = attrs.field(factory=dict)
    #: Without a position, and ``auto.offset.reset`` is ``none``: why.
    unknown: Mapping[TopicPartition, str] = attrs.field(factory=dict)

    def of(self, partition: TopicPartition) -> tuple[Origin, OffsetAndMetadata] | None:
        """Return how the start of a partition was found, and the start; None when it was not looked up."""
        for origin, found in ((Origin.COMMIT, self.committed), (Origin.RESET, self.reset), (Origin.FIRST, self.first)):
            if partition in found:
                return origin, found[partition]
        return None


@attrs.frozen
class ResetPolicy:
    """``auto.offset.reset``, and whether only committed records of transactions are read."""

    reset: str
    read_committed: bool
    #: Check that the group's commits are still in the log (KIP-320), before the data plane begins there.  librdkafka would
    #: check it, too, but begins only a second later.  For the same reason first offsets are looked up, for all partitions in
    #: one request: librdkafka asks for each one, and its question waits behind a Fetch that waits for records.
    looks_up: bool = False
    #: Keep the leader epochs of starts: the plane's own Fetch requests name them, so a truncation before the first record is
    #: noticed. librdkafka would check such a start again, which takes time.
    keeps_epochs: bool = False

    async def starts(self, coordinator: ConsumerCoordinator, partitions: Iterable[TopicPartition], timeout_ms: float) -> Starts:
        """Where each partition begins (``updateFetchPositions``)."""
        wanted = frozenset(partitions)
        rows = await coordinator.committed(wanted, timeout_ms)
        committed = {partition: position for partition, position in rows.items() if position is not None}
        resets = self.resets(coordinator, wanted - committed.keys(), timeout_ms)
        if not self.looks_up:
            return attrs.evolve(await resets, committed=committed)
        found, checked = await asyncio.gather(resets, self._checked(coordinator, committed, timeout_ms))
        return attrs.evolve(
            checked,
            reset={**found.reset, **checked.reset},
            first={**found.first, **checked.first},
            unknown={**found.unknown, **checked.unknown},
        )

    async def _checked(self, coordinator: ConsumerCoordinator, committed: Positions, timeout_ms: float) -> Starts:
        """Reset commits behind the end of their epoch to that end, or by the policy (KIP-320).

        A position that was checked loses its epoch, unless the plane keeps epochs; one that could not be checked keeps it, and
        the plane checks it.
        """
        epochs = {partition: at.leader_epoch for partition, at in committed.items() if at.leader_epoch >= 0}
        ends = await epoch_ends(coordinator.cluster, epochs, min(timeout_ms, _CHECK_MS)) if epochs else {}
        good, reset = dict(committed), dict[TopicPartition, OffsetAndMetadata]()
        lost: dict[TopicPartition, str] = {}
        for partition, end in ends.items():
            at = committed[partition]
            if end.offset >= at.offset and end.leader_epoch >= 0:
                good[partition] = at if self.keeps_epochs else attrs.evolve(at, leader_epoch=-1)
                continue
            del good[partition]
            why = f"log truncation detected at offset {at.offset} of leader epoch {at.leader_epoch}, which ends at {end.offset}"
            logger.warning("%s: %s", partition, why)
            if self.reset != NONE and end.offset >= 0 and end.leader_epoch >= 0:
                reset[partition] = OffsetAndMetadata(end.offset, end.leader_epoch if self.keeps_epochs else -1)
            else:
                lost[partition] = why
        if lost and self.reset != NONE:
            # Nothing is left of that epoch, nor of older ones.
            again = await self.resets(coordinator, frozenset(lost), timeout_ms)
            return Starts(good, {**reset, **again.reset}, again.first, again.unknown)
        return Starts(good, reset, unknown=lost)

    async def resets(
        self, coordinator: ConsumerCoordinator, partitions: frozenset[TopicPartition], timeout_ms: float
    ) -> Starts:
        """Find starts of partitions without a commit, or with one out of range (``resetPositionsIfNeeded``).

        The end of a log becomes a number: a member that stops before it has read anything commits it, and the next one
        skips nothing.
        """
        if not partitions:
            return Starts()
        since = reset_timestamp(self.reset, coordinator.cluster.environment.wall_clock_ms())
        if since is None:
            return Starts(unknown=dict.fromkeys(partitions, "no committed offset"))
        if since == EARLIEST_TIMESTAMP:
            return Starts(first=await self._first(coordinator, partitions, timeout_ms))
        found = await self._listed(coordinator, dict.fromkeys(partitions, since), timeout_ms)
        # No record is that young: begin at the end, not at whatever comes up by chance.
        none = dict.fromkeys((partition for partition, at in found.items() if at.offset < 0), LATEST_TIMESTAMP)
        ends = await self._listed(coordinator, none, timeout_ms) if none else {}
        return Starts(reset={**found, **ends})

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
            logger.debug("first offsets are left to librdkafka: %s", error)
            return logical

    async def _listed(
        self, coordinator: ConsumerCoordinator, wanted: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        rows = await list_offsets(coordinator.cluster, wanted, Deadline.after(timeout_ms), read_committed=self.read_committed)
        # What a leader has just said needs no check: with an epoch librdkafka would ask again.
        keeps = self.keeps_epochs or not self.looks_up
        return {partition: OffsetAndMetadata(row.offset, row.leader_epoch if keeps else -1) for partition, row in rows.items()}


def no_offset(unknown: Mapping[TopicPartition, str]) -> NoOffsetError:
    """Return the error for partitions without a position (and why) and without a policy."""
    reasons = "; ".join(sorted(set(unknown.values())))
    return NoOffsetError(
        f"nowhere to begin {listed(unknown)}, and auto.offset.reset is none: commit offsets first, seek, or choose earliest or"
        f" latest ({reasons})"
    )
