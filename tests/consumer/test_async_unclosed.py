"""AsyncGroupConsumer: a loop that ends before ``close``, a consumer that is dropped, and a second loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException
from consumer_coord.errors import IllegalStateError
from tests.consumer.test_async_consumer import consumer
from tests.support.waiting import eventually_async

LOGGER = "consumer_coord.consumer.async_unclosed"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        yield running


async def joined(kafka: EmbeddedKafka) -> AsyncGroupConsumer:
    """Start a member with a long session timeout: another member cannot wait until the session ends."""
    member = consumer(kafka, session_timeout_ms="600000")
    await member.subscribe(["orders"])
    await eventually_async(member.assignment, step=lambda: member.poll(0.05))
    return member


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_a_member_whose_loop_ends_leaves_with_a_warning(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        unclosed = asyncio.run(joined(kafka))
    (told,) = _warnings(caplog)
    assert "'billing' was not closed: its event loop ended" in told
    assert "`async with`" in told

    async def next_member() -> None:
        await (await joined(kafka)).close()

    asyncio.run(next_member())
    del unclosed


def test_a_dropped_consumer_leaves_with_a_warning(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        dropped = await joined(kafka)
        del dropped
        gc.collect()
        async with await joined(kafka):
            assert len(_warnings(caplog)) == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "the consumer was dropped" in _warnings(caplog)[0]
    assert len(_warnings(caplog)) == 1, "a closed consumer causes no warning"


def test_a_consumer_in_a_second_loop_is_refused(kafka: EmbeddedKafka) -> None:
    member = asyncio.run(joined(kafka))

    async def second() -> None:
        for call in (
            lambda: member.poll(0.1),
            lambda: member.consume(1, 0.1),
            lambda: member.commit(asynchronous=False),
            lambda: member.subscribe(["orders"]),
            member.assignment,
        ):
            with pytest.raises(IllegalStateError, match="belongs to another event loop, which has ended: create one") as raised:
                await call()
            assert isinstance(raised.value, KafkaException)
        await member.close()
        await member.close()

    asyncio.run(second())


def test_a_consumer_of_a_loop_that_runs_is_not_closed_by_another(kafka: EmbeddedKafka) -> None:
    def elsewhere(member: AsyncGroupConsumer) -> None:
        with pytest.raises(IllegalStateError, match="belongs to another event loop: create one"):
            asyncio.run(member.close())

    async def main() -> None:
        async with await joined(kafka) as member:
            await asyncio.to_thread(elsewhere, member)
            assert await member.poll(0) is None

    asyncio.run(main())


def test_a_loop_that_is_closed_without_its_tasks_is_warned_of(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    member = loop.run_until_complete(joined(kafka))
    loop.close()
    with caplog.at_level(logging.WARNING):
        del member
        gc.collect()
        # Collect the objects that the end of the consumer released.
        gc.collect()
    (told,) = _warnings(caplog)
    assert "stays in the group until session.timeout.ms has passed" in told
