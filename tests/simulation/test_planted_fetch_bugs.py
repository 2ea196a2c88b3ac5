"""Bugs planted in the package's own Fetch, from the request to the columns, are found by drawn histories.

Members read columns (``consume_arrow``). Without its bug the same history keeps every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.columns import ArrowColumns, CompletedFetch
from consumer_coord.consumer.arrow_reads import ArrowReads, Bounds, Request
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.reading.chunks import Chunk, Cursor, Decoding
from consumer_coord.fetch import FetchedRecords, Fetcher, FetchStart, Stopped
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.fetch.sessions import FetchSession, SessionPart, Wanted
from consumer_coord.offsets import OFFSET_END
from consumer_coord.simulation import loop
from consumer_coord.simulation.drawing import draw_scenario, with_reads
from consumer_coord.topic_partition import TopicPartition
from tests.fetch.test_planted_bugs import changed_offsets_are_not_sent
from tests.support.simulation.planting import assert_found, former

SEEDS = range(100)

Patch = pytest.MonkeyPatch

# -- fetch/


def _name_no_epoch(patch: Patch) -> None:
    """A request does not name the leader epoch of the last record: a truncation goes unnoticed."""
    build = FetchSession.build

    def forgetful(self: FetchSession, version: int, wanted: Mapping[TopicPartition, Wanted]) -> SessionPart:
        return build(self, version, {one: attrs.evolve(what, last_fetched_epoch=-1) for one, what in wanted.items()})

    patch.setattr(FetchSession, "build", forgetful)


def _ask_old_brokers_for_no_epoch(patch: Patch) -> None:
    """Brokers below Fetch version 12 are not asked where an epoch ended."""
    patch.setattr(BrokerFetches, "_needs_validation", lambda self, state: False)


def _keep_a_session_that_the_broker_forgot(patch: Patch) -> None:
    """After FETCH_SESSION_ID_NOT_FOUND the same session is used again."""
    patch.setattr(FetchSession, "not_found", lambda self: None)


def _list_no_aborted_transaction(patch: Patch) -> None:
    """The records of aborted transactions are delivered."""
    deliver = Fetcher.deliver

    def bare(self: Fetcher, state: FetchState, records: FetchedRecords, size: int, count: int) -> None:
        deliver(self, state, attrs.evolve(records, aborted=()), size, count)

    patch.setattr(Fetcher, "deliver", bare)


def do_not_notice_the_end_of_an_idle_log(patch: Patch) -> None:
    """The simulation found this bug in the real code: a Fetch without changes to its session is repeated without a pause."""
    patch.setattr(BrokerFetches, "_note_ends", lambda self, rows, named, states: None)


def ask_followers_for_epochs(patch: Patch) -> None:
    """The simulation found this bug in the real code: the nearest replica is asked where an epoch ended, and refuses."""

    async def validate(self: BrokerFetches, states: Mapping[TopicPartition, FetchState]) -> None:
        broker = self._leaders.broker(self.broker_id)
        assert broker is not None
        await self._validate_with(broker, states)

    patch.setattr(BrokerFetches, "_validate", validate)


# -- the reader and the fetcher


def begin_without_the_epoch_of_the_commit(patch: Patch) -> None:
    """A reading does not begin with the leader epoch of its start; the simulation found this bug."""
    assign = Fetcher.assign

    def forgetful(self: Fetcher, starts: Mapping[TopicPartition, FetchStart]) -> None:
        assign(self, {one: attrs.evolve(start, leader_epoch=-1) for one, start in starts.items()})

    patch.setattr(Fetcher, "assign", forgetful)


def _begin_again_after_a_truncation(patch: Patch) -> None:
    """A truncation counts as an offset out of range, although the leader said where the logs agree."""
    take = Fetcher.take

    def forgetful(self: Fetcher, max_bytes: int) -> list[FetchedRecords | Stopped]:
        found = take(self, max_bytes)
        return [attrs.evolve(one, end_offset=-1, end_epoch=-1) if isinstance(one, Stopped) else one for one in found]

    patch.setattr(Fetcher, "take", forgetful)


def _free_nothing(patch: Patch) -> None:
    """The bytes of delivered records count for ever."""
    patch.setattr(Fetcher, "advance", lambda self, partition, serial, next_offset: None)


# -- chunks.py


def _stand_before_the_chunk(patch: Patch) -> None:
    """The position of a partition whose records were delivered is the one before them."""
    batch = ArrowReads.batch

    def before(self: ArrowReads, decoding: Decoding) -> ArrowColumns:
        decoding.cursors.clear()
        return batch(self, decoding)

    patch.setattr(ArrowReads, "batch", before)


def _keep_a_decoder_that_moved_ahead(patch: Patch) -> None:
    """A cancelled decoding leaves the decoder after records that no application received."""
    decoder = Chunk.decoder

    def careless(self: Chunk, position: int) -> CompletedFetch:
        return self._decoder if self._decoder is not None else decoder(self, position)

    patch.setattr(Chunk, "decoder", careless)


def _deliver_the_rest_again(patch: Patch) -> None:
    """The rest of a chunk, after a part was delivered, is the whole chunk."""
    decode = former(Decoding, "_decode")

    def whole(self: Decoding, chunk: Chunk, cursor: Cursor, end: int) -> None:
        decode(self, chunk, cursor, end)
        if chunk.at in self.cursors and self.cursors[chunk.at].next < chunk.end:
            self.cursors[chunk.at] = cursor

    patch.setattr(Decoding, "_decode", whole)


# -- arrow_reads.py


def _commit_what_was_fetched(patch: Patch) -> None:
    """A batch commits the position behind everything that was fetched."""
    batch = ArrowReads.batch

    def generous(self: ArrowReads, decoding: Decoding) -> ArrowColumns:
        made = batch(self, decoding)
        fetched = {one.at: one.end for one in self.reader._queue if isinstance(one, Chunk)}
        made.fetched_under = {
            partition: entry._replace(
                position=attrs.evolve(entry.position, offset=fetched.get(partition, entry.position.offset))
            )
            for partition, entry in made.fetched_under.items()
        }
        return made

    patch.setattr(ArrowReads, "batch", generous)


def _keep_what_has_no_record(patch: Patch) -> None:
    """A response whose records were all aborted is decoded again and again."""
    patch.setattr(loop, "MAX_STEPS_PER_MOMENT", 60_000)
    pass_over = ArrowReads.pass_over

    def stuck(self: ArrowReads, decoding: Decoding, bounds: Bounds | None) -> None:
        if decoding.failure is not None:
            pass_over(self, decoding, bounds)

    patch.setattr(ArrowReads, "pass_over", stuck)


# -- bounded reads


def _take_minus_one_for_an_offset(patch: Patch) -> None:
    """Where no record is recent enough, offsets_for_times returns OFFSET_END: the read ends before it began."""
    bounded = Bounds.end_of

    def end(self: Bounds, partition: TopicPartition) -> int | None:
        given = {} if self._given is None else self._given
        return -1 if given.get(partition) == OFFSET_END else bounded(self, partition)

    def beyond(self: Bounds, partition: TopicPartition) -> int:
        return self.end_of(partition) or 0

    patch.setattr(Bounds, "end_of", end)
    patch.setattr(Bounds, "end", beyond)


def _read_beyond_the_bound(patch: Patch) -> None:
    """The batch that contains the end of a bounded read is decoded to its end."""
    decoding = ArrowReads.decoding

    def unbounded(self: ArrowReads, request: Request) -> Decoding:
        return decoding(self, attrs.evolve(request, bounds=None))

    patch.setattr(ArrowReads, "decoding", unbounded)


def _forget_partitions_without_an_end(patch: Patch) -> None:
    """A partition whose end was not looked up yet does not keep a bounded read from ending."""
    left = Bounds.unread

    def known(self: Bounds, *about: Any) -> frozenset[TopicPartition]:
        return frozenset(one for one in left(self, *about) if self.end_of(one) is not None)

    async def look_up(self: Bounds, engine: Engine, _: frozenset[TopicPartition]) -> None:
        unknown = frozenset(one for one in engine.table if self.end_of(one) is None)
        await looked_up(self, engine, unknown)

    looked_up = Bounds.look_up_ends
    patch.setattr(Bounds, "unread", known)
    patch.setattr(Bounds, "look_up_ends", look_up)


def _end_where_the_log_ends(patch: Patch) -> None:
    """The end of a bounded read moves with the end of the log."""
    look_up = Bounds.look_up_ends

    async def again(self: Bounds, engine: Engine, left: frozenset[TopicPartition]) -> None:
        self._found.clear()
        await look_up(self, engine, left)

    patch.setattr(Bounds, "look_up_ends", again)


#: name -> the bug, and the rules that may be broken. ``test_seeds_that_failed.py`` plants the bugs that the simulation found.
PLANTED: dict[str, tuple[Callable[[Patch], None], set[str]]] = {
    "name no epoch": (_name_no_epoch, {"records", "skipped", "again"}),
    "ask old brokers for no epoch": (_ask_old_brokers_for_no_epoch, {"records", "skipped", "again"}),
    "send no changed offset": (changed_offsets_are_not_sent, {"raised", "liveness", "skipped"}),
    "keep a session that the broker forgot": (_keep_a_session_that_the_broker_forgot, {"liveness", "freshness", "storms"}),
    "list no aborted transaction": (_list_no_aborted_transaction, {"records"}),
    "begin again after a truncation": (_begin_again_after_a_truncation, {"again", "records", "skipped", "durability"}),
    "free nothing": (_free_nothing, {"liveness", "freshness"}),
    "stay before the chunk": (_stand_before_the_chunk, {"again", "records", "liveness"}),
    "keep a decoder that moved ahead": (_keep_a_decoder_that_moved_ahead, {"records", "skipped"}),
    "deliver the rest again": (_deliver_the_rest_again, {"again", "records"}),
    "commit what was fetched": (_commit_what_was_fetched, {"skipped", "durability"}),
    "keep what has no record": (_keep_what_has_no_record, {"liveness"}),
    "take -1 for an offset": (_take_minus_one_for_an_offset, {"bounded"}),
    "read beyond the bound": (_read_beyond_the_bound, {"bounded"}),
    "forget partitions without an end": (_forget_partitions_without_an_end, {"bounded"}),
    "end where the log ends": (_end_where_the_log_ends, {"bounded"}),
}

#: Where a finding was last: played first.  When the drawing changes, all seeds are played until one finds it.
_FOUND_BY = {
    "name no epoch": 5,
    "ask old brokers for no epoch": 93,
    "keep a session that the broker forgot": 2,
    "begin again after a truncation": 5,
    "stay before the chunk": 1,
    "keep a decoder that moved ahead": 2,
    "deliver the rest again": 1,
    "commit what was fetched": 34,
    "take -1 for an offset": 11,
    "read beyond the bound": 5,
    "forget partitions without an end": 6,
    "end where the log ends": 6,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    assert_found(
        name, PLANTED[name], lambda seed: with_reads(draw_scenario(seed), "columns"), SEEDS, _FOUND_BY.get(name), monkeypatch
    )
