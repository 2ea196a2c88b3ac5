"""A static member, which gets its partitions back without a rebalance after a restart within its session (KIP-345).

    python -m examples.static_membership localhost:9092 orders billing worker-1

Each running member needs a different instance id; a second member with the same id fences the first.
"""

from __future__ import annotations

import sys

from consumer_coord import GroupConsumer
from consumer_coord.errors import FencedError


def main(servers: str, topic: str, group: str, instance_id: str) -> None:
    """Consume until Ctrl-C. Closing does not leave the group, so a quick restart moves no partitions."""
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "group.instance.id": instance_id,
        # The time for which the group keeps the partitions of an absent member: longer than a restart takes.
        "session.timeout.ms": 30_000,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
    }
    with GroupConsumer(config) as consumer:
        consumer.subscribe(
            [topic],
            on_assign=lambda _, rows: print(
                "generation", consumer.generation(), "partitions", [row.partition for row in rows], flush=True
            ),
        )
        try:
            for message in consumer:
                print(message.partition(), message.offset(), message.value(), flush=True)
        except FencedError as error:
            raise SystemExit(f"another member is {instance_id!r} now: {error}") from None


if __name__ == "__main__":
    try:
        main(*sys.argv[1:5])
    except KeyboardInterrupt:
        sys.exit(130)
