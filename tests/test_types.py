"""Mistakes that a type checker finds in a program that uses the consumers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from consumer_coord import AsyncGroupConsumer, GroupConsumer

def called(consumer: object, partitions: object) -> None: ...
def too_few(consumer: object) -> None: ...
def too_many(consumer: object, partitions: object, more: object) -> None: ...
async def later(consumer: object, partitions: object) -> None: ...

async def use(consumer: GroupConsumer, other: AsyncGroupConsumer, names: list[str]) -> None:
    consumer.subscribe(names, on_assign=called)
    consumer.subscribe(("orders",))
    await other.subscribe({"orders"}, on_assign=later)
    consumer.subscribe("orders")  # wrong
    await other.subscribe("orders")  # wrong
    consumer.subscribe(names, on_assigned=called)  # wrong
    consumer.subscribe(names, on_assign=too_few)  # wrong
    consumer.subscribe(names, on_revoke=too_many)  # wrong
    await other.subscribe(names, on_assign=too_few)  # wrong
    await other.subscribe(names, on_assigned=later)  # wrong
    consumer.commit(asynchronous=False)
    consumer.commit(asynchron=False)  # wrong
"""


@pytest.mark.slow
def test_a_text_for_topics_an_unknown_keyword_and_a_callback_of_another_shape_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in ran.stdout.splitlines() if ": error:" in line and "program.py" in line}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, ran.stdout + ran.stderr
