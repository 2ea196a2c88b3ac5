"""``simulate --lag``: a group that is scaled by its past lag."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consumer_coord import cli
from consumer_coord.scaling.lag_csv import header, parse_lags
from consumer_coord.scaling.wanted_replicas import Limits
from consumer_coord.simulation.deployment import Deployment
from consumer_coord.simulation.scaling import Scaling, replay_lags

LIMITS = Limits(lag_per_replica=100, least=2, most=8, up_after_s=60, down_after_s=300)
GROUP = Deployment(members=1, topics={})


def file_of(
    lag: Callable[[int], int | None], *, minutes: int, every_s: int = 30, state: str = "Stable", members: int = 2
) -> str:
    """Readings of a topic with ten partitions; ``lag`` gives the lag of all at a minute, None for no answer."""
    lines = [header()]
    for number in range(minutes * 60 // every_s):
        at = datetime(2026, 11, 16, tzinfo=UTC) + timedelta(seconds=number * every_s)
        total = lag(number * every_s // 60)
        if total is None:
            lines.append(f"{at.isoformat()},orders,unknown,,,,,\n")
        else:
            lines += [f"{at.isoformat()},orders,{state},{members},orders,{one},{total // 10},\n" for one in range(10)]
    return "".join(lines)


def replay(text: str, limits: Limits = LIMITS, group: Deployment = GROUP) -> Scaling:
    return replay_lags(parse_lags(text), limits, group)


def counts(scaling: Scaling) -> list[int]:
    return [count for _, count in scaling.replicas]


def test_a_wave_scales_the_group_up_and_down_once() -> None:
    scaling = replay(file_of(lambda minute: 500 if 10 <= minute < 30 else 100, minutes=60))
    assert counts(scaling) == [2, 5, 2]
    begin = scaling.lags.times[0]
    assert [at - begin for at, _ in scaling.replicas] == [0, 11 * 60, 35 * 60]
    assert (scaling.ups, scaling.downs) == (1, 1)
    assert scaling.average == pytest.approx((2 * 11 + 5 * 24 + 2 * 24.5) / 59.5)
    assert scaling.phase.rebalances >= 2
    assert scaling.phase.moved > 0
    assert scaling.phase.unowned_partition_s > 0


def test_a_lag_that_stays_causes_no_rebalance() -> None:
    scaling = replay(file_of(lambda _: 200, minutes=600))
    assert counts(scaling) == [2]
    assert (scaling.phase.rebalances, scaling.phase.unowned_partition_s, scaling.held) == (0, 0, {})


def test_slower_limits_cause_fewer_rebalances() -> None:
    """A lag that swings every two minutes."""
    text = file_of(lambda minute: 700 if minute // 2 % 2 else 0, minutes=120)
    hasty = replay(text, Limits(lag_per_replica=100, least=2, most=8, up_after_s=0, down_after_s=0))
    calm = replay(text, LIMITS)
    assert hasty.ups >= 20
    assert (calm.ups, calm.downs) == (1, 0)
    assert calm.phase.rebalances < hasty.phase.rebalances / 5
    assert calm.phase.unowned_partition_s < hasty.phase.unowned_partition_s / 2


def test_the_groups_own_rebalances_and_missing_answers_hold_the_figure() -> None:
    """A static member that was stopped stays in the group until its session ends, and with it the rebalance."""
    limits = Limits(lag_per_replica=100, least=2, most=8, up_after_s=0, down_after_s=0)
    group = Deployment(members=1, topics={}, static=True, session_timeout_ms=45_000)
    text = file_of(lambda minute: None if minute == 2 else 600 if minute < 4 else 300, minutes=10, every_s=5)
    scaling = replay(text, limits, group)
    assert scaling.held["no answer"] == 12
    assert scaling.held["the group rebalances"] >= 8
    assert counts(scaling) == [2, 6, 3]
    assert scaling.phase.longest_unowned_s >= 40

    rebalancing = file_of(lambda _: 800, minutes=10, state="PreparingRebalance")
    held = replay(rebalancing)
    assert (counts(held), held.held) == ([2], {"the group rebalances": 20})


def test_several_members_in_a_replica_bound_it_by_their_number() -> None:
    limits = Limits(lag_per_replica=10, least=1, most=8, up_after_s=60, members_per_replica=4)
    scaling = replay(file_of(lambda _: 1000, minutes=5, members=4), limits)
    assert counts(scaling) == [1, 3], "ten partitions with lag are enough for ten members"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figures = tmp_path / "lag.csv", tmp_path / "figures.json"
    file.write_text(file_of(lambda minute: 500 if minute >= 2 else 100, minutes=10))
    flags = ["--lag-per-replica", "100", "--replicas", "2..4", "--json", str(figures), "--assignor", "range"]
    assert cli.main(["simulate", "--lag", str(file), *flags]) == 0
    said = capsys.readouterr().out
    assert "orders: 20 readings in 0.2 hours, 10 partitions; 2..4 replicas" in said
    assert "scaled up 1 times and down 0 times" in said
    written = json.loads(figures.read_text())
    assert [one["replicas"] for one in written["replicas"]] == [2, 4]
    assert written["rebalances"] >= 1


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--replicas", "2..20"], "add --lag FILE.csv"),
        (["--lag", "nowhere.csv"], "--lag nowhere.csv: No such file"),
        (["--lag", "nowhere.csv", "--replicas", "0..3"], "must begin with 1 or more"),
        (["--lag", "nowhere.csv", "--churn", "deploy"], "--churn has no effect with --lag"),
        (["--lag", "nowhere.csv", "--topics", "t:1"], "--topics has no effect with --lag"),
        (["--lag", "nowhere.csv", "--members", "3"], "--members has no effect with --lag"),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", *flags]) == 2
    assert complaint in capsys.readouterr().err
