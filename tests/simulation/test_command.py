"""``python -m consumer_coord simulate``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from assignors import RangeAssignor
from consumer_coord import cli
from consumer_coord.admin.commands import ExitCode
from tests.support.simulation.planting import do_not_read_groups


@pytest.mark.thorough
def test_seeds_are_played_and_the_first_one_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fresh seeds are for the check of each commit, not for a test that must not depend on chance.
    monkeypatch.setattr("secrets.randbelow", lambda below: 4711 % below)
    assert cli.main(["simulate", "--seeds", "3", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "running 3 simulations from seed 4711" in said
    assert re.search(r"3 simulation runs from seed 4711 in .* no rule was broken", said)


@pytest.mark.thorough
def test_a_time_limit_starts_no_more_histories(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--seeds", "1000000", "--first-seed", "0", "--jobs", "1", "--time-limit-ms", "500"]) == 0
    played = re.search(r"(\d+) simulation runs from seed \d+ in", capsys.readouterr().out)
    assert played is not None
    assert 0 < int(played[1]) < 1_000


@pytest.mark.slow
def test_processes_share_the_work() -> None:
    command = [sys.executable, "-m", "consumer_coord", "simulate", "--seeds", "4", "--first-seed", "5", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert "4 simulation runs from seed 5" in done.stdout


@pytest.mark.thorough
def test_one_seed_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--seed", "5"]) == 0
    once = capsys.readouterr().out
    assert cli.main(["simulate", "--seed", "5"]) == 0
    assert capsys.readouterr().out == once
    assert "log: generation 1 of" in once


def test_the_line_that_replays_a_failure_says_how_it_was_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    do_not_read_groups(monkeypatch)
    drawing = ["--fault-members", "4", "--fault-ms", "30000"]
    assert cli.main(["simulate", "--seeds", "60", "--first-seed", "0", "--jobs", "1", "--no-shrink", *drawing]) == 1
    replay = re.search(r"replay it with: python -m consumer_coord (simulate .*)", capsys.readouterr().out)
    assert replay is not None
    assert replay[1].endswith(" ".join(drawing))
    assert cli.main(replay[1].split()) == 1


@pytest.mark.slow
def test_a_failure_is_shrunk_told_and_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    do_not_read_groups(monkeypatch)
    kept = tmp_path / "failed.json"
    assert cli.main(["simulate", "--seeds", "60", "--first-seed", "0", "--jobs", "1", "--keep", str(kept)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"FAILED seed \d+: ", said)
    faults = said.split("faults:\n")[1].split("timeline")[0].splitlines()
    assert 1 <= len(faults) <= 3, said
    assert cli.main(["simulate", "--replay", str(kept), "--no-shrink"]) == 1
    monkeypatch.undo()
    assert cli.main(["simulate", "--replay", str(kept)]) == 0


class _Mine(RangeAssignor):
    """An assignor of the user's own."""

    name = "mine"


@pytest.mark.parametrize("churn", ["deploy", "scale-out", "rack-loss", "loss", "none"])
def test_a_group_under_churn(churn: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "report.json"
    code = cli.main(
        [
            *("simulate", "--members", "6", "--topics", "orders:12,events:4", "--churn", churn),
            *("--session-timeout-ms", "6000", "--heartbeat-interval-ms", "2000"),
            *("--report", str(page), "--json", str(figures)),
        ]
    )
    said = capsys.readouterr().out
    assert code == 0, said
    phases = json.loads(figures.read_text())["phases"]
    assert [phase["name"] for phase in phases] == (["start"] if churn == "none" else ["start", churn])
    assert phases[0]["unowned_partition_s"] > 0
    assert all(phase["most"] - phase["least"] <= 1 for phase in phases)
    text = page.read_text()
    assert '"topics":{"orders":12,"events":4}' in text
    assert "://" not in text, "the page needs nothing from elsewhere"


def test_the_loss_of_a_rack_leaves_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """All members of a process are in the same rack."""
    figures = tmp_path / "report.json"
    arguments = ["simulate", "--members", "18", "--members-per-process", "3", "--churn", "rack-loss", "--json", str(figures)]
    assert cli.main([*arguments, "--topics", "orders:36", "--session-timeout-ms", "6000"]) == 0
    lost = json.loads(figures.read_text())["phases"][1]
    assert (lost["least"], lost["most"], lost["moved"]) == (3, 3, 12)
    capsys.readouterr()
    assert cli.main(["simulate", "--members", "3", "--members-per-process", "3", "--churn", "rack-loss"]) != 0
    assert "use at least two racks and two processes" in capsys.readouterr().err


def test_an_assignor_of_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--members", "3", "--topics", "orders:6", "--churn", "none"]
    assert cli.main([*arguments, "--assignor", f"{__name__}:_Mine"]) == 0
    assert "mine" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("topics", ["orders", "orders:0", "orders:x", "a:1,a:2", ""])
def test_topics_that_are_none_are_refused(topics: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--members", "3", "--topics", topics]) != 0
    assert "--topics" in capsys.readouterr().err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The only output of a command line that is refused; nothing was played."""
    assert cli.main(["simulate", *arguments]) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seeds 0", "--seeds must be at least 1"),
        ("--seeds 1 --fault-members 0", "--fault-members must be at least 1"),
        ("--seeds 1 --fault-ms 3000", "--fault-ms must be at least 4000"),
        ("--members 0", "--members must be at least 1"),
        ("--members 2 --session-timeout-ms -5", "--session-timeout-ms must be at least 1"),
        ("--members 2 --heartbeat-interval-ms 0", "--heartbeat-interval-ms must be at least 1"),
        ("--members 2 --poll-every-ms 0", "--poll-every-ms must be at least 1"),
        ("--members 2 --heartbeat-interval-ms 60000", "--heartbeat-interval-ms 60000 must be below --session-timeout-ms 45000"),
    ],
)
def test_a_number_that_makes_no_simulation_is_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *arguments.split()) == f"Error: {message}"


@pytest.mark.parametrize(
    "flag",
    [
        *(["--topics", "orders:6"], ["--assignor", "range"], ["--churn", "deploy"], ["--members-per-process", "1"]),
        *(["--racks", "3"], ["--static"], ["--session-timeout-ms", "45000"], ["--heartbeat-interval-ms", "3000"]),
        *(["--poll-every-ms", "500"], ["--callback-ms", "0"], ["--restart-ms", "5000"]),
        *(["--report", "r.html"], ["--json", "r.json"]),
    ],
    ids=lambda flag: flag[0],
)
@pytest.mark.parametrize("mode", [[], ["--seed", "5"], ["--seeds", "1", "--jobs", "1"]], ids=" ".join)
def test_a_flag_of_one_group_needs_members(mode: list[str], flag: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also with the value that is the flag's default."""
    assert refusal(capsys, *mode, *flag) == f"Error: {flag[0]} describes one group under churn: add --members N"


@pytest.mark.parametrize(
    ("mode", "flag"),
    [
        ("--members 3", "--seeds 10"),
        ("--members 3", "--first-seed 1"),
        ("--members 3", "--replay failed.json"),
        ("--members 3", "--keep failed.json"),
        ("--members 3", "--time-limit-ms 5"),
        ("--members 3", "--fault-members 5"),
        ("--members 3", "--fault-protocol classic"),
        ("--members 3", "--fault-reads columns"),
        ("--members 3", "--fault-ms 55000"),
        ("--members 3", "--jobs 1"),
        ("--members 3", "--no-shrink"),
        ("--replay failed.json", "--seed 5"),
        ("--replay failed.json", "--seeds 5"),
        ("--replay failed.json", "--fault-members 5"),
        ("--replay failed.json", "--time-limit-ms 5"),
        ("--seed 5", "--seeds 5"),
        ("--seed 5", "--first-seed 5"),
        ("--seed 5", "--jobs 1"),
        ("--seed 5", "--time-limit-ms 5"),
    ],
)
def test_a_flag_that_a_mode_ignores_is_refused(mode: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = f"Error: {flag.split()[0]} has no effect with {mode.split()[0]}: remove one of them"
    assert refusal(capsys, *mode.split(), *flag.split()) == wanted


@pytest.mark.parametrize("flag", ["--report", "--json", "--keep"])
@pytest.mark.parametrize("place", ["a directory", "under a file"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    flag: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path if place == "a directory" else tmp_path / "file" / "report"
    mode = ["--seed", "5"] if flag == "--keep" else ["--members", "3", "--topics", "orders:6", "--churn", "none"]
    said = refusal(capsys, *mode, flag, str(path))
    assert said.startswith(f"Error: {flag} {path}: ")
    assert "name a file that can be written" in said
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_report_in_a_directory_that_does_not_exist_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "typo" / "report.html"
    said = refusal(capsys, "--members", "3", "--topics", "orders:6", "--churn", "none", "--report", str(path))
    assert said == f"Error: --report {path}: No such file or directory; name a file that can be written"


def test_a_run_that_fails_leaves_no_empty_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--members", "1", "--churn", "rack-loss", "--report", str(tmp_path / "report.html")]
    assert "use at least two racks and two processes" in refusal(capsys, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"members": [{"name": 1}]}'])
def test_a_scenario_that_is_none_is_refused(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "failed.json"
    if text is not None:
        kept.write_text(text)
    assert refusal(capsys, "--replay", str(kept)).startswith(f"Error: --replay {kept}: ")


def moved(assignor: str, tmp_path: Path, *arguments: str) -> int:
    """Count the partitions that change owner when six members with 24 partitions restart one after the other."""
    figures = tmp_path / "figures.json"
    group = ["--members", "6", "--topics", "orders:24", "--assignor", assignor, "--json", str(figures)]
    assert cli.main(["simulate", *group, *arguments]) == 0
    found: int = json.loads(figures.read_text())["phases"][1]["moved"]
    return found


def test_an_eager_assignor_moves_more_partitions_in_a_deploy_than_a_sticky_one(tmp_path: Path) -> None:
    """Each restart takes a member's partitions away and gives them back; in the end every owner is as it was."""
    eager, sticky = moved("range", tmp_path), moved("cooperative-sticky", tmp_path)
    # Each of the six members has four partitions, which another member reads in its absence.
    assert eager > sticky >= 6 * 4
    assert moved("range", tmp_path, "--static") == 0
