"""A search that learns: keep the scenarios that reach something new, and play changes of them.

A :class:`Corpus` knows for each feature (:mod:`consumer_coord.simulation.reach`) how many runs have reached it, and the
scenario that reached it first. A :class:`Search` draws the next scenario, as the seed decides: a fresh one, one of the corpus
as it is (in an order in which each adds as much as possible), or a changed one. A changed one begins with the scenario of a
rarely reached feature: it moves, adds, removes or changes faults, takes faults of another scenario, or plays the faults in
another group. Most scenarios are fresh, because drawn ones differ more than changed ones, and cost less than those that reach
much (``benchmarks/notebook.md`` has the measurements).

Everything follows from the seed and the corpus: a search over any number of processes draws the same scenarios.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import attrs

from consumer_coord.simulation.scenario import Fault, Scenario, from_json, to_json

#: The share of those of the corpus, while some are left that the search has not played, and of fresh ones among the others.
_AS_IT_IS: Final = 0.4
_FRESH: Final = 0.75
#: The most scenarios of a corpus that are written, and of these that a search plays again. The others add little.
_MOST_KEPT: Final = 500
_MOST_FIRST: Final = 60
#: The most changes of a scenario.
_MOST_CHANGES: Final = 4
#: The most faults of a changed scenario.
_MOST_FAULTS: Final = 40
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
    """A scenario, and what its run reached."""

    scenario: Scenario
    reached: frozenset[int]

    @property
    def name(self) -> str:
        """The name of the scenario's file, from its contents."""
        return f"reached-{hashlib.sha256(to_json(self.scenario).encode()).hexdigest()[:12]}.json"


class Corpus:
    """Scenarios that each reached something first."""

    def __init__(self) -> None:
        #: Feature -> how many runs have reached it.
        self.counts: Counter[int] = Counter()
        self._first: dict[int, Kept] = {}
        self._features: list[int] = []

    def add(self, kept: Kept) -> bool:
        """Count a run, and keep its scenario for what it reached first. Return whether there is anything."""
        new = sorted(kept.reached - self._first.keys())
        self._first.update(dict.fromkeys(new, kept))
        self._features += new
        self.counts.update(kept.reached)
        return bool(new)

    def __len__(self) -> int:
        return len(dict.fromkeys(self._first.values()))

    def rare(self, random: Random) -> Kept | None:
        """Return the scenario that first reached a rare feature; None if the corpus is empty."""
        if not self._features:
            return None
        features = random.sample(self._features, min(_CANDIDATES, len(self._features)))
        return self._first[min(features, key=lambda feature: (self.counts[feature], feature))]

    def in_order(self) -> Iterator[Kept]:
        """Iterate over scenarios that together reach everything; each adds the most to those before it."""
        missing = set(self._first)
        # A scenario never adds more than it did before, so only the first of the heap has to be compared again.
        heap = [(-len(kept.reached), kept.name, kept) for kept in dict.fromkeys(self._first.values())]
        heapq.heapify(heap)
        while missing:
            _, name, kept = heapq.heappop(heap)
            adds = -len(missing & kept.reached)
            if heap and adds > heap[0][0]:
                heapq.heappush(heap, (adds, name, kept))
                continue
            yield kept
            missing -= kept.reached

    def save(self, directory: Path) -> None:
        """Write the first scenarios of :meth:`in_order`, each as a file, and what they reached."""
        directory.mkdir(parents=True, exist_ok=True)
        index: dict[str, Sequence[int]] = {}
        for kept in islice(self.in_order(), _MOST_KEPT):
            (directory / kept.name).write_text(to_json(kept.scenario))
            index[kept.name] = sorted(kept.reached)
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
        for name, reached in json.loads((directory / _INDEX).read_text()).items():
            corpus.add(Kept(from_json((directory / name).read_text()), frozenset(reached)))
        return corpus


class Search:
    """Draws scenarios one after the other. ``fresh`` draws the scenario of a number."""

    def __init__(self, seed: int, fresh: Callable[[int], Scenario], corpus: Corpus) -> None:
        self.corpus = corpus
        self._seed = seed
        self._random = Random(f"{seed}-search")
        self._fresh = fresh
        self._number = seed
        self._first: deque[Scenario] = deque(kept.scenario for kept in islice(corpus.in_order(), _MOST_FIRST))

    def draw(self) -> Scenario:
        """Return the next scenario."""
        if self._first and self._random.random() < _AS_IT_IS:
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
    *(Search.move, Search.move, Search.aim, Search.aim, Search.remove, Search.remove),
    *(Search.add, Search.add, Search.cross, Search.cross, Search.regroup, Search.reseed, Search.reseed),
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

    Scenarios of different forms cannot be mixed. For instance, no fault truncates a log that has transactions.
    """
    kinds: Set[str] = {fault.kind for fault in scenario.faults}
    first = scenario.members[0]
    fetching = None if scenario.fetching is None else scenario.fetching.transactions
    return (bool(first.process), bool(first.transactions), fetching, "truncate" in kinds, "edit" in kinds)
