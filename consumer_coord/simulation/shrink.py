"""Shrink a failed scenario to a smaller scenario that violates the same rule, with fewer members and fewer, shorter faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from consumer_coord.simulation.play import Outcome, play
from consumer_coord.simulation.scenario import Fault, Scenario

T = TypeVar("T")

#: Maximum number of runs that one call of :func:`shrink` plays.
MOST_TRIALS = 150


def shrink(failed: Outcome, most_trials: int = MOST_TRIALS) -> Outcome:
    """Return the smallest failing run that was found. The run violates the same rule as ``failed``."""
    assert failed.violation is not None
    rule = failed.violation.rule
    best = failed
    trials = 0

    def fails(scenario: Scenario) -> bool:
        nonlocal best, trials
        if trials >= most_trials:
            return False
        trials += 1
        outcome = play(scenario)
        if outcome.violation is None or outcome.violation.rule != rule:
            return False
        best = outcome
        return True

    def with_faults(faults: Sequence[Fault]) -> bool:
        return fails(attrs.evolve(best.scenario, faults=tuple(faults)))

    fewer(best.scenario.alone, lambda changes: fails(attrs.evolve(best.scenario, alone=tuple(changes))))
    fewer(best.scenario.faults, with_faults)
    fewer(
        best.scenario.members,
        lambda members: bool(members) and fails(attrs.evolve(best.scenario, members=tuple(members))),
    )
    for number, fault in enumerate(best.scenario.faults):
        if fault.for_ms > 1:
            shorter = attrs.evolve(fault, for_ms=fault.for_ms // 4)
            with_faults([*best.scenario.faults[:number], shorter, *best.scenario.faults[number + 1 :]])
    return best


def fewer(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Remove as many ``items`` as possible while ``fails`` returns True: first halves, then smaller parts (delta debugging)."""
    size = max(1, len(items) // 2)
    while items:
        start = 0
        while start < len(items):
            rest = [*items[:start], *items[start + size :]]
            if fails(rest):
                items = rest
            else:
                start += size
        if size == 1:
            break
        size //= 2
    return items
