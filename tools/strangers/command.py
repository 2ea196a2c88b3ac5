"""The command of the table.

``python -m tools.strangers`` runs the rows that have no result yet, on each of the three Kafkas. It writes each result at once
into ``tools/strangers/results.json`` and the table of ``docs/embedded-kafka.md``, so a run that was ended continues.
``--again TEXT`` runs the rows whose name contains a text once more; ``--on`` chooses a Kafka. What is missing on this machine
(Java, Go, kcat, a network) is said in one line, and the row keeps its last result.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence

from consumer_coord.testing.jars import KAFKA_VERSION, UnavailableError
from consumer_coord.testing.processes import end, spawn
from tests.support.go import module_version
from tools.strangers import connect, go_clients, java_tools, kcat, python_clients, streams  # noqa: F401 - they add their rows
from tools.strangers.kafkas import EMBEDDED, KAFKA, KAFKAS, KFAKE, QUICK
from tools.strangers.rows import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KCAT, ROWS, Row, in_order
from tools.strangers.table import ROOT, WORKS, add_result, read_results, show

_UNAVAILABLE = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if the embedded Kafka fails a row that kfake or Apache Kafka passes."""
    parser = argparse.ArgumentParser(prog="python -m tools.strangers", description=__doc__.partition("\n")[0])
    parser.add_argument("--again", metavar="TEXT", help="run the rows with this text in their names, also those with a result")
    parser.add_argument("--on", action="append", choices=KAFKAS, help="run on this Kafka only; can be repeated")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument(
        "--only", metavar="ROW", help="run one row in this process, on the Kafka of --servers, and keep nothing"
    )
    parser.add_argument("--servers", help="the address for --only")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        print("\n".join(one.name for one in in_order()))
        return 0
    if chosen.only is not None:
        return _run_here(ROWS[chosen.only], chosen.servers)
    for kafka in chosen.on or KAFKAS:
        results = read_results().outcomes
        again = [one for one in in_order() if chosen.again is not None and chosen.again in one.name]
        missing = [one for one in in_order() if kafka not in results.get(one.name, {})]
        _run_on(kafka, missing if chosen.again is None else again)
    show()
    results = read_results().outcomes
    worse = [name for name, found in results.items() if found.get(EMBEDDED, WORKS) != WORKS and WORKS in found.values()]
    for name in worse:
        print(f"the embedded Kafka fails: {name}: {results[name][EMBEDDED]}")
    return 1 if worse else 0


def _run_here(row: Row, servers: str) -> int:
    try:
        row.program(servers)
    except UnavailableError as missing:
        print(missing, file=sys.stderr)
        return _UNAVAILABLE
    except Exception as failure:  # noqa: BLE001 - the failure is the result of the row, and the caller reports it
        traceback.print_exc()
        print(f"{type(failure).__name__}: {_reason(str(failure))}", file=sys.stderr)
        return 1
    return 0


def _reason(message: str) -> str:
    """Return the line of a message that says most: of Java's stack traces, the first line with an exception."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    return next((line for line in lines if "Exception" in line), lines[0])


def _run_on(kafka: str, rows: Sequence[Row]) -> None:
    with contextlib.ExitStack() as all_rows:
        shared = all_rows.enter_context(KAFKAS[kafka]()) if rows and kafka not in QUICK else None
        for row in rows:
            with contextlib.ExitStack() as one_row:
                outcome = _run(row, shared or one_row.enter_context(KAFKAS[kafka]()))
            if outcome is None:
                continue
            print(f"{kafka}: {row.name}: {outcome}", flush=True)
            versions = {KAFKA: KAFKA_VERSION, KFAKE: _kfake_version(), row.client: _version(row.client)}
            add_result(row, kafka, outcome, versions)


def _run(row: Row, servers: str) -> str | None:
    """Run a row in a process of its own, because a client may hang; return its result, or None if something is missing."""
    command = [sys.executable, "-m", "tools.strangers", "--only", row.name, "--servers", servers]
    with tempfile.TemporaryFile() as said:
        process = spawn(command, stdout=said, stderr=said, cwd=ROOT)
        try:
            code: int | None = process.wait(row.deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
        said.seek(0)
        lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    if code == 0:
        return WORKS
    if code is None:
        return f"no result after {row.deadline_s:g} s"
    if code == _UNAVAILABLE:
        print(f"{row.name}: not run: {lines[-1]}", file=sys.stderr, flush=True)
        return None
    # Names and addresses differ from run to run.
    return re.sub(r"127\.0\.0\.\d+:\d+(,127\.0\.0\.\d+:\d+)*", "HOST", re.sub(r"-\d+-\d+\b", "", lines[-1]))


def _kfake_version() -> str:
    return module_version("kfake", "github.com/twmb/franz-go/pkg/kfake").partition("-")[2].rpartition("-")[0][:8]


def _version(client: str) -> str:
    if client in go_clients.MODULES:
        return module_version("strangers", go_clients.MODULES[client])
    if client in (CONFLUENT, AIOKAFKA, KAFKA_PYTHON):
        return python_clients.version(client)
    return kcat.version() if client == KCAT else KAFKA_VERSION
