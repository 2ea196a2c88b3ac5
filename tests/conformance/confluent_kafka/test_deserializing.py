"""DeserializingConsumer, with deserializers of confluent-kafka's."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.error import ConsumeError, ValueDeserializationError
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import IntegerDeserializer, MessageField, SerializationContext, StringDeserializer

from consumer_coord import DeserializingConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        yield running


def consumer(kafka: EmbeddedKafka, **more: Any) -> Any:
    return DeserializingConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "key.deserializer": StringDeserializer(),
            "value.deserializer": IntegerDeserializer(),
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


def produce(kafka: EmbeddedKafka, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", value, "näme".encode())
    assert producer.flush(60) == 0


def test_keys_and_values_come_as_the_deserializers_make_them(kafka: EmbeddedKafka) -> None:
    produce(kafka, struct.pack(">i", 7))
    with consumer(kafka) as one:
        assert isinstance(one, GroupConsumer)
        assert isinstance(one, confluent_kafka.DeserializingConsumer)
        one.subscribe(["orders"])
        message = one.poll(60)
        assert (message.key(), message.value()) == ("näme", 7)
        assert [row.offset for row in one.commit(message, asynchronous=False)] == [1]
        with pytest.raises(NotImplementedError):
            one.consume()


def test_what_cannot_be_deserialized_is_raised(kafka: EmbeddedKafka) -> None:
    produce(kafka, b"no number")
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        with pytest.raises(ValueDeserializationError):
            one.poll(60)


def test_a_message_with_an_error_is_raised(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["nosuch"])
        with pytest.raises(ConsumeError) as raised:
            one.poll(60)
        assert raised.value.code == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


AVRO = """
{"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}, {"name": "cents", "type": "int"}]}
"""
JSON = """
{"title": "Order", "type": "object", "properties": {"customer": {"type": "string"}, "cents": {"type": "integer"}}}
"""


@pytest.mark.parametrize("form", ["avro", "json"])
def test_values_with_a_schema_of_a_registry(kafka: EmbeddedKafka, form: str) -> None:
    """confluent-kafka's serializers with the registry that it ships for tests."""
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    order = {"customer": "näme", "cents": 250}
    if form == "avro":
        serializer, deserializer = AvroSerializer(registry, AVRO), AvroDeserializer(registry, AVRO)
    else:
        serializer = JSONSerializer(JSON, registry)
        deserializer = JSONDeserializer(JSON, schema_registry_client=registry)
    produce(kafka, serializer(order, SerializationContext("orders", MessageField.VALUE)))
    with consumer(kafka, value_deserializer=deserializer) as one:
        one.subscribe(["orders"])
        assert one.poll(60).value() == order
