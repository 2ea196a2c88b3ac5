"""Simulated members push their metrics to brokers that subscribe to them, under faults."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from consumer_coord.simulation.drawing import draw_scenario, with_metrics, with_reads
from consumer_coord.simulation.play import Outcome, play
from consumer_coord.telemetry import otlp, push
from consumer_coord.telemetry.push import MetricsPusher


def played(seed: int, reads: str) -> Outcome:
    return play(attrs.evolve(with_reads(draw_scenario(seed), reads), metrics=True))


@pytest.mark.parametrize("reads", ["messages", "columns"])
@pytest.mark.parametrize("seed", range(3))
def test_members_push_under_faults(seed: int, reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[bytes] = []

    def count(*arguments: Any) -> bytes:
        pushed.append(otlp.metrics_data(*arguments))
        return pushed[-1]

    monkeypatch.setattr(push, "metrics_data", count)
    outcome = played(seed, reads)
    assert outcome.violation is None, outcome.violation
    assert len(pushed) > 10


def test_a_push_after_the_last_one_breaks_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    run = MetricsPusher.run

    async def twice(self: MetricsPusher) -> None:
        await run(self)
        await run(self)

    monkeypatch.setattr(MetricsPusher, "run", twice)
    outcome = played(0, "messages")
    assert outcome.violation is not None
    assert outcome.violation.rule == "metrics"


def test_a_crash_of_the_pusher_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(self: MetricsPusher) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(MetricsPusher, "run", crash)
    outcome = played(0, "messages")
    assert outcome.violation is not None
    assert "ZeroDivisionError" in str(outcome.violation)


def test_a_quarter_of_the_seeds_has_subscriptions() -> None:
    chosen = [with_metrics(draw_scenario(seed)).metrics for seed in range(100)]
    assert 10 < sum(chosen) < 40
