"""A web service that consumes in the background on the same event loop, and shuts down without losing orders.

    KAFKA=localhost:9092 python -m uvicorn examples.web_service:app

``GET /totals`` returns the orders per customer; ``GET /healthz`` shows whether the consumer is in its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from consumer_coord import AsyncGroupConsumer


class Totals:
    """Counts the consumed orders of each customer."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.by_customer: Counter[str] = Counter()
        self.topic = topic
        self.consumer = AsyncGroupConsumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )

    async def run(self) -> None:
        """Consume until cancelled; uncommitted orders are consumed again."""
        await self.consumer.subscribe([self.topic])
        async for message in self.consumer:
            self.by_customer[(message.key() or b"without a key").decode()] += 1


def make_app(servers: str, topic: str = "orders", group: str = "totals") -> Starlette:
    """Return the application, which starts and closes the consumer."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        totals = app.state.totals = Totals(servers, topic, group)
        working = app.state.working = asyncio.create_task(totals.run(), name="totals")
        try:
            yield
        finally:
            # No more requests arrive. Stop consuming, then commit, revoke the partitions and leave the group.
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await totals.consumer.close()

    async def totals(request: Request) -> JSONResponse:
        return JSONResponse(dict(request.app.state.totals.by_customer))

    async def healthz(request: Request) -> JSONResponse:
        working = request.app.state.working
        if working.done():
            return JSONResponse({"consuming": False, "why": repr(working.exception())}, status_code=503)
        consumer = request.app.state.totals.consumer
        return JSONResponse({"consuming": True, "generation": consumer.generation(), "member": consumer.memberid()})

    return Starlette(routes=[Route("/totals", totals), Route("/healthz", healthz)], lifespan=lifespan)


app = make_app(os.environ.get("KAFKA", "localhost:9092"))
