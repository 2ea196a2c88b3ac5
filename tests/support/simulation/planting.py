"""Histories with a planted bug, played until one of them reveals the bug."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs
import pytest

from consumer_coord.broker.group_store import GroupStore
from consumer_coord.broker.shard import Shard, ShardState
from consumer_coord.consumer import reducer, start_lookups
from consumer_coord.consumer.partitions import Table
from consumer_coord.simulation.play import Outcome, play
from consumer_coord.simulation.scenario import Scenario


def former(owner: type, name: str) -> Any:
    """Return the method that a planted bug replaces and calls."""
    return vars(owner)[name]


def look_up_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a start that was found and then refused is looked up again without a back-off."""
    end = start_lookups.end_readings

    def without_back_off(table: Table, *facts: Any) -> tuple[Table, list[str]]:
        after, texts = end(table, *facts)
        return {one: attrs.evolve(value, retry=None) if value.resets_in_vain else value for one, value in after.items()}, texts

    patch.setattr(reducer, "end_readings", without_back_off)


def do_not_read_groups(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a coordinator that moved does not read its groups."""

    def elect(self: GroupStore, partition: int, log: object, leader_epoch: int, loaded: object) -> None:
        self._shards[partition] = Shard(partition, log, leader_epoch, ShardState.ACTIVE)  # type: ignore[arg-type]  # as it came

    patch.setattr(GroupStore, "elect", elect)


def assert_reveals(
    scenario: Scenario, plant: Callable[[pytest.MonkeyPatch], None], rules: Collection[str], patch: pytest.MonkeyPatch
) -> None:
    """Assert that a history keeps every rule, and breaks one of the given rules with the planted bug."""
    outcome = play(scenario)
    assert outcome.violation is None, outcome.history.tail(40)
    plant(patch)
    found = play(scenario).violation
    assert found is not None
    assert found.rule in rules, found


def assert_found(
    name: str,
    planted: tuple[Callable[[pytest.MonkeyPatch], None], Collection[str]],
    scenario_of: Callable[[int], Scenario],
    seeds: Collection[int],
    first: int | None,
    patch: pytest.MonkeyPatch,
) -> None:
    """Plant a bug; assert that a history breaks one of the given rules, and that the same history without the bug breaks none.

    Play the seed ``first`` first.
    """
    plant, rules = planted
    plant(patch)
    found = _first_finding(map(scenario_of, sorted(seeds, key=lambda seed: seed != first)))
    assert found is not None, f"{name} went unnoticed in {len(seeds)} histories"
    assert found.violation is not None
    assert found.violation.rule in rules, f"seed {found.scenario.seed}: {found.violation}\n{found.history.tail(40)}"
    patch.undo()
    assert play(found.scenario).violation is None, "the same history keeps every rule without the bug"


def _first_finding(scenarios: Iterable[Scenario]) -> Outcome | None:
    for scenario in scenarios:
        outcome = play(scenario)
        if outcome.violation is not None:
            return outcome
    return None
