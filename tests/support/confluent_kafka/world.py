"""The environment of a program of the table: a kind of consumer, a broker, separate topics and groups, and observations."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import confluent_kafka
from confluent_kafka import KafkaError, Message, Producer, TopicPartition, cimpl

from consumer_coord.broker.server import EmbeddedKafka
from tests.support.waiting import eventually

#: No successful program takes this long.
DEADLINE_S = 120.0

_numbers = itertools.count(1)


@attrs.frozen
class Raised:
    """An exception, as an ``except`` clause sees it."""

    #: The names of its class and of the bases of that class, in order.
    classes: tuple[str, ...]
    code: int | None

    def __str__(self) -> str:
        name = "" if self.code is None else f"({KafkaError(self.code).name()})"
        known = [one for one in self.classes if one in _CLAUSES]
        return f"raises {known[0] if known else self.classes[0]}{name}"


#: The exceptions that an application catches, the most specific first.
_CLAUSES = ("KafkaException", "RuntimeError", "ValueError", "TypeError", "KeyboardInterrupt", "Oops")


def alike(theirs: Any, ours: Any) -> bool:
    """Return whether an application that was written for the first outcome sees no difference in the second."""
    if isinstance(theirs, Raised) and isinstance(ours, Raised):
        return theirs.classes[0] in ours.classes and ("KafkaException" not in theirs.classes or theirs.code == ours.code)
    if isinstance(theirs, list) and isinstance(ours, list):
        return len(theirs) == len(ours) and all(alike(one, other) for one, other in zip(theirs, ours, strict=True))
    return bool(theirs == ours)


class Oops(Exception):
    """The exception that an application's callback raises."""


@attrs.define
class World:
    """A side of a comparison: ``kind`` makes consumers."""

    kind: Callable[..., Any]
    kafka: EmbeddedKafka
    number: int = attrs.field(factory=lambda: next(_numbers))
    _open: list[Any] = attrs.field(factory=list)

    @property
    def ours(self) -> bool:
        """Whether the consumer is ours; a program may act on this, but never observe differently."""
        return self.kind is not cimpl.Consumer

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return settings of a consumer that reads from the beginning; dots are written as underscores."""
        return {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "group.id": self.name("group"),
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 200,
            **{name if callable(value) else name.replace("_", "."): value for name, value in more.items()},
        }

    def consumer(self, **more: Any) -> Any:
        """Return a consumer that is closed with the program."""
        made = self.kind(self.settings(**more))
        self._open.append(made)
        return made

    def reader(self, topic: str, **more: Any) -> Any:
        """Return a consumer that is subscribed."""
        made = self.consumer(**more)
        made.subscribe([topic])
        return made

    def name(self, what: str) -> str:
        """Return a name that is unique to this side."""
        return f"{what}-n{self.number}x"

    def topic(self, partitions: int = 1, records: int = 0, what: str = "orders") -> str:
        """Create a topic with ``records`` in each partition."""
        name = self.name(what)
        self.kafka.create_topic(name, partitions)
        if records:
            self.produce(name, {partition: range(records) for partition in range(partitions)})
        return name

    def produce(self, topic: str, values: Mapping[int, Any]) -> None:
        """Produce values: partition -> values."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for partition, each in values.items():
            for value in each:
                producer.produce(topic, f"{partition}:{value}", partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def take(self, consumer: Any, count: int) -> list[Message]:
        """Return the next ``count`` records; an error ends the program."""
        found: list[Message] = []
        ends = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < ends, f"{len(found)} of {count} records came"
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
        return found

    def first_error(self, consumer: Any, within_s: float = DEADLINE_S) -> Any:
        """Return the first message with an error."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                return message
        return None

    def until(self, consumer: Any, condition: Callable[[], object]) -> None:
        """Poll until a condition holds."""
        eventually(condition, step=lambda: consumer.poll(0.05))

    def tries(self, function: Callable[[], Any]) -> Any:
        """Return the result or the exception of a call, to compare."""
        try:
            return self.seen(function())
        except Exception as error:  # noqa: BLE001 - the program observes any exception
            reason = error.args[0] if error.args else None
            code = reason.code() if isinstance(reason, KafkaError) else None
            return Raised(tuple(one.__name__ for one in type(error).__mro__), code)

    def seen(self, value: Any) -> Any:
        """Return a value without the parts that differ between any two runs."""
        if isinstance(value, Message):
            error = value.error()
            if error is None:
                return ["record", value.partition(), value.offset(), self.seen(value.value())]
            return ["error", error.name(), error.fatal()]
        if isinstance(value, TopicPartition):
            return [value.partition, value.offset, None if value.error is None else value.error.name()]
        if isinstance(value, KafkaError):
            return value.name()
        if isinstance(value, (list, tuple)):
            return [self.seen(one) for one in value]
        if isinstance(value, dict):
            return {self.seen(key): self.seen(one) for key, one in value.items()}
        if isinstance(value, bytes):
            return value.decode("latin-1")
        if isinstance(value, str):
            return re.sub(r"-n\d+x", "", value)
        return value if isinstance(value, (int, float, bool, type(None), Raised)) else type(value).__name__

    @contextlib.contextmanager
    def opened(self) -> Iterator[World]:
        """Close the consumers that a program left open."""
        try:
            yield self
        finally:
            for one in self._open:
                one.close()


def rows(topic: str, *numbers: int, offset: int | None = None) -> list[confluent_kafka.TopicPartition]:
    """Return TopicPartitions of a topic."""
    return [TopicPartition(topic, number) if offset is None else TopicPartition(topic, number, offset) for number in numbers]
