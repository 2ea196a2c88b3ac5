"""Charge each order: the program that docs/rebalance-tests.md tests against rebalances and faults.

Run it with ``python -m examples.billing``.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from consumer_coord import AsyncGroupConsumer

CONFIG = {
    "bootstrap.servers": "localhost:9092",
    "group.id": "billing",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
}


async def charge(order: bytes) -> str:
    """Charge an order at the payment service, which knows orders that it has charged."""
    reader, writer = await asyncio.open_connection("payments", 8080)
    writer.write(order + b"\n")
    answer = await reader.readline()
    writer.close()
    return answer.decode()


async def handle(message: Any) -> None:
    """Handle one order."""
    await charge(message.value())


async def main() -> None:
    """Handle orders until SIGTERM; commit after each batch."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncGroupConsumer(CONFIG) as consumer:
        await consumer.subscribe(["orders"])
        while not stop.is_set():
            messages = await consumer.consume(20, timeout=1.0)
            for message in messages:
                await handle(message)
            if messages:
                await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main())
