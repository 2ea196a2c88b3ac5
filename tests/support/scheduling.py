"""Which tests one worker runs together when pytest runs several (``-n``).

pytest-xdist has marks for this, but tells its scheduler of them by way of the tests' names, which pytest 9.2 does not let it
change.  Here the files say it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

#: What takes a JVM or several, which every worker that needs it starts: fixture -> the files whose tests may use it.  All
#: tests of these files run on one worker, one after another; other tests go to whichever worker is free.
TOGETHER: Mapping[str, Sequence[str]] = {
    "spark": ("tests/spark/test_embedded.py", "tests/spark/test_query.py", "tests/spark/test_security.py"),
    "secured": (
        "tests/security/test_both_planes.py",
        "tests/security/test_commands.py",
        "tests/security/test_listeners.py",
        "tests/security/test_sessions.py",
    ),
    "kafka3": ("tests/kafka/test_three_brokers.py",),
    "java_assignors": ("tests/assignors/test_range_and_round_robin.py", "tests/assignors/test_sticky_against_java.py"),
    "oracle": ("tests/broker/test_offsets_topic.py", "tests/wire/test_against_java.py"),
}


def together(name: str) -> str:
    """What a test must run with: the fixture that its file is there for, or itself alone."""
    file = name.partition("::")[0]
    return next((fixture for fixture, files in TOGETHER.items() if file in files), name)


def check(items: Iterable[pytest.Item]) -> None:
    """Raises UsageError for a test that uses such a fixture in a file that is not listed."""
    for item in items:
        for fixture in TOGETHER.keys() & set(getattr(item, "fixturenames", ())):
            file = item.nodeid.partition("::")[0]
            if not any(file in files for files in TOGETHER.values()):
                raise pytest.UsageError(f"{file} uses the fixture {fixture}: add it to TOGETHER in {__file__}")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """The largest sets of tests first, then single tests in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)
