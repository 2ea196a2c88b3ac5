"""The sets of tests that one worker runs when pytest runs several workers (``-n``).

pytest-xdist has marks for this, but passes them to its scheduler in the names of the tests, which pytest 9.2 does not let it
change.  So this module lists the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

#: Fixtures that start JVMs, or take long to build, once for every worker that uses them: fixture -> the files whose tests
#: may use it.  One worker runs all tests of these files, one after another; other tests go to any worker that is free.
TOGETHER: Mapping[str, Sequence[str]] = {
    "built": ("tests/test_packaging.py",),
    "spark": (
        "tests/integration/spark/test_bounded_read.py",
        "tests/integration/spark/test_comparing.py",
        "tests/integration/spark/test_compaction.py",
        "tests/integration/spark/test_embedded.py",
        "tests/integration/spark/test_pages.py",
        "tests/integration/spark/test_query.py",
        "tests/integration/spark/test_security.py",
        "tests/integration/spark/test_stops.py",
        "tests/integration/spark/test_three_answers.py",
        "tests/integration/spark/test_triggers.py",
    ),
    "secured": (
        "tests/integration/security/test_both_planes.py",
        "tests/integration/security/test_clouds.py",
        "tests/integration/security/test_commands.py",
        "tests/integration/security/test_listeners.py",
        "tests/integration/security/test_sessions.py",
    ),
    **dict.fromkeys(
        ("kafka_3_9", "kafka_2_4", "kafka_4_3"),
        (
            "tests/integration/kafka/older_brokers/test_fetcher.py",
            "tests/integration/kafka/older_brokers/test_matrix.py",
        ),
    ),
    "few_sessions": ("tests/integration/kafka/test_fetcher.py",),
    "modern_kafka": ("tests/conformance/broker/test_consumer_against_kafka.py",),
    "kafka3": (
        "tests/integration/kafka/three_brokers/test_health.py",
        "tests/integration/kafka/three_brokers/test_restarts_and_kills.py",
        "tests/integration/kafka/three_brokers/test_torture_soak.py",
        "tests/integration/kafka/three_brokers/test_unclean_election.py",
    ),
    "one_way": ("tests/integration/admin/test_migrate.py",),
    "java_assignors": (
        "tests/conformance/assignors/test_range_and_round_robin.py",
        "tests/conformance/assignors/test_sticky_against_java.py",
    ),
    "tool_server": (
        "tests/conformance/admin/test_against_kafkas_tool.py",
        "tests/conformance/admin/test_four_kinds.py",
        "tests/conformance/admin/test_lag_against_kafka.py",
    ),
    "oracle": (
        "tests/conformance/broker/test_coordinator_oracle.py",
        "tests/conformance/broker/test_offsets_topic.py",
        "tests/conformance/wire/test_against_java.py",
    ),
}


def together(name: str) -> str:
    """Return the set of a test: the fixture for which its file is listed, otherwise the test alone."""
    file = name.partition("::")[0]
    return next((fixture for fixture, files in TOGETHER.items() if file in files), name)


def misplaced(items: Iterable[pytest.Item]) -> Sequence[str]:
    """Return the files that have tests with such a fixture, but are not listed."""
    found: set[str] = set()
    for item in items:
        file = item.nodeid.partition("::")[0]
        if together(file) == file:
            found.update(f"{file} uses {name}" for name in TOGETHER if name in getattr(item, "fixturenames", ()))
    return sorted(found)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Schedules the largest sets of tests first, then single tests in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)
