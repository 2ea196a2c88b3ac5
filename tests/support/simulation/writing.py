"""Users' programs for ``simulated`` that write, or that hand failed records over to other topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import tenacity
from confluent_kafka import Producer
from confluent_kafka.aio import AIOProducer

from consumer_coord import AsyncGroupConsumer
from consumer_coord.process import DeadLetters, FailurePolicy, RetryTopics
from tests.support.simulation.billing import CONFIG, MANUAL, stop_event

SERVERS = {"bootstrap.servers": "kafka.example.com:9092"}


async def charge(order: bytes) -> None:
    """Call a service, which a test replaces."""


async def handle(message: Any) -> None:
    """Handle one order."""
    await charge(message.value())


def letters() -> FailurePolicy:
    """Return a policy with dead letters."""
    return policy(DeadLetters(Producer(SERVERS), "orders.dead"))


def retries() -> FailurePolicy:
    """Return a policy with two retry topics."""
    producer = Producer(SERVERS)
    return policy(RetryTopics(producer, [1, 5], then=DeadLetters(producer, "orders.dead")))


def policy(then: Any) -> FailurePolicy:
    """Return a policy of two attempts."""
    return FailurePolicy(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_fixed(0.1), then=then)


def processing(make_policy: Callable[[], FailurePolicy]) -> Callable[[], Any]:
    """Return a program that handles records in parallel."""

    async def program() -> None:
        stop = stop_event()
        async with AsyncGroupConsumer(CONFIG) as consumer:
            await consumer.subscribe(["orders"])
            await consumer.process(handle, concurrency=10, stop=stop, on_failure=make_policy())

    return program


def copy_of(message: Any) -> Any:
    """Return the value of the copy of an order."""
    return message.value()


async def copy() -> None:
    """Copy orders one by one to another topic with AIOProducer, and commit after the brokers have them."""
    stop, producer = stop_event(), AIOProducer(SERVERS)
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while not stop.is_set():
            messages = await consumer.consume(20, timeout=1.0)
            for message in messages:
                await (await producer.produce("copies", copy_of(message), message.key()))
            if messages:
                await consumer.commit()
    await producer.close()


async def forgetful() -> None:
    """Copy orders with Producer, and commit before the brokers have them."""
    stop, producer = stop_event(), Producer(SERVERS)
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while not stop.is_set():
            messages = await consumer.consume(20, timeout=1.0)
            for message in messages:
                producer.produce("copies", message.value(), message.key())
            producer.poll(0)
            if messages:
                await consumer.commit()


async def exactly_once() -> None:
    """Copy orders in transactions, with the offsets."""
    stop = stop_event()
    name = asyncio.current_task().get_name()  # type: ignore[union-attr]
    producer = AIOProducer({**SERVERS, "transactional.id": name})
    await producer.init_transactions()
    async with AsyncGroupConsumer(MANUAL) as consumer:
        await consumer.subscribe(["orders"])
        while not stop.is_set():
            messages = await consumer.consume(20, timeout=1.0)
            if not messages:
                continue
            await producer.begin_transaction()
            for message in messages:
                await producer.produce("copies", message.value(), message.key())
            positions = await consumer.position(await consumer.assignment())
            metadata = await consumer.consumer_group_metadata()
            await producer.send_offsets_to_transaction(positions, metadata)
            await producer.commit_transaction()


async def flushing() -> None:
    """Block the event loop with a flush."""
    producer = Producer(SERVERS)
    producer.produce("copies", b"1")
    producer.flush()
