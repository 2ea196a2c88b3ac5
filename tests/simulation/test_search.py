"""What a run reaches, the corpus of scenarios that reach something new, and the scenarios that a search draws from it."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import attrs
import pytest

from consumer_coord import cli
from consumer_coord.simulation.drawing import draw_scenario, with_answers, with_reads, with_transactions
from consumer_coord.simulation.play import play
from consumer_coord.simulation.reach import Reach
from consumer_coord.simulation.scenario import Fault, Scenario, from_json
from consumer_coord.simulation.search import Corpus, Kept, Search, form
from consumer_coord.wire import error_codes
from tests.support.simulation.planting import do_not_read_groups
from tests.support.simulation.small_history import history


def kept(seed: int, reached: set[int]) -> Kept:
    """Return a scenario as if it had been played."""
    return Kept(draw_scenario(seed), frozenset(reached))


def test_a_run_reaches_more_with_a_fault_than_without_and_the_same_each_time() -> None:
    calm, killed = history(), history(Fault(4_000, "kill", 0, 0))
    without, reached = play(calm).reached, play(killed).reached
    assert reached - without
    assert play(killed).reached == reached


def test_an_error_code_counts_with_the_phase_of_the_member() -> None:
    """A member that was frozen for longer than its session receives UNKNOWN_MEMBER_ID."""
    frozen = history(Fault(4_000, "hang", 0, 0, 12_000), protocol="classic", session_timeout_ms=6_000)
    while_frozen = zlib.crc32(f"stable|Heartbeat {error_codes.UNKNOWN_MEMBER_ID}|hang".encode())
    assert while_frozen in play(frozen).reached
    assert while_frozen not in play(attrs.evolve(frozen, faults=())).reached


def test_what_is_reached_does_not_change_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = draw_scenario(3)
    digest = play(scenario).history.digest
    for name in ("answered", "happened", "meets"):
        monkeypatch.setattr(Reach, name, lambda *_, **__: None)
    without = play(scenario)
    assert not without.reached
    assert without.history.digest == digest


def test_a_corpus_keeps_what_reaches_something_first() -> None:
    corpus = Corpus()
    assert corpus.add(kept(1, {1, 2}))
    assert not corpus.add(kept(2, {1, 2}))
    assert corpus.add(kept(3, {2, 3}))
    assert corpus.counts == {1: 2, 2: 3, 3: 1}
    assert len(corpus) == 2
    assert {one.scenario.seed for one in corpus.in_order()} == {1, 3}


def test_a_corpus_plays_first_what_adds_most() -> None:
    corpus = Corpus()
    corpus.add(kept(1, {1, 2}))
    corpus.add(kept(2, {1, 2, 3, 4, 5}))
    corpus.add(kept(3, {5, 6, 7}))
    assert [one.scenario.seed for one in corpus.in_order()] == [2, 3], "the third adds nothing"


def test_a_corpus_is_written_and_read(tmp_path: Path) -> None:
    corpus = Corpus()
    for seed in range(5):
        corpus.add(Kept(with_reads(draw_scenario(seed), "any"), frozenset({seed, seed + 1, 9})))
    corpus.save(tmp_path)
    again = Corpus.load(tmp_path)
    assert [one.scenario for one in again.in_order()] == [one.scenario for one in corpus.in_order()]
    for path in tmp_path.glob("reached-*.json"):
        assert from_json(path.read_text()) in [one.scenario for one in corpus.in_order()]
    corpus.add(kept(7, {0, 1, 2, 3, 4, 5, 9, 10}))
    corpus.save(tmp_path)
    assert len(list(tmp_path.glob("reached-*.json"))) == len(Corpus.load(tmp_path)) == 1
    assert len(Corpus.load(tmp_path / "nothing")) == 0


def drawn(seed: int, count: int, fresh: Callable[[int], Scenario] = draw_scenario) -> list[Scenario]:
    """Return the first scenarios of a search whose runs each reach something of their own."""
    search = Search(seed, fresh, Corpus())
    found = []
    for number in range(count):
        found.append(search.draw())
        search.corpus.add(Kept(found[-1], frozenset({number, number // 3})))
    return found


def test_a_seed_and_a_corpus_always_lead_to_the_same_search() -> None:
    assert drawn(4, 60) == drawn(4, 60)
    assert drawn(4, 60) != drawn(5, 60)


def test_a_search_plays_what_the_corpus_keeps_between_others() -> None:
    corpus = Corpus()
    corpus.add(kept(1, {1, 2}))
    corpus.add(kept(2, {3}))
    search = Search(7, draw_scenario, corpus)
    found = [scenario for scenario in (search.draw() for _ in range(40)) if scenario in (draw_scenario(1), draw_scenario(2))]
    assert found[:2] == [draw_scenario(1), draw_scenario(2)]


def test_scenarios_are_changed_and_fresh_by_turns() -> None:
    fresh = [scenario == draw_scenario(scenario.seed) for scenario in drawn(11, 200)]
    assert 110 < sum(fresh) < 185


def test_the_faults_of_a_changed_scenario_begin_in_order_and_in_the_time_for_faults() -> None:
    for scenario in drawn(1, 300):
        assert len(scenario.faults) <= 40
        assert list(scenario.faults) == sorted(scenario.faults, key=lambda fault: fault.at_ms)
        for fault in scenario.faults:
            assert 3_000 <= fault.at_ms < scenario.faults_end_ms


def any_form(seed: int) -> Scenario:
    """Return scenarios of several forms."""
    scenario = draw_scenario(seed)
    forms = (
        with_transactions,
        lambda one: with_reads(one, "columns"),
        lambda one: with_answers(one, "edited"),
        lambda one: one,
    )
    return forms[Random(seed).randrange(4)](scenario)


def test_faults_are_taken_only_from_scenarios_of_the_same_form() -> None:
    transactional = {fault.kind for seed in range(300) for fault in with_transactions(draw_scenario(seed)).faults}
    for scenario in drawn(2, 400, any_form):
        kinds = {fault.kind for fault in scenario.faults}
        if scenario.members[0].transactions:
            assert kinds <= transactional
        elif scenario.fetching is None:
            assert not kinds & {"suspend", "lose", "rival", "truncate", "lead", "evict"}
    assert len({form(one) for one in drawn(2, 100, any_form)}) > 3


def test_changed_scenarios_keep_every_rule_and_can_be_played() -> None:
    search = Search(3, draw_scenario, Corpus())
    for number in range(6):
        scenario = search.draw()
        outcome = play(scenario)
        assert outcome.violation is None, f"{number}: {outcome.violation}\n{outcome.history.tail(40)}"
        search.corpus.add(Kept(scenario, outcome.reached))


@pytest.mark.slow
def test_the_command_searches_the_same_in_any_number_of_processes(tmp_path: Path) -> None:
    written = []
    for jobs in ("1", "2"):
        flags = ["--seeds", "12", "--first-seed", "3", "--fault-members", "2", "--fault-ms", "8000", "--jobs", jobs]
        command = [sys.executable, "-m", "consumer_coord", "simulate", *flags, "--corpus", str(tmp_path / jobs)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        assert re.search(r"12 simulation runs, guided from seed 3, .* scenarios reach \d+ features", done.stdout)
        written.append({path.name: path.read_text() for path in (tmp_path / jobs).iterdir()})
    assert len(written[0]) > 5
    assert written[0] == written[1]


def test_the_command_keeps_a_failure_of_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    do_not_read_groups(monkeypatch)
    folder = tmp_path / "corpus"
    assert (
        cli.main(["simulate", "--seeds", "60", "--jobs", "1", "--first-seed", "0", "--no-shrink", "--corpus", str(folder)]) == 1
    )
    replay = re.search(
        r"replay it with: python -m consumer_coord (simulate --replay .*failed-\d+\.json)", capsys.readouterr().out
    )
    assert replay is not None
    assert cli.main(replay[1].split()) == 1
    monkeypatch.undo()
    assert cli.main(replay[1].split()) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"reached-0.json": {}}'])
def test_a_corpus_that_is_none_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.json").write_text(text)
    assert cli.main(["simulate", "--seeds", "1", "--corpus", str(tmp_path)]) != 0
    assert f"--corpus {tmp_path}: the files are no corpus" in capsys.readouterr().err


def test_a_corpus_needs_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["simulate", "--seeds", "1", "--corpus", str(tmp_path / "file")]) != 0
    assert "name a directory" in capsys.readouterr().err
