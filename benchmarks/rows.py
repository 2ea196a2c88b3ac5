"""Benchmark of messages as rows: nanoseconds of CPU time per message, next to confluent-kafka's own messages.

``python -m benchmarks.rows [--messages 200000] [--rounds 7] [--size 100]``

``create`` makes lists of 500 messages and drops them, ``read`` also calls ``error()`` and ``value()`` of each, and ``poll``
takes one message after the other from a Python method, and calls both. ``decode`` is the time from a response, with checksums,
to rows that can be taken. confluent-kafka creates its messages while it polls, so only its ``access`` can be measured alone:
``error()`` and ``value()`` of messages that exist; rows are measured the same way for the ratio. The cases run in turns; each
round is shown. ``CONSUMER_COORD_KERNEL=python`` measures the Python twin.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Message

from benchmarks.decode import response
from benchmarks.table import markdown, median, number
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.columns import KERNEL, CompletedFetch
from consumer_coord.columns.decode_messages import Rows, kept_chunks
from consumer_coord.consumer.message_type import MESSAGES

BATCH = 500
#: The messages that stay in memory for ``access``.
HELD = 20_000


class _Polled:
    """Hands out one message after the other, as a consumer's ``poll`` would."""

    def __init__(self, chunks: Sequence[Rows]) -> None:
        self._chunks = deque(chunks)

    def poll(self, timeout: float = -1) -> Any:
        """Return the next message, or None."""
        while self._chunks:
            message = self._chunks[0].take_one()
            if message is not None:
                return message
            self._chunks.popleft()
        return None


def decoded(data: bytes) -> list[Rows]:
    """Decode a response completely."""
    fetch, kept, found = CompletedFetch(data, topic="orders", partition=0, offset=0), kept_chunks(), []
    while not fetch.exhausted:
        found.append(MESSAGES.decode(fetch, kept))
    return found


def create(chunks: Sequence[Rows]) -> None:
    """Make all messages."""
    for rows in chunks:
        while len(rows):
            rows.take(BATCH)


def read(chunks: Sequence[Rows]) -> None:
    """Make all messages, and read each of them."""
    for rows in chunks:
        while len(rows):
            access(rows.take(BATCH))


def poll(chunks: Sequence[Rows]) -> None:
    """Make one message after the other, and read it."""
    polled = _Polled(chunks)
    while (message := polled.poll(1.0)) is not None:
        message.error()
        message.value()


def access(messages: Sequence[Any]) -> None:
    """Read messages that exist."""
    for message in messages:
        message.error()
        message.value()


def _cpu_ns(work: Callable[[], object], messages: int) -> float:
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / messages


def confluents(data: bytes, count: int) -> list[Message]:
    """Return messages of confluent-kafka's own consumer from an embedded Kafka."""
    producer_values = [one.value() for rows in decoded(data) for one in rows.take(count)][:count]
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
        for value in producer_values:
            producer.produce("orders", value, b"12345678")
            producer.poll(0)
        producer.flush(60)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "rows"})
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        found: list[Message] = []
        ends = time.monotonic() + 60
        while len(found) < len(producer_values):
            if time.monotonic() > ends:
                raise TimeoutError(f"only {len(found)} of {len(producer_values)} messages were read within 60 s")
            found += consumer.consume(count, 0.5)
        consumer.close()
    return found


def one_round(data: bytes, messages: int, theirs: Sequence[Message]) -> Mapping[str, float]:
    """Return nanoseconds per message of each case."""
    chunks: list[Rows] = []
    found = {"decode": _cpu_ns(lambda: chunks.extend(decoded(data)), messages)}
    for name, work in (("create", create), ("read", read), ("poll", poll)):
        fresh = decoded(data)
        found[name] = _cpu_ns(lambda work=work, fresh=fresh: work(fresh), messages)  # type: ignore[misc]
    ours = [one for rows in chunks for one in rows.take(messages)][: len(theirs)]
    found["access"] = _cpu_ns(lambda: access(ours), len(ours))
    found["access of confluent-kafka's"] = _cpu_ns(lambda: access(theirs), len(theirs))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    options = parser.parse_args(arguments)
    data, messages = response(options.size, 200, "none", options.messages * (options.size + 20) / 1e6, 0)
    theirs = confluents(data, HELD)
    rounds = [one_round(data, messages, theirs) for _ in range(options.rounds)]
    rows = [[name, number(median(values)), ", ".join(map(number, values))] for name, values in _by_case(rounds).items()]
    ratios = [one["access"] / one["access of confluent-kafka's"] for one in rounds]
    print(f"kernel: {KERNEL}; confluent-kafka {confluent_kafka.__version__}; {options.size} bytes; ns of CPU per message\n")
    print(markdown(["case", "median", "rounds"], rows))
    print(f"\naccess, ratio to confluent-kafka's: {number(median(ratios))} ({', '.join(map(number, ratios))})")


def _by_case(rounds: Sequence[Mapping[str, float]]) -> Mapping[str, Sequence[float]]:
    return {name: [one[name] for one in rounds] for name in rounds[0]}


if __name__ == "__main__":
    main()
