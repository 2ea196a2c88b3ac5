"""Process exactly once: offsets are committed in the transaction, fenced by the group's generation (KIP-447).

    python -m examples.exactly_once localhost:9092 orders invoices billing

Run any number of processes and kill any of them at any time: ``invoices``, read with ``isolation.level=read_committed``, has
one invoice for each order.
"""

from __future__ import annotations

import argparse
import os
import signal
from types import FrameType

from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaException, Message, Producer, TopicPartition

from assignors import CooperativeStickyAssignor
from consumer_coord import GroupConsumer


def invoice_for(order: bytes) -> bytes:
    """Return the invoice for an order."""
    return b"invoice for " + order


class Billing:
    """A process of the pipeline."""

    def __init__(self, servers: str, source: str, sink: str, group: str, batch: int = 500, protocol: str = "classic") -> None:
        self.sink = sink
        self.batch = batch
        self.aborted = 0
        config = {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        if protocol == "classic":
            self.consumer = GroupConsumer({**config, "session.timeout.ms": 6000}, assignors=[CooperativeStickyAssignor()])
        else:
            # The broker assigns, and sets the session timeout.
            self.consumer = GroupConsumer(config)
        # The transactional id does not depend on partitions, because the group's generation (or member epoch) fences old
        # members.
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": f"{group}-{os.getpid()}",
                # After a kill, the next owner of the process's partitions waits up to this time for the process's open
                # transaction.
                "transaction.timeout.ms": 10_000,
            }
        )
        self.producer.init_transactions(30)
        self.consumer.subscribe([source])

    def step(self, timeout_s: float = 0.5) -> int:
        """Process one batch in one transaction; return its number of orders."""
        messages = self.consumer.consume(self.batch, timeout_s)
        failed = next((message.error() for message in messages if message.error() is not None), None)
        if failed is not None:
            raise KafkaException(failed)
        if not messages:
            return 0
        self.producer.begin_transaction()
        try:
            for message in messages:
                self.producer.produce(self.sink, invoice_for(message.value() or b""), message.key())
            # From here until the next consume(), this member does not take part in a rebalance.
            fence = self.consumer.consumer_group_metadata()
            self.producer.send_offsets_to_transaction(behind(messages), fence, 30)
            self.producer.commit_transaction(30)
        except KafkaException as error:
            self.undo(error)
            return 0
        return len(messages)

    def undo(self, error: KafkaException) -> None:
        """Abort the transaction, and seek to the group's commits. New owners process the partitions that this member lost."""
        if error.args[0].fatal():
            raise error
        self.aborted += 1
        self.producer.abort_transaction(30)
        for row in self.consumer.committed(self.consumer.assignment()):
            row.offset = OFFSET_BEGINNING if row.offset == OFFSET_INVALID else row.offset
            self.consumer.seek(row)

    def close(self) -> None:
        """Leave the group. No transaction is open at this point."""
        self.consumer.close()


def behind(messages: list[Message]) -> list[TopicPartition]:
    """Return the positions after these messages."""
    ends: dict[tuple[str, int], int] = {}
    for message in messages:
        ends[message.topic(), message.partition()] = message.offset() + 1
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]


def main() -> None:
    """Run until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("servers", "source", "sink", "group"):
        parser.add_argument(name)
    parser.add_argument("--batch", type=int, default=500, help="orders in one transaction (default %(default)s)")
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic", help="group.protocol")
    arguments = parser.parse_args()
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    billing = Billing(arguments.servers, arguments.source, arguments.sink, arguments.group, arguments.batch, arguments.protocol)
    total = 0
    try:
        while not ending:
            done = billing.step()
            total += done
            if done:
                print(f"{total} orders, {billing.aborted} transactions aborted", flush=True)
    finally:
        billing.close()


if __name__ == "__main__":
    main()
