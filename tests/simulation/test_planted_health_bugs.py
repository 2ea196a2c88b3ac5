"""Bugs planted in ``consumer.health()`` are found by the rule ``health``. Without its bug the same history keeps every rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import pytest

from consumer_coord.consumer.partitions import Partition
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.health import Facts, Health, judging
from consumer_coord.simulation.drawing import draw_scenario, with_reads
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Fetching, Scenario
from consumer_coord.topic_partition import TopicPartition
from tests.support.simulation.planting import assert_found
from tests.support.simulation.small_history import history

SEEDS = range(60)

Patch = pytest.MonkeyPatch


def _take_silence_for_the_end_of_the_log(patch: Patch) -> None:
    """A leader that does not answer has no records: what a probe says that looks at the assignment."""
    patch.setattr(judging, "_is_silent", lambda log, facts: False)


def _take_fetched_records_for_delivered_ones(patch: Patch) -> None:
    """Records that wait for the application are not owed."""

    def reached(self: Reader, table: Mapping[TopicPartition, Partition]) -> dict[TopicPartition, int]:
        ends = self.log_ends() or {}
        return {one: at.fetched for one, at in ends.items() if one in table and at.fetched is not None}

    patch.setattr(Reader, "reached", reached)


def _let_the_application_be_the_reason(patch: Patch) -> None:
    """Whatever is owed, the application is busy."""

    def judge(facts: Facts, limit_s: float) -> Health:
        health = judging.judge(facts, limit_s)
        excused = tuple(attrs.evolve(one, excused=True) for one in health.partitions)
        return attrs.evolve(health, healthy=True, problems=(), partitions=excused)

    patch.setattr("consumer_coord.consumer.health_watch.judge", judge)


PLANTED: dict[str, Callable[[Patch], None]] = {
    "take fetched records for delivered ones": _take_fetched_records_for_delivered_ones,
    "let the application be the reason": _let_the_application_be_the_reason,
}
#: Where a finding was last: played first.
_FOUND_BY = {"take fetched records for delivered ones": 45, "let the application be the reason": 58}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_bug_in_the_health_is_found(name: str, monkeypatch: Patch) -> None:
    found = PLANTED[name], ("health",)
    assert_found(name, found, lambda seed: with_reads(draw_scenario(seed), "columns"), SEEDS, _FOUND_BY[name], monkeypatch)


def frozen_for_25_s(broker: int) -> Scenario:
    """Return a history in which one of three brokers is frozen while records arrive, and the only member polls on."""
    frozen = history(
        Fault(6_000, "broker-pause", broker, 0, 25_000),
        members=1,
        brokers=3,
        protocol="classic",
        columns=True,
        session_timeout_ms=30_000,
    )
    return attrs.evolve(frozen, fetching=Fetching(versions=(18, 18, 18), fetch_wait_max_ms=500))


def test_a_leader_that_is_frozen_has_not_said_that_it_has_no_records(monkeypatch: Patch) -> None:
    """The bug is that of a probe that looks at the last known lag; also the broker that coordinates the group may freeze."""
    plant = _take_silence_for_the_end_of_the_log, ("health",)
    assert_found("silence", plant, frozen_for_25_s, range(3), None, monkeypatch)
    for broker in range(3):
        assert play(frozen_for_25_s(broker)).violation is None
