"""Programs with callbacks, errors and several members; each returns an application's observations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from tests.support.confluent_kafka.world import DEADLINE_S, Oops, World, rows

PROGRAMS: dict[str, Callable[[World], Any]] = {}


def program(function: Callable[[World], Any]) -> Callable[[World], Any]:
    """Add a program to the table, with its name as a sentence."""
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


# -- callbacks --------------------------------------------------------------------------------------------------------


@program
def callbacks_of_a_group(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(2)
    c = w.consumer()
    c.subscribe(
        [topic],
        on_assign=lambda one, parts: observed.append(["assigned", w.seen(parts), one is c]),
        on_revoke=lambda one, parts: observed.append(["revoked", [part.partition for part in parts]]),
    )
    w.until(c, lambda: observed)
    c.close()
    return observed


@program
def an_exception_of_on_assign(w: World) -> Any:
    def raises(consumer: Any, parts: Any) -> None:
        raise Oops

    topic = w.topic(records=1)
    c = w.consumer()
    c.subscribe([topic], on_assign=raises)

    def polls() -> None:
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            c.poll(0.1)

    return w.tries(polls)


@program
def an_exception_of_on_revoke_in_close(w: World) -> Any:
    def raises(consumer: Any, parts: Any) -> None:
        raise Oops

    c = w.consumer()
    c.subscribe([w.topic()], on_revoke=raises)
    w.until(c, c.assignment)
    return w.tries(c.close)


@program
def an_exception_of_on_commit(w: World) -> Any:
    def raises(error: Any, parts: Any) -> None:
        raise Oops

    topic = w.topic(records=1)
    c = w.reader(topic, enable_auto_commit=False, on_commit=raises)
    c.commit(w.take(c, 1)[0])

    def polls() -> None:
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            c.poll(0.1)

    return w.tries(polls)


@program
def on_assign_takes_a_part(w: World) -> Any:
    topic = w.topic(2, records=2)
    c = w.consumer(auto_commit_interval_ms=0)
    c.subscribe([topic], on_assign=lambda one, parts: one.assign([part for part in parts if part.partition == 1]))
    records = w.seen(w.take(c, 2))
    return [records, w.seen(c.poll(0.5)), [row.partition for row in c.assignment()]]


@program
def on_assign_takes_nothing(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(1, records=2)
    c = w.consumer()

    def none(one: Any, parts: Any) -> None:
        one.assign([])
        observed.append(1)

    c.subscribe([topic], on_assign=none)
    w.until(c, lambda: observed)
    return [w.seen(c.poll(0.5)), w.seen(c.assignment())]


@program
def assign_a_part_while_subscribed(w: World) -> Any:
    topic = w.topic(2, records=2)
    c = w.reader(topic)
    w.take(c, 4)
    observed = w.tries(lambda: c.assign([TopicPartition(topic, 1, 0)]))
    return [observed, w.seen(w.take(c, 2)), [row.partition for row in c.assignment()]]


@program
def poll_inside_on_assign(w: World) -> Any:
    observed: list[Any] = []
    c = w.consumer()
    c.subscribe([w.topic()], on_assign=lambda one, parts: observed.append(w.tries(lambda: one.poll(0))))
    w.until(c, lambda: observed)
    return observed


@program
def ask_inside_on_assign(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(records=2)
    c = w.consumer()

    def asks(one: Any, parts: Any) -> None:
        observed.append(w.tries(lambda: one.committed(parts, DEADLINE_S)))
        observed.append(w.tries(lambda: one.get_watermark_offsets(parts[0], DEADLINE_S)))
        observed.append(w.tries(lambda: one.position(parts)))

    c.subscribe([topic], on_assign=asks)
    w.until(c, lambda: len(observed) == 3)
    return observed


@program
def commit_inside_on_revoke(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(records=2)
    c = w.consumer(enable_auto_commit=False)
    c.subscribe([topic], on_revoke=lambda one, parts: observed.append(w.tries(lambda: one.commit(asynchronous=False))))
    w.take(c, 2)
    c.close()
    return observed


@program
def subscribe_inside_on_assign(w: World) -> Any:
    observed: list[Any] = []
    first, second = w.topic(what="first"), w.topic(records=1, what="second")
    c = w.consumer()

    def other(one: Any, parts: Any) -> None:
        if not observed:
            observed.append(w.tries(lambda: one.subscribe([second])))

    c.subscribe([first], on_assign=other)
    return [w.seen(w.take(c, 1)), observed]


@program
def unsubscribe_inside_on_assign(w: World) -> Any:
    observed: list[Any] = []
    c = w.consumer()
    c.subscribe([w.topic(records=1)], on_assign=lambda one, parts: observed.append(w.tries(one.unsubscribe)))
    w.until(c, lambda: observed)
    return [observed, w.seen(c.poll(0.5)), w.seen(c.assignment())]


@program
def pause_inside_on_assign(w: World) -> Any:
    observed: list[Any] = []
    c = w.consumer()

    def pauses(one: Any, parts: Any) -> None:
        one.assign(parts)
        observed.append(w.tries(lambda: one.pause(parts)))

    c.subscribe([w.topic(records=1)], on_assign=pauses)
    w.until(c, lambda: observed)
    return [observed, w.seen(c.poll(0.5))]


@program
def errors_come_to_error_cb(w: World) -> Any:
    observed: list[Any] = []
    c = w.kind({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "error_cb": observed.append})
    c.subscribe(["t"])
    w.until(c, lambda: any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in observed))
    c.close()
    return True


@program
def an_exception_of_error_cb(w: World) -> Any:
    def raises(error: Any) -> None:
        raise Oops

    c = w.kind({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "error_cb": raises})
    c.subscribe(["t"])

    def polls() -> None:
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            c.poll(0.1)

    observed = w.tries(polls)
    w.tries(c.close)
    return observed


@program
def statistics_of_a_member(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(records=4)
    c = w.consumer(
        statistics_interval_ms=200, enable_auto_commit=False, stats_cb=lambda text: observed.append(json.loads(text))
    )
    c.subscribe([topic])
    message = w.take(c, 4)[2]
    c.commit(message, asynchronous=False)

    def figures() -> Any:
        last = observed[-1]
        part = last["topics"].get(topic, {}).get("partitions", {}).get("0", {})
        return [part.get(key) for key in ("consumer_lag", "committed_offset", "app_offset", "hi_offset")] + [
            last["cgrp"]["state"],
            last["cgrp"]["join_state"],
            last["cgrp"]["assignment_size"],
        ]

    ends = time.monotonic() + 10
    w.until(c, lambda: observed and (figures()[1:3] == [3, 4] or time.monotonic() > ends))
    return figures()


# -- errors -----------------------------------------------------------------------------------------------------------


@program
def a_subscription_to_an_unknown_topic(w: World) -> Any:
    c = w.reader(w.name("nosuch"))
    observed = w.first_error(c)
    return [w.seen(observed), w.seen(observed.topic())]


@program
def no_offset_and_no_policy(w: World) -> Any:
    c = w.reader(w.topic(records=1), auto_offset_reset="error")
    return w.seen(w.first_error(c))


@program
def polling_too_late(w: World) -> Any:
    c = w.reader(w.topic(), max_poll_interval_ms=1_000, session_timeout_ms=1_000, heartbeat_interval_ms=100)
    w.until(c, c.assignment)
    time.sleep(2.5)
    return w.seen(w.first_error(c))


@program
def a_session_timeout_that_the_broker_refuses(w: World) -> Any:
    c = w.reader(w.topic(), session_timeout_ms=3_000_000, max_poll_interval_ms=3_000_000)
    return w.seen(w.first_error(c))


@program
def a_member_with_another_protocol(w: World) -> Any:
    topic = w.topic()
    first = w.reader(topic, partition_assignment_strategy="range")
    w.until(first, first.assignment)
    second = w.reader(topic, partition_assignment_strategy="roundrobin")
    return w.seen(w.first_error(second))


@program
def a_static_member_that_was_replaced(w: World) -> Any:
    topic = w.topic()
    first = w.reader(topic, group_instance_id="one")
    w.until(first, first.assignment)
    second = w.reader(topic, group_instance_id="one")
    observed: list[Any] = []

    def fenced() -> bool:
        message = first.poll(0.05)
        if message is not None and message.error() is not None:
            observed.append(w.seen(message))
        return bool(observed)

    w.until(second, fenced)
    return observed


@program
def a_broken_offset_commit_of_a_stranger(w: World) -> Any:
    topic = w.topic(records=1)
    first = w.reader(topic)
    w.until(first, first.assignment)
    stranger = w.consumer()
    return w.tries(lambda: stranger.commit(offsets=rows(topic, 0, offset=1), asynchronous=False))


@program
def pause_of_a_lost_partition(w: World) -> Any:
    topic = w.topic(2)
    c = w.reader(topic)
    w.until(c, c.assignment)
    held = c.assignment()
    c.unsubscribe()
    return [w.tries(lambda: c.pause(held)), w.tries(lambda: c.resume(held))]


# -- several members --------------------------------------------------------------------------------------------------


@program
def two_members_share(w: World) -> Any:
    topic = w.topic(2)
    first = w.reader(topic)
    w.until(first, first.assignment)
    second = w.reader(topic)

    def shared() -> bool:
        first.poll(0.05)
        return len(first.assignment()) == len(second.assignment()) == 1

    w.until(second, shared)
    return sorted(row.partition for one in (first, second) for row in one.assignment())


@program
def cooperative_callbacks(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(2)
    first = w.consumer(partition_assignment_strategy="cooperative-sticky")
    first.subscribe(
        [topic],
        on_assign=lambda one, parts: observed.append(["assigned", len(parts)]) if parts else None,
        on_revoke=lambda one, parts: observed.append(["revoked", len(parts)]),
    )
    w.until(first, first.assignment)
    second = w.reader(topic, partition_assignment_strategy="cooperative-sticky")
    w.until(second, lambda: (first.poll(0.05), second.assignment())[1])
    return observed


@program
def subscribe_to_something_else(w: World) -> Any:
    first, second = w.topic(records=1, what="first"), w.topic(records=1, what="second")
    c = w.reader(first)
    w.take(c, 1)
    c.subscribe([second])
    return w.seen(w.take(c, 1))


@program
def subscribe_after_unsubscribe(w: World) -> Any:
    topic = w.topic(records=2)
    c = w.reader(topic)
    w.take(c, 2)
    c.unsubscribe()
    w.produce(topic, {0: ["more"]})
    c.subscribe([topic])
    return w.seen(w.take(c, 1))


@program
def read_by_a_context(w: World) -> Any:
    topic = w.topic(records=2)
    with w.kind(w.settings()) as c:
        c.subscribe([topic])
        found = w.seen(w.take(c, 2))
    return [found, w.tries(lambda: c.poll(0))]
