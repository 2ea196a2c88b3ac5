"""Brokers that edit their responses: each edit of the response to each request that a consumer sends, in both group protocols.

The client skips and doubles nothing, names what it cannot understand, and reads on after the brokers are honest again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import attrs
import pytest

from consumer_coord.errors import CoordinatorError, UnsupportedVersionError
from consumer_coord.fetch import sessions
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.net.connection import Connection
from consumer_coord.net.metadata import Broker
from consumer_coord.simulation.command import Drawing
from consumer_coord.simulation.edits import EDITS
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario
from consumer_coord.simulation.wrong_answers import CLASSIC, CONSUMER_GROUP_HEARTBEAT, EDITED
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.messages.cluster import MetadataResponse, MetadataResponseBroker
from consumer_coord.wire.messages.offsets import ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse
from tests.support.simulation.planting import assert_found, former
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch

_API_VERSIONS: Final = 18

#: The protocol -> the requests that its members do not send.
NOT_SENT: Final[Mapping[str, Collection[int]]] = {"classic": (CONSUMER_GROUP_HEARTBEAT,), "consumer": CLASSIC}


def _history(place: int, value: int, protocol: str) -> Scenario:
    """Return a history with one edit for six seconds, in which a member starts and another is killed."""
    faults = (Fault(2_000, "edit", place, value, 6_000), Fault(3_000, "start"), Fault(5_500, "kill", 0, 0, 2_000))
    return history(*faults, members=2, brokers=3, topics=(4, 3), protocol=protocol)


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", NOT_SENT)
@pytest.mark.parametrize("edit", dict.fromkeys(edit for _, edit in EDITED))
def test_a_consumer_survives_an_edit_of_the_responses_to_each_request(edit: str, protocol: str) -> None:
    for place, (api_key, one) in enumerate(EDITED):
        if one == edit and api_key not in NOT_SENT[protocol]:
            outcome = play(_history(place, place % 9, protocol))
            assert outcome.violation is None, f"{APIS[api_key].name}\n{outcome.history.tail(40)}"


def _rows(*partitions: int) -> ListOffsetsResponse:
    rows = [ListOffsetsPartitionResponse(partition_index=one, offset=7, leader_epoch=3) for one in partitions]
    return ListOffsetsResponse(throttle_time_ms=0, topics=[ListOffsetsTopicResponse(name="t", partitions=rows)])


def _seen(response: ListOffsetsResponse) -> list[tuple[str, int, int, int]]:
    return [(t.name, row.partition_index, row.offset, row.leader_epoch) for t in response.topics for row in t.partitions]


def test_an_edit_changes_what_its_name_says() -> None:
    def edited(name: str, value: int = 0) -> list[tuple[str, int, int, int]]:
        return _seen(EDITS[name](_rows(0, 1, 2), 7, value))

    whole = [("t", number, 7, 3) for number in range(3)]
    assert edited("omitted", 1) == [whole[0], whole[2]]
    assert edited("omitted") == edited("emptied") == []
    assert edited("doubled") == 2 * [row for row in whole for _ in range(2)]
    assert edited("reversed") == whole[::-1]
    assert edited("foreign") == [
        *[("t-other", number, 7, 3) for number in (1000, 0, 1, 2)],
        *[("t", number, 7, 3) for number in (1000, 0, 1, 2)],
    ]
    assert edited("minus-one", 1) == [whole[0], ("t", 1, -1, -1), whole[2]]
    assert edited("epochless") == [("t", number, 7, -1) for number in range(3)]
    assert edited("error-with-data", 2) == whole
    assert [row.error_code for row in EDITS["error-with-data"](_rows(0, 1, 2), 7, 2).topics[0].partitions] == [0, 0, -1]
    assert EDITS["throttled"](_rows(0), 7, 0).throttle_time_ms == 700


def test_an_edit_leaves_out_what_the_version_does_not_have() -> None:
    brokers = [MetadataResponseBroker(node_id=1, host="a", port=9092)]
    response = MetadataResponse(brokers=brokers, cluster_id="c")
    assert EDITS["throttled"](response, 2, 0).throttle_time_ms == 0
    assert EDITS["throttled"](response, 3, 0).throttle_time_ms == 700
    assert EDITS["emptied"](response, 2, 0).brokers == ()


# -- bugs put back


def _versions_are_asked_once(patch: Patch) -> None:
    async def never(self: Connection, timeout_ms: int) -> bool:
        return False

    patch.setattr(Connection, "_offers_others", never)


def _only_earlier_batches_keep_the_session(patch: Patch) -> None:
    honest = former(BrokerFetches, "_back_off")

    def back_off(self: BrokerFetches, state: FetchState) -> None:
        state.unanswered = False
        honest(self, state)

    patch.setattr(BrokerFetches, "_back_off", back_off)


def _a_negative_end_is_an_end(patch: Patch) -> None:
    patch.setattr(sessions, "_senseless", lambda partition, row: None)


def _an_unsupported_fetch_is_repeated_at_once(patch: Patch) -> None:
    honest = former(BrokerFetches, "_failed")

    def failed(self: BrokerFetches, broker: Broker, states: Any, error: CoordinatorError) -> None:
        if not isinstance(error, UnsupportedVersionError):
            honest(self, broker, states, error)

    patch.setattr(BrokerFetches, "_failed", failed)


def _drawn(seed: int) -> Scenario:
    """Return a drawn history of four members with all kinds of faults."""
    return Drawing(members=4, protocol="any", reads="any", answers="edited", ms=30_000).scenario(seed)


def _only_edits(seed: int) -> Scenario:
    """Return the same history with no other faults."""
    scenario = _drawn(seed)
    return attrs.evolve(scenario, faults=tuple(fault for fault in scenario.faults if fault.kind == "edit"))


def _without_versions(seed: int) -> Scenario:
    """Return a drawn history in which brokers move and offer no version of some requests."""
    scenario = _drawn(seed)
    edit = EDITED.index((_API_VERSIONS, "minus-one" if seed % 2 else "omitted"))
    moves = [fault for fault in scenario.faults if fault.kind in ("start", "kill", "lead", "roll", "crash")]
    faults = sorted([*moves, Fault(8_000 + 10 * seed, "edit", edit, seed % 9, 8_000)], key=lambda fault: fault.at_ms)
    return attrs.evolve(scenario, faults=tuple(faults))


def _small(seed: int) -> Scenario:
    """Return the history in which the versions of some requests are missing."""
    place = EDITED.index((_API_VERSIONS, "omitted"))
    return _history(place, place % 9, "consumer")


#: Name -> the bug, the rules that it breaks, the histories, and the seed that found it.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], Collection[str], Callable[[int], Scenario], int]]] = {
    "versions are asked once": (_versions_are_asked_once, {"liveness", "raised"}, _small, 0),
    "only earlier batches keep the session": (
        _only_earlier_batches_keep_the_session,
        {"liveness", "freshness"},
        _only_edits,
        1091,
    ),
    "a negative end is an end": (_a_negative_end_is_an_end, {"storms"}, _only_edits, 1016),
    "an unsupported Fetch is repeated at once": (_an_unsupported_fetch_is_repeated_at_once, {"storms"}, _without_versions, 31),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, rules, scenario_of, seed = PLANTED[name]
    assert_found(name, (plant, rules), scenario_of, [seed], seed, monkeypatch)
