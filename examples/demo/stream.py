"""A realistic stream of orders with a steady rate; some customers order more often than others."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter

from confluent_kafka import KafkaError, KafkaException, Message, Producer

CUSTOMERS = 400

#: Maximum number of orders in the producer's queue, so that a slow broker slows down the stream.
MOST_IN_FLIGHT = 40_000


class OrderStream(threading.Thread):
    """Produce ``total`` orders at ``rate`` orders per second in a thread, and count the orders that the broker acknowledged."""

    def __init__(self, servers: str, topic: str, total: int, rate: int) -> None:
        super().__init__(name="orders", daemon=True)
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "acks": "all"})
        self._topic = topic
        self._total = total
        self._rate = rate
        self._random = random.Random(7)
        self.acknowledged: Counter[str] = Counter()
        self.ends: Counter[int] = Counter()
        self.failed: str | None = None

    def run(self) -> None:
        """Produce until all orders are sent, or an order fails."""
        try:
            self._produce()
        except (BufferError, KafkaException) as error:
            self.failed = f"orders cannot be produced: {error}"
        finally:
            # librdkafka's threads end with the producer, so the cluster may end now.
            del self._producer

    def _produce(self) -> None:
        weights = [1 / (1 + rank) ** 0.6 for rank in range(CUSTOMERS)]
        started, sent = time.monotonic(), 0
        while sent < self._total and self.failed is None:
            due = min(self._total, int((time.monotonic() - started) * self._rate), sent + MOST_IN_FLIGHT // 2)
            for customer in self._random.choices(range(CUSTOMERS), weights, k=due - sent):
                order = {"customer": customer, "cents": self._random.randrange(99, 25_000), "number": sent}
                self._producer.produce(self._topic, json.dumps(order), f"customer-{customer}", on_delivery=self._delivered)
                sent += 1
            self._producer.poll(0.01)
            while len(self._producer) > MOST_IN_FLIGHT:
                self._producer.poll(0.05)
        left = self._producer.flush(30)
        if left:
            self.failed = f"{left} orders were not acknowledged within 30 s"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed = f"an order was not delivered: {error}"
            return
        self.acknowledged[message.key().decode()] += 1
        self.ends[message.partition()] = max(self.ends[message.partition()], message.offset() + 1)

    @property
    def count(self) -> int:
        """Number of orders that the broker has acknowledged."""
        return self.acknowledged.total()
