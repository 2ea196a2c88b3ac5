"""Topics with holes: the broker's compaction, awaited."""

from __future__ import annotations

import contextlib

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from consumer_coord.testing.kafka_cluster import KafkaCluster
from tests.support.spark.producing import produce
from tests.support.spark.queries import DEADLINE_S
from tests.support.waiting import eventually

#: Settings of a topic whose compaction begins soon after :func:`compact`.
EAGER = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}


def kept_offsets(kafka: KafkaCluster, topic: str) -> list[int]:
    """Return the offsets of partition 0 that still have records, as read by a plain consumer."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "looks", "enable.partition.eof": True}
    with contextlib.closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while True:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, "neither a record nor the end"
            if message.error() is not None:
                return found
            offset = message.offset()
            assert offset is not None
            found.append(offset)


def compact(kafka: KafkaCluster, topic: str, first_kept: int) -> None:
    """Compact partition 0 of a topic with the settings :data:`EAGER`, until ``first_kept`` is its first record."""
    policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[policy])
    kafka.admin.incremental_alter_configs([resource])[resource].result(90)

    def is_compacted() -> bool:
        # The segment that is written to is never compacted, and a record begins the next one.
        produce(kafka.bootstrap_servers, topic, [{"key": "last", "value": "v"}])
        return kept_offsets(kafka, topic)[0] == first_kept

    eventually(is_compacted, "the compaction", within_s=DEADLINE_S, every_s=0.5)
