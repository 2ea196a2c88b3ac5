"""The settings of topics: which are accepted, how they are changed, and what they do."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import attrs
import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.data_dir import DataDirectory, OpenFiles, SegmentFiles, StoredCluster, StoredTopic
from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.record_batch import build_batch
from consumer_coord.broker.topic_settings import TOPIC_SETTINGS, LogSettings, check_topic_settings
from consumer_coord.errors import ConfigurationError, MalformedMessageError
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.broker.test_transactions import TxnProducer, log_of, on_cluster

TOPIC = 2
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "1024"),
        ("segment.bytes", "many"),
        ("cleanup.policy", "compact,shrink"),
        ("compression.type", "rar"),
        ("min.cleanable.dirty.ratio", "2"),
        ("min.cleanable.dirty.ratio", "x"),
        ("preallocate", "perhaps"),
        ("remote.storage.enable", "true"),
        ("retention.ms", None),
        ("no.such.setting", "1"),
        ("leader.replication.throttled.replicas", "a:b"),
    ],
)
def test_an_unknown_setting_or_an_illegal_value_is_refused(name: str, value: str | None) -> None:
    with pytest.raises(ConfigurationError, match=name):
        check_topic_settings({name: value})


def test_a_default_is_a_legal_value() -> None:
    assert not [name for name, setting in TOPIC_SETTINGS.items() if not setting.is_legal(setting.default)]
    with pytest.raises(ConfigurationError, match="must not be greater"):
        check_topic_settings({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


async def described(client: TxnProducer, topic: str = "orders", kind: int = TOPIC) -> dict[str, tuple[str | None, int]]:
    """Return name -> (value, source) of the settings of a topic, or of a resource of another kind."""
    request = DescribeConfigsRequest(resources=(DescribeConfigsResource(kind, topic, None),))
    configs = (await client.ask(request, 4)).results[0].configs
    return {config.name: (config.value, config.config_source) for config in configs}


async def change(client: TxnProducer, *changes: tuple[str, int, str | None], topic: str = "orders", **more: Any) -> int:
    """Send IncrementalAlterConfigs; return the error code."""
    resource = AlterConfigsResource(more.get("kind", TOPIC), topic, tuple(AlterableConfig(*one) for one in changes))
    resources = (resource,) * more.get("times", 1)
    response = await client.ask(IncrementalAlterConfigsRequest(resources, more.get("validate_only", False)), 1)
    return int(response.responses[0].error_code)


def test_settings_are_kept_described_and_changed() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        configs = (CreatableTopicConfig("segment.bytes", "1048576"), CreatableTopicConfig("cleanup.policy", "compact"))
        await client.ask(CreateTopicsRequest((CreatableTopic("made", 1, 1, (), configs),)), 7)
        found = await described(client, "made")
        assert found.keys() == TOPIC_SETTINGS.keys()
        assert (found["segment.bytes"], found["cleanup.policy"]) == (("1048576", 1), ("compact", 1))
        assert found["retention.ms"] == ("-1", 5)
        assert await change(client, ("cleanup.policy", APPEND, "delete"), ("retention.ms", SET, "9"), topic="made") == 0
        found = await described(client, "made")
        assert (found["cleanup.policy"][0], found["retention.ms"][0]) == ("compact,delete", "9")
        assert log_of(cluster, topic="made").settings.retention_ms == 9
        assert await change(client, ("cleanup.policy", SUBTRACT, "compact"), ("retention.ms", DELETE, None), topic="made") == 0
        found = await described(client, "made")
        assert (found["cleanup.policy"], found["retention.ms"]) == (("delete", 1), ("-1", 5))

    on_cluster(work)


def test_changes_that_are_not_possible_are_refused() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        before = await described(client)
        assert await change(client, ("retention.ms", SET, "9"), validate_only=True) == 0
        assert await change(client, ("retention.ms", SET, "-9")) == error_codes.INVALID_CONFIG
        assert await change(client, ("retention.ms", APPEND, "9")) == error_codes.INVALID_CONFIG
        assert await change(client, ("no.such", SET, "9")) == error_codes.INVALID_CONFIG
        assert await change(client, ("retention.ms", SET, None)) == error_codes.INVALID_REQUEST
        assert await change(client, ("retention.ms", 9, "1")) == error_codes.INVALID_REQUEST
        assert await change(client, *[("retention.ms", SET, "1")] * 2) == error_codes.INVALID_REQUEST
        assert await change(client, ("retention.ms", SET, "1"), times=2) == error_codes.INVALID_REQUEST
        assert await change(client, ("num.partitions", SET, "1"), kind=4, topic="0") == error_codes.INVALID_REQUEST
        assert await change(client, ("retention.ms", SET, "1"), topic="absent") == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        assert await described(client) == before

    on_cluster(work)


def test_old_records_are_deleted_on_the_brokers_clock() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        log = log_of(cluster)
        for at_ms in (0, 99_000, 500_000):
            log.append_records([(b"k", b"v")], at_ms, 0)
        await change(client, ("retention.ms", SET, "200000"))
        await asyncio.sleep(299)
        assert log.log_start_offset == 0
        await asyncio.sleep(2)
        assert log.log_start_offset == 2, "the check comes every five minutes"
        await asyncio.sleep(600)
        assert (log.log_start_offset, log.end_offset) == (3, 3)

    on_cluster(work)


# -- compaction

SETTINGS = LogSettings(compacted=True, delete_retention_ms=1_000)


def records_of(log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return offset -> (key, value) of a log."""
    found = {}
    for record in log.records():
        assert not isinstance(record, MalformedMessageError)
        if not record.control:
            found[record.offset] = (record.key, record.value)
    return found


def test_compaction_keeps_the_last_record_of_each_key() -> None:
    log = PartitionLog(SETTINGS)
    log.append_records([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")], 0, 0)
    log.append_records([(b"b", None), (b"c", b"1")], 0, 0)
    log.append_records([(b"c", b"2")], 0, 0)
    log.compact(500)
    assert records_of(log) == {2: (b"a", b"2"), 3: (b"b", None), 5: (b"c", b"2")}
    log.compact(5_000)
    assert records_of(log) == {2: (b"a", b"2"), 5: (b"c", b"2")}, "the tombstone is old"
    assert (log.end_offset, log.size) == (6, sum(len(log.read(offset, 1, True)) for offset in (2, 5)))
    assert records_of(log).keys() == {record.offset for record in log.records(1)}  # type: ignore[union-attr]  # all are readable
    log.append_records([(b"a", None)], 9_000, 0)
    log.compact(9_000)
    assert records_of(log) == {5: (b"c", b"2"), 6: (b"a", None)}


def test_compaction_leaves_open_transactions_and_drops_aborted_ones() -> None:
    log = PartitionLog(SETTINGS)
    log.append_records([(b"a", b"1")], 0, 0)
    log.append_records([(b"a", b"aborted")], 0, 0, 7, 0)
    log.append_marker(0, 0, 7, 0, committed=False)
    log.append_records([(b"a", b"open")], 0, 0, 8, 0)
    log.append_records([(b"a", b"behind")], 0, 0)
    log.compact(0)
    assert records_of(log) == {0: (b"a", b"1"), 3: (b"a", b"open"), 4: (b"a", b"behind")}
    log.append_marker(0, 0, 8, 0, committed=True)
    log.compact(0)
    assert records_of(log) == {4: (b"a", b"behind")}


def test_compaction_waits_for_young_records() -> None:
    log = PartitionLog(attrs.evolve(SETTINGS, min_compaction_lag_ms=100))
    for at_ms in (0, 50, 90):
        log.append_records([(b"a", b"%d" % at_ms)], at_ms, 0)
    log.compact(120)
    assert len(records_of(log)) == 3
    log.compact(160)
    assert records_of(log).keys() == {1, 2}


def test_an_empty_log_can_be_compacted() -> None:
    log = PartitionLog(SETTINGS)
    log.compact(0)
    assert log.end_offset == 0


def test_a_record_without_key_is_refused() -> None:
    log = PartitionLog(SETTINGS)
    with pytest.raises(AppendError, match="must have a key"):
        log.append(build_batch([(None, b"v")], base_offset=0, timestamp_ms=0, leader_epoch=-1), 0)
    log.append(build_batch([(b"k", b"v")], base_offset=0, timestamp_ms=0, leader_epoch=-1), 0)


def test_a_compacted_log_on_disk_has_the_same_records_after_a_restart(tmp_path: Path) -> None:
    files = OpenFiles()
    log = PartitionLog(SETTINGS, SegmentFiles(tmp_path / "orders-0", 200, files))
    for number in range(8):
        log.append_records([(b"%d" % (number % 2), b"%d" % number)], 0, 0)
    log.compact(0)
    log.append_records([(b"x", b"last")], 0, 0)
    files.close()
    (tmp_path / "cluster.json").write_text(
        StoredCluster("id", 1, (StoredTopic("orders", str(uuid.uuid4()), 1, 1, {}, False),), ()).to_json()
    )
    stored = DataDirectory.open(tmp_path, BrokerConfig())
    restored = stored.new_log("orders", 0, SETTINGS)
    stored.close()
    assert (records_of(restored), restored.end_offset) == (records_of(log), 9)
    assert records_of(log).keys() == {6, 7, 8}


def test_the_settings_of_a_topic_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        kafka.create_topic("tables", configs={"cleanup.policy": "compact", "segment.bytes": "1048576"})
        kafka.clean_topic("tables")
        with pytest.raises(ConfigurationError):
            kafka.create_topic("other", configs={"cleanup.policy": "shrink"})
    stored = DataDirectory.open(tmp_path, BrokerConfig())
    stored.close()
    assert stored.stored is not None
    configs = {topic.name: topic.configs for topic in stored.stored.topics}
    assert configs["tables"] == {"cleanup.policy": "compact", "segment.bytes": "1048576"}
