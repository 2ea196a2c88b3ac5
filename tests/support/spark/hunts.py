"""Hunts for records that no query reads: ``python -m tests.support.spark.hunts`` counts them on a real broker.

Queries of one group join, stop and run once (memberships without Spark, each with separate connections) while topics are
created.  Each round has a new group and new topics; a round fails if a record that the guarantee covers is not read.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import attrs
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.spark.memberships import Run, prepared, together
from tests.support.spark.producing import produce

PROTOCOLS = ("classic", "consumer")


@attrs.define
class Round:
    """A round, with a separate group and separate topics."""

    bootstrap_servers: str
    protocol: str
    name: str
    runs: list[Run] = attrs.field(factory=list)

    def create(self, topic: str, records: int) -> str:
        """Create a topic of two partitions, write ``records`` records, and return the topic's name in Kafka."""
        full = f"{self.name}-{topic}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(full, 2, 1)])[full].result(90)
        produce(self.bootstrap_servers, full, [{"partition": number % 2, "value": b"v"} for number in range(records)])
        return full

    def query(self, options: Mapping[str, str], after: Run | None = None, *, now: bool = False) -> Run:
        """Start a query of the group, from the checkpoint of the run ``after`` if given."""
        settings = {
            "group.id": self.name,
            "kafka.group.protocol": self.protocol,
            # A separate client, and so separate connections and metadata.
            "kafka.client.id": f"{self.name}-{len(self.runs)}",
            **options,
        }
        if self.protocol == "classic":
            settings |= {"kafka.session.timeout.ms": "10000"}
        made = prepared(self.bootstrap_servers, settings, None if after is None else after.offsets, now=now).start()
        self.runs.append(made)
        return made

    @property
    def pattern(self) -> str:
        return f"{self.name}-.*"

    def read(self, topic: str) -> int:
        return sum(run.count(topic) for run in self.runs)

    def end(self) -> None:
        for run in self.runs:
            run.stopping.set()
            run.going.set()
        for run in self.runs:
            if run.thread is not None:
                run.thread.join(90)


def joins(this: Round) -> tuple[int, int]:
    """Create and fill a topic while a query runs, and let a second query join."""
    options = {"subscribePattern": this.pattern, "startingOffsets": "latest"}
    this.create("a", 10)
    first = this.query(options)
    together(this.runs, lambda: first.owned == 2, "the first query's partitions")
    topic = this.create("b", 28)
    this.query(options)
    return await_count(this, topic, 28)


def stopped(this: Round) -> tuple[int, int]:
    """Create and fill a topic while the query is stopped."""
    options = {"subscribePattern": this.pattern, "startingOffsets": "latest"}
    old = this.create("a", 0)
    first = this.query(options)
    together(this.runs, lambda: first.owned == 2, "its partitions")
    produce(this.bootstrap_servers, old, [{"value": b"v", "partition": 0}])
    together(this.runs, lambda: this.read(old) == 1, "a batch")
    first.stop()
    topic = this.create("b", 14)
    this.query(options, first)
    return await_count(this, topic, 14)


def two_once(this: Round) -> tuple[int, int]:
    """Start two AvailableNow runs of a new group at the same time."""
    topic = this.create("a", 20)
    for _ in range(2):
        this.query({"subscribe": topic, "startingOffsets": "earliest"}, now=True)
    for run in this.runs:
        run.finish(120)
    return this.read(topic), 20


def once_next_to_idle(this: Round) -> tuple[int, int]:
    """Start an AvailableNow run next to an idle query of another topic."""
    idle = this.query({"subscribe": this.create("idle", 0)})
    together(this.runs, lambda: idle.owned == 2, "the idle query's partitions")
    topic = this.create("a", 20)
    this.query({"subscribe": topic, "startingOffsets": "earliest"}, now=True).finish(120)
    return this.read(topic), 20


def once_next_to_paused(this: Round) -> tuple[int, int]:
    """Start an AvailableNow run next to a plain consumer that polls, with paused partitions."""
    topic = this.create("a", 20)
    settings = {"bootstrap.servers": this.bootstrap_servers, "group.id": this.name, "group.protocol": this.protocol}
    if this.protocol == "classic":
        settings |= {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": "10000"}
    consumer = Consumer(settings)
    owned: set[int] = set()

    def assigned(source: Consumer, rows: Sequence[object]) -> None:
        source.incremental_assign(list(rows))
        source.pause(list(rows))
        owned.update(row.partition for row in rows)  # type: ignore[attr-defined]

    def revoked(source: Consumer, rows: Sequence[object]) -> None:
        source.incremental_unassign(list(rows))
        owned.difference_update(row.partition for row in rows)  # type: ignore[attr-defined]

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    ending = threading.Event()

    def poll() -> None:
        while not ending.is_set():
            consumer.poll(0.1)

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    try:
        together([], lambda: len(owned) == 2, "the plain consumer's partitions", 60)
        this.query({"subscribe": topic, "startingOffsets": "earliest"}, now=True).finish(150)
        # The plain consumer owns the other partition, and does not read it.
        return this.read(topic), 10
    finally:
        ending.set()
        polling.join(90)
        consumer.close()


HUNTS: Mapping[str, Callable[[Round], tuple[int, int]]] = {
    one.__name__: one for one in (joins, stopped, two_once, once_next_to_idle, once_next_to_paused)
}


def await_count(this: Round, topic: str, count: int, timeout_s: float = 40) -> tuple[int, int]:
    """Wait until ``count`` records are read, or for ``timeout_s``; return the number of read records, and ``count``."""
    end_s = time.monotonic() + timeout_s
    while this.read(topic) < count and time.monotonic() < end_s:
        for run in this.runs:
            if run.failure is not None:
                raise run.failure
        time.sleep(0.05)
    return this.read(topic), count


def hunt(bootstrap_servers: str, name: str, protocol: str, number: int) -> str | None:
    """Run one round; return the error, or None."""
    this = Round(bootstrap_servers, protocol, f"{name.replace('_', '-')}-{protocol}-{number}-{time.time_ns()}")
    try:
        read, wanted = HUNTS[name](this)
    except Exception as error:  # noqa: BLE001 - counted as a failure
        return repr(error)
    finally:
        this.end()
    return None if read == wanted else f"read {read} of {wanted}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rounds, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--hunts", nargs="+", choices=HUNTS, default=list(HUNTS))
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--embedded", action="store_true", help="on the embedded Kafka, not on a real one")
    given = parser.parse_args(arguments)
    from tests.support.spark.proof import broker

    found: dict[str, str] = {}
    with broker(given.embedded) as address:
        for protocol in given.protocols:
            for name in given.hunts:
                wrong = [what for number in range(given.rounds) if (what := hunt(address, name, protocol, number)) is not None]
                for what in wrong:
                    print(f"{name}, {protocol}: {what}", flush=True)
                found[f"{name}, {protocol}"] = f"{given.rounds - len(wrong)} of {given.rounds}"
                print(name, protocol, found[f"{name}, {protocol}"], flush=True)
    print(json.dumps(found, indent=2))
    return 0 if all(text == f"{given.rounds} of {given.rounds}" for text in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
