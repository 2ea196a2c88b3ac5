"""Members that read, process and write in transactions: histories keep the rules of exactly-once."""

from __future__ import annotations

import pytest

from consumer_coord.simulation.command import Drawing
from consumer_coord.simulation.drawing import draw_scenario, with_protocol, with_transactions
from consumer_coord.simulation.faults import KINDS
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Scenario, from_json, to_json


def _scenario_of(seed: int) -> Scenario:
    return with_transactions(with_protocol(draw_scenario(seed), "any"))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_without_faults_every_record_is_processed_once(protocol: str) -> None:
    outcome = play(with_transactions(with_protocol(draw_scenario(7, faults=0), protocol)))
    assert outcome.violation is None, outcome.history.tail(60)
    assert outcome.figures.transacted > 300


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (10, 20))])
def test_histories_of_transactions_with_faults_keep_every_rule(first: int) -> None:
    aborted = 0
    for seed in range(first, first + 10):
        outcome = play(_scenario_of(seed))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.history.tail(60)}"
        assert outcome.figures.transacted > 0
        aborted += outcome.figures.aborted
    assert aborted > 0


def test_one_seed_is_one_history() -> None:
    assert play(_scenario_of(0)).history.digest == play(_scenario_of(0)).history.digest


def test_transactions_are_drawn_if_they_are_asked_for() -> None:
    scenarios = [_scenario_of(seed) for seed in range(40)]
    assert all(spec.transactions for one in scenarios for spec in one.members)
    drawn = {fault.kind for one in scenarios for fault in one.faults if KINDS[fault.kind].transactional}
    assert drawn == {name for name, kind in KINDS.items() if kind.transactional}
    assert not any(spec.transactions for seed in range(40) for spec in draw_scenario(seed).members)
    of_any = [any(spec.transactions for spec in Drawing(reads="any").scenario(seed).members) for seed in range(40)]
    assert 0 < sum(of_any) < 20
    assert from_json(to_json(scenarios[0])) == scenarios[0]
