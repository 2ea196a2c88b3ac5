"""Whole histories: the same from the same seed, kept as text, shrunk, and without faults without a blemish."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from consumer_coord.simulation import drawing, faults
from consumer_coord.simulation.command import Drawing
from consumer_coord.simulation.drawing import (
    draw_scenario,
    with_answers,
    with_calls,
    with_clocks,
    with_links,
    with_reads,
    with_transactions,
)
from consumer_coord.simulation.faults import KINDS
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario, from_json, to_json
from consumer_coord.simulation.shrink import fewer
from consumer_coord.simulation.world import World

PRINT_A_HISTORY = """
from consumer_coord.simulation.command import Drawing
from consumer_coord.simulation.play import play
outcome = play({drawing}.scenario({seed}))
print("\\n".join(outcome.history.lines))
print(outcome.figures.steps, outcome.figures.frames)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("seed", "drawing"), [(3, Drawing()), (8, Drawing()), (53, Drawing(protocol="any", reads="any"))])
def test_one_seed_is_one_history_byte_for_byte_whatever_the_hash_seed(seed: int, drawing: Drawing) -> None:
    histories = []
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", PRINT_A_HISTORY.format(seed=seed, drawing=repr(drawing))],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
            timeout=360,
        )
        histories.append(done.stdout)
    assert histories[0].count(b"\n") > 200
    assert histories[0] == histories[1]


def test_another_seed_is_another_history() -> None:
    assert play(draw_scenario(3)).history.digest != play(draw_scenario(4)).history.digest


@pytest.mark.behaviour(132)
@pytest.mark.parametrize("seed", range(6))
def test_without_faults_nothing_is_processed_twice(seed: int) -> None:
    outcome = play(draw_scenario(seed, faults=0))
    assert outcome.violation is None, outcome.history.tail(60)
    assert outcome.figures.processed > 0
    assert outcome.figures.processed_again == 0
    assert outcome.figures.overtaken == 0


@pytest.mark.behaviour(132)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(10, 30, 10))])
def test_histories_with_faults_keep_every_rule(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = play(draw_scenario(seed))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.history.tail(60)}"


#: Kinds that a flag adds to a run.
BY_FLAG = {"edit", "drift", "leap", "one-way", "split", "beside", "quit", "by-hand", "commit-absent"}


def test_every_kind_of_fault_can_happen_and_is_drawn() -> None:
    drawn = {fault.kind for seed in range(60) for fault in draw_scenario(seed).faults}
    assert drawn == {name for name, kind in KINDS.items() if not (kind.fetching or kind.transactional or name in BY_FLAG)}
    drawn |= {fault.kind for seed in range(60) for fault in with_reads(draw_scenario(seed), "columns").faults}
    drawn |= {fault.kind for seed in range(60) for fault in with_transactions(draw_scenario(seed)).faults}
    drawn |= {fault.kind for seed in range(3) for fault in with_answers(draw_scenario(seed), "edited").faults}
    drawn |= {fault.kind for seed in range(9) for fault in with_clocks(draw_scenario(seed), "drifting").faults}
    drawn |= {fault.kind for seed in range(9) for fault in with_links(draw_scenario(seed), "partitioned").faults}
    drawn |= {fault.kind for seed in range(9) for fault in with_calls(draw_scenario(seed), "several").faults}
    assert drawn == set(KINDS)


#: Kinds of faults that were added later: a seed draws these in addition to the first kinds.
LATER_KINDS = {"recreate", "stall", "linger", "cut", "trip", "farewell", "lack", "foreign", "refuse", "senseless", "groupless"}


def _without_later_kinds(scenario: Scenario) -> Scenario:
    return attrs.evolve(scenario, faults=tuple(fault for fault in scenario.faults if fault.kind not in LATER_KINDS))


def test_old_seeds_draw_what_they_always_drew() -> None:
    scenarios = "".join(to_json(_without_later_kinds(draw_scenario(seed))) for seed in range(300))
    assert hashlib.sha256(scenarios.encode()).hexdigest()[:16] == "7050164e7315417d"


def test_a_new_kind_of_fault_changes_nothing_that_old_seeds_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [draw_scenario(seed) for seed in range(20)]
    monkeypatch.setattr(faults, "KINDS", KINDS.copy())
    happened = []

    @faults.kind("eclipse", "the sun goes dark", counts=(1, 2))
    def eclipse(world: World, fault: Fault) -> None:
        happened.append(fault)

    monkeypatch.setattr(drawing, "KINDS", faults.KINDS)
    after = [draw_scenario(seed) for seed in range(20)]
    for old, new in zip(before, after, strict=True):
        assert sum(fault.kind == "eclipse" for fault in new.faults) in (1, 2)
        assert attrs.evolve(new, faults=tuple(fault for fault in new.faults if fault.kind != "eclipse")) == old
    assert play(after[0]).violation is None
    assert happened == [fault for fault in after[0].faults if fault.kind == "eclipse"]


def test_a_scenario_is_kept_as_text() -> None:
    for scenario in (draw_scenario(17), with_reads(draw_scenario(17), "columns")):
        assert from_json(to_json(scenario)) == scenario


def test_what_members_read_is_drawn_apart() -> None:
    for seed in range(20):
        messages, columns = draw_scenario(seed), with_reads(draw_scenario(seed), "columns")
        assert with_reads(messages, "messages") == messages
        assert with_reads(messages, "any") in (messages, columns)
        assert any(spec.columns for spec in columns.members)
        assert {spec.name for spec in columns.members} <= {spec.name for spec in messages.members}
        assert {fault for fault in columns.faults if not KINDS[fault.kind].fetching} <= set(messages.faults)


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_columns_are_read_once(seed: int) -> None:
    outcome = play(with_reads(draw_scenario(seed, faults=0), "columns"))
    assert outcome.violation is None, outcome.history.tail(60)
    assert outcome.figures.processed > 0
    assert outcome.figures.processed_again == 0


@pytest.mark.slow
def test_histories_with_fetch_requests_keep_every_rule() -> None:
    for seed in range(6):
        outcome = play(with_reads(draw_scenario(seed), "columns"))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.history.tail(60)}"


def test_a_fault_that_is_left_out_does_not_change_what_the_seed_draws() -> None:
    scenario = draw_scenario(17)
    fewer_faults = attrs.evolve(scenario, faults=scenario.faults[:1])
    assert draw_scenario(17) == attrs.evolve(fewer_faults, faults=scenario.faults)


def test_shrinking_finds_the_faults_that_matter() -> None:
    faults = [Fault(at_ms, "commit") for at_ms in range(40)]
    needed = {faults[5], faults[23], faults[24]}
    assert set(fewer(faults, lambda kept: needed <= set(kept))) == needed
