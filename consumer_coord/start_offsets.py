"""Where to begin reading a partition: the group's commit, or what ``auto.offset.reset`` says."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping

from consumer_coord.coordinator import ConsumerCoordinator
from consumer_coord.data_plane import EARLIEST, LATEST
from consumer_coord.errors import NoOffsetError
from consumer_coord.list_offsets import LATEST as LATEST_TIMESTAMP
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition, listed

BY_DURATION = "by_duration:"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def duration_ms(text: str) -> float:
    """ISO 8601's PnDTnHnMnS in milliseconds (KIP-1106)."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration like P1DT12H30M5S")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) / datetime.timedelta(milliseconds=1)


async def starting_positions(
    coordinator: ConsumerCoordinator, partitions: Iterable[TopicPartition], reset: str, timeout_ms: float
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """A position to start each partition at.

    Raises :class:`~consumer_coord.errors.NoOffsetError` when there is no commit and ``reset`` is ``error``.
    """
    wanted = frozenset(partitions)
    committed = await coordinator.committed(wanted, timeout_ms)
    found = {partition: position for partition, position in committed.items() if position is not None}
    missing = wanted - found.keys()
    if missing:
        found.update(await reset_positions(coordinator, missing, reset, timeout_ms))
    return found


async def reset_positions(
    coordinator: ConsumerCoordinator, partitions: frozenset[TopicPartition], reset: str, timeout_ms: float
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Positions for partitions without a commit."""
    if reset == "earliest":
        return dict.fromkeys(partitions, EARLIEST)
    if reset == "latest":
        return dict.fromkeys(partitions, LATEST)
    if reset.startswith(BY_DURATION):
        since = coordinator.cluster.environment.wall_clock_ms() - int(duration_ms(reset.removeprefix(BY_DURATION)))
        found = await coordinator.list_offsets(dict.fromkeys(partitions, since), timeout_ms)
        # No record is that young: begin at the end, not at whatever comes up by chance.
        ends = [partition for partition, row in found.items() if row.offset < 0]
        last = await coordinator.list_offsets(dict.fromkeys(ends, LATEST_TIMESTAMP), timeout_ms) if ends else {}
        return {partition: OffsetAndMetadata(last.get(partition, row).offset) for partition, row in found.items()}
    raise NoOffsetError(
        f"no committed offset for {listed(partitions)}, and auto.offset.reset is none: commit offsets first, seek in"
        " on_assign, or choose earliest or latest"
    )
