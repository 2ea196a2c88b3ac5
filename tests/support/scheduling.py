"""Which tests one worker runs together when pytest runs several (``-n``).

pytest-xdist has marks for this, but tells its scheduler of them by way of the tests' names, which pytest 9.2 does not let it
change.  Here the files say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

#: What takes a JVM or several, or long to build, and every worker that needs it starts or builds: fixture -> the files whose
#: tests may use it.  All tests of these files run on one worker, one after another; other tests go to whichever worker is
#: free.
TOGETHER: Mapping[str, Sequence[str]] = {
    "built": ("tests/test_packaging.py",),
    "spark": (
        "tests/integration/spark/test_compaction.py",
        "tests/integration/spark/test_embedded.py",
        "tests/integration/spark/test_pages.py",
        "tests/integration/spark/test_query.py",
        "tests/integration/spark/test_security.py",
        "tests/integration/spark/test_stops.py",
        "tests/integration/spark/test_triggers.py",
    ),
    "secured": (
        "tests/integration/security/test_both_planes.py",
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
        "tests/integration/kafka/three_brokers/test_restarts_and_kills.py",
        "tests/integration/kafka/three_brokers/test_torture_soak.py",
        "tests/integration/kafka/three_brokers/test_unclean_election.py",
    ),
    "java_assignors": (
        "tests/conformance/assignors/test_range_and_round_robin.py",
        "tests/conformance/assignors/test_sticky_against_java.py",
    ),
    "tool_server": ("tests/conformance/admin/test_against_kafkas_tool.py",),
    "oracle": (
        "tests/conformance/broker/test_coordinator_oracle.py",
        "tests/conformance/broker/test_offsets_topic.py",
        "tests/conformance/wire/test_against_java.py",
    ),
}


def together(name: str) -> str:
    """What a test must run with: the fixture that its file is there for, or itself alone."""
    file = name.partition("::")[0]
    return next((fixture for fixture, files in TOGETHER.items() if file in files), name)


def misplaced(items: Iterable[pytest.Item]) -> Sequence[str]:
    """The files with tests that use such a fixture, and that are not listed."""
    found: set[str] = set()
    for item in items:
        file = item.nodeid.partition("::")[0]
        if together(file) == file:
            found.update(f"{file} uses {name}" for name in TOGETHER if name in getattr(item, "fixturenames", ()))
    return sorted(found)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """The largest sets of tests first, then single tests in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)
