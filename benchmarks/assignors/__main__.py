"""Time of plans, compared with other clients: ``python -m benchmarks.assignors``.

For each case and assignor, the peers run in turns, five times. The output has medians, and our time divided by the peer's
(below 1: ours is faster). Times are for making the plan and encoding the plan for SyncGroup. All peers begin with the leader's
decoded input in memory. Times are processor time of the thread that assigns: other processes on the machine disturb this time
least, and it excludes the garbage collectors of Go and Java, which run on other threads. ``--clock wall`` measures wall-clock
time.

``--peers franz-go,java,kafka-python,aiokafka`` selects peers; ``--cases 0,3`` selects cases; ``--rounds 5``; ``--patience 20``:
the limit in seconds for kafka-python and aiokafka, which run once.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Sequence

import attrs

from benchmarks.assignors.cases import CASES
from benchmarks.assignors.peers import Franz, Java, Ours, Peer, PeerTimedOutError, Time, python_peer
from benchmarks.table import markdown, median, number
from consumer_coord.testing.jars import UnavailableError, ensure_jars

#: A case that takes less time than this, in milliseconds, is too small for a meaningful ratio.
_SMALL_MS = 10.0


@attrs.frozen
class Row:
    """A case: the median time of each peer, or None if the peer exceeded its time limit."""

    case: str
    assignor: str
    step: str
    times: dict[str, Time | None]
    once: dict[str, float | None]

    def ratio(self, peer: str) -> float | None:
        """Return our time divided by the peer's."""
        ours, theirs = self.times[Ours.name], self.times.get(peer)
        return None if ours is None or theirs is None else ours.total_ms / theirs.total_ms


def take_turns(peers: Sequence[Peer], rounds: int, clock: str) -> dict[str, Time | None]:
    """Return each peer's median over the rounds. In each round, all peers run once."""
    seen: dict[str, list[Time]] = {peer.name: [] for peer in peers}
    out: set[str] = set()
    for _ in range(rounds):
        for peer in peers:
            if peer.name in out:
                continue
            gc.collect()
            try:
                times = peer.run()
                seen[peer.name].append(times.wall if clock == "wall" else times.cpu)
            except PeerTimedOutError as error:
                print(f"  {peer.name}: {error}", file=sys.stderr)
                out.add(peer.name)
    return {
        name: Time(median([one.assign_ms for one in times]), median([one.encode_ms for one in times]))
        if times and name not in out
        else None
        for name, times in seen.items()
    }


def measure(peers: Sequence[Peer], case_number: int, assignor: str, options: argparse.Namespace) -> list[Row]:
    """Return the two rows of one case."""
    case = CASES[case_number]
    once = {
        name: python_peer(name, assignor, case_number, options.patience)
        for name in ("kafka-python", "aiokafka")
        if name in options.peers and assignor != "cooperative-sticky"
    }
    present = [peer for peer in peers if _try(peer, lambda peer: peer.load(assignor, case))]
    rows = []
    for place, step in enumerate(("first", "one leaves, one comes")):
        if place:
            if assignor == "range":
                break
            present = [peer for peer in present if _try(peer, lambda peer: peer.change())]
        times: dict[str, Time | None] = dict.fromkeys([peer.name for peer in peers])
        times |= take_turns(present, options.rounds, options.clock)
        present = [peer for peer in present if times[peer.name] is not None]
        rows.append(Row(case.name, assignor, step, times, {name: both[place] for name, both in once.items()}))
        print(f"  {case.name}, {assignor}, {step}: {_cells(rows[-1])}", file=sys.stderr)
    return rows


def _try(peer: Peer, action: object) -> bool:
    assert callable(action)
    try:
        action(peer)
    except PeerTimedOutError as error:
        print(f"  {peer.name}: {error}", file=sys.stderr)
        return False
    return True


def _cells(row: Row) -> list[str]:
    cells = [f"{number(time.assign_ms)} + {number(time.encode_ms)}" if time else "never" for time in row.times.values()]
    return cells + ["never" if once is None else number(once) for once in row.once.values()]


def report(rows: Sequence[Row], peers: Sequence[Peer]) -> str:
    """Return tables and the goals."""
    lines = []
    for assignor in ("range", "sticky", "cooperative-sticky"):
        chosen = [row for row in rows if row.assignor == assignor]
        if not chosen:
            continue
        shown = [peer for peer in peers if any(row.times[peer.name] for row in chosen)]
        others = [peer.name for peer in shown if peer.name != Ours.name]
        head = ["members x partitions", *[peer.name for peer in shown], *chosen[0].once]
        head += [f"ours / {name}" for name in others]
        body = []
        for row in chosen:
            cells = _cells(attrs.evolve(row, times={peer.name: row.times[peer.name] for peer in shown}))
            cells += ["-" if (ratio := row.ratio(name)) is None else f"{ratio:.2f}" for name in others]
            body.append([f"{row.case}, {row.step}", *cells])
        lines += [f"### {assignor}", "", markdown(head, body), ""]
        for name in others:
            ratios = [ratio for row in chosen if (ratio := row.ratio(name)) is not None]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                large = [ratio for row in chosen if (ratio := row.ratio(name)) is not None and _counts(row)]
                worst = f"{max(large):.2f}" if large else "-"
                lines.append(f"Ours / {name}: geometric mean {mean:.2f}, worst case of 10 ms or more {worst}.")
        lines.append("")
    return "\n".join(lines)


def _counts(row: Row) -> bool:
    ours = row.times[Ours.name]
    return ours is not None and ours.total_ms >= _SMALL_MS


def main() -> None:
    """Run the benchmark and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peers", default="franz-go,java,kafka-python,aiokafka", type=lambda text: text.split(","))
    parser.add_argument("--cases", default=list(range(len(CASES))), type=lambda text: list(map(int, text.split(","))))
    parser.add_argument("--assignors", default="range,sticky,cooperative-sticky", type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--clock", default="processor", choices=("processor", "wall"))
    parser.add_argument("--patience", default=20.0, type=float)
    options = parser.parse_args()
    peers: list[Peer] = [Ours()]
    if "franz-go" in options.peers:
        try:
            peers.append(Franz())
        except PeerTimedOutError as error:
            print(f"without franz-go: {error}", file=sys.stderr)
    if "java" in options.peers:
        try:
            peers.append(Java(ensure_jars()))
        except UnavailableError as error:
            print(f"without Java: {error}", file=sys.stderr)
    try:
        rows = []
        for assignor in options.assignors:
            # The goals do not include franz-go's range balancer.
            chosen = [peer for peer in peers if not (assignor == "range" and peer.name == Franz.name)]
            for case_number in options.cases:
                rows += measure(chosen, case_number, assignor, options)
        for row in rows:
            for peer in peers:
                row.times.setdefault(peer.name, None)
        print(report(rows, peers))
    finally:
        for peer in peers:
            peer.close()


if __name__ == "__main__":
    main()
