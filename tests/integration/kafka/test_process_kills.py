"""Members that process in parallel on Kafka's own broker, and that are killed: what is lost, repeated and out of order.

Each record that is handled twice has its cause: an owner died, or lost the partition, before it had committed the record.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen

import attrs
import pytest
from confluent_kafka import Producer, TopicPartition

from consumer_coord import GroupConsumer
from consumer_coord.finished_offsets_text import Ranges, decode
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.testing.processes import end, spawn
from tests.support.consumer.handled import Handled, Place, handled_by, out_of_order
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS, KEYS, RECORDS, KILLS, MEMBERS = 16, 1_000, 20_000, 10, 3


@attrs.frozen
class Finished:
    """What the group's commits say at one time: partition -> committed offset, and what is finished above it."""

    partitions: Mapping[int, tuple[int, Ranges]]

    def has(self, place: Place) -> bool:
        """Return whether a record counts as finished."""
        partition, offset = place
        committed, ranges = self.partitions[partition]
        return offset < committed or any(first <= offset < end for first, end in ranges)


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
    #: The files of the members that were killed, and what was committed then.
    killed: dict[Handled, Finished] = {}

    def start() -> tuple[Popen[bytes], Handled]:
        files.append(Handled(tmp_path / str(next(numbers))))
        command = [sys.executable, "-m", "tests.support.consumer.process_worker"]
        return spawn([*command, json.dumps(settings), name, str(files[-1].file)], cwd=ROOT), files[-1]

    members = [start() for _ in range(MEMBERS)]
    try:
        for kill in range(1, KILLS + 1):
            eventually(lambda: handled_by(files) >= RECORDS * kill // (KILLS + 2), every_s=0.1)  # noqa: B023
            victim, file = members.pop(rng.randrange(MEMBERS))
            victim.kill()
            victim.wait()
            # Nobody else commits these partitions before the group has removed the member.
            killed[file] = finished_by(kafka, group, name)
            members.append(start())
        eventually(lambda: handled_by(files) >= RECORDS, shows=lambda: handled_by(files), every_s=0.2)
        # What a killed member finished after its last commit is handled again; only then is it committed.
        eventually(
            lambda: committed_by(kafka, group, name) == RECORDS, shows=lambda: committed_by(kafka, group, name), every_s=0.5
        )
        # A member that came late may still be importing, and listens to signals before it opens its file.
        eventually(lambda: all(file.file.exists() for _, file in members))
        for member, _ in members:
            member.send_signal(signal.SIGTERM)
        assert [member.wait(60) for member, _ in members] == [0] * MEMBERS
    finally:
        for member, _ in members:
            end(member)
    assert committed_by(kafka, group, name) == RECORDS
    times = sum((file.ended() for file in files), Counter[Place]())
    assert len(times) == RECORDS, "nothing is lost"
    repeated = sum(times.values()) - RECORDS
    print(f"{protocol}: {repeated} of {RECORDS} records twice after {KILLS} kills")
    assert not list(without_cause(times, files, killed))
    assert not list(out_of_order(files))


def without_cause(times: Counter[Place], files: Sequence[Handled], killed: Mapping[Handled, Finished]) -> Iterator[str]:
    """Yield each record that was handled again although no owner died, or lost it, before it had committed the record."""
    ended = {file: file.ended() for file in files}
    lost = {file: {int(note.removeprefix("lost ")) for note in file.notes()} for file in files}
    for place, count in times.items():
        if count == 1:
            continue
        owners = [file for file in files if place in ended[file]]
        excused = [one for one in owners if place[0] in lost[one] or (one in killed and not killed[one].has(place))]
        if count > 1 + len(excused):
            names = [one.file.name for one in owners]
            yield f"{place}: {count} times, by {names}; {len(excused)} of these had not committed it"


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


def finished_by(kafka: KafkaCluster, group: str, name: str) -> Finished:
    """Return what the group has committed."""
    with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}) as reader:
        rows = reader.committed([TopicPartition(name, number) for number in range(PARTITIONS)])
    return Finished(
        {row.partition: (max(0, row.offset), decode(row.metadata, row.offset, RECORDS) if row.metadata else ()) for row in rows}
    )
