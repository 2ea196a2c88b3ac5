"""A member of the demo's group, as a process: consumes orders, commits, and reports events as JSON lines."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

from consumer_coord import GroupConsumer
from examples.demo.assignor import CapacityAssignor

#: Speed of a member, in orders per second and unit of capacity.
RATE = 6_000

#: In the consumer protocol, the broker sets the heartbeat interval.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    "consumer": {"group.protocol": "consumer"},
}


def report(event: str, **details: Any) -> None:
    """Print one event for the parent process."""
    sys.stdout.write(json.dumps({"event": event, "at": time.time(), **details}) + "\n")
    sys.stdout.flush()


def numbers(partitions: Any) -> list[int]:
    """Return the partition numbers in a callback's list."""
    return [row.partition for row in partitions]


def main() -> None:
    """Run until SIGTERM."""
    servers, group, topic, name, capacity, protocol = *sys.argv[1:5], int(sys.argv[5]), sys.argv[6]
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    consumer = GroupConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **PROTOCOLS[protocol],
        },
        # In the consumer protocol, the broker assigns equal shares.
        assignors=[CapacityAssignor()] if protocol == "classic" else None,
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda _, rows: report("assigned", partitions=numbers(rows), generation=consumer.generation()),
        on_revoke=lambda _, rows: report("revoked", partitions=numbers(rows), generation=consumer.generation()),
        on_lost=lambda _, rows: report("lost", partitions=numbers(rows), generation=consumer.generation()),
    )
    generation = -1
    while not ending:
        started = time.monotonic()
        messages = consumer.consume(500, 0.1)
        if consumer.generation() != generation:
            generation = consumer.generation()
            report("generation", generation=generation, partitions=numbers(consumer.assignment()))
        if not messages:
            continue
        ranges: dict[int, list[int]] = {}
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"consuming failed: {message.error()}")
            offsets = ranges.setdefault(message.partition(), [message.offset(), 0])
            offsets[1] = message.offset() + 1
        customers = Counter(message.key().decode() for message in messages)
        # This sleep simulates the work. A real application would write to a database here.
        time.sleep(max(0.0, len(messages) / (RATE * capacity) - (time.monotonic() - started)))
        report("processed", ranges=ranges, customers=customers)
        consumer.commit(asynchronous=False)
    consumer.close()
    report("closed")


if __name__ == "__main__":
    main()
