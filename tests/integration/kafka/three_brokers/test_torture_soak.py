"""A short soak; ``make soak SECONDS=…`` is the long one."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks.soak import Sample, Soak, grown
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.churn import Group, check, churn, roll
from tests.support.long_runs import long_runs


@pytest.mark.kafka
@pytest.mark.slow
def test_nothing_grows_and_no_record_is_missing(kafka3: RealKafka, group: str) -> None:
    """Members of this process and of others come and go, a broker goes and comes back."""
    topic = kafka3.new_topic(12, replication_factor=3)
    soak = Soak(kafka3, 3, group, topic, seed=2)
    try:
        report = soak.run(12.0)
    finally:
        soak.close()
    assert not report.problems, f"{report.problems}\n{report.samples}"


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.skipif(not long_runs(), reason="three minutes: LONG_RUNS=1 runs it")
def test_all_brokers_restart_one_after_the_other_under_a_group_of_the_consumer_protocol(kafka3: RealKafka, group: str) -> None:
    name = kafka3.new_topic(12, replication_factor=3, config={"min.insync.replicas": "1"})
    with contextlib.closing(Group(kafka3, name, group, protocol="consumer", config={"log_level": 0})) as members:
        found = churn(kafka3, name, 12, members, seconds=1.0, seed=7, per_s=500, disturb=roll(kafka3, 3))
        check(found)
        assert found.repeated == 0, f"the members kept their partitions: {found}"


def test_a_leak_is_noticed() -> None:
    steady = [Sample(float(second), 100.0, 140_000, 40, 20, 15) for second in range(20)]
    assert grown(steady) == []
    leaking = [Sample(float(second), 100.0 + 2 * second, 140_000, 40, 20 + 3 * second, 15) for second in range(20)]
    assert [problem.split()[0] for problem in grown(leaking)] == ["rss_mb", "sockets"]
    keeping = [Sample(float(second), 100.0, 140_000 + 2_000 * second, 40, 20, 15) for second in range(20)]
    assert [problem.split()[0] for problem in grown(keeping)] == ["blocks"]
