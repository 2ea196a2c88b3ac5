"""After ``close()``, neither a task of the consumer nor a request is left, whatever was being looked up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import Request
from tests.support.waiting import eventually, eventually_async

#: A look-up that is refused again and again: of the end or the beginning of a log, of the commits, of the coordinator.
REFUSED = {
    "ListOffsets": codes.LEADER_NOT_AVAILABLE,
    "OffsetFetch": codes.COORDINATOR_LOAD_IN_PROGRESS,
    "FindCoordinator": codes.COORDINATOR_NOT_AVAILABLE,
}
#: A look-up that goes on is repeated within this time (``retry.backoff.max.ms`` with jitter), in seconds.
REPEATED_S = 1.5
#: A look-up that goes on ends after 30 s, so it leaves no pause of :data:`REPEATED_S` within this time, in seconds.
SOON_S = 15.0
protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
look_ups = pytest.mark.parametrize("api", REFUSED)


class Requests:
    """The names of the requests that both planes have sent to a broker, which refuses one kind of them."""

    def __init__(self, kafka: EmbeddedKafka, refused: str) -> None:
        self.names: list[str] = []
        self._last_s = time.monotonic()
        self._refused = refused
        kafka.add_request_hook(self._see)

    def _see(self, broker: int, request: Request) -> Fault | None:
        name = type(request.message).__name__.removesuffix("Request")
        self.names.append(name)
        self._last_s = time.monotonic()
        return Fault(error_code=REFUSED[name]) if name == self._refused else None

    def ended(self) -> bool:
        """Return whether nothing has arrived for longer than a look-up pauses. A request may be on its way at a close."""
        return time.monotonic() - self._last_s > REPEATED_S


def settings(kafka: EmbeddedKafka, protocol: str) -> dict[str, Any]:
    """Return the settings of a consumer."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "orders",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }


@protocols
@look_ups
def test_asyncio(protocol: str, api: str) -> None:
    async def main() -> None:
        with EmbeddedKafka(topics={"t": 2}) as kafka:
            seen = Requests(kafka, api)
            consumer = AsyncGroupConsumer(settings(kafka, protocol))
            await consumer.subscribe(["t"])
            await eventually_async(lambda: seen.names.count(api) > 1, step=lambda: consumer.poll(0.05))
            await consumer.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await eventually_async(seen.ended, within_s=SOON_S, shows=lambda: seen.names[-20:])

    asyncio.run(main())


@protocols
@look_ups
def test_threads(protocol: str, api: str) -> None:
    with EmbeddedKafka(topics={"t": 2}) as kafka:
        seen = Requests(kafka, api)
        consumer = GroupConsumer(settings(kafka, protocol))
        consumer.subscribe(["t"])
        eventually(lambda: seen.names.count(api) > 1, step=lambda: consumer.poll(0.05))
        consumer.close()
        eventually(seen.ended, within_s=SOON_S, shows=lambda: seen.names[-20:])
