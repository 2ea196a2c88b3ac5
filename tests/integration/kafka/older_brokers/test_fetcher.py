"""The fetcher on older brokers: the records that librdkafka reads."""

from __future__ import annotations

import pytest

from consumer_coord.fetch import FetchStart, StopReason
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.topic_partition import TopicPartition
from tests.integration.kafka.test_fetcher import PARTITIONS, ends_of, fill, read, same_as_librdkafka, spoken
from tests.support.fetch.world import Reader

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_the_records_that_librdkafka_reads_on_3_9(kafka_3_9: RealKafka) -> None:
    name = kafka_3_9.new_topic(PARTITIONS)
    fill(kafka_3_9, name)
    same_as_librdkafka(kafka_3_9, name)


def test_the_records_that_librdkafka_reads_on_the_oldest_broker(kafka_2_4: RealKafka) -> None:
    """Fetch version 11, so truncation is found by OffsetForLeaderEpoch."""
    kafka, name = kafka_2_4, kafka_2_4.new_topic(PARTITIONS)
    fill(kafka, name)
    same_as_librdkafka(kafka, name)
    one, end = TopicPartition(name, 0), ends_of(kafka, name)[TopicPartition(name, 0)]

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        reader.assign({one: FetchStart(1, end - 1, 0)})
        await reader.read_to({one: end})
        assert spoken(cluster) == 11
        reader.assign({one: FetchStart(2, end + 2, 0)})
        await reader.until(lambda: bool(reader.stopped))

    (stopped,) = read(kafka, story).stopped
    assert (stopped.reason, stopped.end_offset, stopped.end_epoch) == (StopReason.TRUNCATED, end, 0)
