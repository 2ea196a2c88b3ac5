"""One partition's part of a Fetch response with its decoder, for consumers and for the Spark source."""

from __future__ import annotations

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import CompletedFetch
from consumer_coord.fetch.values import FetchedRecords
from consumer_coord.topic_partition import TopicPartition


@attrs.define(eq=False)
class FetchedChunk:
    """Records of one partition in one Fetch response."""

    records: FetchedRecords
    _check_crcs: bool
    _read_committed: bool
    _decoder: CompletedFetch | None = attrs.field(default=None, init=False)

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return self.records.partition

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.records.next_offset

    @property
    def epoch(self) -> int:
        """The leader epoch of the last batch."""
        return self.records.leader_epoch

    @property
    def serial(self) -> int:
        """The number of the Fetches that brought the chunk."""
        return self.records.serial

    @property
    def size(self) -> int:
        """Size of the record batches, in bytes."""
        return len(self.records.records)

    @property
    def position(self) -> int:
        """The offset from which the last decoder goes on."""
        return self.records.offset if self._decoder is None else self._decoder.next_offset

    def decoder(self, position: int) -> CompletedFetch:
        """Return a decoder at a position inside this chunk."""
        if self._decoder is None or self._decoder.interrupted or self._decoder.next_offset != position:
            self._decoder = CompletedFetch(
                self.records.records,
                topic=self.at.topic,
                partition=self.at.partition,
                offset=position,
                aborted=self.records.aborted,
                read_committed=self._read_committed,
                check_crcs=self._check_crcs,
            )
        return self._decoder
