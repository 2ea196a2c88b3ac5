"""The results of the rows, kept in a file, and the table of ``docs/embedded-kafka.md`` that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import attrs

from consumer_coord.testing.jars import cache_directory, exclusive
from tools.strangers.kafkas import EMBEDDED, KAFKA, KFAKE
from tools.strangers.rows import ROWS, Row, in_order

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "embedded-kafka.md"
_BEGIN, _END = "<!-- strangers -->\n", "<!-- /strangers -->\n"
_LONGEST = 110
#: What the errors of all programs begin with, and the packages of Java's classes.
_NOISE = re.compile(
    r"(AssertionError|LineProcessError|TimeoutError|ValueError): |Connect ended: |\S+ ended with code \d+: |Caused by: "
    r"|Exception in thread \"main\" |java\.util\.concurrent\.ExecutionException: |\b(?:[a-z]+\.)+(?=[A-Z])"
)

WORKS = "works"
_NOT_RUN = "not run"


@attrs.frozen
class Results:
    """The results so far."""

    #: Client or Kafka -> version.
    versions: dict[str, str]
    #: Row -> Kafka -> "works", or the error; in the order of the table.
    outcomes: dict[str, dict[str, str]]


def read_results() -> Results:
    """Return the results of the rows that still exist."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"versions": {}, "rows": {}}
    rows: dict[str, dict[str, str]] = kept["rows"]
    return Results(kept["versions"], {one.name: rows[one.name] for one in in_order() if one.name in rows})


def add_result(row: Row, kafka: str, outcome: str, versions: Mapping[str, str]) -> None:
    """Keep one more result, and show it on the page; several runs may do so at the same time."""
    with exclusive(cache_directory() / "strangers.lock"):
        before = read_results()
        outcomes = {**before.outcomes, row.name: {**before.outcomes.get(row.name, {}), kafka: outcome}}
        kept = {"versions": {**before.versions, **versions}, "rows": outcomes}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        show()


def show() -> None:
    """Write the table into the page."""
    head, _, rest = PAGE.read_text().partition(_BEGIN)
    _, found, tail = rest.partition(_END)
    assert found, f"{PAGE} has no place for the table"
    PAGE.write_text(head + _BEGIN + table(read_results()) + _END + tail)


def table(results: Results) -> str:
    """Return the table as Markdown: a row for each operation of each client."""
    heads = (f"Apache Kafka {results.versions[KAFKA]}", "embedded", f"kfake {results.versions[KFAKE]}")
    lines = [f"| client | operation | {' | '.join(heads)} |", "| --- | --- | --- | --- | --- |"]
    for client, names in groupby(results.outcomes, key=lambda name: ROWS[name].client):
        label = f"{client} {results.versions[client]}"
        for name in names:
            cells = (_cell(results.outcomes[name].get(kafka, _NOT_RUN)) for kafka in (KAFKA, EMBEDDED, KFAKE))
            lines.append(f"| {label} | {ROWS[name].operation} | {' | '.join(cells)} |")
            label = ""
    works = {kafka: sum(of.get(kafka) == WORKS for of in results.outcomes.values()) for kafka in (KAFKA, EMBEDDED, KFAKE)}
    summary = (
        f"Of {len(results.outcomes)} rows, {works[KAFKA]} work on Apache Kafka, {works[EMBEDDED]} on the embedded Kafka, and"
    )
    return "\n".join(lines) + f"\n\n{summary} {works[KFAKE]} on kfake.\n"


def _cell(outcome: str) -> str:
    if outcome in (WORKS, _NOT_RUN):
        return outcome
    text = _NOISE.sub("", " ".join(outcome.split())).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    return "**fails**: " + (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
