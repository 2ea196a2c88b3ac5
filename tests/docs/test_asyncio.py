"""docs/asyncio.md: its tables name every method of the peers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from consumer_coord import AsyncGroupConsumer

AIOConsumer: Any = pytest.importorskip("confluent_kafka.aio", reason="confluent-kafka has it since 2.13").AIOConsumer
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "asyncio.md").read_text()


def _public(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def _table(first: str) -> dict[str, str]:
    """Return the rows of a table, and the methods without differences that the next paragraph lists."""
    section, same = PAGE.split(f"| {first} | here |", 1)[1].split("\n\n", 2)[:2]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|-) \|", section, re.MULTILINE)
    assert len(rows) == len(section.splitlines()) - 2, "each line is a row"
    assert same.startswith("Without differences: ")
    rows += [(name, name) for name in re.findall(r"`(\w+)`", same)]
    assert len(rows) == len(dict(rows)), "each method is named once"
    return dict(rows)


@pytest.mark.parametrize(("name", "kind"), [("AIOConsumer", AIOConsumer), ("aiokafka", AIOKafkaConsumer)])
def test_the_table_has_every_method_and_ours_exist(name: str, kind: type[Any]) -> None:
    table = _table(name)
    assert table.keys() == _public(kind)
    assert {ours for ours in table.values() if ours} <= _public(AsyncGroupConsumer)


def test_every_method_of_aioconsumer_is_awaited_here_too() -> None:
    for name in _public(AIOConsumer):
        assert inspect.iscoroutinefunction(getattr(AIOConsumer, name))
        assert inspect.iscoroutinefunction(getattr(AsyncGroupConsumer, name)), name


def test_the_table_says_what_is_awaited_here_alone() -> None:
    section = PAGE.split("| aiokafka | here |", 1)[1]
    for name, ours in _table("aiokafka").items():
        if name == ours:
            line = next((one for one in section.splitlines() if one.startswith(f"| `{name}` |")), "")
            only_here = inspect.iscoroutinefunction(getattr(AsyncGroupConsumer, name)) and not inspect.iscoroutinefunction(
                getattr(AIOKafkaConsumer, name)
            )
            assert only_here == ("| awaited" in line), line
