"""Programs that read, commit, seek, rebalance and fail: what an application sees of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition

from tests.dropin.world import DEADLINE_S, Oops, World, rows

PROGRAMS: dict[str, Callable[[World], Any]] = {}


def program(function: Callable[[World], Any]) -> Callable[[World], Any]:
    """Add it to the table, under its name as a sentence."""
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


# -- reading ----------------------------------------------------------------------------------------------------------


@program
def poll_a_subscription(w: World) -> Any:
    c = w.reader(w.topic(records=3))
    return w.seen(w.take(c, 3))


@program
def consume_all_at_once(w: World) -> Any:
    c = w.reader(w.topic(records=5))
    return w.seen(c.consume(5, DEADLINE_S))


@program
def consume_less_than_there_is(w: World) -> Any:
    c = w.reader(w.topic(records=5))
    return [w.seen(c.consume(2, DEADLINE_S)), w.seen(c.consume(3, DEADLINE_S))]


@program
def the_end_of_a_partition_is_told(w: World) -> Any:
    c = w.reader(w.topic(records=1), enable_partition_eof=True)
    w.take(c, 1)
    return w.seen(w.first_error(c))


@program
def commit_the_end_of_a_partition(w: World) -> Any:
    c = w.reader(w.topic(records=1), enable_partition_eof=True)
    w.take(c, 1)
    event = w.first_error(c)
    return w.tries(lambda: c.commit(event, asynchronous=False))


@program
def messages_are_whole(w: World) -> Any:
    c = w.reader(w.topic(records=1))
    (m,) = w.take(c, 1)
    return [m.key(), w.seen(m.value()), m.headers(), m.timestamp()[0], m.leader_epoch(), w.seen(m.topic()), len(m)]


@program
def read_a_pattern(w: World) -> Any:
    topic = w.topic(records=1, what="pattern")
    c = w.reader(f"^{topic[:-1]}[x]")
    return w.seen(w.take(c, 1))


@program
def read_a_pattern_with_a_posix_class(w: World) -> Any:
    topic = w.topic(records=1, what="posix")
    c = w.reader(f"^{topic[:-1].replace('posix', '[[:alpha:]]+')}[[:lower:]]")
    return w.seen(w.take(c, 1))


@program
def a_pattern_finds_a_new_topic_soon(w: World) -> Any:
    w.topic(records=1, what="found")
    c = w.reader(f"^{w.name('found')}", topic_metadata_refresh_interval_ms=500)
    w.take(c, 1)
    name = w.name("found") + "2"
    w.kafka.create_topic(name, 1)
    w.produce(name, {0: ["new"]})
    return w.seen(w.take(c, 1))


@program
def assign_and_read_from_an_offset(w: World) -> Any:
    topic = w.topic(records=5)
    c = w.consumer()
    c.assign(rows(topic, 0, offset=3))
    return w.seen(w.take(c, 2))


@program
def assign_from_the_beginning_and_the_end(w: World) -> Any:
    topic = w.topic(2, records=2)
    c = w.consumer()
    c.assign([TopicPartition(topic, 0, OFFSET_BEGINNING), TopicPartition(topic, 1, OFFSET_END)])
    return w.seen(w.take(c, 2))


@program
def assign_from_the_committed_offset(w: World) -> Any:
    topic = w.topic(records=5)
    c = w.consumer()
    c.commit(offsets=rows(topic, 0, offset=4), asynchronous=False)
    c.assign(rows(topic, 0))
    return w.seen(w.take(c, 1))


@program
def seek_back(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 3)
    c.seek(TopicPartition(topic, 0, 1))
    return w.seen(w.take(c, 2))


@program
def seek_inside_on_assign(w: World) -> Any:
    topic = w.topic(records=5)
    c = w.consumer()
    c.subscribe([topic], on_assign=lambda one, parts: one.assign(rows(topic, 0, offset=3)))
    return w.seen(w.take(c, 2))


@program
def position_follows(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    before = w.tries(lambda: c.position(rows(topic, 0)))
    w.take(c, 2)
    return [before, w.seen(c.position(rows(topic, 0)))]


@program
def pause_and_resume(w: World) -> Any:
    topic = w.topic(2, records=2)
    c = w.reader(topic)
    w.take(c, 4)
    c.pause(rows(topic, 0))
    w.produce(topic, {0: ["a"], 1: ["b"]})
    other = w.seen(w.take(c, 1))
    c.resume(rows(topic, 0))
    return [other, w.seen(w.take(c, 1))]


@program
def assignment_of_a_group(w: World) -> Any:
    topic = w.topic(3)
    c = w.reader(topic)
    before = w.seen(c.assignment())
    w.until(c, c.assignment)
    return [before, w.seen(c.assignment())]


@program
def watermarks_of_a_partition(w: World) -> Any:
    topic = w.topic(records=4)
    return w.consumer().get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)


@program
def offsets_by_time(w: World) -> Any:
    topic = w.topic(records=4)
    return w.seen(w.consumer().offsets_for_times([TopicPartition(topic, 0, 1)], DEADLINE_S))


@program
def topics_of_the_cluster(w: World) -> Any:
    topic = w.topic(2)
    found = w.consumer().list_topics(topic, DEADLINE_S)
    return [w.seen(list(found.topics)), sorted(found.topics[topic].partitions)]


@program
def member_id_of_a_member(w: World) -> Any:
    c = w.reader(w.topic())
    w.until(c, c.assignment)
    return len(c.memberid()) > 20


# -- commits ----------------------------------------------------------------------------------------------------------


@program
def commit_a_message(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    message = w.take(c, 2)[-1]
    return [w.seen(c.commit(message, asynchronous=False)), w.seen(c.committed(rows(topic, 0), DEADLINE_S))]


@program
def commit_by_the_old_keyword(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 2)
    return w.tries(lambda: c.commit(**{"async": False}))


@program
def commit_all_that_was_read(w: World) -> Any:
    topic = w.topic(2, records=2)
    c = w.reader(topic)
    w.take(c, 4)
    return w.seen(sorted(c.commit(asynchronous=False), key=lambda row: row.partition))


@program
def commit_nothing_in_a_poll_loop(w: World) -> Any:
    c = w.reader(w.topic())
    w.until(c, c.assignment)
    return [w.tries(lambda: c.commit()), w.tries(lambda: c.commit(asynchronous=False))]


@program
def commit_offsets_with_metadata(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.consumer()
    c.commit(offsets=[TopicPartition(topic, 0, 2, metadata="note")], asynchronous=False)
    return [row.metadata for row in c.committed(rows(topic, 0), DEADLINE_S)]


@program
def commit_an_unknown_topic(w: World) -> Any:
    began = time.monotonic()
    c = w.consumer()
    told = w.tries(lambda: c.commit(offsets=rows(w.name("nosuch"), 0, offset=5), asynchronous=False))
    return [told, time.monotonic() - began < 20]


@program
def commit_a_known_and_an_unknown_topic(w: World) -> Any:
    c = w.consumer()
    known = rows(w.topic(), 0, offset=0)
    told = c.commit(offsets=known + rows(w.name("nosuch"), 0, offset=5), asynchronous=False)
    return w.seen(sorted(told, key=lambda row: row.topic))


@program
def commits_are_told_of(w: World) -> Any:
    told: list[Any] = []
    topic = w.topic(records=3)
    c = w.reader(topic, enable_auto_commit=False, on_commit=lambda error, parts: told.append([error, w.seen(parts)]))
    message = w.take(c, 2)[-1]
    c.commit(message)
    w.until(c, lambda: told)
    return told


@program
def automatic_commits_are_told_of(w: World) -> Any:
    told: list[Any] = []
    topic = w.topic(records=3)
    c = w.reader(topic, auto_commit_interval_ms=200, on_commit=lambda error, parts: told.append([error, w.seen(parts)]))
    w.take(c, 3)
    w.until(c, lambda: told and told[-1][1][0][1] == 3)
    return told[-1]


@program
def automatic_commits_by_keyword_are_off(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.kind(w.settings(), **{"enable.auto.commit": False})
    c.subscribe([topic])
    w.take(c, 3)
    c.close()
    return w.seen(w.consumer().committed(rows(topic, 0), DEADLINE_S))


@program
def an_interval_of_0_commits_at_close(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic, auto_commit_interval_ms=0)
    w.take(c, 3)
    before = w.seen(c.committed(rows(topic, 0), DEADLINE_S))
    c.close()
    return [before, w.seen(w.consumer().committed(rows(topic, 0), DEADLINE_S))]


@program
def automatic_commits_of_a_manual_assignment(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.consumer(auto_commit_interval_ms=200)
    c.assign(rows(topic, 0))
    w.take(c, 3)
    w.until(c, lambda: c.committed(rows(topic, 0), DEADLINE_S)[0].offset == 3)
    return True


@program
def close_commits(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 2)
    c.close()
    return w.seen(w.consumer().committed(rows(topic, 0), DEADLINE_S))


@program
def unsubscribe_commits(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 2)
    c.unsubscribe()
    ends = time.monotonic() + DEADLINE_S
    while c.committed(rows(topic, 0), DEADLINE_S)[0].offset != 2:
        assert time.monotonic() < ends
        c.poll(0.05)
    return True


@program
def committed_keeps_order_and_duplicates(w: World) -> Any:
    topic = w.topic(3)
    c = w.consumer()
    c.commit(offsets=[TopicPartition(topic, n, 0) for n in (0, 2)], asynchronous=False)
    return w.seen(c.committed(rows(topic, 2, 0, 2, 1), DEADLINE_S))


@program
def stored_offsets_are_committed(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic, enable_auto_offset_store=False)
    first, *_ = w.take(c, 3)
    c.store_offsets(first)
    return w.seen(c.commit(asynchronous=False))


@program
def store_what_is_not_assigned(w: World) -> Any:
    topic = w.topic(1)
    c = w.reader(topic, enable_auto_offset_store=False)
    w.until(c, c.assignment)
    return w.tries(lambda: c.store_offsets(offsets=rows(w.name("other"), 0, offset=1)))


@program
def a_seek_and_what_was_stored(w: World) -> Any:
    topic = w.topic(records=5)
    c = w.reader(topic, enable_auto_offset_store=False)
    message = w.take(c, 4)[-1]
    c.store_offsets(message)
    c.seek(TopicPartition(topic, 0, 1))
    w.take(c, 1)
    return w.tries(lambda: c.commit(asynchronous=False))


@program
def a_commit_beside_a_poll(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic, enable_auto_commit=False)
    messages = w.take(c, 3)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(c.commit, messages[-1], None, False)
        w.until(c, asked.done)
        return w.seen(asked.result())


@program
def questions_beside_a_poll(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 3)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [c.position(rows(topic, 0)), c.committed(rows(topic, 0), DEADLINE_S) is not None])
        w.until(c, asked.done)
        return w.seen(asked.result())


@program
def close_beside_a_poll(w: World) -> Any:
    topic = w.topic(records=1)
    c = w.reader(topic)
    w.take(c, 1)
    closing = threading.Timer(0.3, c.close)
    closing.start()

    def polls() -> None:
        ends = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends:
            c.poll(0.1)

    told = w.tries(polls)
    closing.join()
    return told


# -- callbacks --------------------------------------------------------------------------------------------------------


@program
def callbacks_of_a_group(w: World) -> Any:
    told: list[Any] = []
    topic = w.topic(2)
    c = w.consumer()
    c.subscribe(
        [topic],
        on_assign=lambda one, parts: told.append(["assigned", w.seen(parts), one is c]),
        on_revoke=lambda one, parts: told.append(["revoked", [part.partition for part in parts]]),
    )
    w.until(c, lambda: told)
    c.close()
    return told


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
    told: list[Any] = []
    topic = w.topic(1, records=2)
    c = w.consumer()

    def none(one: Any, parts: Any) -> None:
        one.assign([])
        told.append(1)

    c.subscribe([topic], on_assign=none)
    w.until(c, lambda: told)
    return [w.seen(c.poll(0.5)), w.seen(c.assignment())]


@program
def assign_a_part_while_subscribed(w: World) -> Any:
    topic = w.topic(2, records=2)
    c = w.reader(topic)
    w.take(c, 4)
    told = w.tries(lambda: c.assign([TopicPartition(topic, 1, 0)]))
    return [told, w.seen(w.take(c, 2)), [row.partition for row in c.assignment()]]


@program
def poll_inside_on_assign(w: World) -> Any:
    told: list[Any] = []
    c = w.consumer()
    c.subscribe([w.topic()], on_assign=lambda one, parts: told.append(w.tries(lambda: one.poll(0))))
    w.until(c, lambda: told)
    return told


@program
def ask_inside_on_assign(w: World) -> Any:
    told: list[Any] = []
    topic = w.topic(records=2)
    c = w.consumer()

    def asks(one: Any, parts: Any) -> None:
        told.append(w.tries(lambda: one.committed(parts, DEADLINE_S)))
        told.append(w.tries(lambda: one.get_watermark_offsets(parts[0], DEADLINE_S)))
        told.append(w.tries(lambda: one.position(parts)))

    c.subscribe([topic], on_assign=asks)
    w.until(c, lambda: len(told) == 3)
    return told


@program
def commit_inside_on_revoke(w: World) -> Any:
    told: list[Any] = []
    topic = w.topic(records=2)
    c = w.consumer(enable_auto_commit=False)
    c.subscribe([topic], on_revoke=lambda one, parts: told.append(w.tries(lambda: one.commit(asynchronous=False))))
    w.take(c, 2)
    c.close()
    return told


@program
def subscribe_inside_on_assign(w: World) -> Any:
    told: list[Any] = []
    first, second = w.topic(what="first"), w.topic(records=1, what="second")
    c = w.consumer()

    def other(one: Any, parts: Any) -> None:
        if not told:
            told.append(w.tries(lambda: one.subscribe([second])))

    c.subscribe([first], on_assign=other)
    return [w.seen(w.take(c, 1)), told]


@program
def unsubscribe_inside_on_assign(w: World) -> Any:
    told: list[Any] = []
    c = w.consumer()
    c.subscribe([w.topic(records=1)], on_assign=lambda one, parts: told.append(w.tries(one.unsubscribe)))
    w.until(c, lambda: told)
    return [told, w.seen(c.poll(0.5)), w.seen(c.assignment())]


@program
def pause_inside_on_assign(w: World) -> Any:
    told: list[Any] = []
    c = w.consumer()

    def pauses(one: Any, parts: Any) -> None:
        one.assign(parts)
        told.append(w.tries(lambda: one.pause(parts)))

    c.subscribe([w.topic(records=1)], on_assign=pauses)
    w.until(c, lambda: told)
    return [told, w.seen(c.poll(0.5))]


@program
def errors_come_to_error_cb(w: World) -> Any:
    told: list[Any] = []
    c = w.kind({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "error_cb": told.append})
    c.subscribe(["t"])
    w.until(c, lambda: any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in told))
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

    told = w.tries(polls)
    w.tries(c.close)
    return told


@program
def statistics_of_a_member(w: World) -> Any:
    told: list[Any] = []
    topic = w.topic(records=4)
    c = w.consumer(
        statistics_interval_ms=200, enable_auto_commit=False, stats_cb=lambda text: told.append(json.loads(text))
    )
    c.subscribe([topic])
    message = w.take(c, 4)[2]
    c.commit(message, asynchronous=False)

    def figures() -> Any:
        last = told[-1]
        part = last["topics"].get(topic, {}).get("partitions", {}).get("0", {})
        return [part.get(key) for key in ("consumer_lag", "committed_offset", "app_offset", "hi_offset")] + [
            last["cgrp"]["state"], last["cgrp"]["join_state"], last["cgrp"]["assignment_size"]
        ]

    ends = time.monotonic() + 10
    w.until(c, lambda: told and (figures()[1:3] == [3, 4] or time.monotonic() > ends))
    return figures()


# -- errors -----------------------------------------------------------------------------------------------------------


@program
def a_subscription_to_an_unknown_topic(w: World) -> Any:
    c = w.reader(w.name("nosuch"))
    told = w.first_error(c)
    return [w.seen(told), w.seen(told.topic())]


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
    told: list[Any] = []

    def fenced() -> bool:
        message = first.poll(0.05)
        if message is not None and message.error() is not None:
            told.append(w.seen(message))
        return bool(told)

    w.until(second, fenced)
    return told


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
    told: list[Any] = []
    topic = w.topic(2)
    first = w.consumer(partition_assignment_strategy="cooperative-sticky")
    first.subscribe(
        [topic],
        on_assign=lambda one, parts: told.append(["assigned", len(parts)]) if parts else None,
        on_revoke=lambda one, parts: told.append(["revoked", len(parts)]),
    )
    w.until(first, first.assignment)
    second = w.reader(topic, partition_assignment_strategy="cooperative-sticky")
    w.until(second, lambda: (first.poll(0.05), second.assignment())[1])
    return told


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
