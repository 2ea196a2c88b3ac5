"""Results that are kept in a file, one line for each measurement, and rounds in which clients run in turns.

The files of :data:`MEASURED` are part of the project: README, the pages and their charts take their figures from them
(:mod:`benchmarks.published`). A line is one of three things:

* ``{"run": {"date": …, "load": …, "machine": …, …}}``: when, where and with which versions the next lines were measured;
* ``{"row": …, "case": …, "client": …, "figures": {name: value}, "at": seconds}``: one round of one client;
* ``{"row": …, "case": …, "client": …, "summary": {name: [median, least, most]}, "rounds": n}``: what is left of rounds that
  were not kept. With ``"ratios"`` and ``"to": peer``, these are ratios to a peer's figures. If the file also has rounds,
  they count, and the summary does not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from benchmarks.table import median, number
from consumer_coord.testing import jars

#: The directory of the files that are part of the project, one for each benchmark.
MEASURED = Path(__file__).parent / "measured"
#: Packages whose version a run states.
_PACKAGES = ("confluent-kafka", "aiokafka", "kafka-python", "pyspark")
_Key = tuple[str, str, str]


@attrs.frozen
class Figure:
    """A figure of all rounds; ``run`` says when, where and with what it was measured."""

    median: float
    least: float
    most: float
    rounds: int
    run: Mapping[str, str]


def spread(figure: Figure) -> str:
    """Return the median, with the smallest and the largest value in brackets if they are known."""
    ends = f" ({number(figure.least)}-{number(figure.most)})" if figure.least != figure.most else ""
    return f"{number(figure.median)}{ends}"


class UnmeasuredError(LookupError):
    """The file has no such figure."""


def this_run() -> Mapping[str, str]:
    """Return the date, the machine, its load and the versions of a run that begins now."""
    found = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "machine": _machine(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {"kafka": jars.KAFKA.version}


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}"


class Results:
    """The file of results. A run that was interrupted continues where the file ends.

    Rounds of another machine or of other versions are not continued but measured again, and with ``again`` all rounds are.
    """

    def __init__(self, path: Path, run: Mapping[str, str] | None = None, *, again: bool = False) -> None:
        self._path = path
        self._run = dict(run or this_run())
        self._again = again
        self._fresh: set[_Key] = set()
        #: (the run, the line)
        self._lines: list[tuple[Mapping[str, str], Mapping[str, Any]]] = []
        of: Mapping[str, str] = {}
        for text in path.read_text().splitlines() if path.exists() else ():
            line = json.loads(text)
            if "run" in line:
                of = line["run"]
            else:
                self._lines.append((of, line))

    def add(self, row: str, case: str, client: str, figures: Mapping[str, float]) -> None:
        """Keep a measurement of this run."""
        line = {"row": row, "case": case, "client": client, "figures": dict(figures), "at": time.time()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            if not self._lines or self._lines[-1][0] != self._run:
                print(json.dumps({"run": self._run}), file=file)
            print(json.dumps(line), file=file)
        self._lines.append((self._run, line))

    def replace(self, row: str, case: str, client: str, rounds: Sequence[Mapping[str, float]]) -> None:
        """Keep all rounds of a client instead of those that the file has."""
        self.forget(row, case, client)
        for figures in rounds:
            self.add(row, case, client, figures)

    def rounds(self, row: str, case: str, client: str) -> Sequence[Mapping[str, float]]:
        """Return the figures of each round."""
        return [line["figures"] for _, line in self._of((row, case, client)) if "figures" in line]

    def figure(self, row: str, case: str, client: str, name: str) -> Figure:
        """Return a figure of a client.

        :raises UnmeasuredError: if the file has none.
        """
        return self._figure(
            (row, case, client), "summary", name, [one[name] for one in self.rounds(row, case, client) if name in one]
        )

    def ratio(self, row: str, case: str, client: str, peer: str, name: str) -> Figure:
        """Return the figure of a client divided by its peer's of the same round.

        :raises UnmeasuredError: if the file has none.
        """
        ratios = [one / other for one, other in self._pairs(row, case, client, peer, name)]
        return self._figure((row, case, client), "ratios", name, ratios, peer)

    def difference(self, row: str, case: str, client: str, peer: str, name: str) -> Figure:
        """Return the figure of a client minus its peer's of the same round.

        :raises UnmeasuredError: if the file has none.
        """
        differences = [one - other for one, other in self._pairs(row, case, client, peer, name)]
        return self._figure((row, case, client), "differences", name, differences, peer)

    def _pairs(self, row: str, case: str, client: str, peer: str, name: str) -> Sequence[tuple[float, float]]:
        rounds = zip(self.rounds(row, case, client), self.rounds(row, case, peer), strict=False)
        return [(one[name], other[name]) for one, other in rounds if name in one]

    def forget(self, row: str, case: str, client: str) -> None:
        """Remove all rounds of a client, because they are going to be measured again."""
        kept = [(run, line) for run, line in self._lines if "figures" not in line or _key(line) != (row, case, client)]
        if len(kept) == len(self._lines):
            return
        self._lines = kept
        texts: list[str] = []
        last: Mapping[str, str] | None = None
        for run, line in kept:
            if run != last:
                texts.append(json.dumps({"run": run}))
                last = run
            texts.append(json.dumps(line))
        unfinished = self._path.with_suffix(".partial")
        unfinished.write_text("".join(f"{text}\n" for text in texts))
        unfinished.rename(self._path)

    def complete(
        self,
        row: str,
        case: str,
        clients: Sequence[str],
        rounds: int,
        measure: Callable[[str], Mapping[str, float]],
    ) -> None:
        """Measure the rounds that are missing. The clients run in turns, and their order changes in each round."""
        self._begin([(row, case, client) for client in clients])
        while (turn := min((len(self.rounds(row, case, one)) for one in clients), default=rounds)) < rounds:
            for client in clients if turn % 2 else clients[::-1]:
                if len(self.rounds(row, case, client)) == turn:
                    figures = measure(client)
                    self.add(row, case, client, figures)
                    shown = ", ".join(f"{name} {number(value)}" for name, value in figures.items())
                    print(f"{row}, {case}, {client}: {shown}", file=sys.stderr, flush=True)

    def _begin(self, keys: Sequence[_Key]) -> None:
        """Remove the rounds that are not to be continued. Rounds are compared in pairs, so all clients begin again together."""
        begun = all(key in self._fresh for key in keys)
        others = {_setting(run) for key in keys for run, line in self._of(key) if "figures" in line}
        if not begun and (self._again or others - {_setting(self._run)}):
            for key in keys:
                self.forget(*key)
        self._fresh.update(keys)

    def _of(self, key: _Key) -> Sequence[tuple[Mapping[str, str], Mapping[str, Any]]]:
        return [(run, line) for run, line in self._lines if _key(line) == key]

    def _figure(self, key: _Key, kind: str, name: str, values: Sequence[float], peer: str | None = None) -> Figure:
        lines = self._of(key)
        if values:
            run = next(run for run, line in reversed(lines) if "figures" in line)
            return Figure(median(values), min(values), max(values), len(values), run)
        for run, line in lines:
            if name in line.get(kind, ()) and line.get("to") == peer:
                middle, *ends = line[kind][name]
                return Figure(middle, min(ends, default=middle), max(ends, default=middle), line["rounds"], run)
        raise UnmeasuredError(f"{self._path.name} has no {name} of {', '.join(key)}{f' to {peer}' if peer else ''}")


def _key(line: Mapping[str, Any]) -> _Key:
    return line["row"], line["case"], line["client"]


def _setting(run: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return what must be equal in runs whose rounds count together."""
    return frozenset(item for item in run.items() if item[0] not in ("date", "load"))


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of :func:`from_options` to the parser of the benchmark ``name``."""
    parser.add_argument("--results", type=Path, default=MEASURED / f"{name}.jsonl", help="the file of results")
    parser.add_argument("--again", action="store_true", help="measure again what the file of results has already")


def from_options(options: argparse.Namespace) -> Results:
    """Return the results that the options of a benchmark name."""
    return Results(options.results, again=options.again)
