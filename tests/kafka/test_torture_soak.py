"""A short soak; ``make soak SECONDS=…`` is the long one."""

from __future__ import annotations

import pytest

from benchmarks.soak import Sample, Soak, grown
from tests.support.real_kafka import RealKafka


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_nothing_grows_and_no_record_is_missing(kafka3: RealKafka, group: str) -> None:
    """Members of this process and of others come and go, a broker goes and comes back."""
    topic = kafka3.new_topic(12, replication_factor=3)
    soak = Soak(kafka3, 3, group, topic, seed=2)
    try:
        report = soak.run(25.0)
    finally:
        soak.close()
    assert not report.problems, f"{report.problems}\n{report.samples}"


def test_a_leak_is_noticed() -> None:
    steady = [Sample(float(second), 100.0, 40, 20, 15) for second in range(20)]
    assert grown(steady) == []
    leaking = [Sample(float(second), 100.0 + 2 * second, 40, 20 + 3 * second, 15) for second in range(20)]
    assert [problem.split()[0] for problem in grown(leaking)] == ["rss_mb", "sockets"]
