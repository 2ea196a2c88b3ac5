"""Stops of a query leave no member in the group and no process behind (``python -m tests.support.spark.stops``: hundreds)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.testing.real_kafka import RealKafka
from tests.support.spark.stops import SESSION_S, Stops

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def stops(kafka: RealKafka, spark: Any, tmp_path: Path) -> Iterator[Stops]:
    found = Stops(kafka.bootstrap_servers, tmp_path, 1, print, spark)
    try:
        yield found
    finally:
        found.close()


def test_a_stopped_query_leaves_its_group_and_ends(stops: Stops) -> None:
    """With the default session timeout: a ghost would stay for three quarters of a minute."""
    done = [stops.stop_once(way) for way in ("query", "query", "task", "query")]
    assert [one for one in done if one.leave_s > SESSION_S / 2] == []
    assert [one for one in done if one.left_behind] == []
    if sys.platform == "linux":
        assert stops.forked, "Spark starts its planners with other settings than the fork server's"
    assert any(one.share_s is not None for one in done), "none of them had joined"
