"""Programs of one call: every method with every form of argument, and every form of setting."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from tests.support.confluent_kafka.world import World, rows

#: Calls on a consumer that was created and not used; their result or exception is compared.
CALLS: dict[str, Callable[[Any], Any]] = {
    "subscribe to a text": lambda c: c.subscribe("orders"),
    "subscribe to nothing": lambda c: c.subscribe([]),
    "subscribe to an empty name": lambda c: c.subscribe([""]),
    "subscribe to a number": lambda c: c.subscribe(7),
    "subscribe to a list of numbers": lambda c: c.subscribe([7]),
    "subscribe to a tuple": lambda c: c.subscribe(("orders",)),
    "subscribe to a broken pattern": lambda c: c.subscribe(["^["]),
    "subscribe with a callback that is none": lambda c: c.subscribe(["orders"], on_assign=7),
    "subscribe with an unknown keyword": lambda c: c.subscribe(["orders"], nosuch=7),
    "subscribe without arguments": lambda c: c.subscribe(),
    "unsubscribe without a subscription": lambda c: c.unsubscribe(),
    "unsubscribe twice": lambda c: [c.subscribe(["orders"]), c.unsubscribe(), c.unsubscribe()],
    "assign nothing": lambda c: [c.assign([]), c.assignment()],
    "assign a number": lambda c: c.assign(7),
    "assign a list of numbers": lambda c: c.assign([7]),
    "assign a text": lambda c: c.assign("orders"),
    "assign, and ask": lambda c: [c.assign(rows("t", 2, 0)), c.assignment()],
    "assign twice": lambda c: [c.assign(rows("t", 0)), c.assign(rows("t", 1)), c.assignment()],
    "assign incrementally": lambda c: [c.incremental_assign(rows("t", 0)), c.incremental_assign(rows("t", 1)), c.assignment()],
    "assign incrementally what is assigned": lambda c: [c.incremental_assign(rows("t", 0)), c.incremental_assign(rows("t", 0))],
    "unassign what was never assigned": lambda c: c.unassign(),
    "unassign": lambda c: [c.assign(rows("t", 0)), c.unassign(), c.assignment()],
    "unassign incrementally": lambda c: [c.assign(rows("t", 0, 1)), c.incremental_unassign(rows("t", 0)), c.assignment()],
    "unassign incrementally what is not assigned": lambda c: [c.assign(rows("t", 0)), c.incremental_unassign(rows("t", 1))],
    "unassign incrementally out of nothing": lambda c: c.incremental_unassign(rows("t", 0)),
    "consume a negative number": lambda c: c.consume(-1),
    "consume too many": lambda c: c.consume(1_000_001),
    "consume nothing": lambda c: c.consume(0, 0.01),
    "consume with a text": lambda c: c.consume("7"),
    "consume by keywords": lambda c: c.consume(num_messages=2, timeout=0.01),
    "poll without a subscription": lambda c: c.poll(0),
    "poll with a text": lambda c: c.poll("1"),
    "poll by keyword": lambda c: c.poll(timeout=0.01),
    "seek what is not assigned": lambda c: c.seek(TopicPartition("t", 0, 3)),
    "seek a text": lambda c: c.seek("t"),
    "pause what is not assigned": lambda c: c.pause(rows("t", 0)),
    "resume what is not assigned": lambda c: c.resume(rows("t", 0)),
    "pause a number": lambda c: c.pause(7),
    "resume a list of numbers": lambda c: c.resume([7]),
    "position of what is not assigned": lambda c: c.position(rows("t", 1, 0)),
    "position of nothing": lambda c: c.position([]),
    "position of a number": lambda c: c.position(7),
    "committed of a number": lambda c: c.committed(7),
    "commit before anything": lambda c: c.commit(),
    "commit before anything, synchronously": lambda c: c.commit(asynchronous=False),
    "commit no rows": lambda c: c.commit(offsets=[]),
    "commit a row without an offset": lambda c: c.commit(offsets=rows("t", 0), asynchronous=False),
    "commit a number": lambda c: c.commit(7),
    "commit rows that are none": lambda c: c.commit(offsets=[7]),
    "store the offset of a message with an error": lambda c: c.store_offsets(Message(error=KafkaError(KafkaError._FAIL))),
    "commit a message with an error": lambda c: c.commit(Message(error=KafkaError(KafkaError._PARTITION_EOF))),
    "commit a message and rows": lambda c: c.commit(Message(topic="t", partition=0, offset=3), rows("t", 0, offset=3)),
    "commit with an unknown keyword": lambda c: c.commit(nosuch=1),
    "store without arguments": lambda c: c.store_offsets(),
    "store a message and rows": lambda c: c.store_offsets(Message(topic="t", partition=0, offset=3), rows("t", 0, offset=3)),
    "store with automatic stores": lambda c: c.store_offsets(offsets=rows("t", 0, offset=3)),
    "member id before joining": lambda c: c.memberid(),
    "credentials without SASL": lambda c: c.set_sasl_credentials("user", "password"),
    "credentials of wrong types": lambda c: c.set_sasl_credentials(1, 2),
    "group metadata before joining": lambda c: type(c.consumer_group_metadata()).__name__,
    "group metadata of a manual assignment": lambda c: [c.assign(rows("t", 0)), c.consumer_group_metadata()[:7]],
    "watermarks from the cache": lambda c: [c.assign(rows("t", 0)), c.get_watermark_offsets(rows("t", 0)[0], cached=True)],
    "times of a number": lambda c: c.offsets_for_times(7),
    "close twice": lambda c: [c.close(), c.close()],
    "enter and leave": lambda c: [c.__enter__() is c, c.__exit__(None, None, None)],
    "is a confluent_kafka.Consumer": lambda c: isinstance(c, __import__("confluent_kafka").Consumer),
    "cluster id": lambda c: isinstance(c.cluster_id(timeout=60), str),
    "subscribe after assign": lambda c: [c.assign(rows("t", 0)), c.subscribe(["orders"])],
}

#: Methods that are called on a closed consumer.
AFTER_CLOSE: dict[str, Callable[[Any], Any]] = {
    "poll": lambda c: c.poll(0),
    "consume": lambda c: c.consume(1, 0),
    "subscribe": lambda c: c.subscribe(["t"]),
    "unsubscribe": lambda c: c.unsubscribe(),
    "assign": lambda c: c.assign(rows("t", 0)),
    "unassign": lambda c: c.unassign(),
    "incremental_assign": lambda c: c.incremental_assign(rows("t", 0)),
    "incremental_unassign": lambda c: c.incremental_unassign(rows("t", 0)),
    "assignment": lambda c: c.assignment(),
    "commit": lambda c: c.commit(),
    "commit of rows": lambda c: c.commit(offsets=rows("t", 0, offset=1), asynchronous=False),
    "committed": lambda c: c.committed(rows("t", 0)),
    "position": lambda c: c.position(rows("t", 0)),
    "seek": lambda c: c.seek(rows("t", 0)[0]),
    "pause": lambda c: c.pause(rows("t", 0)),
    "resume": lambda c: c.resume(rows("t", 0)),
    "store_offsets": lambda c: c.store_offsets(offsets=rows("t", 0, offset=1)),
    "get_watermark_offsets": lambda c: c.get_watermark_offsets(rows("t", 0)[0]),
    "offsets_for_times": lambda c: c.offsets_for_times(rows("t", 0)),
    "list_topics": lambda c: c.list_topics(),
    "memberid": lambda c: c.memberid(),
    "consumer_group_metadata": lambda c: c.consumer_group_metadata(),
    "set_sasl_credentials": lambda c: c.set_sasl_credentials("u", "p"),
}

#: Settings for the creation of a consumer.
SETTINGS: dict[str, dict[Any, Any]] = {
    "group.id as a number": {"group.id": 5},
    "group.id as a UUID": {"group.id": uuid.UUID(int=5)},
    "enable.auto.commit=0": {"enable.auto.commit": 0},
    "enable.auto.commit='FALSE'": {"enable.auto.commit": "FALSE"},
    "enable.auto.commit='maybe'": {"enable.auto.commit": "maybe"},
    "an empty client.rack": {"client.rack": ""},
    "an unknown setting": {"no.such.setting": 1},
    "a session time-out of 0": {"session.timeout.ms": 0},
    "a session time-out as a text": {"session.timeout.ms": "10000"},
    "a session time-out that is none": {"session.timeout.ms": "soon"},
    "auto.offset.reset=never": {"auto.offset.reset": "never"},
    "auto.offset.reset=smallest": {"auto.offset.reset": "smallest"},
    "auto.offset.reset=error": {"auto.offset.reset": "error"},
    "auto.commit.interval.ms=0": {"auto.commit.interval.ms": 0},
    "sasl settings under plaintext": {"sasl.username": "u", "sasl.password": "p", "sasl.mechanism": "PLAIN"},
    "ssl settings under plaintext": {"ssl.endpoint.identification.algorithm": "none"},
    "default.topic.config": {"default.topic.config": {"auto.offset.reset": "earliest"}},
    "a setting that is None": {"client.rack": None},
    "on_commit that is no function": {"on_commit": 7},
    "error_cb that is no function": {"error_cb": 7},
    "stats_cb that is no function": {"stats_cb": 7},
    "an isolation level that is none": {"isolation.level": "half"},
    "a settings' value of a wrong type": {"client.id": object},
    "a number as a name": {7: "x"},
}

#: Arguments of the constructor.
CONSTRUCTORS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "no arguments": ((), {}),
    "a number": ((7,), {}),
    "an empty dictionary": (({},), {}),
    "keywords only": ((), {"group.id": "g"}),
    "a dictionary and keywords": (({"group.id": "g"},), {"enable.auto.commit": False}),
    "no group.id": (({"bootstrap.servers": "localhost:1"},), {}),
    "no bootstrap.servers": (({"group.id": "g"},), {}),
    "two dictionaries": (({"group.id": "g"}, {"client.id": "x"}), {}),
}


def call(name: str) -> Callable[[World], Any]:
    """Return the program of one call."""

    def program(world: World) -> Any:
        consumer = world.consumer()
        return world.tries(lambda: CALLS[name](consumer))

    return program


def after_close(name: str) -> Callable[[World], Any]:
    """Return the program of one call after close."""

    def program(world: World) -> Any:
        consumer = world.consumer()
        consumer.close()
        return world.tries(lambda: AFTER_CLOSE[name](consumer))

    return program


def made_with(name: str) -> Callable[[World], Any]:
    """Return the program that makes a consumer with some setting."""

    def program(world: World) -> Any:
        return world.tries(lambda: world.kind({**world.settings(), **SETTINGS[name]}).close())

    return program


def constructed(name: str) -> Callable[[World], Any]:
    """Return the program that makes a consumer with some arguments."""

    def program(world: World) -> Any:
        arguments, keywords = CONSTRUCTORS[name]
        if not keywords:
            # For a class of C, empty keywords and no keywords are not the same.
            return world.tries(lambda: world.kind(*arguments).close())
        return world.tries(lambda: world.kind(*arguments, **keywords).close())

    return program


PROGRAMS: dict[str, Callable[[World], Any]] = {
    **{name: call(name) for name in CALLS},
    **{f"{name} after close": after_close(name) for name in AFTER_CLOSE},
    **{f"made with {name}": made_with(name) for name in SETTINGS},
    **{f"constructed with {name}": constructed(name) for name in CONSTRUCTORS},
}
