"""This package's own deserializing consumer beside confluent-kafka's: the same programs have the same outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import DeserializingConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaError, own_deserializing
from consumer_coord.confluent.types import own_because
from tests.support.producer import Producer

pytestmark = pytest.mark.skipif(own_because is not None, reason="compares with confluent-kafka 2.x")

THEIRS: Any = DeserializingConsumer


class OWN(own_deserializing.DeserializingConsumer, GroupConsumer):  # type: ignore[misc]  # the other base is of type Any
    """The own class over the consumer, as in a process without confluent-kafka."""


both = pytest.mark.parametrize("kind", [THEIRS, OWN])
has_builders = pytest.mark.skipif(
    not hasattr(pytest.importorskip("confluent_kafka.serialization"), "DeserializerBuilder"),
    reason="the installed version has no builders",
)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for value in (b"7", None, b"no number"):
            producer.produce("orders", value, key=b"key", headers=[("a", b"b")])
        assert producer.flush(60) == 0
        yield running


def consumer(kind: Any, kafka: EmbeddedKafka, **more: Any) -> Any:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    return kind({**settings, **{name.replace("_", "."): value for name, value in more.items()}})


def number(value: bytes | None, context: Any) -> int | None:
    assert (context.topic, str(context.field), context.headers) == ("orders", "value", [("a", b"b")])
    return None if value is None else int(value)


@both
def test_keys_and_values_are_deserialized(kind: Any, kafka: EmbeddedKafka) -> None:
    with consumer(
        kind, kafka, key_deserializer=lambda key, context: (key, str(context.field)), value_deserializer=number
    ) as one:
        one.subscribe(["orders"])
        messages = [one.poll(60), one.poll(60)]
        assert [(message.key(), message.value()) for message in messages] == [((b"key", "key"), 7), ((b"key", "key"), None)]
        with pytest.raises(Exception, match="no number") as raised:
            one.poll(60)
        error: Any = raised.value
        assert type(error).__name__ == "ValueDeserializationError"
        assert (error.code, error.name) == (KafkaError._VALUE_DESERIALIZATION, "_VALUE_DESERIALIZATION")
        assert (type(error.exception), error.kafka_message.value()) == (ValueError, b"no number")
        with pytest.raises(NotImplementedError):
            one.consume()
        assert one.poll(0) is None


@both
def test_a_message_with_an_error_is_raised(kind: Any, kafka: EmbeddedKafka) -> None:
    with consumer(kind, kafka) as one:
        one.subscribe(["nosuch"])
        with pytest.raises(Exception, match="nosuch") as raised:
            one.poll(60)
        error: Any = raised.value
        assert type(error).__name__ == "ConsumeError"
        assert error.code == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert error.kafka_message.error() is error.args[0]


class Builder:
    """Builds a deserializer, and consumes a setting of its own."""

    def __init__(self, setting: str, log: list[str]) -> None:
        self.setting, self.log = setting, log

    def build(self, settings: dict[str, Any], is_key: bool) -> tuple[Any, dict[str, Any]]:
        field = "key" if is_key else "value"
        self.log.append(f"{field}: {settings.pop(self.setting)}")
        return Built(field, self.log), settings


class Built:
    """A deserializer that tells when it is closed, and how it learns the cluster's id."""

    def __init__(self, field: str, log: list[str]) -> None:
        self.field, self.log = field, log

    def __call__(self, content: Any, context: Any) -> Any:
        return content

    def set_cluster_id_resolver(self, resolver: Any) -> None:
        self.log.append(f"{self.field}: {len(resolver())}")

    def close(self) -> None:
        self.log.append(f"{self.field}: closed")


@both
@has_builders
def test_built_deserializers_belong_to_the_consumer(kind: Any, kafka: EmbeddedKafka) -> None:
    log: list[str] = []
    built = {"key_deserializer_builder": Builder("a.url", log), "value_deserializer_builder": Builder("b.url", log)}
    one = consumer(kind, kafka, **built, a_url="A", b_url="B")
    length = len(kafka.cluster_id)
    assert log == ["key: A", "value: B", f"key: {length}", f"value: {length}"]
    one.close()
    one.close()
    assert log[4:] == ["key: closed", "value: closed"]


@both
@has_builders
def test_a_deserializer_and_its_builder_are_an_error(kind: Any, kafka: EmbeddedKafka) -> None:
    settings = {"key_deserializer": len, "key_deserializer_builder": Builder("a.url", [])}
    with pytest.raises(ValueError, match=r"Cannot configure both key\.deserializer and key\.deserializer\.builder"):
        consumer(kind, kafka, **settings)


@both
@has_builders
def test_a_builder_that_returns_no_pair_is_an_error(kind: Any, kafka: EmbeddedKafka) -> None:

    class Wrong:
        def build(self, settings: object, is_key: bool) -> object:
            return self

    with pytest.raises(ValueError, match=r"value\.deserializer\.builder must return"):
        consumer(kind, kafka, value_deserializer_builder=Wrong())
