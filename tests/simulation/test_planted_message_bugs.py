"""Bugs planted in the reading of messages, from the fetcher to the rows, are found by drawn histories.

Without its bug the same history keeps every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs
import pytest

from consumer_coord.columns import CompletedFetch
from consumer_coord.columns.decode_messages import Messages, Rows
from consumer_coord.consumer.partitions import Plan
from consumer_coord.consumer.reading.chunks import Chunk
from consumer_coord.consumer.reading.reader import PartitionReading, Reader
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.error_steps import Step
from consumer_coord.fetch.fetcher import Fetcher
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.simulation.drawing import draw_scenario
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from tests.fetch.test_planted_bugs import late_answers_count
from tests.support.simulation.planting import assert_found, former

SEEDS = range(100)

Patch = pytest.MonkeyPatch

# -- rows


def lose_the_first_row_of_a_step(patch: Patch) -> None:
    """A step that decodes the middle of a chunk hands out its rows from the second on."""
    decode = Messages.decode

    def careless(self: Messages, fetch: CompletedFetch, kept: Any) -> Rows:
        begin = fetch.next_offset
        rows = decode(self, fetch, kept, max_records=3)
        if begin % 3 and len(rows) > 1:
            rows.take(1)
            return cast("Rows", _Shifted(rows, begin))
        return rows

    patch.setattr(Messages, "decode", careless)


class _Shifted:
    """Rows that claim another position until one is taken."""

    def __init__(self, rows: Any, position: int) -> None:
        self._rows, self._position = rows, position

    def __len__(self) -> int:
        return len(self._rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    @property
    def position(self) -> int:
        return self._position if self._position >= 0 else int(self._rows.position)

    def take(self, most: int) -> list[Any]:
        self._position = -1
        found: list[Any] = self._rows.take(most)
        return found


def _decode_a_chunk_again(patch: Patch) -> None:
    """The cursor of a partition stays where it was after messages were decoded, now and then."""
    decode = former(Reader, "_decode")
    count = 0

    def forgetful(self: Reader, chunk: Chunk, index: int, most: int) -> None:
        nonlocal count
        before = self.cursors[chunk.at]
        decode(self, chunk, index, most)
        count += 1
        if count % 5 == 0:
            self.cursors[chunk.at] = before

    patch.setattr(Reader, "_decode", forgetful)


def _hand_out_rows_backwards(patch: Patch) -> None:
    """A call that makes two messages ready returns the later one first."""
    pull = Reader.pull

    def backwards(self: Reader, most: int) -> None:
        pull(self, most)
        if len(self.ready) == 2:
            self.ready.reverse()

    patch.setattr(Reader, "pull", backwards)


# -- the reader


def _count_chunks_of_a_former_reading(patch: Patch) -> None:
    """A chunk in the queue counts for a later reading of its partition, too."""
    apply = Reader.apply

    def generous(self: Reader, plan: Plan, only: frozenset[TopicPartition] | None = None) -> None:
        former = [one for one in self._queue if isinstance(one, Chunk)]
        apply(self, plan, only)
        for chunk in former:
            reading = self._readings.get(chunk.at)
            if reading is not None and reading.on and chunk not in self._queue and chunk.end > self.cursors[chunk.at].next:
                chunk.records = attrs.evolve(chunk.records, serial=reading.serial)
                self._queue.append(chunk)
                self._added += chunk.size

    patch.setattr(Reader, "apply", generous)


def _forget_what_was_set_aside(patch: Patch) -> None:
    """A partition that is read again after a pause goes on behind what was fetched before the pause."""
    include = former(Reader, "_include")

    def forgetful(self: Reader, partition: TopicPartition, reading: PartitionReading) -> None:
        reading.items.clear()
        include(self, partition, reading)

    patch.setattr(Reader, "_include", forgetful)


# -- the fetcher


def _stay_with_the_former_leader(patch: Patch) -> None:
    """A partition whose leader refuses, or is gone, is asked of the same broker for ever."""
    patch.setattr(BrokerFetches, "_find_leader", lambda self, state: None)
    patch.setattr(Fetcher, "_metadata_changed", lambda self, metadata: None)


def _begin_at_the_offset_of_the_response(patch: Patch) -> None:
    """After a response with records, the same records are requested again."""
    take = former(BrokerFetches, "_take_records")

    def stuck(self: BrokerFetches, state: FetchState, row: Any, records: Any, address: str) -> None:
        offset = state.offset
        take(self, state, row, records, address)
        if offset and offset % 7 == 0:
            state.offset = offset

    patch.setattr(BrokerFetches, "_take_records", stuck)


def _ignore_an_offset_out_of_range(patch: Patch) -> None:
    """A partition whose offset retention removed is requested at this offset for ever."""
    refused = former(BrokerFetches, "_refused")

    def patient(self: BrokerFetches, state: FetchState, step: Step, code: int) -> None:
        refused(self, state, Step.BACK_OFF if code == error_codes.OFFSET_OUT_OF_RANGE else step, code)

    patch.setattr(BrokerFetches, "_refused", patient)


#: name -> the bug, and the rules that may be broken.
PLANTED: dict[str, tuple[Callable[[Patch], None], set[str]]] = {
    "lose the first row of a step": (lose_the_first_row_of_a_step, {"records", "skipped"}),
    "decode a chunk again": (_decode_a_chunk_again, {"again", "records"}),
    "count chunks of a former reading": (_count_chunks_of_a_former_reading, {"again", "skipped", "records", "callbacks"}),
    "forget what was set aside": (_forget_what_was_set_aside, {"skipped", "durability", "liveness", "records"}),
    "hand out rows backwards": (_hand_out_rows_backwards, {"records", "again", "skipped"}),
    "late answers count": (late_answers_count, {"again", "skipped", "records", "twice"}),
    "ignore an offset out of range": (_ignore_an_offset_out_of_range, {"liveness", "freshness", "health", "stranded"}),
    "stay with the former leader": (_stay_with_the_former_leader, {"liveness", "freshness", "health"}),
    "begin at the offset of the response": (_begin_at_the_offset_of_the_response, {"again", "records"}),
}

#: Where a finding was last: played first. When the drawing changes, all seeds are played until one finds it.
_FOUND_BY = {
    "count chunks of a former reading": 2,
    "forget what was set aside": 13,
    "stay with the former leader": 2,
    # In most histories, its Fetch is repeated until the history ends.
    "begin at the offset of the response": 81,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    assert_found(name, PLANTED[name], draw_scenario, SEEDS, _FOUND_BY.get(name), monkeypatch)
