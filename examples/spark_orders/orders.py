"""Write orders to Kafka like a shop: as JSON, with the order's id as key, and some orders twice."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping

from confluent_kafka import Producer

TOPIC = "orders"
PRODUCTS: Mapping[str, tuple[str, float]] = {
    "p1": ("Espresso cup", 9.5),
    "p2": ("French press", 34.0),
    "p3": ("Kettle", 59.0),
    "p4": ("Grinder", 129.0),
    "p5": ("Beans, 1 kg", 24.0),
}


class Shop(threading.Thread):
    """Write ``rate`` orders per second until :meth:`close`. ``sold`` has the expected result: id -> quantity."""

    def __init__(self, bootstrap_servers: str, partitions: int, rate: int) -> None:
        super().__init__(name="shop", daemon=True)
        # Without logs, because the producer would only report at the end of the demo that Kafka is gone.
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "log_level": 0})
        self._partitions = partitions
        self._rate = rate
        self._random = random.Random(1)
        self._closing = threading.Event()
        self.sold: dict[str, int] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Write orders a few times a second."""
        began = time.monotonic()
        try:
            while not self._closing.wait(0.05):
                for number in range(len(self.sold), int((time.monotonic() - began) * self._rate)):
                    self._order(number)
                self._producer.poll(0)
            if self._producer.flush(60):
                raise RuntimeError("Kafka did not acknowledge every order")
        except BaseException as error:  # noqa: BLE001 - close() raises it
            self.failure = error

    def _order(self, number: int) -> None:
        order = {
            "order_id": f"o{number}",
            "product": self._random.choice(list(PRODUCTS)),
            "quantity": self._random.randint(1, 5),
            "placed_at_ms": int(time.time() * 1000),
        }
        self.sold[f"o{number}"] = int(order["quantity"])  # type: ignore[call-overload]  # it is the integer of above
        for _ in range(2 if self._random.random() < 0.01 else 1):
            self._producer.produce(TOPIC, json.dumps(order), key=str(order["order_id"]), partition=number % self._partitions)

    def stop(self) -> None:
        """Stop writing orders, without waiting for Kafka to acknowledge the last ones. A repeated call has no effect."""
        self._closing.set()
        if self.is_alive():
            self.join(5)

    def close(self) -> None:
        """Stop writing orders, and wait until Kafka has acknowledged every order."""
        self._closing.set()
        self.join()
        if self.failure is not None:
            raise self.failure
