"""Find the start of each partition: the group's commit, or the position by ``auto.offset.reset``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.data_plane import OFFSET_BEGINNING, OFFSET_TAIL_BASE
from consumer_coord.consumer.partitions import Origin
from consumer_coord.errors import CoordinatorError, NoOffsetError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, list_available, reset_timestamp
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.printable import get_logger
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

#: Time limit of a look-up that delays the first record, in milliseconds; librdkafka would need up to a second.
_CHECK_MS = 1_000
#: Time limit of the first round of a look-up, in milliseconds. A round ends when all leaders have responded. If some have
#: responded at its time limit, the look-up returns their offsets; otherwise the next round has twice the time.
_ROUND_MS = 1_000
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
    #: (KIP-320). librdkafka would make this check up to a second later, because it sends one request per partition, and each
    #: request can wait for a Fetch that waits for records.
    checks_commits: bool = False
    #: Whether starts keep their leader epochs. This package's fetcher sends the epochs in Fetch requests, and so detects a
    #: truncation before the first record. librdkafka would check such a start again, which takes time.
    keeps_epochs: bool = False

    async def starts(self, coordinator: ConsumerCoordinator, partitions: Iterable[TopicPartition], timeout_ms: float) -> Starts:
        """Return the start of each partition (``updateFetchPositions``)."""
        wanted = frozenset(partitions)
        rows = await coordinator.committed(wanted, timeout_ms)
        committed = {partition: position for partition, position in rows.items() if position is not None}
        resets = self.resets(coordinator, wanted - committed.keys(), timeout_ms, others_wait=bool(committed))
        if not self.checks_commits:
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
            lost = await self.resets(coordinator, frozenset(lost), timeout_ms, others_wait=bool(starts))
        return {**starts, **lost}

    async def resets(
        self,
        coordinator: ConsumerCoordinator,
        partitions: frozenset[TopicPartition],
        timeout_ms: float,
        *,
        others_wait: bool = False,
    ) -> Starts:
        """Find the starts of partitions without a commit, or with an out-of-range commit (``resetPositionsIfNeeded``).

        Return the end of a log as a numeric offset. If a member stops before it has read a record, it commits this offset, so
        that the next owner skips no records. ``others_wait``: see :meth:`_listed`.
        """
        if not partitions:
            return {}
        since = reset_timestamp(self.reset, coordinator.cluster.environment.wall_clock_ms())
        if since is None:
            return dict.fromkeys(partitions, Start(None, None, "no committed offset"))
        found = await self._listed(coordinator, dict.fromkeys(partitions, since), timeout_ms, others_wait=others_wait)
        if since == EARLIEST:
            return _by(Origin.FIRST, found)
        # No record is as recent as the requested time: start at the current end, as a numeric offset.
        none = dict.fromkeys((partition for partition, at in found.items() if at.offset < 0), LATEST)
        others_wait = others_wait or len(none) < len(found)
        ends = await self._listed(coordinator, none, timeout_ms, others_wait=others_wait)
        return _by(Origin.RESET, {**{one: at for one, at in found.items() if one not in none}, **ends})

    async def at(self, coordinator: ConsumerCoordinator, wanted: Mapping[TopicPartition, int], timeout_ms: float) -> Starts:
        """Return the starts for logical offsets: the beginning, the end, or a number of offsets before the end."""
        tails = {one: OFFSET_TAIL_BASE - logical for one, logical in wanted.items() if logical <= OFFSET_TAIL_BASE}
        first = {one for one, logical in wanted.items() if logical == OFFSET_BEGINNING} | tails.keys()
        last = (wanted.keys() - first) | tails.keys()
        beginnings, ends = await asyncio.gather(
            self._listed(coordinator, dict.fromkeys(first, EARLIEST), timeout_ms, others_wait=bool(last - first)),
            self._listed(coordinator, dict.fromkeys(last, LATEST), timeout_ms, others_wait=bool(first - last)),
        )
        found = {}
        for one in wanted:
            begin, end = beginnings.get(one), ends.get(one)
            if one not in tails:
                at = begin or end
            elif begin and end:
                # The record before that offset may be of an earlier leader epoch.
                at = OffsetAndMetadata(max(begin.offset, end.offset - tails[one]))
            else:
                at = None
            if at is not None:
                found[one] = at
        return _by(Origin.FIRST, found)

    async def _listed(
        self,
        coordinator: ConsumerCoordinator,
        wanted: Mapping[TopicPartition, int],
        timeout_ms: float,
        *,
        others_wait: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets of partitions whose leader responds; raise an error if no leader did within ``timeout_ms``.

        ``others_wait``: partitions that are not in ``wanted`` also wait for this look-up, so return after the first round.
        """
        reasons: set[str] = set()

        def note(failed: Mapping[TopicPartition, CoordinatorError]) -> None:
            error = next(iter(failed.values()))
            if str(error) not in reasons:
                reasons.add(str(error))
                logger.warning("the start of %s is not known yet: %s", listed(failed), error)

        result = await list_available(
            coordinator.cluster, wanted, timeout_ms, note, read_committed=self.read_committed, others_wait=others_wait
        )
        if wanted and not result.found and not others_wait:
            result.complete()
        found = result.found
        # A leader has just returned these offsets. Without an epoch, librdkafka does not check them again.
        keeps = self.keeps_epochs or not self.checks_commits
        return {one: OffsetAndMetadata(row.offset, row.leader_epoch if keeps else -1) for one, row in found.items()}


def _by(origin: Origin, positions: Positions) -> Starts:
    return {partition: Start(origin, at) for partition, at in positions.items()}


def no_offset(unknown: Mapping[TopicPartition, str]) -> NoOffsetError:
    """Return the error for partitions without a position while ``auto.offset.reset`` is none; ``unknown`` has the reasons."""
    reasons = "; ".join(sorted(set(unknown.values())))
    return NoOffsetError(
        f"no position for {listed(unknown)}, and auto.offset.reset is none: commit offsets first, seek, or set"
        f" auto.offset.reset to earliest or latest ({reasons})"
    )
