"""The versions of the requests that clients send, as the tests record them, and their table in the documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import Request

PAGE = Path(__file__).parents[3] / "docs" / "embedded-kafka.md"
_ROW = re.compile(r"^\| (?P<client>[^|]+ \d[\d.]*) \| (?P<uses>[^|]+) \|$", re.MULTILINE)
_TABLE = re.compile(r"(<!-- clients -->\n)(.*?)(<!-- /clients -->)", re.DOTALL)
_HEAD = "| client | requests and their versions |\n| --- | --- |\n"

#: (API, version)
Use = tuple[str, int]


class Recorder:
    """Records every request that an embedded cluster receives."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.uses: set[Use] = set()
        kafka.add_request_hook(self._note)

    def _note(self, broker_id: int, request: Request) -> Fault | None:
        self.uses.add((APIS[request.api_key].name, request.version))
        return None


def documented() -> Mapping[str, set[Use]]:
    """Return the requests of each client in the documentation."""
    rows: dict[str, set[Use]] = {}
    table = _TABLE.search(PAGE.read_text())
    assert table is not None, f"{PAGE.name} has no table of clients"
    for row in _ROW.finditer(table[2]):
        for use in row["uses"].split(", "):
            api, *versions = use.split()
            rows.setdefault(row["client"], set()).update((api, int(version)) for version in versions)
    return rows


def _written(uses: set[Use]) -> str:
    return ", ".join(
        f"{api} {' '.join(str(version) for version in sorted(version for name, version in uses if name == api))}"
        for api in sorted({name for name, _ in uses})
    )


def check_documented(client: str, uses: set[Use]) -> None:
    """Check that the table has all recorded requests of a client. ``UPDATE_CLIENT_TABLE=1 pytest …`` adds missing ones."""
    rows = dict(documented())
    if os.environ.get("UPDATE_CLIENT_TABLE") == "1":
        rows[client] = rows.get(client, set()) | uses
        lines = [f"| {name} | {_written(rows[name])} |" for name in sorted(rows)]
        text = _TABLE.sub(lambda match: match[1] + _HEAD + "\n".join(lines) + "\n" + match[3], PAGE.read_text())
        PAGE.write_text(text)
    missing = uses - rows.get(client, set())
    assert not missing, f"{PAGE.name} does not say that {client} uses {sorted(missing)}"
