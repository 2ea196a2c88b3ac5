"""A consumer in a group: a program for confluent_kafka.Consumer with one changed import.

python -m examples.plain_consumer localhost:9092 orders billing
"""

from __future__ import annotations

import sys

from consumer_coord import GroupConsumer


def main(servers: str, topic: str, group: str) -> None:
    """Print every record, and commit after each batch."""
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    with GroupConsumer(config) as consumer:
        consumer.subscribe([topic], on_assign=lambda _, partitions: print("assigned", len(partitions), flush=True))
        while True:
            messages = consumer.consume(500, timeout=1.0)
            for message in messages:
                if message.error() is not None:
                    raise SystemExit(f"consuming failed: {message.error()}")
                print(message.topic(), message.partition(), message.offset(), message.value(), flush=True)
            if messages:
                consumer.commit(asynchronous=False)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:4])
    except KeyboardInterrupt:
        sys.exit(130)
