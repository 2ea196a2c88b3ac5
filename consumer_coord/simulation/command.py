"""The command ``python -m consumer_coord simulate``: simulates groups with faults, or one group under churn.

* ``--seeds 1000`` plays 1000 runs on all cores. After the first failed run, the command prints the seed, the shrunk list of
  faults and the end of the timeline, and ends.
* ``--corpus DIR`` plays seeds and changes of scenarios that reached something new, and keeps these in DIR (see ``search.py``).
* ``--seed 4711`` repeats one run and prints every event. ``--replay FILE`` repeats a run that was written with ``--keep FILE``.
* ``--lag lag.csv --replicas 2..20`` shows what an autoscaler would have done to a group (see ``scaling.py``).
* ``--members 500 --topics orders:1200 --churn deploy`` shows the effect of churn on a group (see ``deployment.py``).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs

from consumer_coord.errors import ConfigurationError
from consumer_coord.simulation import deployment, scaling
from consumer_coord.simulation.alone import with_changes_alone
from consumer_coord.simulation.drawing import (
    draw_scenario,
    is_transactional,
    with_answers,
    with_calls,
    with_clocks,
    with_links,
    with_metrics,
    with_more_commits,
    with_process,
    with_protocol,
    with_reads,
    with_transactions,
)
from consumer_coord.simulation.loop import SimulationError
from consumer_coord.simulation.play import Figures, play
from consumer_coord.simulation.report import write_report
from consumer_coord.simulation.scenario import Scenario, from_json, to_json
from consumer_coord.simulation.search import Corpus, Kept, Search
from consumer_coord.simulation.shrink import shrink

#: Number of timeline lines to print for a failed simulation run.
_TAIL = 60
_SEEDS = 100
_SEEDS_PER_TASK = 5
#: How many scenarios a guided search draws before it knows the result of the first of them.
_AHEAD = 8
_LARGEST_SEED = 10**9
_FAULT_MS = 55_000

#: The flags that change which scenario a seed draws.
_DRAWN = {
    *("fault_members", "fault_answers", "fault_protocol", "fault_reads", "fault_ms"),
    *("fault_clocks", "fault_links", "fault_calls"),
}
#: Flag that selects a mode -> the other flags that have an effect in this mode; flags are given by the names of their
#: attributes. The last mode is the default. :func:`add_arguments` adds the flags of a group to the first mode.
_MODES = {
    "lag": {"seed", *scaling.OF_THE_GROUP},
    "members": {"seed"},
    "replay": {"keep", "no_shrink"},
    "seed": {"keep", "no_shrink", *_DRAWN},
    "seeds": {"corpus", "first_seed", "keep", "no_shrink", *_DRAWN, "time_limit_ms", "jobs"},
}
#: Flag -> its smallest value. Faults begin after three seconds.
_LEAST = {
    **dict.fromkeys(("seeds", "fault_members", "jobs", "members", "members_per_process", "racks"), 1),
    **dict.fromkeys(("session_timeout_ms", "heartbeat_interval_ms", "poll_every_ms"), 1),
    **dict.fromkeys(("callback_ms", "restart_ms"), 0),
    "fault_ms": 4_000,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``simulate``. An omitted flag creates no attribute."""
    what = parser.add_argument_group("simulation runs with faults", argument_default=argparse.SUPPRESS)
    what.add_argument("--seeds", type=int, metavar="N", help=f"run N simulations with different seeds (default: {_SEEDS})")
    what.add_argument("--first-seed", type=int, metavar="S", help="the first seed (default: a random seed, which is printed)")
    what.add_argument("--seed", type=int, metavar="S", help="run the simulation of one seed and print each event")
    what.add_argument("--replay", type=Path, metavar="FILE", help="repeat the simulation run that --keep wrote")
    what.add_argument("--keep", type=Path, metavar="FILE", help="write the shrunk scenario of a failure to FILE")
    what.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="play the scenarios of DIR, changes of them and fresh ones; keep in DIR those that reach something new",
    )
    what.add_argument("--time-limit-ms", type=float, metavar="MS", help="start no further simulation runs after this time")
    what.add_argument("--fault-members", type=int, metavar="N", help="members of each run (default: drawn from the seed)")
    what.add_argument(
        "--fault-protocol",
        choices=("classic", "consumer", "mixed", "upgrade", "downgrade", "any"),
        help="group.protocol of the members: classic (the default), consumer (KIP-848), both in one group (mixed), a change"
        " of the protocol (upgrade, downgrade), or drawn from the seed (any)",
    )
    what.add_argument(
        "--fault-reads",
        choices=("messages", "columns", "process", "transactions", "any"),
        help="what members read: messages (the default) or columns; or they handle messages with process; or they read, process"
        " and write messages in transactions; or drawn from the seed (any: all but process)",
    )
    what.add_argument(
        "--fault-answers",
        choices=("honest", "edited"),
        help="edited: brokers edit their responses to some kinds of requests: rows are missing, doubled or foreign, numbers are"
        " -1, metadata are old, versions are odd (default: honest)",
    )
    what.add_argument(
        "--fault-clocks",
        choices=("steady", "drifting"),
        help="drifting: the clocks of some members run 5 %% too fast or too slowly, and jump ahead (default: steady)",
    )
    what.add_argument(
        "--fault-links",
        choices=("whole", "partitioned"),
        help="partitioned: some members and brokers do not reach each other for a while, or in one direction only, and the"
        " pairs heal one after the other (default: whole)",
    )
    what.add_argument(
        "--fault-calls",
        choices=("one", "several"),
        help="several: other tasks of some applications seek, pause, unsubscribe and ask at any moment, and applications"
        " unsubscribe in the handler of an exception (default: one)",
    )
    what.add_argument(
        "--fault-ms",
        type=int,
        metavar="MS",
        help=f"virtual milliseconds with faults, before the network heals (default: {_FAULT_MS})",
    )
    what.add_argument("--jobs", type=int, metavar="N", help="processes (default: one for each core)")
    what.add_argument("--no-shrink", action="store_true", help="print a failure without shrinking it")
    parser.set_defaults(of_a_group=deployment.add_arguments(parser), of_scaling=scaling.add_arguments(parser))


def run(args: argparse.Namespace) -> int:
    """Run the simulation that the flags describe; return 1 if a rule was broken.

    Raise :class:`ConfigurationError` for a flag that is invalid or has no effect, and for a file that cannot be read or
    written.
    """
    mode = _mode(args)
    for name, least in _LEAST.items():
        if getattr(args, name, least) < least:
            raise ConfigurationError(f"{_flag(name)} must be at least {least}")
    _refuse_unwritable(args)
    with _without_logs():
        if mode == "lag":
            return _scaling(args)
        if mode == "members":
            return _deployment(args)
        if mode == "replay":
            return _one(_kept(args.replay), args)
        if mode == "seed":
            return _one(Drawing.of(args).scenario(args.seed), args)
        return _many(args)


def _mode(args: argparse.Namespace) -> str:
    """Return the mode that the flags select; raise :class:`ConfigurationError` for a flag that has no effect in this mode."""
    given = set(vars(args))
    mode = next((name for name in _MODES if name in given), "seeds")
    known = {flag for other, flags in _MODES.items() for flag in {other, *flags}}
    if mode == "lag":
        given -= args.of_scaling
        known |= args.of_a_group
    elif idle := sorted(given & args.of_scaling):
        raise ConfigurationError(f"{_flag(idle[0])} describes how a group is scaled by its past lag: add --lag FILE.csv")
    elif mode == "members":
        given -= args.of_a_group
    elif idle := sorted(given & args.of_a_group):
        raise ConfigurationError(f"{_flag(idle[0])} describes one group under churn: add --members N")
    if idle := sorted((given & known) - _MODES[mode] - {mode}):
        raise ConfigurationError(f"{_flag(idle[0])} has no effect with {_flag(mode)}: remove one of them")
    return mode


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse_unwritable(args: argparse.Namespace) -> None:
    """Raise :class:`ConfigurationError` for a file that could not be written at the end of the run."""
    for name in ("keep", "report", "json"):
        if name in args:
            path: Path = getattr(args, name)
            try:
                if name == "keep" and not path.parent.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                existed = path.exists()
                with path.open("ab"):
                    pass
                if not existed:
                    path.unlink()
            except OSError as error:
                raise ConfigurationError(f"{_flag(name)} {path}: {error.strerror}; name a file that can be written") from None
    if "corpus" in args:
        try:
            args.corpus.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--corpus {args.corpus}: {error.strerror}; name a directory") from None


def _kept(path: Path) -> Scenario:
    try:
        return from_json(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"--replay {path}: {error.strerror}; name a file that --keep wrote") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ConfigurationError(f"--replay {path}: the file contains no scenario; name a file that --keep wrote") from None


@contextmanager
def _without_logs() -> Iterator[None]:
    """Disable logging, because a simulation expects the client's messages about faults."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _deployment(args: argparse.Namespace) -> int:
    described = deployment.deployment_of(vars(args))
    try:
        result = deployment.play_deployment(described)
    except SimulationError as error:
        print(f"FAILED: {error}")
        return 1
    print(deployment.describe(result))
    if "json" in args:
        args.json.write_text(json.dumps(result.figures(), indent=2) + "\n")
    if "report" in args:
        write_report(result, args.report)
        print(f"report: {args.report}")
    return 0


def _scaling(args: argparse.Namespace) -> int:
    try:
        result = scaling.run_replay(vars(args))
    except SimulationError as error:
        print(f"FAILED: {error}")
        return 1
    print(scaling.describe(result))
    if "json" in args:
        args.json.write_text(json.dumps(result.figures(), indent=2) + "\n")
    return 0


def _one(scenario: Scenario, args: argparse.Namespace) -> int:
    outcome = play(scenario)
    print("\n".join(outcome.history.lines))
    print(_faults_of(scenario))
    print(f"history {outcome.history.digest[:16]}: {_figures([outcome.figures])}")
    if outcome.violation is None:
        return 0
    print(f"FAILED seed {scenario.seed}: {outcome.violation}")
    if "keep" in args:
        args.keep.write_text(to_json(scenario if "no_shrink" in args else shrink(outcome).scenario))
    return 1


@attrs.frozen
class Drawing:
    """The properties of scenarios that the flags ``--fault-…`` set. The seed determines all other properties."""

    members: int | None = None
    protocol: str = "classic"
    reads: str = "messages"
    answers: str = "honest"
    clocks: str = "steady"
    links: str = "whole"
    calls: str = "one"
    ms: int = _FAULT_MS

    @classmethod
    def of(cls, args: argparse.Namespace) -> Drawing:
        """Return the properties that the flags of the command line set."""
        return cls(**{name.removeprefix("fault_"): value for name, value in vars(args).items() if name in _DRAWN})

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario of one seed."""
        return with_changes_alone(self._scenario(seed))

    def _scenario(self, seed: int) -> Scenario:
        scenario = draw_scenario(seed, members=self.members, faults_end_ms=self.ms)
        scenario = with_answers(with_protocol(scenario, self.protocol), self.answers)
        scenario = with_calls(with_links(with_clocks(scenario, self.clocks), self.links), self.calls)
        if self.reads == "process":
            return with_process(scenario)
        if self.reads == "transactions" or (self.reads == "any" and is_transactional(seed)):
            return with_transactions(scenario)
        return with_reads(with_metrics(with_more_commits(scenario)) if self.reads == "any" else scenario, self.reads)

    def __str__(self) -> str:
        """Return, as text, the flags without which the seed draws a different scenario."""
        given = attrs.asdict(self, filter=lambda attribute, value: value != attribute.default)
        return "".join(f" --fault-{name} {value}" for name, value in given.items())


def _faults_of(scenario: Scenario) -> str:
    changes = ("changes alone, afterwards:", *map(str, scenario.alone)) if scenario.alone else ()
    return "\n".join(("faults:", *map(str, scenario.faults), *changes))


def play_seeds(seeds: range, drawing: Drawing) -> list[Figures]:
    """Play the runs of some seeds, until a run fails. Called in a separate process."""
    found = []
    with _without_logs():
        for seed in seeds:
            found.append(play(drawing.scenario(seed)).figures)
            if found[-1].failed:
                break
    return found


def play_one(scenario: Scenario) -> tuple[Figures, frozenset[int]]:
    """Play one scenario; return what it reached, too. Called in a separate process."""
    with _without_logs():
        outcome = play(scenario)
    return outcome.figures, outcome.reached


def _guided(first: int, count: int, ends: float, jobs: int, args: argparse.Namespace) -> int:
    """Play the scenarios that a search draws, and write its corpus at the end."""
    corpus = _corpus(args.corpus)
    print(f"{len(corpus)} scenarios in {args.corpus} reach {len(corpus.counts)} features", flush=True)
    began, done = time.monotonic(), list[Figures]()
    try:
        for scenario, figures, reached in _searched(Search(first, Drawing.of(args).scenario, corpus), count, ends, jobs):
            done.append(figures)
            if figures.failed:
                if "keep" not in args:
                    args.keep = args.corpus / f"failed-{int(time.time())}.json"
                return _report_failure(scenario, f"--replay {args.keep}", args)
            corpus.add(Kept(scenario, reached))
    finally:
        corpus.save(args.corpus)
    seconds = time.monotonic() - began
    print(
        f"{len(done)} simulation runs, guided from seed {first}, in {seconds:.1f} s; no rule was broken;"
        f" {len(corpus)} scenarios reach {len(corpus.counts)} features; {_figures(done)}"
    )
    return 0


def _corpus(directory: Path) -> Corpus:
    try:
        return Corpus.load(directory)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        raise ConfigurationError(f"--corpus {directory}: the files are no corpus; name an empty directory") from None


def _searched(search: Search, count: int, ends: float, jobs: int) -> Iterator[tuple[Scenario, Figures, frozenset[int]]]:
    """Iterate over played scenarios, in the order in which they were drawn.

    A scenario is drawn when the result of the one :data:`_AHEAD` places before it is known, with any number of processes, so
    that a seed and a corpus always lead to the same search.
    """
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) if jobs > 1 else None
    pending: deque[tuple[Scenario, Callable[[], tuple[Figures, frozenset[int]]]]] = deque()
    try:
        for _ in range(count):
            if pending and time.monotonic() > ends:
                break
            scenario = search.draw()
            pending.append((scenario, partial(play_one, scenario) if pool is None else pool.submit(play_one, scenario).result))
            if len(pending) == _AHEAD:
                played, result = pending.popleft()
                yield played, *result()
        for played, result in pending:
            yield played, *result()
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _many(args: argparse.Namespace) -> int:
    count = args.seeds if "seeds" in args else _SEEDS
    first = args.first_seed if "first_seed" in args else secrets.randbelow(_LARGEST_SEED)
    jobs = args.jobs if "jobs" in args else os.cpu_count() or 1
    print(f"running {count} simulations from seed {first} in {jobs} processes", flush=True)
    began = time.monotonic()
    ends = began + args.time_limit_ms / 1000 if "time_limit_ms" in args else math.inf
    if "corpus" in args:
        return _guided(first, count, ends, jobs, args)
    done: list[Figures] = []
    for figures in _batches(_tasks(first, count, ends), jobs, Drawing.of(args)):
        done += figures
        failed = next((row for row in figures if row.failed), None)
        if failed is not None:
            print()
            drawing = Drawing.of(args)
            return _report_failure(drawing.scenario(failed.seed), f"--seed {failed.seed}{drawing}", args)
        if sys.stdout.isatty():
            pace = len(done) / (time.monotonic() - began)
            print(f"\r{len(done)} of {count} simulation runs, {pace:.1f} per second", end="", flush=True)
    seconds = time.monotonic() - began
    print(f"\r{len(done)} simulation runs from seed {first} in {seconds:.1f}  s; no rule was broken; {_figures(done)}")
    return 0


def _batches(tasks: Iterable[range], jobs: int, drawing: Drawing) -> Iterator[list[Figures]]:
    """Iterate over results in the order of the seeds. Submit only a few tasks at a time, so that the time limit holds."""
    if jobs <= 1:
        for seeds in tasks:
            yield play_seeds(seeds, drawing)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending: list[Future[list[Figures]]] = []
        try:
            for seeds in tasks:
                pending.append(pool.submit(play_seeds, seeds, drawing))
                if len(pending) > 2 * jobs:
                    yield pending.pop(0).result()
            for future in pending:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _tasks(first: int, count: int, ends: float) -> Iterator[range]:
    """Iterate over ranges of seeds until the monotonic time ``ends``; yield at least one range."""
    for start in range(first, first + count, _SEEDS_PER_TASK):
        if start > first and time.monotonic() > ends:
            return
        yield range(start, min(start + _SEEDS_PER_TASK, first + count))


def _report_failure(scenario: Scenario, replay: str, args: argparse.Namespace) -> int:
    """Describe a failed run; ``replay`` are the flags that repeat it."""
    outcome = play(scenario)
    assert outcome.violation is not None, f"{to_json(scenario)}\nfailed in a separate process, but does not fail here"
    print(f"FAILED seed {scenario.seed}: {outcome.violation}")
    if "no_shrink" not in args:
        print(f"shrinking {len(outcome.scenario.faults)} faults and {len(outcome.scenario.members)} members ...", flush=True)
        outcome = shrink(outcome)
    print(_faults_of(outcome.scenario))
    print(f"timeline (the last {_TAIL} of {len(outcome.history.lines)} lines):")
    print(outcome.history.tail(_TAIL))
    print(f"{outcome.violation}\nreplay it with: python -m consumer_coord simulate {replay}")
    if "keep" in args:
        args.keep.write_text(to_json(outcome.scenario))
    return 1


def _figures(done: list[Figures]) -> str:
    if not done:
        return "no simulation was run"
    histories = len(done)
    mean = {
        name: sum(getattr(row, name) for row in done) / histories
        for name in ("members", "faults", "virtual_s", "rebalances", "commits", "frames")
    }
    records = sum(row.processed + row.transacted for row in done)
    again = sum(row.processed_again for row in done)
    return (
        f"on average, a run had {mean['members']:.1f} members, {mean['virtual_s']:.0f} virtual seconds,"
        f" {mean['rebalances']:.1f} rebalances, {mean['faults']:.1f} faults, {mean['frames']:.0f} requests,"
        f" {mean['commits']:.0f} commits; {records} processed records,"
        f" {again} of these for a second time, after a loss or a kill"
    )
