"""The logs of a simulation run whose members send Fetch requests: real record batches, and the expected records.

A :class:`RecordedLog` is the production log, and also stores the value of each record that a consumer must receive. Checkers
compare delivered records with these values, and not with the batches. Every value is unique in a run: it has the number of the
log, and the number of the record in this log.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from random import Random

from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.topic_settings import LogSettings
from consumer_coord.topic_partition import TopicPartition

#: The producers of transactions, by producer id.
_PRODUCERS = (7, 8)

#: The offset and the value of a record.
Row = tuple[int, bytes]


class RecordedLog(PartitionLog):
    """A log that contains records. With ``transactions``, some records belong to transactions, which commit or abort.

    A truncation ends a *version* of the log. Versions are numbered from 0, and share the records before each truncation.
    """

    def __init__(
        self,
        settings: LogSettings,
        *,
        number: int,
        partition: TopicPartition,
        random: Random,
        wall_clock_ms: Callable[[], int],
        transactions: bool,
        keys: int = 0,
    ) -> None:
        """Create an empty log; most of its records have one of ``keys`` keys."""
        super().__init__(settings)
        self._keys = keys
        self.number = number
        #: The partition to which the log belongs, and the time at which a topic of the same name replaced its topic.
        self.partition = partition
        self.replaced_at: float = math.inf
        #: Whether every transaction ends with the call that began it.
        self.calm = not transactions
        self._transactions = transactions
        self._random = random
        self._wall_clock_ms = wall_clock_ms
        self._written = 0
        #: Offset -> value of each committed record.
        self._values: dict[int, bytes] = {}
        #: Producer id -> the records of its open transaction.
        self._pending: dict[int, dict[int, bytes]] = {}
        #: (offset, the removed records) of each truncation.
        self._truncations: list[tuple[int, dict[int, bytes]]] = []

    # -- writing ----------------------------------------------------------------------------------------------------

    def produce(self, count: int, leader_epoch: int) -> None:
        """Append ``count`` records in one batch; a log with transactions may begin or end a transaction."""
        producer_id = self._random.choice((-1, -1, *_PRODUCERS)) if self._transactions else -1
        if count:
            values = [b"%d:%d" % (self.number, self._written + index) for index in range(count)]
            self._written += count
            base = self.append_records(
                [(self.key_of(value), value) for value in values], self._wall_clock_ms(), leader_epoch, producer_id, 0
            )
            written = self._values if producer_id < 0 else self._pending.setdefault(producer_id, {})
            written.update(enumerate(values, base))
        if self.calm:
            self.settle(leader_epoch)
        elif self._pending and self._random.random() < 0.4:
            self._end_transaction(self._random.choice(sorted(self._pending)), leader_epoch)

    def key_of(self, value: bytes) -> bytes | None:
        """Return the key of the record with this value; None for a fifth of the records."""
        number = zlib.crc32(value) if self._keys else 0
        return b"key-%d" % (number // 5 % self._keys) if number % 5 else None

    def settle(self, leader_epoch: int) -> None:
        """End all open transactions. From now on, each transaction ends with the call that begins it."""
        self.calm = True
        for producer_id in sorted(self._pending):
            self._end_transaction(producer_id, leader_epoch)

    def _end_transaction(self, producer_id: int, leader_epoch: int) -> None:
        committed = self._random.random() < 0.5
        records = self._pending.pop(producer_id)
        if committed:
            self._values.update(records)
        self.append_marker(self._wall_clock_ms(), leader_epoch, producer_id, 0, committed)

    def truncate_to(self, offset: int, leader_epoch: int) -> None:
        """Remove the records from ``offset`` on, like the production log, and remember them as the end of a version."""
        super().truncate_to(offset, leader_epoch)
        removed = {at: self._values.pop(at) for at in sorted(self._values) if at >= offset}
        self._truncations.append((offset, removed))

    @property
    def truncations(self) -> int:
        """The number of truncations so far."""
        return len(self._truncations)

    @property
    def batch_starts(self) -> Sequence[int]:
        """The base offsets of the batches after the log start offset. A truncation may begin at these offsets."""
        return [batch.base_offset for batch in self._batches if batch.base_offset >= self.log_start_offset]

    # -- for checkers -----------------------------------------------------------------------------------------------

    def version_of(self, rows: Sequence[Row]) -> int | None:
        """Return the newest version in which the records from the first to the last row are exactly ``rows``, or None."""
        first, last = rows[0][0], rows[-1][0]
        for version in range(len(self._truncations), -1, -1):
            there = ((offset, self._value(version, offset)) for offset in range(first, last + 1))
            if [row for row in there if row[1] is not None] == list(rows):
                return version
        return None

    def is_undecided(self, offset: int) -> bool:
        """Return whether a record belongs to an open transaction."""
        return any(offset in records for records in self._pending.values())

    def committed_records(self, first: int, end: int) -> list[Row]:
        """Return the offsets and values of the committed records from ``first`` up to, not including, ``end``."""
        return [(offset, self._values[offset]) for offset in range(max(first, 0), end) if offset in self._values]

    def cut_at(self, version: int) -> float:
        """Return the offset above which later versions share no record with ``version``; infinite for the newest version."""
        return min((offset for offset, _ in self._truncations[version:]), default=math.inf)

    def first_record(self, offset: int, version: int | None = None) -> int:
        """Return the first offset from ``offset`` on that has a committed or still undecided record, or else the end offset."""
        pending = [at for records in self._pending.values() for at in records if at >= offset]
        end = min(pending, default=self.end_offset)
        while offset < end and self._value(len(self._truncations) if version is None else version, offset) is None:
            offset += 1
        return offset

    def _value(self, version: int, offset: int) -> bytes | None:
        for cut, removed in self._truncations[version:]:
            if offset >= cut:
                return removed.get(offset)
        return self._values.get(offset)
