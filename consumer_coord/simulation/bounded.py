"""The bounded reads of applications that read columns, and the rule *bounded*: each read ends at the right offsets.

The rule does not trust the end offsets that the consumer looked up. Without a given offset, a read must reach the end that the
log had when the read began, or when the partition was assigned during the read. The read must not pass the end that the log had
at the delivery of the first record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from random import Random

import attrs

from consumer_coord.columns import ArrowColumns
from consumer_coord.leaders.list_offsets import list_offsets
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import OFFSET_END
from consumer_coord.retry import Deadline
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.holdings import Holding
from consumer_coord.simulation.record_log import RecordedLog, Row
from consumer_coord.topic_partition import TopicPartition

#: The kinds of ends: the ends of all logs (no offsets given), the same ends given as offsets, other offsets, and the first
#: offsets at or after a time.
KINDS = ("now", "ends", "offsets", "times")

#: Maximum age of the times at which reads end, in milliseconds.
_OLDEST_MS = 20_000

#: Time limit for the look-up of offsets by time, in milliseconds.
_LIMIT_MS = 2_000


async def draw_bounds(
    random: Random, cluster: SimulatedCluster, client: ClusterClient, held: Sequence[TopicPartition]
) -> Mapping[TopicPartition, int] | None:
    """Draw where a read ends, as partition -> offset (OFFSET_END: the end of the log), or None for the ends of all logs."""
    kind = random.choice(KINDS)
    if kind == "now" or not held:
        return None
    ends = {partition: log.last_stable_offset for partition in held if (log := _log(cluster, partition)) is not None}
    if kind == "ends":
        return ends
    if kind == "offsets":
        chosen = [partition for partition in ends if random.random() < 0.7] or list(ends)[:1]
        return {one: random.randint(min(cluster.log_start(one), ends[one]), ends[one]) for one in chosen}
    moment_ms = cluster.wall_clock_ms() - random.randint(-1_000, _OLDEST_MS)
    found = await list_offsets(client, dict.fromkeys(ends, moment_ms), Deadline.after(_LIMIT_MS))
    return {partition: row.offset for partition, row in sorted(found.complete().items())}


def _log(cluster: SimulatedCluster, partition: TopicPartition) -> RecordedLog | None:
    log = cluster.log(partition)
    return log if isinstance(log, RecordedLog) else None


@attrs.define(eq=False)
class BoundedRead:
    """A bounded read of a member, with the offsets at which the read may end, taken from the logs."""

    name: str
    batches: AsyncIterator[ArrowColumns]
    _cluster: SimulatedCluster
    _given: Mapping[TopicPartition, int] | None
    #: Partition -> the log, the number of truncations, and the end of the log when the member first owned the partition during
    #: the read.
    _first: dict[TopicPartition, tuple[RecordedLog, int, int]] = attrs.field(factory=dict)
    #: Partition -> the end of the log at the first delivery.
    _last: dict[TopicPartition, int] = attrs.field(factory=dict)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Record the logs of partitions that the member owns from now on."""
        for partition in partitions:
            log = _log(self._cluster, partition)
            if log is not None and partition not in self._first:
                self._first[partition] = (log, log.truncations, log.last_stable_offset)

    @property
    def may_wait(self) -> bool:
        """Whether the read may wait for records that never arrive: a truncation removed them, or the topic was recreated."""
        given = {} if self._given is None else self._given
        return any(
            offset != OFFSET_END and offset > (self._cluster.end_offset(partition) or 0) for partition, offset in given.items()
        )

    def delivers(self, partition: TopicPartition, rows: Sequence[Row]) -> None:
        """Check that no delivered record is at or after the end of the read."""
        given = self._wanted(partition)
        if given != OFFSET_END:
            most: int | None = given
        elif self._is_same_log(partition):
            log = self._first[partition][0]
            most = self._last.setdefault(partition, log.last_stable_offset)
        else:
            most = None
        if most is not None and rows[-1][0] >= most:
            raise Violation("bounded", f"{self.name} delivered {rows[-1][0]} of {partition} in a read that ends before {most}")

    def ends(self, holdings: Iterable[Holding]) -> None:
        """Check that the read delivered every record before the end, in the partitions that the member owns."""
        for holding in holdings:
            partition = holding.partition
            if not self._is_same_log(partition) or holding.may_begin or holding.adrift or holding.resumes_at is not None:
                continue
            log, _, end = self._first[partition]
            wanted = self._wanted(partition)
            end = end if wanted == OFFSET_END else wanted
            if holding.start is None and (holding.owner.reset != "earliest" or log.truncations):
                # The member may have started at the end of the log, or at a committed offset that a truncation removed
                # without the member's knowledge.
                continue
            at = holding.committed_before if holding.start is None else holding.position
            if at < log.log_start_offset and holding.owner.reset != "earliest":
                # Retention removed the position, and the member continued at the end of the log.
                continue
            at = max(at, log.log_start_offset)
            left = log.first_record(at)
            if left < min(end, log.end_offset):
                raise Violation("bounded", f"{self.name} ended a read of {partition} at {at}, but must read up to {end}")

    def _wanted(self, partition: TopicPartition) -> int:
        return OFFSET_END if self._given is None else self._given.get(partition, 0)

    def _is_same_log(self, partition: TopicPartition) -> bool:
        """Return whether the partition still has the same log as at the start of the read, without a new truncation."""
        log, truncations, _ = self._first.get(partition, (None, 0, 0))
        return log is not None and log is self._cluster.log(partition) and log.truncations == truncations
