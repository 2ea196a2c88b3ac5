"""close(leave_group=…) of both consumers, in both protocols (KIP-1092): who is in the group after it."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, DEADLINE_S
from tests.support.waiting import eventually, eventually_async


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        yield running


async def _done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.mark.parametrize(
    ("static", "leave_group", "stays"),
    [
        (False, None, False),
        (False, True, False),
        (False, False, True),
        (True, None, True),
        (True, True, False),
        (True, False, True),
    ],
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kind", [GroupConsumer, AsyncGroupConsumer])
def test_the_group_has_the_member_after_close_or_not(
    kafka: EmbeddedKafka, kind: Any, protocol: str, static: bool, leave_group: bool | None, stays: bool
) -> None:
    group = uuid.uuid4().hex
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": protocol}

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            one = kind(settings | ({"group.instance.id": "till-1"} if static else {}))
            await _done(one.subscribe(["orders"]))

            async def held() -> Any:
                return await _done(one.assignment())

            async def step() -> None:
                await _done(one.poll(0.01))

            await eventually_async(held, step=step)
            await _done(one.close(leave_group=leave_group))

    asyncio.run(main())
    assert (kafka.group_state(group) != "Empty") is stays


def test_a_static_member_that_has_left_is_replaced_at_once(kafka: EmbeddedKafka) -> None:
    group = uuid.uuid4().hex
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "session.timeout.ms": 60_000}
    old = GroupConsumer(settings | {"group.instance.id": "till-1"})
    other = GroupConsumer(settings)
    for one in (old, other):
        one.subscribe(["orders"])

    def step() -> None:
        for one in (old, other):
            one.poll(0.01)

    eventually(lambda: len(old.assignment()) == len(other.assignment()) == 1, step=step)
    old.close(leave_group=True)
    eventually(lambda: len(other.assignment()) == 2, step=lambda: other.poll(0.01))
    other.close()
