"""Cases in which a library for parallel work fails, measured: ``python -m benchmarks.parallel --cases [CASE ...]``.

Members of a group (``parallel_peers/``) log each call of their handlers. Meanwhile the group's commits are read twice a second.
A cell of the table has what remains when everything is committed, or when nothing has happened for 15 s:

* **lost**: records before the committed offset that no handler finished and that are in no letter;
* **twice**: how many more calls ended well than there are records;
* **disordered**: calls of a key beside, or after, a call for a later record of the key, in one member;
* **ahead**: the most records before a committed offset, in one reading, whose handler had not finished;
* **stuck**: offsets that are not committed at the end, markers included;
* **at once**: the most handlers that ran at once; **letters**: records in the topic of letters; **stopped**: members that ended
  by themselves; **told**: seconds until the health check named a partition. Only where the case is about these.

"-" stands for a case that the program cannot have: a letter or a health check that the library lacks, or a group on a real
Kafka (``prosody`` has its mock only).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import cluster
from benchmarks.parallel_peers.calls import CANCELS, FAILS, Task
from benchmarks.parallel_peers.programs import PEERS, ROOT, command
from benchmarks.results import Results
from benchmarks.table import markdown
from consumer_coord.testing.jars import UnavailableError
from consumer_coord.testing.kafka_cluster import unique_name
from consumer_coord.testing.processes import end, spawn
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.consumer.handled import Handled, Place, out_of_order
from tests.support.waiting import eventually

PARTITIONS, KEYS = 8, 500
#: How long nothing may happen before a case is over, and how long it may take altogether, in seconds.
_QUIET_S, _DEADLINE_S = 15.0, 120.0
_SAMPLE_S, _SESSION_MS = 0.5, 6_000
#: Programs that write letters, and that have a health check.
_LETTERS, _HEALTH = ("ours", "pyrallel", "prosody"), ("ours",)
_UNDECODABLE, _VALUE = b"\xff{", b'"x"'
#: What a cell shows, in this order; and what it shows only if the case asks for it.
FIGURES = ("lost", "twice", "disordered", "ahead", "stuck")


@attrs.frozen
class Case:
    """A topic, and what happens to the members of a group that reads it."""

    name: str
    play: Callable[[Group], None]
    values: Sequence[bytes] = (_VALUE,) * 4_000
    #: How long a handler takes, in seconds, and how many a member has at once.
    work: float = 0.01
    concurrency: int = 20
    keys: int = KEYS
    #: Whether every second record has no key.
    null_keys: bool = False
    #: Records per transaction; every fourth is aborted.
    transactions: int | None = None
    #: Records that are deleted at the start of each partition.
    deleted: int = 0
    #: The settings of the topic for letters; None if there is none. ``letters``: whether members write any.
    letters_topic: Mapping[str, str] | None = None
    letters: bool = False
    health: bool = False
    #: Whether a program with a broker of its own can have the case.
    mock: bool = False
    also: Sequence[str] = ()


def _note(places: list[tuple[Place, bytes]], value: bytes, error: Any, message: Any) -> None:
    assert error is None, error
    places.append(((message.partition(), message.offset()), value))


class Group:
    """A group of one program in a case."""

    def __init__(self, kafka: RealKafka, client: str, case: Case, directory: Path) -> None:
        self.kafka = kafka
        self.told_s = float("nan")
        self.client = client
        self._case = case
        self._directory = directory
        self._bootstrap = kafka.bootstrap_servers
        self._topic, self._group = unique_name("case"), unique_name("g")
        self._members: list[subprocess.Popen[bytes]] = []
        self._files: list[Handled] = []
        self._numbers = itertools.count()
        self._stopped = 0
        #: The records that members must handle, and those at which handlers fail always.
        self._expected: set[Place] = set()
        self._failing: set[Place] = set()
        self._ahead = 0
        self._reader: Any = None
        if PEERS[client].in_group:
            kafka.create_topic(self._topic, PARTITIONS)
            if case.letters_topic is not None:
                kafka.create_topic(f"{self._topic}.dlq", 1, config=case.letters_topic)
            self._produce(PARTITIONS)

    # -- members --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a member."""
        file = self._directory / str(next(self._numbers))
        task = Task(
            driver="threads" if "asyncio" not in PEERS[self.client].drivers else "asyncio",
            bootstrap=self._bootstrap,
            topic=self._topic,
            group=self._group,
            concurrency=self._case.concurrency,
            work=self._case.work,
            log=str(file),
            session_ms=_SESSION_MS,
            letters=f"{self._topic}.dlq" if self._case.letters else "",
            health=self._case.health,
        )
        with file.with_suffix(".err").open("wb") as errors:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            member = spawn(command(self.client, task), cwd=ROOT, stderr=errors, env=environment)
        self._members.append(member)
        self._files.append(Handled(file))
        if not PEERS[self.client].in_group:
            eventually(lambda: bool(list(self._files[-1].notes())))
            self._bootstrap = next(self._files[-1].notes()).removeprefix("bootstrap ")
            self._produce(3)
            file.with_suffix(".go").touch()

    def stop(self) -> None:
        """Let the oldest member end by SIGTERM."""
        member = self._members.pop(0)
        self._stopped += member.poll() is not None
        member.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.wait(40)
        end(member)

    def kill(self) -> None:
        """Kill the oldest member."""
        end(self._members.pop(0))

    def freeze(self, seconds: float) -> None:
        """Stop the oldest member for a time."""
        self._members[0].send_signal(signal.SIGSTOP)
        self.wait_s(seconds)
        self._members[0].send_signal(signal.SIGCONT)

    def freeze_broker(self, seconds: float) -> None:
        """Stop the broker for a time, and note when the health check says so."""
        before = sum(1 for file in self._files for _ in file.notes())
        began = time.monotonic()
        self.kafka.pause()
        try:
            while (now_s := time.monotonic() - began) < seconds:
                notes = [note for file in self._files for note in file.notes()][before:]
                if self.told_s != self.told_s and any("unhealthy" in one and f"{self._topic}-" in one for one in notes):
                    self.told_s = now_s
                time.sleep(0.1)
        finally:
            self.kafka.resume()

    def until(self, part: float) -> None:
        """Wait until this part of the records has been handled, or nothing more happens."""
        self.wait(lambda: len(self._ended()) >= part * len(self._expected))

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for something; give up when nothing has happened for a while. Meanwhile, read what is committed."""
        last, since, began = (-1, -1), time.monotonic(), time.monotonic()
        while not done() and time.monotonic() - since < _QUIET_S and time.monotonic() - began < _DEADLINE_S:
            progress = len(self._ended()), sum(self._look().values())
            if progress != last:
                last, since = progress, time.monotonic()
            time.sleep(_SAMPLE_S)

    def settle(self) -> None:
        """Wait until everything is committed, or nothing more happens."""
        self.wait(lambda: self._uncommitted() == 0)

    def wait_s(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._look()
            time.sleep(_SAMPLE_S)

    def close(self) -> None:
        """End the members, and count those that had ended by themselves."""
        self._stopped += sum(member.poll() is not None for member in self._members)
        for member in self._members:
            end(member)
        if self._reader is not None:
            self._reader.close()

    # -- what is produced -----------------------------------------------------------------------------------------------

    def _produce(self, partitions: int) -> None:
        case = self._case
        settings: dict[str, Any] = {"bootstrap.servers": self._bootstrap, "linger.ms": 5}
        if case.transactions is not None:
            settings["transactional.id"] = self._topic
        producer = Producer(settings)
        if case.transactions is not None:
            producer.init_transactions(60)
        per = case.transactions or len(case.values)
        for first in range(0, len(case.values), per):
            places: list[tuple[Place, bytes]] = []
            if case.transactions is not None:
                producer.begin_transaction()
            for number, value in enumerate(case.values[first : first + per], first):
                key = number % case.keys
                producer.produce(
                    self._topic,
                    value,
                    key=None if case.null_keys and number % 2 else str(key),
                    partition=key % partitions,
                    on_delivery=functools.partial(_note, places, value),
                )
            assert producer.flush(60) == 0
            if case.transactions is not None:
                if first // per % 4 == 3:
                    producer.abort_transaction(60)
                    continue
                producer.commit_transaction(60)
            self._expected.update(place for place, _ in places)
            self._failing.update(place for place, value in places if value != _VALUE)
        if case.deleted:
            rows = [TopicPartition(self._topic, number, case.deleted) for number in range(partitions)]
            for deleted in self.kafka.admin.delete_records(rows).values():
                deleted.result(30)
            self._expected = {(partition, offset) for partition, offset in self._expected if offset >= case.deleted}

    # -- what is measured -----------------------------------------------------------------------------------------------

    def _ended(self) -> set[Place]:
        return {place for file in self._files for place in file.ended()}

    def _look(self) -> Mapping[int, int]:
        """Return the committed offsets, and compare them with what is finished. The commits are read first."""
        if self._reader is None:
            self._reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._group, "log_level": 0})
        partitions = sorted({partition for partition, _ in self._expected})
        try:
            rows = self._reader.committed([TopicPartition(self._topic, one) for one in partitions], timeout=5)
        except KafkaException:
            return {}
        committed = {row.partition: max(0, row.offset) for row in rows}
        finished = self._ended() | self._failing
        ahead = sum(offset < committed[partition] for partition, offset in self._expected - finished)
        self._ahead = max(self._ahead, ahead)
        return committed

    def _uncommitted(self) -> int:
        committed = self._look()
        return sum(self._end_of(number) - max(offset, self._case.deleted) for number, offset in committed.items())

    def _end_of(self, number: int) -> int:
        end_offset: int = self._reader.get_watermark_offsets(TopicPartition(self._topic, number), timeout=10)[1]
        return end_offset

    def _letters(self) -> int:
        topic = f"{self._topic}.dlq"
        if not self._case.letters or topic not in (topics := self._reader.list_topics(timeout=10).topics):
            return 0
        ends = [self._reader.get_watermark_offsets(TopicPartition(topic, one), timeout=10) for one in topics[topic].partitions]
        return sum(high - low for low, high in ends)

    def figures(self) -> Mapping[str, float]:
        """Return what the cell shows."""
        committed, ended = self._look(), self._ended()
        passed = {place for place in self._expected - ended if place[1] < committed.get(place[0], 0)}
        letters = self._letters()
        found: dict[str, float] = {
            "lost": len(passed - self._failing) + max(0, len(passed & self._failing) - letters),
            "twice": sum(sum(file.ended().values()) for file in self._files) - len(ended),
            "disordered": sum(1 for _ in out_of_order(self._files)),
            "ahead": self._ahead,
            "stuck": self._uncommitted(),
        }
        also = {
            "at once": _at_once(self._files),
            "letters": letters,
            "stopped": self._stopped + sum(member.poll() is not None for member in self._members),
            "told": self.told_s,
        }
        return found | {name: also[name] for name in self._case.also}


def _at_once(files: Sequence[Handled]) -> int:
    running = most = 0
    for sign, _, _ in itertools.chain.from_iterable(file.lines() for file in files):
        running += 1 if sign == "+" else -1
        most = max(most, running)
    return most


# -- what happens -------------------------------------------------------------------------------------------------------


def _alone(group: Group) -> None:
    """One member, which is started again: nothing must be handled again."""
    group.start()
    group.settle()
    if PEERS[group.client].in_group:
        group.stop()
        group.start()
        group.wait_s(5)


def _churn(group: Group) -> None:
    group.start()
    group.start()
    group.until(0.15)
    group.start()
    group.until(0.3)
    group.stop()
    group.until(0.5)
    group.kill()
    group.start()
    group.settle()


def _joins(group: Group) -> None:
    group.start()
    group.start()
    for part in (0.1, 0.25):
        group.until(part)
        group.start()
    for part in (0.4, 0.55):
        group.until(part)
        group.stop()
    group.settle()


def _frozen(group: Group) -> None:
    group.start()
    group.start()
    group.until(0.2)
    group.freeze(_SESSION_MS / 1000 + 6)
    group.settle()


def _frozen_broker(group: Group) -> None:
    group.start()
    group.until(0.2)
    group.freeze_broker(14)
    group.settle()


def _with(value: bytes) -> Sequence[bytes]:
    """Return 1,000 values, of which each two-hundredth is another."""
    return [value if number % 200 == 100 else _VALUE for number in range(1_000)]


_MANY = (_VALUE,) * 12_000
CASES = {
    case.name: case
    for case in (
        Case("join, SIGTERM, SIGKILL", _churn, _MANY),
        Case("transactions, a quarter aborted", _alone, transactions=40),
        Case("a log that starts at 400", _alone, deleted=400),
        Case("handlers of 400 ms under churn", _joins, (_VALUE,) * 6_000, work=0.4, concurrency=100),
        Case("a member frozen beyond its session", _frozen, _MANY),
        Case("null keys", _alone, (_VALUE,) * 2_000, null_keys=True, also=["at once"], mock=True),
        Case("undecodable values", _alone, _with(_UNDECODABLE), letters=True, letters_topic={}, also=["letters"], mock=True),
        Case("the topic of letters is missing", _alone, _with(FAILS), letters=True, also=["letters", "stopped"]),
        Case(
            "the topic of letters rejects them",
            *(_alone, _with(FAILS)),
            letters=True,
            letters_topic={"max.message.bytes": "1"},
            also=["letters", "stopped"],
        ),
        Case(
            "a handler raises CancelledError",
            _alone,
            _with(CANCELS),
            letters=True,
            letters_topic={},
            also=["letters"],
            mock=True,
        ),
        Case("the broker is frozen for 14 s", _frozen_broker, _MANY, concurrency=100, health=True, also=["told"]),
    )
}


def able(client: str, case: Case) -> bool:
    """Return whether a program can have the case."""
    return case.mock or PEERS[client].in_group


def measure(kafka: RealKafka, client: str, case: Case) -> Mapping[str, float]:
    """Let a group of one program have the case."""
    with _group(kafka, client, case) as group:
        case.play(group)
        return group.figures()


@contextlib.contextmanager
def _group(kafka: RealKafka, client: str, case: Case) -> Iterator[Group]:
    with tempfile.TemporaryDirectory() as directory:
        group = Group(kafka, client, case, Path(directory))
        try:
            yield group
        finally:
            group.close()


def run(names: Sequence[str], clients: Sequence[str], results: Results, *, measures: bool) -> None:
    """Measure the cells that are missing, and print the table."""
    cases = [case for name, case in CASES.items() if not names or any(one in name for one in names)]
    if measures:
        with cluster.broker() as kafka:
            for case in cases:
                for client in clients:
                    if not able(client, case) or results.rounds("case", case.name, client):
                        continue
                    try:
                        figures = measure(kafka, client, case)
                    except UnavailableError as error:
                        print(f"{client} is left out: {error}", file=sys.stderr, flush=True)
                        continue
                    results.add("case", case.name, client, figures)
                    print(f"{case.name}, {client}: {_cell(figures)}", file=sys.stderr, flush=True)
    rows = []
    for case in cases:
        found = [results.rounds("case", case.name, client) for client in clients]
        rows.append([case.name, *(_cell(one[-1]) if one else "-" for one in found)])
    print(markdown([f"{' / '.join(FIGURES)}", *clients], rows), flush=True)


def _cell(figures: Mapping[str, float]) -> str:
    """Return the text of a cell."""
    also = [
        f"{name} {value:.0f}{' s' if name == 'told' else ''}" if value == value else f"never {name}"
        for name, value in figures.items()
        if name not in FIGURES
    ]
    return "; ".join([" / ".join(f"{figures[name]:.0f}" for name in FIGURES), *also])
