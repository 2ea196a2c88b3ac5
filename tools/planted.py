"""``python -m tools.planted``: how soon the simulation finds planted bugs, at random and guided by what histories reach.

The bugs are those of ``tests/simulation/test_planted_*.py``. For each seed and bug, three searches run one after the other,
each in a process of its own, until a history breaks a rule, or for ``--limit-s`` seconds of CPU time: seeds drawn at random, a
guided search that begins with nothing, and one that begins with a corpus. The corpus comes from ``--learn`` guided histories
without a bug (``--corpus`` keeps it for the next time).
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from consumer_coord.simulation.command import Drawing
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Scenario
from consumer_coord.simulation.search import Corpus, Kept, Search

WAYS = ("random", "guided", "corpus")
#: Module of the tests -> how the histories are drawn.
_DRAWN: Mapping[str, Drawing] = {
    "bugs": Drawing(),
    "message_bugs": Drawing(),
    "application_bugs": Drawing(),
    "consumer_bugs": Drawing(protocol="any"),
    "fetch_bugs": Drawing(reads="columns"),
    "process_bugs": Drawing(reads="process", protocol="any"),
}
_SEEDS_APART = 10_000
#: The seed of the corpus; the searches draw other seeds.
_LEARNED_FROM = 900_000_000


class Bug(NamedTuple):
    """A planted bug, and the histories in which it can be found."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    drawing: Drawing


class Found(NamedTuple):
    """The end of a search: histories played, CPU seconds, and the broken rule or None."""

    histories: int
    seconds: float
    rule: str | None


def bugs() -> Iterator[Bug]:
    """Iterate over the planted bugs."""
    for name, drawing in _DRAWN.items():
        planted = importlib.import_module(f"tests.simulation.test_planted_{name}").PLANTED
        for what, row in planted.items():
            yield Bug(f"{name.removesuffix('bugs').rstrip('_')} {what}".strip(), row[0], drawing)


def learn(directory: Path, drawing: Drawing, histories: int) -> Corpus:
    """Return the corpus of a directory, after so many histories if there is none."""
    corpus = Corpus.load(directory)
    if not len(corpus):
        search = Search(_LEARNED_FROM, drawing.scenario, corpus)
        began = time.process_time()
        for _ in range(histories):
            _play(search.draw(), corpus)
        corpus.save(directory)
        print(f"learned from {histories} histories in {time.process_time() - began:.0f} s, {len(corpus)} kept", flush=True)
    return corpus


def _play(scenario: Scenario, corpus: Corpus) -> str | None:
    outcome = play(scenario)
    if outcome.violation is not None:
        return outcome.violation.rule
    corpus.add(Kept(scenario, outcome.reached))
    return None


def search(bug: Bug, way: str, seed: int, limit_s: float, corpus: Corpus) -> Found:
    """Search for a bug in this process."""
    drawn = Search(seed * _SEEDS_APART, bug.drawing.scenario, corpus if way == "corpus" else Corpus())
    bug.plant(pytest.MonkeyPatch())
    began, played, rule = time.process_time(), 0, None
    while rule is None and time.process_time() - began < limit_s:
        scenario = bug.drawing.scenario(seed * _SEEDS_APART + played) if way == "random" else drawn.draw()
        rule = _play(scenario, drawn.corpus)
        played += 1
    return Found(played, time.process_time() - began, rule)


def _in_child(work: Callable[[], Found]) -> Found:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        try:
            os.write(writes, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return Found(*json.loads(text))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as Markdown: the medians of each bug over the seeds, and bugs per minute of CPU time.

    A bug and seed count when all ways were tried.
    """
    tried = Counter((row["bug"], row["seed"]) for row in results)
    rows = [row for row in results if tried[row["bug"], row["seed"]] == len(WAYS)]
    lines = [
        "| bug | " + " | ".join(f"{way}: found, histories, CPU s" for way in WAYS) + " |",
        "| --- |" + " ---: |" * len(WAYS),
    ]
    for name in dict.fromkeys(row["bug"] for row in rows):
        cells = []
        for way in WAYS:
            of_it = [row for row in rows if row["bug"] == name and row["way"] == way]
            found = sum(row["rule"] is not None for row in of_it)
            histories = statistics.median(row["histories"] for row in of_it)
            seconds = statistics.median(row["seconds"] for row in of_it)
            cells.append(f"{found} of {len(of_it)}, {histories:.0f}, {seconds:.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = []
    for way in WAYS:
        of_it = [row for row in rows if row["way"] == way]
        found, seconds = sum(row["rule"] is not None for row in of_it), sum(row["seconds"] for row in of_it)
        histories = sum(row["histories"] for row in of_it)
        cells.append(f"{found} of {len(of_it)}, {histories}, {seconds:.0f}: {found * 60 / seconds:.1f} a minute")
    return "\n".join([*lines, f"| all | {' | '.join(cells)} |"])


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of seeds (default: 3)")
    parser.add_argument("--limit-s", type=float, default=20.0, metavar="S", help="CPU seconds of each search (default: 20)")
    parser.add_argument("--learn", type=int, default=160, metavar="N", help="histories of a corpus (default: 160)")
    parser.add_argument("--corpus", type=Path, default=Path("artifacts/planted"), metavar="DIR", help="where corpora are kept")
    parser.add_argument("--results", type=Path, default=Path("planted.jsonl"), metavar="FILE", help="append results to FILE")
    parser.add_argument("--only", action="append", metavar="TEXT", help="search only for bugs whose name contains TEXT")
    parser.add_argument("--table", action="store_true", help="print the table of the results in FILE, and search for nothing")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    done = [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.exists() else []
    for seed in range(1, arguments.seeds + 1) if not arguments.table else ():
        for bug in bugs():
            if arguments.only and not any(text in bug.name for text in arguments.only):
                continue
            corpus = learn(arguments.corpus / (str(bug.drawing).replace(" ", "") or "default"), bug.drawing, arguments.learn)
            for way in WAYS:
                if any((row["bug"], row["way"], row["seed"]) == (bug.name, way, seed) for row in done):
                    continue
                found = _in_child(partial(search, bug, way, seed, arguments.limit_s, corpus))
                done.append({"bug": bug.name, "way": way, "seed": seed, **found._asdict()})
                with arguments.results.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
                print(f"{way:6s} {found.histories:4d} {found.seconds:6.1f} s {found.rule or '-':12s} {bug.name}", flush=True)
    if done:
        print(table(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
