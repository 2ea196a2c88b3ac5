"""Spark Connect: what docs/spark.md shows works without a SparkContext on this side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.testing.processes import end, spawn

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_source_listener_progress_and_an_assignor_by_value(
    kafka: KafkaCluster, topic: NewTopicFactory, fill: Callable[..., None], group: str, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    fill(name, 0, 10)
    fill(name, 1, 5)
    setup = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group": group,
        "topic": name,
        "directory": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.support.spark.connect_session", json.dumps(setup)]
    log = tmp_path / "connect.log"
    with log.open("wb") as errors:
        process = spawn(command, stdout=subprocess.PIPE, stderr=errors, cwd=Path(__file__).resolve().parents[3])
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        end(process)
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    assert lines, log.read_text()[-4_000:]
    assert json.loads(lines[-1]) == {
        "cores": 3,
        "read": 15,
        "owned": {name: [0, 1]},
        "owned_events": [{name: [0, 1]}],
        "error": "None",
    }
