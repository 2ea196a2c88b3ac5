"""Call a service for each order, up to 200 calls at once, in order by customer.

    python -m examples.parallel_http localhost:9092 orders billing http://localhost:8080/invoices

A call that fails is repeated; an order that the service refuses goes to the topic ``orders.failed``. SIGTERM ends the program
when the calls that run have ended, in 25 s at most.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import httpx
import tenacity
from confluent_kafka import Producer

from consumer_coord import AsyncGroupConsumer
from consumer_coord.process import DeadLetters, FailurePolicy


async def main(servers: str, topic: str, group: str, url: str) -> None:
    """Call ``url`` with each order until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    policy = FailurePolicy(
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
        retry=tenacity.retry_if_exception_type(httpx.TransportError),
        timeout=30,
        then=DeadLetters(Producer({"bootstrap.servers": servers}), f"{topic}.failed"),
    )
    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    async with httpx.AsyncClient() as service, AsyncGroupConsumer(config) as consumer:

        async def send(message: Any) -> None:
            answer = await service.post(url, content=message.value())
            answer.raise_for_status()

        await consumer.subscribe([topic])
        print(await consumer.process(send, concurrency=200, on_failure=policy, stop=stop))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
