"""The demo, which is the first program that a new user runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from assignors import Cluster, Member, RebalanceProtocol, verify
from examples.demo.assignor import CapacityAssignor
from examples.demo.ledger import Ledger
from examples.demo.screen import compact

ROOT = Path(__file__).resolve().parents[2]
DEMO = (sys.executable, "-m", "examples.demo")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_order_is_processed_while_members_come_go_and_die(protocol: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--orders", "100000", "--protocol", protocol, "--web", "127.0.0.1:0", "--patience", "300"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100,000 processed, counted by customer: none missing" in done.stdout
    assert re.search(r"the group, live: http://127\.0\.0\.1:\d+/$", done.stdout, re.MULTILINE)
    page = (tmp_path / "consumer-coord-demo.html").read_text()
    assert all(f'"client":"{name}"' in page for name in ("ann", "bob", "cid", "dan", "eve"))
    for line in ("eve joins", "bob leaves", "ann is killed", "partitions changed owners"):
        assert line in done.stdout


def test_the_demo_reports_what_it_had_no_time_for() -> None:
    command = [*DEMO, "--orders", "100", "--patience", "0.5"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    for event in ("eve joins", "bob leaves", "ann is killed"):
        assert f"not reached within 0.5 s (--patience): {event}" in done.stdout, done.stdout + done.stderr


def test_the_demo_says_so_when_an_order_is_missing() -> None:
    ledger = Ledger(partitions=1)
    ledger.done({"0": [0, 10]}, {"a": 10})
    ledger.done({"0": [12, 20]}, {"a": 8})
    ledger.done({"0": [18, 20]}, {"a": 2})
    assert (ledger.gaps, ledger.duplicates, ledger.distinct) == (2, 2, 18)


def test_time_without_an_owner_is_counted_from_the_kill_to_the_next_owner() -> None:
    ledger = Ledger(partitions=2)
    ledger.assigned("ann", [0, 1], at=1.0)
    ledger.freed("ann", [0, 1], at=5.0)
    ledger.assigned("bob", [0], at=7.5)
    ledger.assigned("ann", [1], at=6.0)
    assert (ledger.unowned_s, ledger.moves) == (3.5, 1)
    assert ledger.owned_by("bob") == [0]


def test_the_capacity_assignor_shares_by_capacity_and_hands_nothing_over_that_is_held() -> None:
    cluster = Cluster({"orders": 12})
    held = {"orders": tuple(range(12))}
    members = {"a": Member(["orders"], held, 3, user_data=b"2"), "b": Member(["orders"], user_data=b"1")}
    first = CapacityAssignor().assign(cluster, members)
    verify(cluster, members, first, RebalanceProtocol.COOPERATIVE)
    assert {name: len(topics["orders"]) for name, topics in first.items()} == {"a": 8, "b": 0}
    members["a"] = Member(["orders"], first["a"], 4, user_data=b"2")
    second = CapacityAssignor().assign(cluster, members)
    verify(cluster, members, second, RebalanceProtocol.COOPERATIVE)
    assert {name: len(topics["orders"]) for name, topics in second.items()} == {"a": 8, "b": 4}
    assert list(second["a"]["orders"]) == list(first["a"]["orders"])


def test_partitions_are_shown_as_ranges() -> None:
    assert compact([0, 1, 2, 7, 9, 10]) == "0-2 7 9-10"
    assert compact([]) == ""
