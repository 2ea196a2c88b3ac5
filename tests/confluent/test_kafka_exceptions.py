"""Errors of this package as exceptions that confluent-kafka's users catch."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_coord import errors
from consumer_coord.confluent.kafka_exceptions import to_kafka_exception
from tests.support.consumer.embedded import row

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.CoordinatorError)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_argument_is_always_a_kafka_error(kind: Any) -> None:
    """``except KafkaException as error: error.args[0].code()`` is the documented idiom."""
    given = kind.__new__(kind)
    errors.CoordinatorError.__init__(given, "what happened")
    with pytest.raises(kind) as raised:
        raise to_kafka_exception(given)
    assert isinstance(raised.value, KafkaException)
    first = raised.value.args[0]
    assert isinstance(first, KafkaError)
    assert isinstance(first.code(), int)
    assert first.str() == str(raised.value) == "what happened"


def test_a_closed_consumer_raises_a_kafka_exception_that_is_a_runtime_error() -> None:
    from consumer_coord import GroupConsumer

    one = GroupConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
    one.close()
    for call in (lambda: one.poll(0), lambda: one.seek(row(0, 0)), one.assignment):
        with pytest.raises(RuntimeError, match="Consumer closed") as raised:
            call()
        assert raised.value.args[0].code() == KafkaError._STATE
