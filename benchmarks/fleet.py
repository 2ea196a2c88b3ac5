"""Fleets: processes with members of one group, which a benchmark starts and watches; see ``tests/support/driver.py``."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.ownership import Owner, Ownership, Told, unowned_s
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess

_JAVA_SOURCE = Path(__file__).parent / "java" / "Fleet.java"
_JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
#: Number of partitions of the topic for members without a group, which assign themselves partitions.
_PARTITIONS_BY_HAND = 240
#: A rebalance counts as finished when nothing has moved for this number of seconds.
SETTLED_S = 1.0
DEADLINE_S = 120.0


@attrs.frozen
class Variant:
    """A row of a table: a client, its assignor and its configuration."""

    name: str
    client: str
    assignors: tuple[str, ...] = ()
    config: Mapping[str, Any] = attrs.field(factory=dict)


OURS_RANGE = Variant("ours, range", "ours", ("range",))
OURS = Variant("ours, cooperative", "ours", ("cooperative-sticky",))
OURS_NEW = Variant("ours, consumer protocol", "ours", (), {"group.protocol": "consumer"})
OURS_COLUMNS = Variant("ours, consume_arrow", "ours-columns", ("cooperative-sticky",))
CONFLUENT_RANGE = Variant("librdkafka, range", "confluent-kafka", ("range",))
CONFLUENT = Variant("librdkafka, cooperative", "confluent-kafka", ("cooperative-sticky",))
CONFLUENT_NEW = Variant("librdkafka, consumer protocol", "confluent-kafka", (), {"group.protocol": "consumer"})
JAVA_RANGE = Variant("Java, range", "java", ("range",))
JAVA = Variant("Java, cooperative", "java", ("cooperative-sticky",))
JAVA_NEW = Variant("Java, consumer protocol", "java", (), {"group.protocol": "consumer"})
KAFKA_PYTHON_RANGE = Variant("kafka-python, range", "kafka-python", ("range",))
KAFKA_PYTHON = Variant("kafka-python, cooperative", "kafka-python", ("cooperative-sticky",))
AIOKAFKA = Variant("aiokafka, range", "aiokafka", ("range",))

VARIANTS = (
    OURS_RANGE,
    OURS,
    OURS_NEW,
    CONFLUENT_RANGE,
    CONFLUENT,
    CONFLUENT_NEW,
    JAVA_RANGE,
    JAVA,
    JAVA_NEW,
    KAFKA_PYTHON_RANGE,
    KAFKA_PYTHON,
    AIOKAFKA,
)

#: The settings of every client. These remain constant, so that figures of different dates can be compared.
CONFIG: Mapping[str, Any] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 500,
}


class Fleet(LineProcess):
    """A process with ``members`` members of a group."""

    def __init__(self, command: Sequence[str], *, name: str) -> None:
        self._lock = threading.Lock()
        self._told: list[Told] = []
        self._idle: list[tuple[int, float]] = []
        self._ready = threading.Event()
        #: Errors that the members' polls raised.
        self.errors: list[str] = []
        super().__init__(command, name=name)

    @property
    def told(self) -> Sequence[Told]:
        """The callbacks that the process has reported so far."""
        with self._lock:
            return tuple(self._told)

    @property
    def idle_ms(self) -> Sequence[tuple[int, float]]:
        """(member, milliseconds without records): one pair each time a member received records after a wait."""
        with self._lock:
            return tuple(self._idle)

    def await_ready(self) -> None:
        """Wait until the process has created its consumers."""
        if not self._ready.wait(DEADLINE_S):
            raise self._problem("did not start")

    def subscribe(self) -> int:
        """Subscribe all members; return the time when they began, in nanoseconds of the monotonic clock."""
        return int(self.command("begin")["started_ns"])

    def close_member(self, number: int) -> int:
        """Close one member; return the time when the close began, in nanoseconds of the monotonic clock."""
        return int(self.command("close", member=number)["started_ns"])

    def usage(self) -> Mapping[str, float]:
        """Return the processor time so far, the memory, the number of threads, and the generation."""
        return self.command("usage")

    def command(self, name: str, **arguments: Any) -> Mapping[str, Any]:
        """Send a command and return its response."""
        answer: Mapping[str, Any] = json.loads(self.request(json.dumps({"command": name, **arguments}), DEADLINE_S))
        return answer

    def on_line(self, line: str) -> None:
        """Record an event; pass responses to the waiting caller."""
        event = json.loads(line)
        match event["event"]:
            case "answer":
                super().on_line(line)
            case "ready":
                self._ready.set()
            case "idle":
                with self._lock:
                    self._idle.append((int(event["member"]), event["ms"]))
            case "error" | "failure":
                with self._lock:
                    self.errors.append(f"member {event['member']}: {event['error']}")
            case kind:
                owner = (self.name, int(event["member"]))
                told = event["partitions"]
                # Java sends a list of the one topic's numbers.
                numbers = told if isinstance(told, list) else [number for row in told.values() for number in row]
                with self._lock:
                    self._told.append(Told(event["at_ns"], kind == "assigned", owner, tuple(numbers)))


def start_fleet(
    variant: Variant,
    libs: Path,
    bootstrap_servers: str,
    group: str,
    topic: str,
    members: int,
    *,
    name: str,
    work_ms: int = 0,
    config: Mapping[str, Any] | None = None,
) -> Fleet:
    """Start a fleet; call :meth:`Fleet.await_ready` before anything else."""
    settings = {**CONFIG, "bootstrap.servers": bootstrap_servers, "group.id": group, **variant.config, **(config or {})}
    if settings.get("group.protocol") == "consumer":
        # In the consumer protocol, the broker sets these values.
        del settings["session.timeout.ms"], settings["heartbeat.interval.ms"]
    setup: dict[str, Any] = {"client": variant.client, "config": settings, "work_ms": work_ms}
    if variant.client == "java":
        if variant.assignors:
            settings["partition.assignment.strategy"] = ",".join(_JAVA_ASSIGNORS[one] for one in variant.assignors)
        setup.update(members=members, topic=topic)
        program = JavaProgram(libs, "Fleet", sources=[str(_JAVA_SOURCE)], jvm_arguments=("-Xmx512m",))
        return Fleet(program.command(json.dumps(setup)), name=name)
    setup.update(
        members=[str(number) for number in range(members)],
        assignors=list(variant.assignors),
        topics=[topic],
        partitions=_PARTITIONS_BY_HAND,
        does="work",
        waits=True,
    )
    return Fleet([sys.executable, "-m", "tests.support.driver", json.dumps(setup)], name=name)


class Watch:
    """All fleets of one group."""

    def __init__(self, fleets: Sequence[Fleet], partitions: int, *, settled_s: float = SETTLED_S) -> None:
        self.fleets = list(fleets)
        self._partitions = partitions
        self._settled_s = settled_s

    @property
    def told(self) -> list[Told]:
        """The callbacks reported by all fleets, in the order of time."""
        return sorted(one for fleet in self.fleets for one in fleet.told)

    def settle(self, members: int, without: Sequence[Owner] = (), deadline_s: float = DEADLINE_S) -> int:
        """Wait until every partition has one owner and no partition moves; return the time of the last move."""
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            ownership = Ownership()
            told = self.told
            ownership.take_in(one for one in told if one.owner not in without)
            quiet_s = (time.monotonic_ns() - ownership.changed_ns) / 1e9
            if ownership.shared_by(members, self._partitions) and quiet_s > self._settled_s:
                return ownership.changed_ns
            time.sleep(0.05)
        raise TimeoutError(f"{self._partitions} partitions were not shared by {members} members in {deadline_s:g} s")

    def unowned_s(self, since_ns: int) -> float:
        """Return the partition-seconds without an owner since ``since_ns``."""
        return unowned_s(self.told, since_ns)
