"""What works on one version of Apache Kafka: members, every assignor, one of one's own, a static member, the commands.

By hand, one broker at a time, with the jars of that version in a directory::

    python -m tests.kafka.brokers_matrix --libs /where/the/jars/are [--only static]

A broker in KRaft mode is started (3.3 and later); with ``--bootstrap-server`` a broker that runs already is asked, of any age.
Prints a line for each check and ends with 1 when one failed.  ``docs/brokers.md`` keeps what it said, with the date.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from assignors import RangeAssignor
from consumer_coord import GroupConsumer
from consumer_coord.cli import main as command
from tests.support.real_kafka import RealKafka

DEADLINE_S = 60
RECORDS = 40


class OwnAssignor(RangeAssignor):
    """An assignor of one's own, under a name that no broker and no other client knows."""

    name = "own-range"


@contextlib.contextmanager
def members(servers: str, group: str, settings: Mapping[str, Any], count: int = 2) -> Iterator[list[GroupConsumer]]:
    """Members of one group; static ones get an instance id each."""
    made = []
    for number in range(count):
        own = {key: f"{value}-{number}" if key == "group.instance.id" else value for key, value in settings.items()}
        common = {"bootstrap.servers": servers, "group.id": group, "session.timeout.ms": 10_000}
        made.append(GroupConsumer({**common, "auto.offset.reset": "earliest", **own}))
    try:
        yield made
    finally:
        for member in made:
            member.close()


def read_all(servers: str, topic: str, group: str, settings: Mapping[str, Any]) -> None:
    """Two members share the topic and read every record once."""
    with members(servers, group, settings) as both:
        for member in both:
            member.subscribe([topic])
        seen: list[bytes] = []
        readers: set[GroupConsumer] = set()
        ends = time.monotonic() + DEADLINE_S
        while len(seen) < RECORDS or not all(member.assignment() for member in both):
            assert time.monotonic() < ends, f"{len(seen)} of {RECORDS} records, {[len(one.assignment()) for one in both]}"
            for member in both:
                for message in member.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    seen.append(message.value() or b"")
                    readers.add(member)
        # The first member may have read everything before the second one came.
        for member in readers:
            member.commit(asynchronous=False)
    assert sorted(set(seen)) == sorted(b"%d" % number for number in range(RECORDS))


def run(servers: str, *arguments: str) -> str:
    """A command that must succeed; its output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command([*arguments, "--bootstrap-server", servers])
    assert code == 0, f"{arguments[0]} ended with {code}: {err.getvalue()}"
    return out.getvalue()


def checks(servers: str, topic: str) -> Mapping[str, Callable[[], object]]:
    """Name -> check."""
    group = f"matrix-{uuid.uuid4().hex[:6]}"

    def with_assignor(name: str) -> Callable[[], object]:
        return lambda: read_all(servers, topic, f"{group}-{name}", {"partition.assignment.strategy": name})

    def operate() -> None:
        read_all(servers, topic, group, {})
        assert group in run(servers, "list")
        assert topic in run(servers, "describe", group)
        run(servers, "describe", group, "--members", "--verbose")
        assert topic in run(servers, "lag", group)
        run(servers, "top", group, "--count", "1")
        run(servers, "reset", group, "--to-earliest", "--all-topics", "--execute")

    return {
        **{name: with_assignor(name) for name in ("range", "roundrobin", "sticky", "cooperative-sticky", "load")},
        "own assignor": with_assignor("tests.kafka.brokers_matrix:OwnAssignor"),
        "static": lambda: read_all(servers, topic, f"{group}-static", {"group.instance.id": "till"}),
        "list, describe, lag, top, reset": operate,
        "delete-offsets": lambda: run(servers, "delete-offsets", group, "--topic", topic),
        "delete": lambda: run(servers, "delete", f"{group}-range"),
    }


def play(servers: str, only: str | None = None) -> dict[str, str]:
    """Name of a check -> "ok", or what went wrong."""
    topic = f"matrix-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % 4)
    assert producer.flush(DEADLINE_S) == 0
    outcome = {}
    for name, check in checks(servers, topic).items():
        if only is None or only in name:
            try:
                check()
                outcome[name] = "ok"
            except Exception as error:  # noqa: BLE001 - it stands in the table
                outcome[name] = f"{type(error).__name__}: {error}"
    return outcome


def main() -> int:
    """Play against one broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--libs", type=Path)
    where.add_argument("--bootstrap-server")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    if arguments.libs is None:
        outcome = play(arguments.bootstrap_server, arguments.only)
    else:
        with RealKafka(arguments.libs) as kafka:
            outcome = play(kafka.bootstrap_servers, arguments.only)
    for name, what in outcome.items():
        print(f"{name}: {what}")
    return 0 if all(what == "ok" for what in outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
