"""The engine's scheduler shares the loop with the coordinator that it waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from consumer_coord.consumer.scheduler import Scheduler
from tests.support.group.virtual import in_virtual_time


@in_virtual_time
async def test_a_wait_that_has_ended_does_not_block_the_loop() -> None:
    application = SimpleNamespace(attention=True, ring=None)
    scheduler = Scheduler(SimpleNamespace(application=application))  # type: ignore[arg-type]
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "the coordinator's task")
    await scheduler.ring(10)
    assert ran
