"""Assignors that cannot be loaded or created, or whose plan is invalid: the error names the assignor and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from assignors.base import Assignor, Cluster, Member, Plan
from consumer_coord.assignor_loading import load_assignors
from consumer_coord.errors import ConfigurationError
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import ScriptedAssignor, everything_to_first, member
from tests.support.group.virtual import in_virtual_time

SOURCE = """
from assignors import RangeAssignor
from assignors.base import Assignor

class Raises(RangeAssignor):
    def __init__(self):
        raise OSError("no weights file")

class Needs(RangeAssignor):
    def __init__(self, weights):
        self.weights = weights

class Abstract(Assignor):
    name = "abstract"
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide modules with such assignors."""
    (tmp_path / "broken_assignors.py").write_text(SOURCE)
    (tmp_path / "broken_at_import.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "broken_syntax.py").write_text("def (")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("broken_assignors", "broken_at_import", "broken_syntax"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("broken_at_import:X", "no licence"),
        ("broken_syntax:X", "SyntaxError"),
        ("broken_assignors:Raises", "no weights file"),
        ("broken_assignors:Needs", "weights"),
        ("broken_assignors:Abstract", "abstract"),
        ("broken_assignors:Missing", "Missing"),
        ("broken_assignors:SOURCE.x", "SOURCE"),
    ],
)
def test_an_assignor_that_cannot_be_had_names_its_strategy(strategy: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_assignors([strategy])
    assert f"partition.assignment.strategy: {strategy!r}" in str(refused.value)
    assert says in str(refused.value)


class Talks(ScriptedAssignor):
    """An assignor whose user data are not bytes."""

    def user_data(self, topics: Sequence[str]) -> Any:
        """Return a str, as JSON would."""
        return "{}"


def plan(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    """Return a plan without a meaning."""
    return everything_to_first(cluster, members)


@in_virtual_time
async def test_user_data_that_are_no_bytes_are_a_mistake_of_the_assignor() -> None:
    made: Assignor = Talks(plan)
    async with member(FakeBrokers(), [made]) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(ConfigurationError, match=r"'scripted': user_data must return bytes or None, not str"):
            await one.coordinator.join_group_if_needed(5_000)
