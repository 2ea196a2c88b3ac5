"""The tables of docs/confluent-kafka.md; ``python -m tests.support.confluent_kafka.docs`` writes them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.conformance.confluent_kafka.test_programs import PROGRAMS
from tests.support.confluent_kafka import settings
from tests.support.confluent_kafka.explained import EXPLAINED

DOCS = Path(__file__).parents[3] / "docs" / "confluent-kafka.md"


def programs() -> str:
    """Return the number of programs, and the differences that remain."""
    same = len(PROGRAMS) - len(EXPLAINED)
    lines = [f"{len(PROGRAMS)} programs, {same} with the same outcome, {len(EXPLAINED)} explained:", ""]
    lines += ["| program | why the outcomes differ |", "| --- | --- |"]
    return "\n".join(lines + [f"| {name} | {why} |" for name, why in EXPLAINED.items()])


def all_settings() -> str:
    """Return the number of settings for each use, and the table."""
    count = Counter(fate.kind for fate in settings.FATES.values())
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
    lines = [f"{len(settings.FATES)} settings: {counts}.", "", "| use | settings |", "| --- | --- |"]
    by_use: dict[str, list[str]] = {}
    for name, fate in sorted(settings.FATES.items()):
        if fate == settings.Fate(settings.PASSED):
            continue
        by_use.setdefault(fate.kind + (f": {fate.why}" if fate.why else ""), []).append(f"`{name}`")
    lines += [f"| {use} | {', '.join(names)} |" for use, names in sorted(by_use.items())]
    return "\n".join([*lines, f"| {settings.PASSED} | all others |"])


def with_tables(text: str) -> str:
    """Return the page with its tables replaced by the current ones."""
    for name, table in (("programs", programs()), ("settings", all_settings())):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert len(pattern.findall(text)) == 1, name
        text = pattern.sub(lambda _, table=table, begin=begin, end=end: f"{begin}\n{table}\n{end}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    DOCS.write_text(with_tables(DOCS.read_text()))
