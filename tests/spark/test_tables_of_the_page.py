"""The tables of the pages on Spark: each row of the options is run, and each row of the guarantee has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consumer_coord.errors import ConfigurationError
from consumer_coord.spark.options import parse_bounded_options, parse_options

PAGE = "\n".join(Path("docs", name).read_text() for name in ("spark.md", "spark-options.md", "spark-guarantee.md"))
BASE = {"kafka.bootstrap.servers": "localhost:9092", "group.id": "billing", "subscribe": "orders"}

#: Option -> other options that it needs (a value), or excludes (None).
BESIDE: dict[str, dict[str, str | None]] = {
    "subscribePattern": {"subscribe": None},
    "allowEagerAssignor": {"assignor": "range"},
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "1700000000000"},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "1000"},
}


def rows(first: str) -> list[list[str]]:
    """Cells of the table whose head begins with ``first``."""
    lines = PAGE.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found: list[list[str]] = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            return found
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    raise AssertionError(f"the table {first!r} does not end")


def in_code(cell: str) -> str:
    found = re.fullmatch(r"`([^`]*)`", cell)
    assert found is not None, cell
    return found[1]


OPTIONS = [row for row in rows("option") if not row[0].startswith("`secret.`")]


@pytest.mark.parametrize("row", OPTIONS, ids=[row[0].strip("`") for row in OPTIONS])
def test_each_option_of_the_table_is_taken_or_refused(row: list[str]) -> None:
    name, example = in_code(row[0]), in_code(row[2])
    given: dict[str, str | None] = {**BASE, **BESIDE.get(name, {}), name: example}
    settings = {key: value for key, value in given.items() if value is not None}
    if row[1] == "refused":
        with pytest.raises(ConfigurationError, match=re.escape(name.removeprefix("kafka.")) + "|" + name.lower()):
            parse_options(settings)
    else:
        parse_options(settings)


BOUNDED = rows("bounded option")


@pytest.mark.parametrize("row", BOUNDED, ids=[row[0].strip("`") for row in BOUNDED])
def test_each_option_of_a_bounded_read_is_taken_or_refused(row: list[str]) -> None:
    name, example = in_code(row[0]), in_code(row[2])
    base = {**BASE, name: example}
    if name == "assign":
        del base["subscribe"]
    if row[1] == "refused":
        with pytest.raises(ConfigurationError, match=f"option {name.lower()}="):
            parse_bounded_options(base)
    else:
        parse_bounded_options(base)


@pytest.mark.parametrize("row", OPTIONS, ids=[row[0].strip("`") for row in OPTIONS])
def test_each_option_may_be_hidden(row: list[str]) -> None:
    name, example = in_code(row[0]), in_code(row[2])
    if row[1] == "refused":
        return
    given: dict[str, str | None] = {**BASE, **BESIDE.get(name, {})}
    given.pop(name, None)
    settings = {key: value for key, value in given.items() if value is not None}
    assert parse_options({**settings, f"secret.{name}": example}) == parse_options({**settings, name: example})


def test_each_row_of_the_guarantee_has_a_test() -> None:
    tests = "".join(path.read_text() for path in Path("tests").glob("**/spark/test_*.py"))
    shown = [in_code(row[3]) for row in rows("situation")]
    assert len(shown) >= 15
    assert [name for name in shown if f"def {name}(" not in tests] == []
