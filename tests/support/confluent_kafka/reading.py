"""Programs that read, seek and commit; each returns an application's observations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition, cimpl

from tests.support.confluent_kafka.world import DEADLINE_S, World, rows

PROGRAMS: dict[str, Callable[[World], Any]] = {}


def program(function: Callable[[World], Any]) -> Callable[[World], Any]:
    """Add a program to the table, with its name as a sentence."""
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
def the_end_of_a_partition_is_reported(w: World) -> Any:
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
def position_before_the_first_message_of_an_empty_topic(w: World) -> Any:
    topic = w.topic()
    c = w.reader(topic, auto_offset_reset="latest")
    w.until(c, c.assignment)
    w.until(c, lambda: c.get_watermark_offsets(TopicPartition(topic, 0)) == (0, 0))
    for _ in range(5):
        c.poll(0.05)
    before = w.seen(c.position(rows(topic, 0)))
    w.produce(topic, {0: ["a"]})
    return [before, [one.value() for one in w.take(c, 1)] and w.seen(c.position(rows(topic, 0)))]


@program
def position_after_a_seek(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 3)
    c.seek(TopicPartition(topic, 0, 2))
    return w.seen(c.position(rows(topic, 0)))


@program
def read_a_side_topic_next_to_the_group(w: World) -> Any:
    topic, side = w.topic(records=2), w.topic(2, records=3, what="side")
    c = w.reader(topic, partition_assignment_strategy="cooperative-sticky", enable_auto_commit=False)
    found = w.seen(w.take(c, 2))
    c.incremental_assign(rows(side, 1, offset=1))
    twice = w.tries(lambda: c.incremental_assign(rows(side, 1, offset=1)))
    found += w.seen(w.take(c, 2))
    assigned = [[w.seen(one.topic), one.partition, one.offset] for one in c.assignment()]
    position = w.seen(c.position(rows(side, 1)))
    c.commit(asynchronous=False)
    committed = w.seen(c.committed([*rows(topic, 0), *rows(side, 1)], DEADLINE_S))
    c.incremental_unassign(rows(side, 1))
    w.produce(topic, {0: ["more"]})
    w.produce(side, {1: ["more"]})
    return [found, twice, sorted(assigned), position, committed, w.seen(w.take(c, 1)), len(c.assignment())]


@program
def a_side_topic_begins_by_the_policy(w: World) -> Any:
    topic, side = w.topic(records=1), w.topic(records=3, what="side")
    c = w.reader(topic, partition_assignment_strategy="cooperative-sticky")
    w.take(c, 1)
    c.incremental_assign(rows(side, 0))
    return w.seen(w.take(c, 3))


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
    found: list[Any] = []
    for row in (TopicPartition(topic, 0, 2), *(TopicPartition(topic, 0, 2, text) for text in ("note", "नमस्ते", ""))):
        observed = c.commit(offsets=[row], asynchronous=False)
        found.append([one.metadata for one in (*observed, *c.committed(rows(topic, 0), DEADLINE_S))])
    return found


@program
def metadata_that_another_consumer_committed(w: World) -> Any:
    topic = w.topic()
    theirs = cimpl.Consumer(w.settings())
    theirs.commit(offsets=[TopicPartition(topic, 0, 2, "theirs")], asynchronous=False)
    c = w.consumer()
    found = [c.committed(rows(topic, 0), DEADLINE_S)[0].metadata]
    c.commit(offsets=[TopicPartition(topic, 0, 2, "ours")], asynchronous=False)
    found.append(theirs.committed(rows(topic, 0), DEADLINE_S)[0].metadata)
    theirs.close()
    return found


@program
def calls_of_a_closed_consumer(w: World) -> Any:
    c = w.consumer()
    c.close()
    try:
        c.memberid()
    except RuntimeError as error:
        return str(error)


@program
def commit_an_unknown_topic(w: World) -> Any:
    began = time.monotonic()
    c = w.consumer()
    observed = w.tries(lambda: c.commit(offsets=rows(w.name("nosuch"), 0, offset=5), asynchronous=False))
    return [observed, time.monotonic() - began < 20]


@program
def commit_a_known_and_an_unknown_topic(w: World) -> Any:
    c = w.consumer()
    known = rows(w.topic(), 0, offset=0)
    unknown = rows(w.name("nosuch"), 0, offset=5)
    return [
        w.tries(lambda: c.commit(offsets=known + unknown, asynchronous=False)),
        w.tries(lambda: c.commit(offsets=unknown + known, asynchronous=False)),
        w.seen(c.committed(known, DEADLINE_S)),
    ]


@program
def commits_are_reported(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(records=3)
    c = w.reader(topic, enable_auto_commit=False, on_commit=lambda error, parts: observed.append([error, w.seen(parts)]))
    message = w.take(c, 2)[-1]
    c.commit(message)
    w.until(c, lambda: observed)
    return observed


@program
def automatic_commits_are_reported(w: World) -> Any:
    observed: list[Any] = []
    topic = w.topic(records=3)
    c = w.reader(topic, auto_commit_interval_ms=200, on_commit=lambda error, parts: observed.append([error, w.seen(parts)]))
    w.take(c, 3)
    w.until(c, lambda: observed and observed[-1][1][0][1] == 3)
    return observed[-1]


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
def store_an_unassigned_partition(w: World) -> Any:
    topic = w.topic(1)
    c = w.reader(topic, enable_auto_offset_store=False)
    w.until(c, c.assignment)
    return w.tries(lambda: c.store_offsets(offsets=rows(w.name("other"), 0, offset=1)))


@program
def a_seek_after_stored_offsets(w: World) -> Any:
    topic = w.topic(records=5)
    c = w.reader(topic, enable_auto_offset_store=False)
    message = w.take(c, 4)[-1]
    c.store_offsets(message)
    c.seek(TopicPartition(topic, 0, 1))
    w.take(c, 1)
    return w.tries(lambda: c.commit(asynchronous=False))


@program
def a_commit_during_a_poll(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic, enable_auto_commit=False)
    messages = w.take(c, 3)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(c.commit, messages[-1], None, False)
        w.until(c, asked.done)
        return w.seen(asked.result())


@program
def queries_during_a_poll(w: World) -> Any:
    topic = w.topic(records=3)
    c = w.reader(topic)
    w.take(c, 3)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: [c.position(rows(topic, 0)), c.committed(rows(topic, 0), DEADLINE_S) is not None])
        w.until(c, asked.done)
        return w.seen(asked.result())


@program
def close_during_a_poll(w: World) -> Any:
    topic = w.topic(records=1)
    c = w.reader(topic)
    w.take(c, 1)
    closing = threading.Timer(0.3, c.close)
    closing.start()

    def polls() -> None:
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            c.poll(0.1)

    observed = w.tries(polls)
    closing.join()
    return observed
