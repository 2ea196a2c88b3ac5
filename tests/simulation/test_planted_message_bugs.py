"""Bugs planted in the reading of messages, from the fetcher to the rows, are found by drawn histories.

Without its bug the same history keeps every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.columns import CompletedFetch
from consumer_coord.columns.rows import Messages, Rows
from consumer_coord.consumer.chunks import Chunk
from consumer_coord.consumer.message_plane import MessagePlane
from consumer_coord.fetch.broker import BrokerFetches
from consumer_coord.fetch.error_steps import Step
from consumer_coord.fetch.fetcher import Fetcher
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.offsets import OffsetAndMetadata
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
    decode, step = Messages.decode, former(MessagePlane, "_decode")

    def few(self: Messages, fetch: CompletedFetch, kept: Any) -> Rows:
        return decode(self, fetch, kept, max_records=3)

    def careless(self: MessagePlane, chunk: Chunk) -> Rows | None:
        rows: Rows | None = step(self, chunk)
        if rows is not None and chunk.start > chunk.records.offset and len(rows) > 1:
            rows.take(1)
        return rows

    patch.setattr(Messages, "decode", few)
    patch.setattr(MessagePlane, "_decode", careless)


def _decode_a_chunk_again(patch: Patch) -> None:
    """Rows that one call leaves behind are let go, and the next call decodes their chunk from its beginning."""
    take = MessagePlane.take

    def forgetful(self: MessagePlane, most: int) -> list[Any]:
        found = take(self, most)
        self._rows = None
        return found

    patch.setattr(MessagePlane, "take", forgetful)


def _hand_out_rows_backwards(patch: Patch) -> None:
    """A call that takes two rows returns the later one first."""
    take = MessagePlane.take

    def backwards(self: MessagePlane, most: int) -> list[Any]:
        found = take(self, most)
        return found[::-1] if len(found) == 2 else found

    patch.setattr(MessagePlane, "take", backwards)


# -- the reader


def _count_chunks_of_a_former_reading(patch: Patch) -> None:
    """A chunk in the queue counts for a later reading of its partition, too."""
    assign = MessagePlane.assign

    async def generous(self: MessagePlane, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await assign(self, positions)
        for chunk in self._queue:
            if isinstance(chunk, Chunk) and chunk.at in positions:
                chunk.records = attrs.evolve(chunk.records, serial=self._readings[chunk.at].serial)

    patch.setattr(MessagePlane, "assign", generous)


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
    "hand out rows backwards": (_hand_out_rows_backwards, {"records", "again", "skipped"}),
    "late answers count": (late_answers_count, {"again", "skipped", "records", "twice"}),
    "ignore an offset out of range": (_ignore_an_offset_out_of_range, {"liveness", "health", "stranded"}),
    "stay with the former leader": (_stay_with_the_former_leader, {"liveness", "health"}),
    "begin at the offset of the response": (_begin_at_the_offset_of_the_response, {"again", "records"}),
}

#: Where a finding was last: played first. When the drawing changes, all seeds are played until one finds it.
_FOUND_BY = {"count chunks of a former reading": 2, "stay with the former leader": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    assert_found(name, PLANTED[name], draw_scenario, SEEDS, _FOUND_BY.get(name), monkeypatch)
