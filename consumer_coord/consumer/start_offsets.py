"""Find the start of each partition: the group's commit, or the position by ``auto.offset.reset``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.partitions import Origin
from consumer_coord.errors import CoordinatorError, NoOffsetError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, list_offsets, reset_timestamp
from consumer_coord.log_text import get_logger
from consumer_coord.net.answers import Results
from consumer_coord.offsets import OFFSET_BEGINNING, OFFSET_TAIL_BASE, OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

#: Time limit of a look-up that delays the first record, in milliseconds; librdkafka would need up to a second.
_CHECK_MS = 1_000
#: librdkafka's value for ``auto.offset.reset=none``.
NONE = "error"

V = TypeVar("V")

Positions = Mapping[TopicPartition, OffsetAndMetadata]


@attrs.frozen
class Start:
    """The start of one partition, and how it was found."""

    #: How the start was found. A start of origin ``FIRST`` (the log's first record) is committed only after a record was
    #: delivered.
    origin: Origin
    at: OffsetAndMetadata


#: The start of each partition, or the reason why it is unknown. A :class:`NoOffsetError` means that there is no position, and
#: ``auto.offset.reset`` is ``none``.
Starts = Results[Start]


@attrs.frozen
class TimeLimits:
    """The time limits of one look-up, in milliseconds."""

    #: For the group's committed offsets. As soon as the commit of any partition is known, the look-up goes on with that.
    commits_ms: float
    #: For offsets of logs. A leader that does not answer in time delays the others' partitions by this time, so the first
    #: look-ups have a short limit, and later ones more time for slow leaders.
    logs_ms: float


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

    async def starts(
        self, coordinator: ConsumerCoordinator, partitions: Iterable[TopicPartition], limits: TimeLimits
    ) -> Starts:
        """Return the start of each partition (``updateFetchPositions``)."""
        fetched = await coordinator.committed_available(partitions, limits.commits_ms)
        committed = {partition: position for partition, position in fetched.found.items() if position is not None}
        uncommitted = frozenset(fetched.found.keys() - committed.keys())
        found, checked = await asyncio.gather(
            self.resets(coordinator, uncommitted, limits), self._checked(coordinator, committed, limits)
        )
        return _merged(found, checked, Results({}, fetched.failed))

    async def _checked(self, coordinator: ConsumerCoordinator, committed: Positions, limits: TimeLimits) -> Starts:
        """If a committed offset is after the end of its epoch, reset it to this end, unless ``auto.offset.reset`` is ``none``.

        KIP-320. A position whose epoch the log does not know is kept, without the epoch; Java resets it. Also remove the epoch
        of a checked position, unless :attr:`keeps_epochs` is true. A position that could not be checked keeps its epoch, so
        that the data plane checks the position.
        """
        epochs = {partition: at.leader_epoch for partition, at in committed.items() if at.leader_epoch >= 0}
        starts = {partition: Start(Origin.COMMIT, at) for partition, at in committed.items()}
        if not (epochs and self.checks_commits):
            return Results(starts)
        from consumer_coord.leaders.leader_epochs import epoch_ends

        lost: dict[TopicPartition, NoOffsetError] = {}
        for partition, end in (await epoch_ends(coordinator.cluster, epochs, min(limits.logs_ms, _CHECK_MS))).items():
            at = committed[partition]
            if end.leader_epoch < 0:
                _warn_of_unknown_epoch(partition, at)
                starts[partition] = Start(Origin.COMMIT, attrs.evolve(at, leader_epoch=-1))
                continue
            if end.offset >= at.offset:
                starts[partition] = Start(Origin.COMMIT, at if self.keeps_epochs else attrs.evolve(at, leader_epoch=-1))
                continue
            why = f"log truncation detected at offset {at.offset} of leader epoch {at.leader_epoch}, which ends at {end.offset}"
            logger.warning("%s: %s", partition, why)
            if self.reset == NONE:
                del starts[partition]
                lost[partition] = NoOffsetError(why)
            else:
                epoch = end.leader_epoch if self.keeps_epochs else -1
                starts[partition] = Start(Origin.RESET, OffsetAndMetadata(end.offset, epoch))
        return Results(starts, lost)

    async def resets(
        self,
        coordinator: ConsumerCoordinator,
        partitions: frozenset[TopicPartition],
        limits: TimeLimits,
        reasons: Mapping[TopicPartition, str | None] | None = None,
    ) -> Starts:
        """Find the starts of partitions without a commit, or with an out-of-range commit (``resetPositionsIfNeeded``).

        Return the end of a log as a numeric offset. If a member stops before it has read a record, it commits this offset, so
        that the next owner skips no records. ``reasons``: why a partition's commit is no position; by default, there is none.
        """
        if not partitions:
            return Results()
        since = reset_timestamp(self.reset, coordinator.cluster.environment.wall_clock_ms())
        if since is None:
            reasons = reasons or {}
            return Results({}, {one: NoOffsetError(reasons.get(one) or "no committed offset") for one in partitions})
        found = await self._listed(coordinator, dict.fromkeys(partitions, since), limits)
        if since == EARLIEST:
            return _by(Origin.FIRST, found)
        # No record is as recent as the requested time: start at the current end, as a numeric offset.
        none = {partition for partition, at in found.found.items() if at.offset < 0}
        ends = await self._listed(coordinator, dict.fromkeys(none, LATEST), limits)
        recent = Results({one: at for one, at in found.found.items() if one not in none}, found.failed)
        return _by(Origin.RESET, _merged(recent, ends))

    async def at(self, coordinator: ConsumerCoordinator, wanted: Mapping[TopicPartition, int], limits: TimeLimits) -> Starts:
        """Return the starts for logical offsets: the beginning, the end, or a number of offsets before the end."""
        tails = {one: OFFSET_TAIL_BASE - logical for one, logical in wanted.items() if logical <= OFFSET_TAIL_BASE}
        first = {one for one, logical in wanted.items() if logical == OFFSET_BEGINNING} | tails.keys()
        last = (wanted.keys() - first) | tails.keys()
        beginnings, ends = await asyncio.gather(
            self._listed(coordinator, dict.fromkeys(first, EARLIEST), limits),
            self._listed(coordinator, dict.fromkeys(last, LATEST), limits),
        )
        failed = {**beginnings.failed, **ends.failed}
        found = {}
        for one in wanted.keys() - failed.keys():
            if one in tails:
                # The record before that offset may be of an earlier leader epoch.
                found[one] = OffsetAndMetadata(max(beginnings.found[one].offset, ends.found[one].offset - tails[one]))
            else:
                found[one] = (beginnings if one in first else ends).found[one]
        return _by(Origin.FIRST, Results(found, failed))

    async def _listed(
        self, coordinator: ConsumerCoordinator, wanted: Mapping[TopicPartition, int], limits: TimeLimits
    ) -> Results[OffsetAndMetadata]:
        if not wanted:
            return Results()
        deadline = Deadline.after(limits.logs_ms)
        result = await list_offsets(coordinator.cluster, wanted, deadline, read_committed=self.read_committed)
        # A leader has just returned these offsets. Without an epoch, librdkafka does not check them again.
        keeps = self.keeps_epochs or not self.checks_commits
        rows = result.found.items()
        return Results(
            {one: OffsetAndMetadata(row.offset, row.leader_epoch if keeps else -1) for one, row in rows}, result.failed
        )


def _warn_of_unknown_epoch(partition: TopicPartition, at: OffsetAndMetadata) -> None:
    """Warn that a commit has an epoch that the log does not know, which proves no loss.

    After a loss of records, the log has a newer epoch than the lost records. Offsets that were copied from another cluster have
    that cluster's epochs. If the log does not contain the offset, a Fetch reports this.
    """
    logger.warning(
        "%s: starting at the committed offset %d, although the log does not know its leader epoch %d: were the offsets copied"
        " from another cluster?",
        *(partition, at.offset, at.leader_epoch),
    )


def _by(origin: Origin, positions: Results[OffsetAndMetadata]) -> Starts:
    return Results({partition: Start(origin, at) for partition, at in positions.found.items()}, positions.failed)


def _merged(*results: Results[V]) -> Results[V]:
    """Return one result for the partitions of several look-ups, which have no partition in common."""
    found: dict[TopicPartition, V] = {}
    failed: dict[TopicPartition, CoordinatorError] = {}
    for one in results:
        found |= one.found
        failed |= one.failed
    return Results(found, failed)


def no_offset(unknown: Mapping[TopicPartition, CoordinatorError]) -> NoOffsetError:
    """Return the error for partitions without a position while ``auto.offset.reset`` is none; ``unknown`` has the reasons."""
    reasons = "; ".join(sorted({str(error) for error in unknown.values()}))
    return NoOffsetError(
        f"no position for {listed(unknown)}, and auto.offset.reset is none: commit offsets first, seek, or set"
        f" auto.offset.reset to earliest or latest ({reasons})"
    )
