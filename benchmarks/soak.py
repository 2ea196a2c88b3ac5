"""Soak test: run a group that never becomes stable; check that resources do not grow, and that no record is missing.

``make soak SECONDS=600`` or ``python -m benchmarks.soak --seconds 600 [--brokers 3] [--protocol consumer]``

One process has members of the group, one thread for each, which are closed and replaced all the time. Other processes join,
leave and are killed. The brokers are stopped or killed one after the other, and restarted. A producer writes all the time. The
benchmark samples memory, threads, sockets and tasks of the first process when it has as many members as at the beginning. The
producer and the records of the run are in another process. At the end, all members catch up, and the benchmark checks every
record.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from benchmarks import cluster
from benchmarks.table import markdown, number
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.churn import Group, Outcome, SteadyProducer, outcome, record_event
from tests.support.churn_checks import Batch, Moved
from tests.support.line_process import LineProcess, LineProcessError

PARTITIONS = 12
INSIDE, OUTSIDE = 4, 2
RECORDS_PER_S = 1_000
#: Minimum number of samples from which growth can be detected.
FEWEST_SAMPLES = 8
#: The allowed growth between the second quarter and the second half.
RSS_SLACK_MB, RSS_SLACK = 2.0, 0.05
BLOCKS_SLACK, THREADS_SLACK, SOCKETS_SLACK, TASKS_SLACK = 7_500, 12, 12, 8
_CATCH_UP_S = 90.0


@attrs.frozen
class Sample:
    """The measured process at one moment, with :data:`INSIDE` members in it."""

    after_s: float
    rss_mb: float
    #: Memory blocks of Python's objects: they show a leak that is smaller than the changes of the allocators' memory.
    blocks: int
    threads: int
    sockets: int
    tasks: int


@attrs.frozen
class Report:
    """The results of a soak."""

    samples: Sequence[Sample]
    outcome: Outcome
    problems: Sequence[str]


class MemberInside:
    """A member of the measured process, and what this process knows about the member."""

    def __init__(self, process: Inside, name: str) -> None:
        self.batches: list[Batch] = []
        self.moved: list[Moved] = []
        self.name = name
        self._process = process

    def kill(self) -> None:
        """Close the member, and wait for the end of the close."""
        self._process.command("close", member=self.name)


class Inside(LineProcess):
    """The measured process. This object keeps the records of the process's members."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        self._known: dict[str, MemberInside] = {}
        self.failures: list[str] = []
        setup = {"client": "ours", "config": config, "topics": [topic], "batch": 200, "members": [], "does": "commit"}
        super().__init__([sys.executable, "-m", "tests.support.driver", json.dumps({**setup, "lasts": True})], name="inside")

    def start_member(self) -> MemberInside:
        """Start one more member."""
        name = f"inside {len(self._known) + 1}"
        member = self._known[name] = MemberInside(self, name)
        self.command("start", member=name)
        return member

    def sample(self, after_s: float) -> Sample:
        """Return a sample of the process."""
        found = self.command("sample")
        numbers = (int(found[name]) for name in ("blocks", "threads", "sockets", "tasks"))
        return Sample(after_s, found["rss_mb"], *numbers)

    def command(self, name: str, **arguments: object) -> Mapping[str, float]:
        """Send a command, and wait until it has ended; raise LineProcessError if it failed."""
        answer: Mapping[str, Any] = json.loads(self.request(json.dumps({"command": name, **arguments}), 90.0))
        if "error" in answer:
            raise LineProcessError(f"{name} {arguments}: {answer['error']}")
        return answer

    def on_line(self, line: str) -> None:
        """Record a member's event; pass responses to the waiting caller."""
        event = json.loads(line)
        if event["event"] == "answer":
            super().on_line(line)
            return
        match event["event"]:
            case "failure":
                self.failures.append(f"{event['member']}: {event['error']}")
            case "ready" | "error":
                return  # The member continues after an error, for example when a broker is unavailable.
            case _:
                record_event(event, self._known[event["member"]])


class Soak:
    """A run."""

    def __init__(self, kafka: RealKafka, brokers: int, group: str, topic: str, seed: int, *, protocol: str = "classic") -> None:
        self._kafka, self._brokers = kafka, brokers
        self._chance = random.Random(seed)
        self._topic = topic
        # Do not log unavailable brokers, because this benchmark stops them.
        self.group = Group(kafka, topic, group, protocol=protocol, config={"log_level": 0})
        self._process = Inside(self.group.config(), topic)
        self._inside: list[MemberInside] = []
        self._down: int | None = None
        self._coming_back: threading.Thread | None = None
        self.counts: dict[str, int] = {}

    def run(self, seconds: float) -> Report:
        """Run the faults, let the members catch up, and check the results."""
        began = time.monotonic()
        samples: list[Sample] = []
        problems: list[str] = []
        for _ in range(INSIDE):
            self._start_inside()
        for _ in range(OUTSIDE):
            self.group.start().await_ready()
        producer = SteadyProducer(self._kafka, self._topic, PARTITIONS, RECORDS_PER_S)
        next_broker = began + min(10.0, seconds / 3)
        while time.monotonic() - began < seconds or len(samples) < FEWEST_SAMPLES:
            time.sleep(self._chance.uniform(0.5, 1.5))
            if self._brokers > 1 and time.monotonic() >= next_broker:
                self._trouble_a_broker()
                next_broker = time.monotonic() + 10.0
            self._trouble_a_member()
            samples.append(self._process.sample(time.monotonic() - began))
        if self._down is not None:
            self._trouble_a_broker()
        if self._coming_back is not None:
            self._coming_back.join()
        producer.stop()
        ends = self.group.ends(PARTITIONS)
        calm = time.monotonic()
        try:
            self.group.await_no_lag(ends, _CATCH_UP_S)
            lag_zero_s: float | None = time.monotonic() - calm
        except TimeoutError:
            lag_zero_s = None
        samples.append(self._process.sample(time.monotonic() - began))
        while self._inside:
            self._inside.pop().kill()
        found = outcome(self.group, ends, lag_zero_s, self.counts)
        problems += self._process.failures + grown(samples) + broken(found)
        return Report(samples, found, problems)

    def close(self) -> None:
        """End all processes and brokers."""
        self._process.kill()
        # The measured process has ended, and its members have ended with it.
        self.group.members = [one for one in self.group.members if not isinstance(one, MemberInside)]
        self.group.close()

    def _start_inside(self) -> None:
        member = self._process.start_member()
        self._inside.append(member)
        self.group.members.append(member)

    def _trouble_a_member(self) -> None:
        kind = self._chance.choice(["replace inside", "replace inside", "stop outside", "kill outside"])
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "replace inside":
            member = self._inside.pop(self._chance.randrange(len(self._inside)))
            member.kill()
            self._start_inside()
            return
        victim = self._chance.choice(self.group.living)
        (self.group.kill if kind == "kill outside" else self.group.stop)(victim)
        self.group.start()

    def _trouble_a_broker(self) -> None:
        if self._coming_back is not None and self._coming_back.is_alive():
            return
        if self._down is not None:
            # A broker needs time to restart; the faults continue at the same time.
            self._coming_back = threading.Thread(target=self._kafka.restart, args=(self._down,), daemon=True)
            self._coming_back.start()
            self._down = None
            return
        self._down = self._chance.randint(1, self._brokers)
        kind = self._chance.choice(["stop broker", "kill broker"])
        self.counts[kind] = self.counts.get(kind, 0) + 1
        (self._kafka.kill if kind == "kill broker" else self._kafka.stop)(self._down)


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return the resources that are higher in the second half than in the second quarter, beyond the allowed growth.

    Compare the medians of the memory, because the memory includes librdkafka's fetched data. Compare the lowest values of the
    other resources, because a peak is not a leak.
    """
    if len(samples) < FEWEST_SAMPLES:
        return [f"only {len(samples)} samples: run it for longer"]
    half = len(samples) // 2
    earlier, later = samples[half // 2 : half + 1], samples[half:]

    def memory_mb(rows: Sequence[Sample]) -> float:
        return statistics.median(row.rss_mb for row in rows)

    def least(rows: Sequence[Sample], key: str) -> int:
        return min(int(getattr(row, key)) for row in rows)

    problems = []
    if memory_mb(later) > memory_mb(earlier) * (1 + RSS_SLACK) + RSS_SLACK_MB:
        problems.append(f"rss_mb grew from {memory_mb(earlier):.0f} to {memory_mb(later):.0f}")
    slacks = {"blocks": BLOCKS_SLACK, "threads": THREADS_SLACK, "sockets": SOCKETS_SLACK, "tasks": TASKS_SLACK}
    for key, slack in slacks.items():
        if least(later, key) > least(earlier, key) + slack:
            problems.append(f"{key} grew from {least(earlier, key)} to {least(later, key)}")
    return problems


def broken(found: Outcome) -> list[str]:
    """Return the guarantees of the group that were broken."""
    problems = [*found.double_owners, *found.refused_though_held, *found.backward_commits]
    if found.lost:
        problems.append(f"{found.lost} of {found.records} records were never processed")
    if found.lag_zero_s is None:
        problems.append(f"the group did not catch up within {_CATCH_UP_S:g} s")
    return problems


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; return exit code 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--brokers", type=int, default=3, choices=[1, 3])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic")
    options = parser.parse_args(arguments)
    with cluster.broker(options.brokers) as kafka:
        topic = kafka.new_topic(PARTITIONS, replication_factor=options.brokers)
        run = Soak(kafka, options.brokers, "soak", topic, options.seed, protocol=options.protocol)
        try:
            report = run.run(options.seconds)
        finally:
            run.close()
    keys = [field.name for field in attrs.fields(Sample)]
    step = max(1, len(report.samples) // 20)
    rows = [[number(float(getattr(one, key))) for key in keys] for one in (*report.samples[:-1:step], report.samples[-1])]
    print(markdown(keys, rows))
    found = report.outcome
    print(
        f"\n{found.records:,} records, {found.lost} lost, {found.repeated} processed again after a kill;"
        f" {found.refused} commits refused, {len(found.refused_though_held)} of them for partitions that were held;"
        f" trouble: {', '.join(f'{count} x {kind}' for kind, count in sorted(found.trouble.items()))}"
    )
    for problem in report.problems:
        print(f"NOT AS IT MUST BE: {problem}")
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
