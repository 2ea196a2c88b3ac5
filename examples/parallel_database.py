"""Write each order to a database in one of 16 threads, in order by customer.

    python -m examples.parallel_database localhost:9092 orders billing orders.sqlite

After a crash, an order may come again, so the write must be repeatable: the partition and the offset are its key.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
import threading
from typing import Any

from consumer_coord import GroupConsumer

TABLE = "CREATE TABLE IF NOT EXISTS orders (topic, number, position, customer, text, PRIMARY KEY (topic, number, position))"


def main(servers: str, topic: str, group: str, database: str) -> None:
    """Write until SIGTERM."""
    connections = threading.local()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with sqlite3.connect(database) as connection:
        connection.execute(TABLE)
    connection.close()

    def write(message: Any) -> None:
        if not hasattr(connections, "own"):
            connections.own = sqlite3.connect(database, timeout=60)
        row = (message.topic(), message.partition(), message.offset(), message.key(), message.value())
        with connections.own as transaction:
            transaction.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?)", row)

    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    with GroupConsumer(config) as consumer:
        consumer.subscribe([topic])
        print(consumer.process(write, workers=16, stop=stop))


if __name__ == "__main__":
    main(*sys.argv[1:])
