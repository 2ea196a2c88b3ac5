"""The rows of the table of clients that need neither Java nor Go, on the embedded Kafka; and the table itself."""

from __future__ import annotations

import json
import shutil

import pytest

from consumer_coord.broker import EmbeddedKafka
from tools.strangers import command, kcat, python_clients
from tools.strangers.rows import KCAT, ROWS
from tools.strangers.table import PAGE, RESULTS, read_results, table

#: These wait for rebalances, or for the broker's check of old transactions.
_SLOW = ("group", "in time")
_IMPORTED = (kcat.__name__, python_clients.__name__)


def _case(name: str) -> object:
    return pytest.param(name, id=name, marks=[pytest.mark.slow] if any(word in name for word in _SLOW) else [])


@pytest.mark.parametrize("name", [_case(name) for name, row in ROWS.items() if row.program.__module__ in _IMPORTED])
def test_rows_of_python_clients_and_kcat_work(name: str) -> None:
    row = ROWS[name]
    if row.client == KCAT and shutil.which("kcat") is None:
        pytest.skip("kcat is not on the path: apt-get install kcat")
    with EmbeddedKafka(brokers=3) as kafka:
        row.program(kafka.bootstrap_servers)


def test_the_page_shows_the_results() -> None:
    assert command.__doc__  # its imports add all rows
    results = read_results()
    assert set(json.loads(RESULTS.read_text())["rows"]) == set(results.outcomes), "results of rows that are gone"
    assert table(results) in PAGE.read_text()
