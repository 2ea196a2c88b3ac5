"""``python -m consumer_coord simulate``: many histories with faults, one of them again, or one group under churn.

* ``--seeds 1000`` plays 1000 histories on all cores and ends with the first that fails: its seed, its faults, shrunk,
  and the end of its timeline;
* ``--seed 4711`` plays one again, line by line; ``--replay FILE`` one that was kept with ``--keep FILE``;
* ``--members 500 --topics orders:1200 --churn deploy`` shows what churn does to a group (see ``deployment.py``).
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import attrs

from consumer_coord.simulation import deployment
from consumer_coord.simulation.drawing import draw_scenario, with_protocol
from consumer_coord.simulation.loop import SimulationError
from consumer_coord.simulation.play import Outcome, play
from consumer_coord.simulation.report import write_report
from consumer_coord.simulation.scenario import Scenario, from_json, to_json
from consumer_coord.simulation.shrink import shrink

#: How many lines of a failed history's timeline are printed.
_TAIL = 60
_SEEDS_PER_TASK = 5
_LARGEST_SEED = 10**9
_FAULT_SECONDS = 55


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``simulate``."""
    what = parser.add_argument_group("histories with faults")
    what.add_argument("--seeds", type=int, metavar="N", help="play N histories, each from its own seed")
    what.add_argument("--first-seed", type=int, metavar="S", help="the first of them (default: a fresh one, printed)")
    what.add_argument("--seed", type=int, metavar="S", help="play the history of one seed and print it")
    what.add_argument("--replay", type=Path, metavar="FILE", help="play the history that --keep wrote")
    what.add_argument("--keep", type=Path, metavar="FILE", help="write the shrunk scenario of a failure here")
    what.add_argument("--time-limit", type=float, metavar="SECONDS", help="start no more histories after this long")
    what.add_argument("--fault-members", type=int, metavar="N", help="members of each history (default: the seed says)")
    what.add_argument(
        "--fault-protocol",
        choices=("classic", "consumer", "mixed", "upgrade", "downgrade", "any"),
        default="classic",
        help="group.protocol of the members: consumer (KIP-848), both in one group, one after the other, or as the seed says",
    )
    what.add_argument(
        "--fault-seconds",
        type=int,
        default=_FAULT_SECONDS,
        metavar="S",
        help=f"virtual seconds with faults, before the network heals (default: {_FAULT_SECONDS})",
    )
    what.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    what.add_argument("--no-shrink", action="store_true", help="print a failure as it is")
    deployment.add_arguments(parser.add_argument_group("one group under churn"))


def run(args: argparse.Namespace) -> int:
    """Do it; the exit code is 1 when a rule was broken."""
    with _without_logs():
        if args.members is not None:
            return _deployment(args)
        if args.replay is not None:
            return _one(from_json(args.replay.read_text()), args)
        if args.seed is not None:
            return _one(Drawing.of(args).scenario(args.seed), args)
        return _many(args)


@contextmanager
def _without_logs() -> Iterator[None]:
    """What the client logs about faults is expected in a simulation."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _deployment(args: argparse.Namespace) -> int:
    try:
        result = deployment.run_deployment(args)
    except SimulationError as error:
        print(f"FAILED: {error}")
        return 1
    print(deployment.describe(result))
    if args.json is not None:
        deployment.write_json(result, args.json)
    if args.report is not None:
        write_report(result, args.report)
        print(f"report: {args.report}")
    return 0


def _one(scenario: Scenario, args: argparse.Namespace) -> int:
    outcome = play(scenario)
    print("\n".join(outcome.history.lines))
    print("faults:\n" + "\n".join(map(str, scenario.faults)))
    print(f"history {outcome.history.digest[:16]}: {_figures([Figures.of(outcome)])}")
    if outcome.violation is None:
        return 0
    print(f"FAILED seed {scenario.seed}: {outcome.violation}")
    if args.keep is not None:
        _keep(scenario if args.no_shrink else shrink(outcome).scenario, args.keep)
    return 1


@attrs.frozen
class Drawing:
    """What the flags fix of every scenario; the rest is the seed's."""

    members: int | None
    fault_seconds: int
    protocol: str = "classic"

    @classmethod
    def of(cls, args: argparse.Namespace) -> Drawing:
        """From the command line."""
        return cls(args.fault_members, args.fault_seconds, args.fault_protocol)

    def scenario(self, seed: int) -> Scenario:
        """The scenario of one seed."""
        scenario = draw_scenario(seed, members=self.members, faults_end_ms=self.fault_seconds * 1000)
        return with_protocol(scenario, self.protocol)

    def __str__(self) -> str:
        """The flags again: a seed means another history without them."""
        members = "" if self.members is None else f" --fault-members {self.members}"
        members += "" if self.protocol == "classic" else f" --fault-protocol {self.protocol}"
        return members + ("" if self.fault_seconds == _FAULT_SECONDS else f" --fault-seconds {self.fault_seconds}")


@attrs.frozen
class Figures:
    """What is kept of a history that went well, small enough to travel between processes."""

    seed: int
    failed: bool
    members: int
    faults: int
    virtual_s: float
    rebalances: int
    processed: int
    processed_again: int
    commits: int
    overtaken: int
    frames: int

    @classmethod
    def of(cls, outcome: Outcome) -> Figures:
        """The figures of one history."""
        return cls(
            outcome.seed,
            outcome.violation is not None,
            len(outcome.scenario.members),
            len(outcome.scenario.faults),
            outcome.virtual_s,
            outcome.rebalances,
            outcome.processed,
            outcome.processed_again,
            outcome.commits,
            outcome.overtaken,
            outcome.frames,
        )


def play_seeds(seeds: range, drawing: Drawing) -> list[Figures]:
    """The histories of some seeds, up to the first that fails; runs in a process of its own."""
    found = []
    with _without_logs():
        for seed in seeds:
            found.append(Figures.of(play(drawing.scenario(seed))))
            if found[-1].failed:
                break
    return found


def _many(args: argparse.Namespace) -> int:
    count = 100 if args.seeds is None else args.seeds
    first = secrets.randbelow(_LARGEST_SEED) if args.first_seed is None else args.first_seed
    print(f"playing {count} histories from seed {first} on {args.jobs} processes", flush=True)
    began = time.monotonic()
    done: list[Figures] = []
    for figures in _batches(first, count, args, began):
        done += figures
        failed = next((row for row in figures if row.failed), None)
        if failed is not None:
            print()
            return _report_failure(failed.seed, args)
        if sys.stdout.isatty():
            pace = len(done) / (time.monotonic() - began)
            print(f"\r{len(done)} of {count} histories, {pace:.1f} a second", end="", flush=True)
    seconds = time.monotonic() - began
    print(f"\r{len(done)} histories from seed {first} in {seconds:.1f} s, every rule held: {_figures(done)}")
    return 0


def _batches(first: int, count: int, args: argparse.Namespace, began: float) -> Iterator[list[Figures]]:
    """Results in the order of the seeds, a few tasks ahead of what was read, so that a time limit is kept; one at least."""
    drawing = Drawing.of(args)
    if args.jobs <= 1:
        for seeds in _tasks(first, count, args, began):
            yield play_seeds(seeds, drawing)
        return
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        ahead: list[Future[list[Figures]]] = []
        try:
            for seeds in _tasks(first, count, args, began):
                ahead.append(pool.submit(play_seeds, seeds, drawing))
                if len(ahead) > 2 * args.jobs:
                    yield ahead.pop(0).result()
            for future in ahead:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _tasks(first: int, count: int, args: argparse.Namespace, began: float) -> Iterator[range]:
    """The seeds, a few at a time, until the time is up."""
    for start in range(first, first + count, _SEEDS_PER_TASK):
        if start > first and args.time_limit is not None and time.monotonic() - began > args.time_limit:
            return
        yield range(start, min(start + _SEEDS_PER_TASK, first + count))


def _report_failure(seed: int, args: argparse.Namespace) -> int:
    outcome = play(Drawing.of(args).scenario(seed))
    assert outcome.violation is not None, f"seed {seed} failed in a process of its own, and does not here"
    print(f"FAILED seed {seed}: {outcome.violation}")
    if not args.no_shrink:
        print(f"shrinking {len(outcome.scenario.faults)} faults and {len(outcome.scenario.members)} members ...", flush=True)
        outcome = shrink(outcome)
    print("faults:\n" + "\n".join(map(str, outcome.scenario.faults)))
    print(f"timeline (the last {_TAIL} of {len(outcome.history.lines)} lines):")
    print(outcome.history.tail(_TAIL))
    print(f"{outcome.violation}\nreplay it with: python -m consumer_coord simulate --seed {seed}{Drawing.of(args)}")
    if args.keep is not None:
        _keep(outcome.scenario, args.keep)
    return 1


def _keep(scenario: Scenario, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(scenario))


def _figures(done: list[Figures]) -> str:
    if not done:
        return "no history was played"
    histories = len(done)
    mean = {
        name: sum(getattr(row, name) for row in done) / histories
        for name in ("members", "faults", "virtual_s", "rebalances", "commits", "frames")
    }
    records = sum(row.processed for row in done)
    again = sum(row.processed_again for row in done)
    return (
        f"on average {mean['members']:.1f} members, {mean['virtual_s']:.0f} virtual seconds,"
        f" {mean['rebalances']:.1f} rebalances, {mean['faults']:.1f} faults, {mean['frames']:.0f} requests,"
        f" {mean['commits']:.0f} commits; {records} records, {again} of them again after a loss or a kill"
    )
