"""The files of results that the benchmarks write, and that the pages take their figures from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.results import Results, UnmeasuredError

RUN = {"date": "2026-11-28", "load": "0.1", "machine": "2 cores", "kafka": "4.4.0"}


class Rates:
    """A benchmark whose rates are 1, 2, 3, …; it fails when it is asked more often than ``most`` times."""

    def __init__(self, most: int = 100) -> None:
        self.asked: list[str] = []
        self._most = most

    def __call__(self, client: str) -> Mapping[str, float]:
        if len(self.asked) == self._most:
            raise subprocess.TimeoutExpired(client, 1)
        self.asked.append(client)
        return {"rate": float(len(self.asked))}


def measure(results: Results, rates: Rates, rounds: int = 2) -> list[str]:
    results.complete("threads", "10", ["bare", "ours"], rounds, rates)
    return rates.asked


def test_an_interrupted_run_continues_where_its_file_ends(tmp_path: Path) -> None:
    file, rates = tmp_path / "results.jsonl", Rates(most=3)
    with pytest.raises(subprocess.TimeoutExpired):
        measure(Results(file, RUN), rates)
    assert rates.asked == ["ours", "bare", "bare"], "the clients take turns, and their order changes"
    assert measure(Results(file, {**RUN, "date": "2026-11-29", "load": "3.0"}), Rates()) == ["ours"]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line.get("client") for line in lines] == [None, "ours", "bare", "bare", None, "ours"]
    assert measure(Results(file, RUN), Rates()) == []


@pytest.mark.parametrize("changed", [{"kafka": "4.5.0"}, {"machine": "64 cores"}])
def test_rounds_of_other_versions_or_machines_are_not_continued(tmp_path: Path, changed: Mapping[str, str]) -> None:
    file = tmp_path / "results.jsonl"
    measure(Results(file, RUN), Rates(), rounds=1)
    assert measure(Results(file, {**RUN, **changed}), Rates()) == ["ours", "bare", "bare", "ours"]
    again = Results(file, RUN)
    assert [len(again.rounds("threads", "10", one)) for one in ("bare", "ours")] == [2, 2]
    assert again.figure("threads", "10", "ours", "rate").run == {**RUN, **changed}


def test_all_rounds_are_measured_again_if_asked_but_not_those_of_this_run(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    measure(Results(file, RUN), Rates(), rounds=1)
    again = Results(file, RUN, again=True)
    assert len(measure(again, Rates())) == 4
    assert measure(again, Rates()) == []


def test_a_figure_is_the_median_and_a_ratio_is_that_of_the_same_round(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", RUN)
    results.replace("a", "b", "ours", [{"rate": 1.0}, {"rate": 6.0}, {"rate": 3.0}])
    results.replace("a", "b", "peer", [{"rate": 2.0}, {"rate": 2.0}, {"rate": 6.0}])
    for found in (results, Results(tmp_path / "results.jsonl")):
        figure, ratio = found.figure("a", "b", "ours", "rate"), found.ratio("a", "b", "ours", "peer", "rate")
        assert (figure.median, figure.least, figure.most, figure.rounds, figure.run) == (3.0, 1.0, 6.0, 3, RUN)
        assert (ratio.median, ratio.least, ratio.most) == (0.5, 0.5, 3.0)
    with pytest.raises(UnmeasuredError, match="no memory of a, b, ours"):
        results.figure("a", "b", "ours", "memory")


def test_a_summary_counts_until_rounds_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    lines = [
        {"run": {"date": "2026-11-23"}},
        {"row": "a", "case": "b", "client": "ours", "summary": {"rate": [2, 1, 4], "mb": [40]}, "rounds": 5},
        {"row": "a", "case": "b", "client": "ours", "ratios": {"rate": [0.5, 0.4, 0.6]}, "to": "peer", "rounds": 5},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = Results(file, RUN)
    rate, mb = (results.figure("a", "b", "ours", name) for name in ("rate", "mb"))
    assert (rate.median, rate.least, rate.most, rate.rounds, rate.run["date"]) == (2, 1, 4, 5, "2026-11-23")
    assert (mb.median, mb.least, mb.most) == (40, 40, 40)
    assert results.ratio("a", "b", "ours", "peer", "rate").most == 0.6
    with pytest.raises(UnmeasuredError, match="to another"):
        results.ratio("a", "b", "ours", "another", "rate")
    results.add("a", "b", "ours", {"rate": 7.0})
    assert results.figure("a", "b", "ours", "rate").median == 7.0
