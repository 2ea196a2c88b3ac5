"""A cluster on disk: it survives restarts and SIGKILL, and refuses what is not its own."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.data_dir import DataDirectoryError, OpenFiles, SegmentFiles
from consumer_coord.errors import ConfigurationError

TOPICS = {"orders": 2}


def write(kafka: EmbeddedKafka, first: int, count: int) -> None:
    """Write numbered records to orders-0."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(first, first + count):
        producer.produce("orders", b"%d" % number, partition=0)
    assert producer.flush(90) == 0


def read(kafka: EmbeddedKafka, count: int) -> list[int]:
    """The first ``count`` records of orders-0."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[int] = []
    deadline_s = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None
            value = message.value()
            assert value is not None
            found.append(int(value))
    consumer.close()
    return found


def commit(kafka: EmbeddedKafka, offset: int) -> None:
    """Commit an offset of orders-0 for group "group"."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "group", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def committed(kafka: EmbeddedKafka) -> int:
    """The committed offset of orders-0 of group "group"."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "group", "log_level": 0})
    (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=60)
    consumer.close()
    return int(found.offset)


def logs(data_dir: Path, topic: str = "orders", partition: int = 0) -> list[Path]:
    """The files of a partition."""
    return sorted((data_dir / f"{topic}-{partition}").glob("*.log"))


def test_records_groups_offsets_and_topics_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedKafka(TOPICS, data_dir=tmp_path) as kafka:
        write(kafka, 0, 100)
        commit(kafka, 42)
        kafka.create_topic("later", 3)
        kafka.create_topic("gone", 1)
        kafka.delete_topic("gone")
        cluster_id = kafka.cluster_id
    with EmbeddedKafka({"orders": 4}, data_dir=tmp_path) as kafka:
        assert kafka.cluster_id == cluster_id
        assert read(kafka, 100) == list(range(100))
        assert committed(kafka) == 42
        assert kafka.topics() == {"orders": 4, "later": 3}
        write(kafka, 100, 10)
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        assert read(kafka, 110) == list(range(110))


_CHILD = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition
from consumer_coord.broker import EmbeddedKafka
kafka = EmbeddedKafka({"orders": 2}, data_dir=sys.argv[1], config={"log.segment.bytes": 1 << 14}).start()
where = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
producer = Producer({**where, "linger.ms": 0})
consumer = Consumer({**where, "group.id": "group"})
first = number = int(sys.argv[2])
while True:
    for _ in range(50):
        producer.produce("orders", b"%d" % number, partition=0)
        number += 1
    producer.flush()
    consumer.commit(offsets=[TopicPartition("orders", 0, number)], asynchronous=False)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_sigkill_at_any_moment(tmp_path: Path) -> None:
    acknowledged = 0
    for round_number in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path), str(acknowledged)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(3 + 4 * round_number):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        rest = child.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        child.stdout.close()
        with EmbeddedKafka(data_dir=tmp_path) as kafka:
            found = read(kafka, acknowledged)
            assert found == list(range(acknowledged))
            assert committed(kafka) >= acknowledged
            # Records in flight may or may not be in the log; the next round starts after all of them.
            write_from = len(read_all(kafka))
        acknowledged = write_from


def read_all(kafka: EmbeddedKafka) -> list[int]:
    """All records of orders-0."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "log_level": 0})
    _, high = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=60)
    consumer.close()
    return read(kafka, high)


def fill(tmp_path: Path) -> Path:
    """A data directory with some records in orders-0."""
    with EmbeddedKafka(TOPICS, data_dir=tmp_path) as kafka:
        write(kafka, 0, 10)
        write(kafka, 10, 10)
    return tmp_path


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_torn_last_batch_is_cut_off(tmp_path: Path, cut: int) -> None:
    fill(tmp_path)
    (log,) = logs(tmp_path)
    whole = log.stat().st_size
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        end = len(read_all(kafka))
    os.truncate(log, whole - cut)
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        left = read_all(kafka)
        assert left == list(range(len(left)))
        assert len(left) < end
        assert log.stat().st_size < whole - cut
        write(kafka, len(left), 5)
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        assert read_all(kafka) == list(range(len(left) + 5))


def test_a_directory_is_used_by_one_cluster_at_a_time(tmp_path: Path) -> None:
    with EmbeddedKafka(data_dir=tmp_path), pytest.raises(DataDirectoryError, match="in use"):
        EmbeddedKafka(data_dir=tmp_path).start()
    EmbeddedKafka(data_dir=tmp_path).start().close()


def damage_middle(data_dir: Path) -> None:
    """A byte in the middle of a log is another one."""
    (log,) = logs(data_dir)
    data = bytearray(log.read_bytes())
    data[16] = 7  # the format of the first batch
    log.write_bytes(data)


def damage_last_checksum(data_dir: Path) -> None:
    """A byte of the last batch is another one."""
    (log,) = logs(data_dir)
    data = bytearray(log.read_bytes())
    data[-3] ^= 0x55
    log.write_bytes(data)


def rewind_offsets(data_dir: Path) -> None:
    """Write all batches of the log a second time, so that offsets decrease."""
    (log,) = logs(data_dir)
    data = log.read_bytes()
    log.write_bytes(data + data)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (damage_middle, "damaged at byte 0"),
        (damage_last_checksum, "checksum"),
        (rewind_offsets, "comes after"),
        (lambda path: (path / "cluster.json").write_text("{"), "cluster.json is damaged"),
        (lambda path: (path / "cluster.json").write_text('{"format": 2}'), "cluster.json is damaged"),
        (lambda path: (path / "cluster.json").unlink(), "not a data directory of this broker"),
        (lambda path: (path / "holiday.jpg").write_text(""), "holiday.jpg"),
        (lambda path: (path / "orders-9").mkdir(), "orders-9"),
        (lambda path: (path / "orders-0" / "notes.txt").write_text(""), "notes.txt"),
        (lambda path: (path / "orders-0" / "log-start-offset").write_text("x"), "log-start-offset is damaged"),
    ],
)
def test_a_damaged_or_foreign_directory_is_refused_and_left_alone(tmp_path: Path, what: object, message: str) -> None:
    fill(tmp_path)
    assert callable(what)
    what(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(DataDirectoryError, match=message):
        EmbeddedKafka(data_dir=tmp_path).start()
    assert snapshot(tmp_path) == before


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file with its contents."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_directory_that_belongs_to_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(DataDirectoryError, match=r"thesis\.tex"):
        EmbeddedKafka(data_dir=tmp_path).start()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        EmbeddedKafka(data_dir=tmp_path / "file").start()


def test_the_number_of_group_partitions_cannot_change(tmp_path: Path) -> None:
    EmbeddedKafka(data_dir=tmp_path).start().close()
    with pytest.raises(ConfigurationError, match=r"offsets\.topic\.num\.partitions is 7.*50"):
        EmbeddedKafka(data_dir=tmp_path, config={"offsets.topic.num.partitions": 7}).start()


def test_old_segments_go_when_the_log_is_too_large(tmp_path: Path) -> None:
    config = {"log.segment.bytes": 1 << 14, "log.retention.bytes": 1 << 16}
    with EmbeddedKafka(TOPICS, data_dir=tmp_path, config=config) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "log_level": 0})
        for _ in range(100):
            producer.produce("orders", bytes(4_000), partition=0)
            producer.flush()
        low, high = watermarks(kafka)
        assert low > 0
        assert high == 100
    assert sum(file.stat().st_size for file in logs(tmp_path)) <= (1 << 16) + (1 << 14)
    with EmbeddedKafka(data_dir=tmp_path, config=config) as kafka:
        assert watermarks(kafka) == (low, high)


def watermarks(kafka: EmbeddedKafka) -> tuple[int, int]:
    """First and next offset of orders-0."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "log_level": 0})
    found = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=60)
    consumer.close()
    low, high = found
    return int(low), int(high)


def test_producer_ids_are_not_given_out_again(tmp_path: Path) -> None:
    def next_id() -> int:
        data = json.loads((tmp_path / "cluster.json").read_text())
        return int(data["next_producer_id"])

    with EmbeddedKafka(TOPICS, data_dir=tmp_path) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
        producer.produce("orders", b"x")
        assert producer.flush(60) == 0
        reserved = next_id()
    with EmbeddedKafka(TOPICS, data_dir=tmp_path):
        assert next_id() >= reserved > 1000


def test_a_batch_that_is_larger_than_a_file_follows_an_incomplete_one(tmp_path: Path) -> None:
    """The first file is empty after the restart. It must not be listed twice, or a later deletion removes the whole file."""
    config = {"log.segment.bytes": 1 << 14}
    batch = [b"%2000d" % number for number in range(10)]
    with EmbeddedKafka(TOPICS, data_dir=tmp_path, config=config) as kafka:
        assert produce(kafka, batch) == [None] * 10
    (log,) = logs(tmp_path)
    os.truncate(log, 1_000)
    with EmbeddedKafka(data_dir=tmp_path, config=config) as kafka:
        assert produce(kafka, batch) == [None] * 10
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for deletion in admin.delete_records([TopicPartition("orders", 0, 5)]).values():
            deletion.result(60)
    with EmbeddedKafka(data_dir=tmp_path, config=config) as kafka:
        assert watermarks(kafka) == (5, 10)


def produce(kafka: EmbeddedKafka, values: Sequence[bytes]) -> list[object]:
    """Write values to orders-0 as one batch; return the error of each, or None."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 1_000, "log_level": 0})
    for value in values:
        producer.produce("orders", value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(90) == 0
    return errors


def test_a_write_that_fails_leaves_nothing_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_until_full(descriptor: int, parts: Sequence[bytes], position: int) -> int:
        return pwrite(descriptor, b"".join(parts)[:10], position)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pwrite = os.pwrite
    opened = OpenFiles()
    files = SegmentFiles(tmp_path / "orders-0", 1_000, opened)
    files.append(0, [b"first"])
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "pwritev", write_until_full)
        full_disk.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="No space"):
            files.append(1, [b"too long ", b"for this disk"])
    files.append(1, [b"2nd"])
    opened.close()
    (file,) = logs(tmp_path)
    assert file.read_bytes() == b"first2nd"
