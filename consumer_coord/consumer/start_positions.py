"""Where to begin reading a partition: the group's commit, or what ``auto.offset.reset`` says."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping

import attrs

from consumer_coord.consumer.data_plane import EARLIEST
from consumer_coord.errors import NoOffsetError
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.list_offsets import LATEST as LATEST_TIMESTAMP
from consumer_coord.list_offsets import list_offsets
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed

BY_DURATION = "by_duration:"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")

Positions = Mapping[TopicPartition, OffsetAndMetadata]


def duration_ms(text: str) -> float:
    """ISO 8601's PnDTnHnMnS in milliseconds (KIP-1106)."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration like P1DT12H30M5S")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) / datetime.timedelta(milliseconds=1)


@attrs.frozen
class Starts:
    """Where each partition begins, by how that was found out."""

    committed: Positions = attrs.field(factory=dict)
    #: By ``auto.offset.reset``; the offset of the first record is not looked up (``EARLIEST``).
    reset: Positions = attrs.field(factory=dict)
    #: Without a commit, and ``auto.offset.reset`` is ``none``.
    unknown: frozenset[TopicPartition] = frozenset()


@attrs.frozen
class ResetPolicy:
    """``auto.offset.reset``, and whether only committed records of transactions are read."""

    reset: str
    read_committed: bool

    async def starts(
        self, coordinator: ConsumerCoordinator, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> Starts:
        """Where each partition begins (``updateFetchPositions``)."""
        wanted = frozenset(partitions)
        rows = await coordinator.committed(wanted, timeout_ms)
        committed = {partition: position for partition, position in rows.items() if position is not None}
        return attrs.evolve(await self.resets(coordinator, wanted - committed.keys(), timeout_ms), committed=committed)

    async def resets(
        self, coordinator: ConsumerCoordinator, partitions: frozenset[TopicPartition], timeout_ms: float
    ) -> Starts:
        """The same for partitions without a commit, or with one that is out of range (``resetPositionsIfNeeded``).

        The end of a log becomes a number: a member that stops before it has read anything commits it, and the next one
        skips nothing.
        """
        if not partitions:
            return Starts()
        if self.reset == "earliest":
            return Starts(reset=dict.fromkeys(partitions, EARLIEST))
        if self.reset == "latest":
            return Starts(reset=await self._listed(coordinator, dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout_ms))
        if self.reset.startswith(BY_DURATION):
            since = coordinator.cluster.environment.wall_clock_ms() - int(duration_ms(self.reset.removeprefix(BY_DURATION)))
            found = await self._listed(coordinator, dict.fromkeys(partitions, since), timeout_ms)
            # No record is that young: begin at the end, not at whatever comes up by chance.
            none = dict.fromkeys((partition for partition, at in found.items() if at.offset < 0), LATEST_TIMESTAMP)
            ends = await self._listed(coordinator, none, timeout_ms) if none else {}
            return Starts(reset={**found, **ends})
        return Starts(unknown=partitions)

    async def _listed(
        self, coordinator: ConsumerCoordinator, wanted: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        rows = await list_offsets(
            coordinator.cluster, wanted, Deadline.after(timeout_ms), read_committed=self.read_committed
        )
        return {partition: OffsetAndMetadata(row.offset, row.leader_epoch) for partition, row in rows.items()}


def no_offset(unknown: Mapping[TopicPartition, str]) -> NoOffsetError:
    """What to raise for partitions that have no position (and why) and no policy."""
    reasons = "; ".join(sorted(set(unknown.values())))
    return NoOffsetError(
        f"nowhere to begin {listed(unknown)}, and auto.offset.reset is none: commit offsets first, seek, or choose earliest or"
        f" latest ({reasons})"
    )
