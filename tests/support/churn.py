"""Groups under churn on a real broker: members are killed, frozen, stopped and started while a producer writes."""

from __future__ import annotations

import collections
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from consumer_coord.testing.kafka_cluster import KafkaCluster
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.wire.offsets_topic import OffsetCommitKey, decode_key, decode_offset_value
from tests.support import churn_checks
from tests.support.admin import committed_offsets, log_offsets, set_consumer_timeouts
from tests.support.churn_checks import Batch, Moved
from tests.support.line_process import LineProcess, LineProcessError
from tests.support.waiting import eventually

#: A member survives the first of these freezes, but not the second: the session timeout is between them.
FREEZES_S = (2.0, 9.0)
SESSION_MS = 6_000
HEARTBEAT_MS = 500
_LAG_DEADLINE_S = 180.0
_SHARED_S = 180.0
_FLUSH_S = 450.0


class Worker(Protocol):
    """A member that reports its batches and callbacks."""

    @property
    def name(self) -> str: ...

    batches: list[Batch]
    moved: list[Moved]

    def kill(self) -> None:
        """Kill the member, whatever it is doing."""


def record_event(event: Mapping[str, Any], worker: Worker) -> None:
    """Add an event of a driver to the batches or callbacks of its member, which commits each batch of one topic."""
    match event["event"]:
        case "batch":
            ranges = {number: tuple(row) for number, row in _of_topic(event["ranges"]).items()}
            worker.batches.append(Batch(worker.name, event["at_ns"], event["generation"], ranges))
        case "committed":
            refused = _of_topic(event["refused"])
            worker.batches[-1] = attrs.evolve(worker.batches[-1], refused=refused, took_ms=event["took_ms"])
        case what:
            numbers = frozenset(number for row in event["partitions"].values() for number in row)
            worker.moved.append(Moved(worker.name, event["at_ns"], what, numbers))


def _of_topic(reported: Mapping[str, Mapping[str, Any]]) -> dict[int, Any]:
    return {int(number): value for partitions in reported.values() for number, value in partitions.items()}


class ChurnMember(LineProcess):
    """A member in a separate process that commits each batch; its reported events remain after it is killed."""

    def __init__(self, setup: Mapping[str, Any], name: str) -> None:
        self.batches: list[Batch] = []
        self.moved: list[Moved] = []
        self.errors: list[str] = []
        self._ready = threading.Event()
        super().__init__([sys.executable, "-m", "tests.support.driver", json.dumps(setup)], name=name)

    def on_line(self, line: str) -> None:
        """Record the event of a line."""
        event = json.loads(line)
        match event["event"]:
            case "ready":
                self._ready.set()
            case "error" | "failure":
                self.errors.append(event["error"])
            case _:
                record_event(event, self)

    def await_ready(self) -> None:
        """Wait until the member has subscribed."""
        if not self._ready.wait(180):
            raise LineProcessError(f"{self.name} did not start:\n{self.stderr_tail()}")


@attrs.frozen
class Outcome:
    """The result of a run."""

    records: int
    lost: int
    repeated: int
    double_owners: Sequence[str]
    refused: int
    refused_though_held: Sequence[str]
    backward_commits: Sequence[str]
    #: Seconds from the end of the disturbances until the last commit reached the end of the log; None if none did.
    lag_zero_s: float | None
    longest_commit_ms: float
    trouble: Mapping[str, int]


class Group:
    """The members of one group, all with the same client, whether they are alive or not."""

    def __init__(
        self,
        kafka: KafkaCluster,
        topic: str,
        group: str,
        *,
        client: str = "ours",
        assignor: str = "cooperative-sticky",
        batch: int = 200,
        config: Mapping[str, Any] | None = None,
        protocol: str = "classic",
    ) -> None:
        """``protocol``: the ``group.protocol`` of members for which :meth:`start` gets no other protocol."""
        self.kafka, self.topic, self.group = kafka, topic, group
        self.members: list[Worker] = []
        self.living: list[ChurnMember] = []
        self.frozen: dict[ChurnMember, float] = {}
        shared = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        settings: Mapping[str, Mapping[str, Any]] = {
            "classic": {
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": assignor,
            },
            "consumer": {"group.protocol": "consumer"},
        }
        self._config = {name: {**shared, **own, **(config or {})} for name, own in settings.items()}
        self.protocol = protocol
        # Members of the consumer protocol, if there are any, have the timeouts of the group.
        set_consumer_timeouts(kafka.admin, group, session_ms=SESSION_MS, heartbeat_ms=HEARTBEAT_MS)
        self._setup = {"client": client, "topics": [topic], "batch": batch, "members": ["1"], "does": "commit"}

    def config(self, protocol: str | None = None) -> Mapping[str, Any]:
        """Return the settings of a member."""
        return self._config[protocol or self.protocol]

    def start(self, protocol: str | None = None) -> ChurnMember:
        """Start one more member."""
        setup = {**self._setup, "config": self.config(protocol)}
        member = ChurnMember(setup, f"{self._setup['client']} {len(self.members) + 1} of {self.group}")
        self.members.append(member)
        self.living.append(member)
        return member

    def kill(self, member: ChurnMember) -> None:
        """Kill a member with SIGKILL."""
        self.living.remove(member)
        member.kill()

    def stop(self, member: ChurnMember) -> None:
        """Send SIGTERM to a member, which then leaves the group in good order; do not wait for its end."""
        self.living.remove(member)
        member.process.terminate()

    def is_shared(self) -> bool:
        """Return whether the living members hold all partitions ever assigned in this group, in equal numbers (within one)."""
        known: set[int] = set()
        held: dict[str, set[int]] = {one.name: set() for one in self.living}
        for moved in self.moved:
            known |= moved.partitions
            if moved.member in held and moved.what == "assigned":
                held[moved.member] |= moved.partitions
            elif moved.member in held:
                held[moved.member] -= moved.partitions
        sizes = [len(numbers) for numbers in held.values()]
        return sum(sizes) == len(known) > 0 and max(sizes) - min(sizes) <= 1

    def freeze(self, member: ChurnMember, seconds: float) -> None:
        """Freeze a member with SIGSTOP; :meth:`thaw` ends the freeze after ``seconds``."""
        member.pause()
        self.frozen[member] = time.monotonic() + seconds

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Resume the members whose freeze is over, with SIGCONT."""
        for member, until in tuple(self.frozen.items()):
            if all_of_them or time.monotonic() >= until:
                del self.frozen[member]
                if member.process.poll() is None:
                    member.resume()

    def close(self) -> None:
        """Kill the members that still run."""
        for member in self.members:
            member.kill()

    @property
    def batches(self) -> list[Batch]:
        """All batches of all members, ordered by time."""
        return sorted((batch for member in self.members for batch in tuple(member.batches)), key=lambda one: one.at_ns)

    @property
    def moved(self) -> list[Moved]:
        """All callbacks of all members."""
        return [one for member in self.members for one in tuple(member.moved)]

    def await_no_lag(self, ends: Mapping[int, int], deadline_s: float = _LAG_DEADLINE_S) -> None:
        """Wait until the group has committed the end of every partition; raise TimeoutError at the deadline."""

        def caught_up() -> bool:
            committed = committed_offsets(self.kafka.admin, self.group)
            return all(committed.get((self.topic, partition), 0) >= end for partition, end in ends.items())

        eventually(caught_up, f"the end of the lag of {self.group}", within_s=deadline_s, every_s=0.2)

    def ends(self, partitions: int) -> Mapping[int, int]:
        """Return the end of the log of each partition."""
        offsets = log_offsets(self.kafka.admin, self.topic, partitions)
        return {partition: offset for (_, partition), offset in offsets.items()}


def trouble(group: Group, seconds: float, seed: int, *, most: int = 7, least: int = 5) -> Mapping[str, int]:
    """Kill, freeze, stop or start a member every 2 to 3 s; return how often each of these happened."""
    chance = random.Random(seed)
    counts: dict[str, int] = {}
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        group.thaw()
        time.sleep(min(left, chance.uniform(2.0, 3.0)))
        group.thaw()
        awake = [member for member in group.living if member not in group.frozen]
        kinds = ["freeze 2 s", "freeze 9 s"] if awake else []
        kinds += ["start"] if len(group.living) < most else []
        kinds += ["kill", "stop"] if awake and len(group.living) > least - 1 else []
        kind = chance.choice(kinds)
        counts[kind] = counts.get(kind, 0) + 1
        match kind:
            case "start":
                group.start()
            case "kill":
                group.kill(chance.choice(awake))
            case "stop":
                group.stop(chance.choice(awake))
            case _:
                group.freeze(chance.choice(awake), FREEZES_S[kind == "freeze 9 s"])
    group.thaw(all_of_them=True)
    return counts


def migrate(group: Group, seconds: float, seed: int, *, kills: bool = True) -> Mapping[str, int]:
    """Replace all members, one at a time, by members of the other protocol, then back, until ``seconds`` are over.

    Without ``kills``, a member leaves only when its successor has its share of the partitions. If Kafka converts the group to
    a classic one during a rebalance, no member has the group's generation yet: a commit is refused, and its records are
    read again.
    """
    chance = random.Random(seed)
    counts: dict[str, int] = {}
    ends = time.monotonic() + seconds
    protocol, rounds = group.protocol, 0
    while time.monotonic() < ends or rounds < 2:
        protocol = "consumer" if protocol == "classic" else "classic"
        rounds += 1
        for former in tuple(group.living):
            group.start(protocol).await_ready()
            if not kills:
                eventually(group.is_shared, "the new member's share", within_s=_SHARED_S)
            time.sleep(chance.uniform(0.2, 1.0))
            kind = chance.choice(["kill", "stop"]) if kills else "stop"
            (group.kill if kind == "kill" else group.stop)(former)
            counts[f"{kind} for {protocol}"] = counts.get(f"{kind} for {protocol}", 0) + 1
            time.sleep(chance.uniform(0.2, 1.0))
    return counts


def roll(kafka: RealKafka, brokers: int) -> Callable[[Group, float, int], Mapping[str, int]]:
    """Return a disturbance that restarts all brokers in good order, one after the other, until the seconds are over."""

    def rolling_restart(group: Group, seconds: float, seed: int) -> Mapping[str, int]:
        ends, restarted = time.monotonic() + seconds, 0
        while time.monotonic() < ends or restarted < brokers:
            kafka.await_in_sync()
            kafka.restart(restarted % brokers + 1)
            restarted += 1
        return {"broker restarted": restarted}

    return rolling_restart


class SteadyProducer:
    """A producer that writes ``per_s`` records a second, evenly over the partitions, until :meth:`stop`."""

    def __init__(self, kafka: KafkaCluster, topic: str, partitions: int, per_s: int) -> None:
        self._errors: collections.deque[str] = collections.deque(maxlen=20)
        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "log_level": 0,
            "error_cb": self._on_error,
        }
        self._producer = Producer(config)
        self._topic, self._partitions, self._per_s = topic, partitions, per_s
        self._stopping = threading.Event()
        self.written = 0
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(0.02):
            due = int((time.monotonic() - began) * self._per_s)
            while self.written < due:
                try:
                    self._producer.produce(self._topic, b"x" * 100, partition=self.written % self._partitions)
                except BufferError:
                    # The brokers are slow or unavailable: write the rest later.
                    break
                self.written += 1
            self._producer.poll(0)

    def stop(self) -> int:
        """Stop, and return how many records were written, all of them acknowledged."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_S)
        if left:
            found = self._producer.list_topics(self._topic, 30).topics[self._topic].partitions
            leaders = {number: partition.leader for number, partition in found.items()}
            raise TimeoutError(f"{left} of {self.written} records are not acknowledged; leaders {leaders}; {[*self._errors]}")
        return self.written

    def _on_error(self, error: KafkaError) -> None:
        self._errors.append(f"{time.strftime('%X')} {error}")


def churn(
    kafka: KafkaCluster,
    topic: str,
    partitions: int,
    group: Group,
    *,
    seconds: float,
    seed: int,
    per_s: int = 4_000,
    disturb: Callable[[Group, float, int], Mapping[str, int]] = trouble,
    size: int = 5,
) -> Outcome:
    """Run ``size`` members, a producer and disturbances for ``seconds``, let all members catch up, and return the outcome."""
    first = [group.start() for _ in range(size)]
    for member in first:
        member.await_ready()
    producer = SteadyProducer(kafka, topic, partitions, per_s)
    counts = disturb(group, seconds, seed)
    producer.stop()
    calm = time.monotonic()
    ends = group.ends(partitions)
    try:
        group.await_no_lag(ends)
        lag_zero_s: float | None = time.monotonic() - calm
    except TimeoutError:
        lag_zero_s = None
    return outcome(group, ends, lag_zero_s, counts)


def outcome(group: Group, ends: Mapping[int, int], lag_zero_s: float | None, counts: Mapping[str, int]) -> Outcome:
    """End the members, so that all their reports have arrived, and return the results of all checks."""
    for member in group.living:
        member.kill()
    batches, moved = group.batches, group.moved
    return Outcome(
        records=sum(ends.values()),
        lost=churn_checks.lost_records(batches, ends),
        repeated=churn_checks.repeated_records(batches, ends),
        double_owners=churn_checks.double_owners(batches),
        refused=sum(bool(batch.refused) for batch in batches),
        refused_though_held=churn_checks.refused_though_held(batches, moved),
        backward_commits=churn_checks.backward_commits(commits_in_log(group.kafka, group.group, group.topic)),
        lag_zero_s=lag_zero_s,
        longest_commit_ms=max((batch.took_ms for batch in batches), default=0.0),
        trouble=counts,
    )


def commits_in_log(kafka: KafkaCluster, group: str, topic: str) -> list[tuple[int, int]]:
    """Return (partition, offset) of every commit of a group, in the order in which the broker wrote them."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "oracle", "enable.partition.eof": True})
    metadata = consumer.list_topics("__consumer_offsets", 30)
    parts = metadata.topics["__consumer_offsets"].partitions
    consumer.assign([TopicPartition("__consumer_offsets", number, 0) for number in parts])
    found: list[tuple[int, int]] = []
    at_end: set[int | None] = set()
    while len(at_end) < len(parts):
        for message in consumer.consume(1000, 1.0):
            if message.error() is not None:
                at_end.add(message.partition())
                continue
            key = decode_key(message.key())
            if not isinstance(key, OffsetCommitKey) or key.group != group or key.topic != topic or message.value() is None:
                continue
            found.append((key.partition, decode_offset_value(message.value()).offset))
    consumer.close()
    return found


def check(found: Outcome) -> None:
    """Assert the guarantees that hold in every run."""
    assert found.lost == 0, f"{found.lost} of {found.records} records were never processed: {found}"
    assert not found.double_owners
    assert not found.backward_commits
    assert not found.refused_though_held
    assert found.lag_zero_s is not None, f"the last commits never arrived: {found}"
