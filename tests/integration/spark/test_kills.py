"""The proof in small (proof.py is the whole one): kills and restarts lose nothing, and each duplicate has a known cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer_coord.testing.kafka_cluster import KafkaCluster
from tests.support.long_runs import long_runs
from tests.support.members import Members
from tests.support.spark.deliveries import UNEXPLAINED, Delivery, Run, judge
from tests.support.spark.proof import play
from tests.support.spark.scene import Scene


@pytest.fixture
def scene(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(kafka.bootstrap_servers, tmp_path, partitions=8)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not long_runs(), reason="two minutes: LONG_RUNS=1 runs it, and proof.py the whole play")
def test_kills_lose_nothing_and_leave_nothing_behind(scene: Scene, members: Members) -> None:
    verdict = play(scene, members, 5_000, 500, steps=[("jvm", "a"), ("planner", "b")])
    assert verdict.lost == {}
    assert verdict.delivered == scene.written
    assert verdict.unexplained == []


# -- the judge itself ---------------------------------------------------------------------------------------------------


def delivery(at_ms: int, member: str, first: int, last: int, *, batch: int | None = 0, run: int = 1) -> Delivery:
    return Delivery(at_ms, member, run, batch, 0, first, last)


def test_the_judge_finds_what_is_missing() -> None:
    verdict = judge([delivery(1, "a", 0, 4), delivery(2, "a", 7, 9, batch=1)], {0: 12}, {})
    assert verdict.lost == {0: [(5, 6), (10, 11)]}
    assert verdict.delivered == 8


def test_the_judge_knows_the_causes_of_duplicates() -> None:
    killed = {("a", 1): Run("jvm"), ("a", 2): Run(replays=(0, "jvm"))}
    replayed = judge([delivery(1, "a", 0, 9), delivery(2, "a", 0, 9, run=2)], {0: 10}, killed)
    assert replayed.duplicates == {"replayed batch (jvm)": 10}
    replayed_late = judge([delivery(1, "p", 0, 9, batch=None), delivery(2, "a", 0, 9, run=2)], {0: 10}, killed)
    assert replayed_late.duplicates == {"replayed batch (jvm)": 10}
    replayed_first = judge([delivery(1, "a", 0, 9, run=2), delivery(2, "b", 0, 14)], {0: 15}, killed)
    assert replayed_first.duplicates == {"replayed batch (jvm)": 10}
    unconfirmed = judge([delivery(1, "a", 0, 9), delivery(2, "b", 5, 14)], {0: 15}, killed)
    assert unconfirmed.duplicates == {"finished, not confirmed (jvm)": 5}
    lost = judge([delivery(1, "a", 0, 9), delivery(2, "b", 5, 14)], {0: 15}, {("a", 1): Run(lost=True)})
    assert lost.duplicates == {"lost membership": 5}


def test_the_judge_lets_nothing_else_pass() -> None:
    alive = judge([delivery(1, "a", 0, 9), delivery(2, "b", 5, 14)], {0: 15}, {("a", 1): Run()})
    assert alive.duplicates == {UNEXPLAINED: 5}
    long_ago = [delivery(1, "a", 0, 9), delivery(2, "a", 10, 19, batch=5), delivery(3, "b", 0, 9)]
    assert judge(long_ago, {0: 20}, {("a", 1): Run("jvm")}).duplicates == {UNEXPLAINED: 10}
    assert judge([delivery(1, "p", 0, 3, batch=None), delivery(2, "b", 0, 3)], {0: 4}, {}).duplicates == {UNEXPLAINED: 4}
    # A killed query that read what a plain consumer had read before: its death explains nothing.
    backwards = [delivery(1, "p", 0, 3, batch=None), delivery(2, "a", 0, 3)]
    assert judge(backwards, {0: 4}, {("a", 1): Run("jvm")}).duplicates == {UNEXPLAINED: 4}
    # The same query again, from its checkpoint, in another batch than the unfinished one.
    again = [delivery(1, "a", 0, 3), delivery(2, "a", 0, 3, batch=1, run=2)]
    assert judge(again, {0: 4}, {("a", 1): Run("jvm"), ("a", 2): Run(replays=(0, "jvm"))}).duplicates == {UNEXPLAINED: 4}
