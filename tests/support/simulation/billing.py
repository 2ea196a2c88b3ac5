"""A user's programs for ``simulated``: right ones, and ones with a fault that a rebalance reveals."""

from __future__ import annotations

import asyncio
import datetime
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime as moment
from time import monotonic
from typing import Any

from consumer_coord import AsyncGroupConsumer, GroupConsumer

CONFIG = {"bootstrap.servers": "kafka.example.com:9092", "group.id": "billing", "auto.offset.reset": "earliest"}
MANUAL = {**CONFIG, "enable.auto.commit": False}


async def handle(message: Any) -> None:
    """Handle one order."""
    await asyncio.sleep(0.02)
    await charge(message.value())


async def charge(order: bytes) -> str:
    """Call a service, which a test replaces."""
    return "paid"


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def main() -> None:
    """Commit after processing."""
    stop = stop_event()
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while not stop.is_set():
            messages = await consumer.consume(20, timeout=1.0)
            for message in messages:
                await handle(message)
            if messages:
                await consumer.commit()


async def hasty() -> None:
    """Commit before processing: what a killed process had not processed is lost."""
    stop = stop_event()
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while not stop.is_set():
            messages = await consumer.consume(20, timeout=1.0)
            if messages:
                await consumer.commit()
            for message in messages:
                await handle(message)


async def iterating() -> None:
    """Automatic commits."""
    async with AsyncGroupConsumer(CONFIG) as consumer:
        await consumer.subscribe(["orders"])
        async for message in consumer:
            await handle(message)


async def parallel() -> None:
    """Ten handlers at once."""
    stop = stop_event()
    async with AsyncGroupConsumer(CONFIG) as consumer:
        await consumer.subscribe(["orders"])
        await consumer.process(handle, concurrency=10, stop=stop)


class Desk:
    """Handles orders in a method that does not await."""

    def handle(self, message: Any) -> None:
        """Handle one order."""
        message.value()


async def at_a_desk() -> None:
    """Commit after processing; SIGTERM has a handler of the module signal."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while not stopping:
            messages = await consumer.consume(20, timeout=1.0)
            for message in messages:
                Desk().handle(message)
            if messages:
                await consumer.commit(asynchronous=False)


async def hasty_at_a_desk() -> None:
    """Commit before processing."""
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while messages := await consumer.consume(20, timeout=3_600):
            await consumer.commit(asynchronous=False)
            for message in messages:
                Desk().handle(message)


async def deaf() -> None:
    """Read another topic than the test writes to."""
    async with AsyncGroupConsumer(CONFIG) as consumer:
        await consumer.subscribe(["other"])
        async for message in consumer:
            await handle(message)


async def broken() -> None:
    """End with an exception each time."""
    raise KeyError("no such order")


async def in_a_thread() -> None:
    """Use a thread of asyncio."""
    await asyncio.to_thread(len, "")


async def with_executor() -> None:
    """Use an executor, and ignore the error."""
    try:
        await asyncio.get_running_loop().run_in_executor(None, len, "")
    except Exception:  # noqa: BLE001 - what a careless program does
        await asyncio.sleep(1)


async def with_blocking_consumer() -> None:
    """Use the consumer that has a thread."""
    with GroupConsumer(CONFIG) as consumer:
        consumer.subscribe(["orders"])


async def connecting() -> None:
    """Open a connection."""
    await asyncio.open_connection("127.0.0.1", 1)


def calling(function: Callable[[], object]) -> Callable[[], Any]:
    """Return a program that calls a function, on this very line."""

    async def program() -> None:
        function()

    return program


FORBIDDEN: dict[str, Callable[[], Any]] = {
    "a thread for len": in_a_thread,
    "a thread for  len": with_executor,
    "a thread": with_blocking_consumer,
    "create_connection()": connecting,
    "time.sleep()": calling(lambda: time.sleep(1)),
    "time.time()": calling(lambda: time.time()),
    "time.monotonic()": calling(lambda: monotonic()),
    "datetime.now()": calling(lambda: moment.now(datetime.UTC)),
    "datetime.utcnow()": calling(lambda: datetime.datetime.utcnow()),  # noqa: DTZ003 - what the simulation rejects
    "date.today()": calling(lambda: datetime.date.today()),  # noqa: DTZ011 - what the simulation rejects
    "a  thread": calling(lambda: threading.Thread(target=len).start()),
    "a look-up of a host": calling(lambda: socket.create_connection(("127.0.0.1", 1))),
    "a subprocess": calling(lambda: subprocess.run([sys.executable, "-c", ""], check=True)),
}
