"""The engine's loop is shared with the coordinator that the engine waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from consumer_coord.consumer.engine_loop import EngineLoop
from tests.support.group.virtual import in_virtual_time


@in_virtual_time
async def test_a_wait_that_has_ended_does_not_block_the_loop() -> None:
    application = SimpleNamespace(attention=True, ring=None)
    engine_loop = EngineLoop(SimpleNamespace(application=application))  # type: ignore[arg-type]
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "the coordinator's task")
    await engine_loop.ring(10)
    assert ran
