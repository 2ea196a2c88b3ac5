"""Members that process in parallel on Kafka's own broker, and that are killed: what is lost, repeated and out of order."""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import Popen

import attrs
import pytest
from confluent_kafka import Producer, TopicPartition

from consumer_coord import GroupConsumer
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.testing.processes import end, spawn
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS, KEYS, RECORDS, KILLS, MEMBERS = 16, 1_000, 20_000, 10, 3

Place = tuple[int, int]


@attrs.frozen
class Handled:
    """What the file of one member says."""

    file: Path

    def lines(self) -> Iterator[tuple[str, str, Place]]:
        """Yield whether a handler began or ended, the key, and the record; not a line that a kill has cut off."""
        for line in self.file.read_text().splitlines(keepends=True) if self.file.exists() else ():
            if line.endswith("\n"):
                sign, key, partition, offset = line.split()
                yield sign, key, (int(partition), int(offset))


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_ten_kills_lose_nothing_and_repeat_only_what_was_not_committed(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, tmp_path: Path, protocol: str
) -> None:
    name = topic(partitions=PARTITIONS)
    produce(kafka, name)
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 100,
        "group.protocol": protocol,
    }
    if protocol == "classic":
        settings |= {"session.timeout.ms": 6_000, "partition.assignment.strategy": "cooperative-sticky"}
    rng, numbers = random.Random(protocol), itertools.count()
    files: list[Handled] = []

    def start() -> Popen[bytes]:
        files.append(Handled(tmp_path / str(next(numbers))))
        command = [sys.executable, "-m", "tests.support.consumer.process_worker"]
        return spawn([*command, json.dumps(settings), name, str(files[-1].file)], cwd=ROOT)

    members = [start() for _ in range(MEMBERS)]
    try:
        for kill in range(1, KILLS + 1):
            eventually(lambda: handled_by(files) >= RECORDS * kill // (KILLS + 2), every_s=0.1)  # noqa: B023
            victim = members.pop(rng.randrange(MEMBERS))
            victim.kill()
            victim.wait()
            members.append(start())
        eventually(lambda: handled_by(files) >= RECORDS, shows=lambda: handled_by(files), every_s=0.2)
        # What a killed member finished after its last commit is handled again; only then is it committed.
        eventually(
            lambda: committed_by(kafka, group, name) == RECORDS, shows=lambda: committed_by(kafka, group, name), every_s=0.5
        )
        for member in members:
            member.send_signal(signal.SIGTERM)
        assert [member.wait(60) for member in members] == [0] * MEMBERS
    finally:
        for member in members:
            end(member)
    assert committed_by(kafka, group, name) == RECORDS
    times = Counter(place for file in files for sign, _, place in file.lines() if sign == "-")
    assert len(times) == RECORDS, "nothing is lost"
    repeated = sum(times.values()) - RECORDS
    # What a member finished after its last commit before its kill: it commits ten times a second.
    print(f"{protocol}: {repeated} of {RECORDS} records twice after {KILLS} kills")
    assert repeated < RECORDS // 4
    assert not list(out_of_order(files))


def produce(kafka: KafkaCluster, name: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for number in range(RECORDS):
        key = number % KEYS
        producer.produce(name, b"x", key=str(key), partition=key % PARTITIONS)
    assert producer.flush(60) == 0


def committed_by(kafka: KafkaCluster, group: str, name: str) -> int:
    """Return the sum of the committed offsets."""
    with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}) as reader:
        rows = reader.committed([TopicPartition(name, number) for number in range(PARTITIONS)])
    return sum(max(0, row.offset) for row in rows)


def handled_by(files: Sequence[Handled]) -> int:
    return len({place for file in files for sign, _, place in file.lines() if sign == "-"})


def out_of_order(files: Sequence[Handled]) -> Iterator[str]:
    """Yield each record that began beside, or after, a later record of its key in one member."""
    for file in files:
        running: set[str] = set()
        last: dict[str, Place] = {}
        for sign, key, place in file.lines():
            if sign == "-":
                running.discard(key)
                continue
            if key in running:
                yield f"{file.file.name}: {key} has two handlers at {place}"
            if place < last.get(key, (0, -1)):
                yield f"{file.file.name}: {key} goes back from {last[key]} to {place}"
            running.add(key)
            last[key] = place
