"""A search that learns: keep the scenarios that reach something new, and play changes of them.

A :class:`Corpus` knows for each feature (:mod:`consumer_coord.simulation.reach`) how many runs have reached it, and the
scenario that reaches it in the fewest steps of the event loop. A :class:`Search` draws the next scenario: first those of the
corpus, as they are, in an order in which each adds as much as possible for its steps; then fresh ones and changed ones by
turns, as the seed decides. A changed one begins with the scenario of a rarely reached feature, and moves, adds, removes or
changes faults, takes faults of another scenario, or plays the faults in another group.

Everything follows from the seed and the corpus: a search over any number of processes draws the same scenarios.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs

from consumer_coord.simulation.scenario import Fault, Scenario, from_json, to_json

#: The share of fresh scenarios after those of the corpus.
_FRESH: Final = 0.35
#: The most changes of a scenario.
_MOST_CHANGES: Final = 6
#: The most faults of a changed scenario.
_MOST_FAULTS: Final = 60
#: When faults may begin, in milliseconds.
_BEGIN_MS: Final = 3_000
#: How many features are considered to find a rare one.
_CANDIDATES: Final = 12
#: Attempts to draw a fresh scenario of the same form.
_ATTEMPTS: Final = 20

#: The file of a corpus that says what each scenario reached; the scenarios have a file each, for ``--replay``.
_INDEX: Final = "index.json"


@attrs.frozen(eq=False)
class Kept:
    """A scenario, what its run reached, and how many steps of the event loop the run took."""

    scenario: Scenario
    reached: frozenset[int]
    steps: int

    @property
    def name(self) -> str:
        """The name of the scenario's file, from its contents."""
        return f"reached-{hashlib.sha256(to_json(self.scenario).encode()).hexdigest()[:12]}.json"


class Corpus:
    """Scenarios that each reach something first, or in the fewest steps."""

    def __init__(self) -> None:
        #: Feature -> how many runs have reached it.
        self.counts: Counter[int] = Counter()
        self._best: dict[int, Kept] = {}
        self._features: list[int] = []

    def add(self, kept: Kept) -> bool:
        """Count a run; keep its scenario for what it reached first or in the fewest steps. Return whether anything is new."""
        new = False
        for feature in sorted(kept.reached):
            best = self._best.get(feature)
            if best is None:
                new = True
                self._features.append(feature)
            if best is None or kept.steps < best.steps:
                self._best[feature] = kept
        self.counts.update(kept.reached)
        return new

    def __len__(self) -> int:
        return len(dict.fromkeys(self._best.values()))

    def rare(self, random: Random) -> Kept | None:
        """Return the scenario that reaches a rare feature in the fewest steps; None if the corpus is empty."""
        if not self._best:
            return None
        features = random.sample(self._features, min(_CANDIDATES, len(self._best)))
        return self._best[min(features, key=lambda feature: (self.counts[feature], feature))]

    def in_order(self) -> Iterator[Kept]:
        """Iterate over the scenarios that together reach everything; each adds the most for its steps to those before it."""
        missing = set(self._best)
        # A scenario never adds more than it did before, so only the first of the heap has to be compared again.
        heap = [(-len(kept.reached) / kept.steps, kept.name, kept) for kept in dict.fromkeys(self._best.values())]
        heapq.heapify(heap)
        while missing:
            _, name, kept = heapq.heappop(heap)
            adds = -len(missing & kept.reached) / kept.steps
            if heap and adds > heap[0][0]:
                heapq.heappush(heap, (adds, name, kept))
                continue
            yield kept
            missing -= kept.reached

    def save(self, directory: Path) -> None:
        """Write the scenarios that :meth:`in_order` returns, each as a file, and what they reached."""
        directory.mkdir(parents=True, exist_ok=True)
        index: dict[str, Any] = {}
        for kept in self.in_order():
            (directory / kept.name).write_text(to_json(kept.scenario))
            index[kept.name] = {"steps": kept.steps, "reached": sorted(kept.reached)}
        (directory / _INDEX).write_text(json.dumps(index))
        for path in directory.glob("reached-*.json"):
            if path.name not in index:
                path.unlink()

    @classmethod
    def load(cls, directory: Path) -> Corpus:
        """Read what :meth:`save` wrote; an empty corpus if there is no such directory.

        Raise OSError or ValueError if the files cannot be read.
        """
        corpus = cls()
        if not (directory / _INDEX).exists():
            return corpus
        for name, row in json.loads((directory / _INDEX).read_text()).items():
            scenario = from_json((directory / name).read_text())
            corpus.add(Kept(scenario, frozenset(row["reached"]), row["steps"]))
        return corpus


class Search:
    """Draws scenarios one after the other. ``fresh`` draws the scenario of a number."""

    def __init__(self, seed: int, fresh: Callable[[int], Scenario], corpus: Corpus) -> None:
        self.corpus = corpus
        self._seed = seed
        self._random = Random(f"{seed}-search")
        self._fresh = fresh
        self._number = seed
        self._first: deque[Scenario] = deque(kept.scenario for kept in corpus.in_order())

    def draw(self) -> Scenario:
        """Return the next scenario."""
        if self._first:
            return self._first.popleft()
        if self._random.random() < _FRESH:
            return self._new()
        kept = self.corpus.rare(self._random)
        return self._new() if kept is None else self._changed(kept.scenario)

    def _new(self) -> Scenario:
        self._number += 1
        return self._fresh(self._number - 1)

    def _changed(self, scenario: Scenario) -> Scenario:
        for _ in range(self._random.randint(1, _MOST_CHANGES)):
            scenario = self._random.choice(_CHANGES)(self, scenario)
        faults = tuple(sorted(scenario.faults, key=lambda fault: (fault.at_ms, fault.kind, fault.target)))
        if len(faults) > _MOST_FAULTS:
            faults = tuple(sorted(self._random.sample(faults, _MOST_FAULTS), key=lambda fault: fault.at_ms))
        return attrs.evolve(scenario, faults=faults)

    # -- changes ------------------------------------------------------------------------------------------------------

    def _other(self, scenario: Scenario) -> Scenario:
        """Return another scenario of the same form, kept or fresh, whose faults are possible in this one, too."""
        for _ in range(_ATTEMPTS):
            kept = self.corpus.rare(self._random) if self._random.random() < 0.5 else None
            other = self._new() if kept is None else kept.scenario
            if form(other) == form(scenario):
                return other
        return scenario

    def move(self, scenario: Scenario) -> Scenario:
        """Begin a fault at another time, often close to another fault."""
        fault, rest = self._one(scenario)
        if fault is None:
            return scenario
        near = self._random.choice(scenario.faults).at_ms + self._random.randint(-1_000, 1_000)
        anywhere = self._random.randrange(_BEGIN_MS, scenario.faults_end_ms)
        at_ms = near if self._random.random() < 0.7 else anywhere
        return _with(scenario, [*rest, attrs.evolve(fault, at_ms=at_ms)])

    def aim(self, scenario: Scenario) -> Scenario:
        """Give a fault another target, value or duration."""
        fault, rest = self._one(scenario)
        if fault is None:
            return scenario
        number = self._random.randrange(1_000)
        changed = self._random.choice(
            (
                attrs.evolve(fault, target=number),
                attrs.evolve(fault, value=number),
                attrs.evolve(fault, for_ms=int(fault.for_ms * self._random.uniform(0.2, 3))),
            )
        )
        return _with(scenario, [*rest, changed])

    def remove(self, scenario: Scenario) -> Scenario:
        """Remove a fault."""
        return _with(scenario, self._one(scenario)[1])

    def repeat(self, scenario: Scenario) -> Scenario:
        """Let a fault happen once more, a little later or earlier, perhaps to another member."""
        fault, rest = self._one(scenario)
        if fault is None:
            return scenario
        at_ms = fault.at_ms + self._random.randint(-4_000, 4_000)
        target = self._random.choice((fault.target, self._random.randrange(1_000)))
        return _with(scenario, [fault, *rest, attrs.evolve(fault, at_ms=at_ms, target=target)])

    def add(self, scenario: Scenario) -> Scenario:
        """Add a fault of another scenario, close to a fault of this one or at its own time."""
        fault, _ = self._one(self._other(scenario))
        if fault is None:
            return scenario
        if scenario.faults and self._random.random() < 0.6:
            near = self._random.choice(scenario.faults).at_ms
            fault = attrs.evolve(fault, at_ms=near + self._random.randint(-1_500, 1_500))
        return _with(scenario, [*scenario.faults, fault])

    def cross(self, scenario: Scenario) -> Scenario:
        """Continue after some time with the faults of another scenario."""
        at_ms = self._random.randrange(_BEGIN_MS, scenario.faults_end_ms)
        before = [fault for fault in scenario.faults if fault.at_ms < at_ms]
        after = [fault for fault in self._other(scenario).faults if fault.at_ms >= at_ms]
        return _with(scenario, before + after)

    def regroup(self, scenario: Scenario) -> Scenario:
        """Play the faults in the group of another scenario."""
        other = self._other(scenario)
        return _with(attrs.evolve(other, faults_end_ms=scenario.faults_end_ms), scenario.faults)

    def reseed(self, scenario: Scenario) -> Scenario:
        """Draw other delays, ids and records."""
        return attrs.evolve(scenario, seed=self._random.randrange(1 << 30))

    def _one(self, scenario: Scenario) -> tuple[Fault | None, list[Fault]]:
        """Return one of the faults, and the others."""
        rest = list(scenario.faults)
        return (rest.pop(self._random.randrange(len(rest))), rest) if rest else (None, rest)


_CHANGES: Final[Sequence[Callable[[Search, Scenario], Scenario]]] = (
    *(Search.move, Search.move, Search.aim, Search.aim, Search.remove, Search.repeat),
    *(Search.add, Search.add, Search.cross, Search.cross, Search.regroup, Search.reseed),
)


def _with(scenario: Scenario, faults: Iterable[Fault]) -> Scenario:
    """Return the scenario with these faults, which begin and end within the time for faults."""
    end_ms = scenario.faults_end_ms
    fitted = []
    for fault in faults:
        at_ms = min(max(fault.at_ms, _BEGIN_MS), end_ms - 1)
        fitted.append(attrs.evolve(fault, at_ms=at_ms, for_ms=min(fault.for_ms, end_ms - at_ms)))
    return attrs.evolve(scenario, faults=tuple(fitted))


def form(scenario: Scenario) -> tuple[object, ...]:
    """Return what decides which kinds of faults are possible: what members do, and whether logs are truncated.

    Logs with transactions are not truncated, and members that meet a truncation do not commit after a failure.
    """
    kinds: Set[str] = {fault.kind for fault in scenario.faults}
    first = scenario.members[0]
    fetching = None if scenario.fetching is None else scenario.fetching.transactions
    return (bool(first.process), bool(first.transactions), fetching, "truncate" in kinds, "edit" in kinds)
