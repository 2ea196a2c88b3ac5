"""Bugs in the reading of wrong answers are found by drawn histories that have one kind of wrong answers only."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.consumer import start_lookups
from consumer_coord.errors import IncompleteResponseError, MalformedMessageError
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.sessions import FetchSession
from consumer_coord.group import committed_offsets
from consumer_coord.group.committed_offsets import CommittedOffsets, Fetched
from consumer_coord.leaders import list_offsets
from consumer_coord.net import group_requests
from consumer_coord.net.answers import AnswerCheck, Matched
from consumer_coord.net.group_requests import FetchedOffset
from consumer_coord.simulation.drawing import draw_scenario, with_reads
from consumer_coord.simulation.faults import KINDS
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import FetchResponse, PartitionData
from tests.support.simulation.planting import assert_found, look_up_again_at_once

SEEDS = range(100)
WRONG = frozenset({"lack", "foreign", "refuse", "senseless", "groupless", "lack-fetch", "foreign-fetch"})

Patch = pytest.MonkeyPatch


def _an_absent_commit_is_no_commit(patch: Patch) -> None:
    honest = AnswerCheck.match

    def match(self: AnswerCheck, request: str, *arguments: Any, **named: Any) -> Matched[Any, Any]:
        matched = honest(self, request, *arguments, **named)
        if request != "OffsetFetch":
            return matched
        absent = {one: FetchedOffset(one, 0, -1, -1, "") for one in matched.unanswered if isinstance(one, TopicPartition)}
        return Matched({**matched.rows, **absent}, {one: why for one, why in matched.unanswered.items() if one not in absent})

    patch.setattr(AnswerCheck, "match", match)


def _an_absent_group_has_no_commits(patch: Patch) -> None:
    honest = group_requests.offsets_in

    def offsets_in(*arguments: Any) -> tuple[int, Iterable[FetchedOffset]]:
        try:
            return honest(*arguments)
        except IncompleteResponseError:
            return error_codes.NONE, ()

    patch.setattr(committed_offsets, "offsets_in", offsets_in)
    _an_absent_commit_is_no_commit(patch)


def _an_error_row_is_no_commit(patch: Patch) -> None:
    honest = group_requests.offsets_in

    def offsets_in(*arguments: Any) -> tuple[int, Iterable[FetchedOffset]]:
        code, rows = honest(*arguments)
        unknown = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return code, [attrs.evolve(row, error_code=0) if row.error_code == unknown else row for row in rows]

    patch.setattr(committed_offsets, "offsets_in", offsets_in)


def _minus_one_is_an_offset(patch: Patch) -> None:
    patch.setattr(list_offsets, "_senseless", lambda timestamp, row: None)
    # With the back-off, the client would survive it without a storm of requests.
    look_up_again_at_once(patch)


def _rows_are_read_by_their_place(patch: Patch) -> None:
    honest = AnswerCheck.match

    def match(self: AnswerCheck, request: str, sender: str, asked: Any, rows: Iterable[Any], *more: Any) -> Matched[Any, Any]:
        listed = list(rows)
        placed = [(key, row) for key, (_, row) in zip(asked, listed, strict=False)] if len(listed) > len(asked) else listed
        return honest(self, request, sender, asked, placed, *more)

    patch.setattr(AnswerCheck, "match", match)


def _look_up_again_at_once(patch: Patch) -> None:
    patch.setattr(start_lookups, "_EARLY_S", math.inf)


def _fetch_again_at_once(patch: Patch) -> None:
    patch.setattr(BrokerFetches, "_pace", lambda self, broker, lane, response, early: None)


def _a_refused_row_costs_all(patch: Patch) -> None:
    honest = CommittedOffsets.fetched

    async def fetched(self: CommittedOffsets, *arguments: Any, **named: Any) -> Fetched:
        result = await honest(self, *arguments, **named)
        if not result.failed:
            return result
        return Fetched({}, {**dict.fromkeys(result.found, next(iter(result.failed.values()))), **result.failed})

    patch.setattr(CommittedOffsets, "fetched", fetched)


def _a_foreign_row_drops_the_response(patch: Patch) -> None:
    honest = FetchSession.answered

    def answered(self: FetchSession, response: FetchResponse, *more: Any) -> Matched[TopicPartition, PartitionData]:
        matched = honest(self, response, *more)
        if len(matched.rows) < sum(len(topic.partitions) for topic in response.responses):
            raise MalformedMessageError("a row that was not asked for")
        return matched

    patch.setattr(FetchSession, "answered", answered)


_SKIPPED = frozenset({"skipped", "twice", "durability", "rewind", "again"})
#: name -> the bug, the kind of wrong answers that reveals it, and the rules that it breaks.
PLANTED: Mapping[str, tuple[Callable[[Patch], None], str, Collection[str]]] = {
    "an absent commit is no commit": (_an_absent_commit_is_no_commit, "lack", _SKIPPED),
    "an absent group has no commits": (_an_absent_group_has_no_commits, "groupless", _SKIPPED),
    "an error row is no commit": (_an_error_row_is_no_commit, "refuse", _SKIPPED),
    "-1 is an offset": (_minus_one_is_an_offset, "senseless", {*_SKIPPED, "crash", "raised", "liveness", "stranded", "storms"}),
    "rows are read by their place": (_rows_are_read_by_their_place, "foreign", {*_SKIPPED, "agreement", "crash"}),
    "a refused row costs all": (_a_refused_row_costs_all, "refuse", {"liveness"}),
    "a foreign row drops the response": (_a_foreign_row_drops_the_response, "foreign-fetch", {"liveness"}),
    "look up again at once": (_look_up_again_at_once, "refuse", {"storms", "liveness"}),
    "fetch again at once": (_fetch_again_at_once, "lack-fetch", {"storms"}),
    "fetched rows are read by their place": (
        _rows_are_read_by_their_place,
        "foreign-fetch",
        {*_SKIPPED, "records", "identity", "raised"},
    ),
}


#: The seed that found a bug last: played first. When the drawing changes, all seeds are played until one finds the bug.
_FOUND_BY = {
    "an absent commit is no commit": 1,
    "an absent group has no commits": 2,
    "an error row is no commit": 87,
    "-1 is an offset": 35,
    "rows are read by their place": 21,
    "a refused row costs all": 3,
    "a foreign row drops the response": 3,
    "look up again at once": 22,
    "fetch again at once": 31,
    "fetched rows are read by their place": 3,
}


def _scenario(seed: int, kind: str) -> Scenario:
    """Return a drawn scenario with wrong answers of one kind only."""
    scenario = with_reads(draw_scenario(seed), "columns") if KINDS[kind].fetching else draw_scenario(seed)
    if kind == "lack-fetch":
        # On a slow network, a Fetch that is repeated without a pause is no storm.
        scenario = attrs.evolve(scenario, latency_ms=0.5)
    return attrs.evolve(scenario, faults=tuple(one for one in scenario.faults if one.kind not in WRONG - {kind}))


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, kind, rules = PLANTED[name]
    assert_found(name, (plant, rules), lambda seed: _scenario(seed, kind), SEEDS, _FOUND_BY.get(name), monkeypatch)
