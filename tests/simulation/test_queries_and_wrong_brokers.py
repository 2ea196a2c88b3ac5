"""Spark queries at brokers that edit their responses: each edit of the response to each request of the planner.

A run reads exactly what was there, or fails with a reason; nothing is lost, and no loss is reported of a topic that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import pytest

from consumer_coord.net.connection import Connection
from consumer_coord.net.metadata import NO_TOPIC_ID, Reading
from consumer_coord.net.topic_ids import TopicIds, topic_ids
from consumer_coord.simulation.scenario import Fault
from consumer_coord.simulation.wrong_answers import EDITED, FETCH
from consumer_coord.spark import topic_check
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import peek_correlation_id
from tests.simulation.test_queries import scenario
from tests.simulation.test_wrong_broker import NOT_SENT
from tests.support.simulation.planting import former
from tests.support.simulation.queries import CONTINUOUS, NOW, QueryOutcome, play_queries

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch

#: Trigger -> when the edit begins, in milliseconds: before the query joins, and while it reads.
_BEGINS: Final[Mapping[str, int]] = {NOW: 300, CONTINUOUS: 5_000}


def _played(place: int, trigger: str, protocol: str) -> QueryOutcome:
    """Play a query while the brokers edit responses for six seconds."""
    fault = Fault(_BEGINS[trigger], "edit", place, place % 9, 6_000)
    pattern = (place + len(trigger)) % 2 == 0
    return play_queries(scenario(fault, triggers=(trigger,), protocol=protocol, pattern=pattern))


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", NOT_SENT)
@pytest.mark.parametrize("edit", dict.fromkeys(edit for key, edit in EDITED if edit != "from-below"))
def test_a_query_survives_an_edit_of_the_responses_to_each_request(edit: str, protocol: str) -> None:
    for place, (key, one) in enumerate(EDITED):
        if one == edit and key != FETCH and key not in NOT_SENT[protocol]:
            for trigger in _BEGINS:
                outcome = _played(place, trigger, protocol)
                assert outcome.violation is None, "\n".join([APIS[key].name, trigger, *outcome.lines[-40:]])


# -- bugs put back


def _an_absent_topic_is_gone(patch: Patch) -> None:
    async def ids(*arguments: Any) -> TopicIds:
        return {name: one for name, one in (await topic_ids(*arguments)).items() if one != NO_TOPIC_ID}

    patch.setattr(topic_check, "topic_ids", ids)


def _answers_have_any_order(patch: Patch) -> None:
    honest = former(Connection, "_answer")

    def answer(self: Connection, frame: bytes | memoryview) -> None:
        told = peek_correlation_id(frame)
        if told in self._in_flight:
            self._in_flight = {told: self._in_flight.pop(told), **self._in_flight}
        honest(self, frame)

    patch.setattr(Connection, "_answer", answer)


def _a_topic_never_loses_partitions(patch: Patch) -> None:
    def is_outdated(self: Reading, topic: Any, old: Any) -> bool:
        return bool(old.id == topic.topic_id and len(topic.partitions) < old.partition_count)

    patch.setattr(Reading, "_is_outdated", is_outdated)


#: Name -> the bug, the rules that it breaks, and the history: request, edit, trigger, protocol.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], Collection[str], tuple[int, str, str, str]]]] = {
    "an absent topic is gone": (_an_absent_topic_is_gone, {"false loss"}, (3, "emptied", NOW, "classic")),
    "answers have any order": (_answers_have_any_order, {"crash"}, (8, "of-another-request", CONTINUOUS, "classic")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, rules, (key, edit, trigger, protocol) = PLANTED[name]
    place = EDITED.index((key, edit))
    assert _played(place, trigger, protocol).violation is None
    plant(monkeypatch)
    violation = _played(place, trigger, protocol).violation
    assert violation is not None
    assert violation.rule in rules


@pytest.mark.thorough
def test_partitions_that_metadata_had_too_many_do_not_hold_a_query_up(monkeypatch: Patch) -> None:
    place = EDITED.index((3, "foreign"))
    outcome = _played(place, CONTINUOUS, "classic")
    assert not [line for line in outcome.lines if "failed" in line]
    _a_topic_never_loses_partitions(monkeypatch)
    outcome = _played(place, CONTINUOUS, "classic")
    assert [line for line in outcome.lines if "failed: RetriableError" in line]
