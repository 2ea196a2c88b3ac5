"""What Spark's Python processes import: each import makes every query, or every worker's first task, start later."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLANNER = ("consumer_coord.spark.source", "consumer_coord.spark.member")
WORKER = ("consumer_coord.spark.source", "consumer_coord.spark.reader")


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        pytest.param(
            PLANNER,
            {
                "confluent_kafka",
                "consumer_coord.spark.reader",
                "consumer_coord.wire.messages.admin",
                "consumer_coord.wire.messages.consumer_group",
                "consumer_coord.wire.messages.log",
            },
            id="a planner has no librdkafka, and no messages of others",
        ),
        pytest.param(
            WORKER,
            {"assignors", "consumer_coord.coordinator", "consumer_coord.wire.messages.group"},
            id="a worker has no control plane",
        ),
    ],
)
def test_a_process_imports_what_it_needs_and_no_more(imported: tuple[str, ...], unwanted: set[str]) -> None:
    code = f"import sys, {', '.join(imported)}; print(*sys.modules, sep='\\n')"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    modules = set(listed.splitlines())
    assert modules.issuperset(imported)
    assert not modules & unwanted
