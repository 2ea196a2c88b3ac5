"""Records for the tests on a real broker."""

from __future__ import annotations

from confluent_kafka import Producer

from consumer_coord.testing.kafka_cluster import KafkaCluster


def produce(kafka: KafkaCluster, topic: str, partitions: int, each: int) -> None:
    """Write ``each`` records into each of the partitions, and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for number in range(partitions * each):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(180) == 0
