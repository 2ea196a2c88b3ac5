"""Histories with members of the consumer protocol (KIP-848) keep every rule."""

from __future__ import annotations

import attrs
import pytest

from consumer_coord.simulation.drawing import draw_scenario, with_protocol
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import from_json, to_json


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "seed"), [("consumer", 2), ("mixed", 500), ("upgrade", 2_000)])
def test_a_history_keeps_every_rule(protocol: str, seed: int) -> None:
    outcome = play(with_protocol(draw_scenario(seed), protocol))
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.history.tail(60)}"
    assert outcome.figures.processed > 0


def test_protocols_are_drawn_beside_everything_else() -> None:
    scenario = draw_scenario(7)
    assert with_protocol(scenario, "classic") is scenario
    changed = with_protocol(scenario, "upgrade")
    assert {spec.protocol for spec in changed.members} == {"classic"}
    assert changed.later_protocol == "consumer"
    assert {spec.protocol for spec in with_protocol(scenario, "consumer").members} == {"consumer"}
    assert attrs.evolve(changed, members=scenario.members, later_protocol=None) == scenario
    assert from_json(to_json(changed)) == changed
    assert with_protocol(scenario, "any") == with_protocol(scenario, "any")
