"""A query's membership without Spark, on the embedded Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from consumer_coord.broker.node import BrokerNode, ClientConnection
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark.member import Membership
from consumer_coord.spark.offsets import Offsets
from consumer_coord.spark.options import parse_options
from tests.spark.conftest import produce
from tests.support.processes import wait_until


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        yield kafka


@pytest.fixture
def membership(embedded: EmbeddedKafka) -> Iterator[Membership]:
    options = {
        "kafka.bootstrap.servers": embedded.bootstrap_servers,
        "group.id": "billing",
        "subscribe": "orders",
        "startingOffsets": "earliest",
    }
    found = Membership(parse_options(options))
    try:
        yield found
    finally:
        found.leave()


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests that brokers get."""
    found: list[bytes] = []
    handle = BrokerNode.handle

    async def counting(self: BrokerNode, frame: bytes, client: ClientConnection) -> bytes | None:
        found.append(frame)
        return await handle(self, frame, client)

    monkeypatch.setattr(BrokerNode, "handle", counting)
    return found


def _finish(membership: Membership, start: Offsets) -> Offsets:
    """Planning calls, each batch finished at once, until there is nothing to do."""
    offsets = start

    def done() -> bool:
        nonlocal offsets
        planned = membership.next_batch(offsets)
        offsets = offsets if planned is None else planned
        return sum(span.end for _, span in offsets.spans()) == 40 and planned is None

    wait_until(done, 30, "all of it planned", interval_s=0.01)
    return offsets


def test_idle_planning_calls_cost_no_requests(
    embedded: EmbeddedKafka, membership: Membership, frames: list[bytes]
) -> None:
    """Spark asks an idle source every ten milliseconds; what is new is looked up ten times a second at most."""
    orders = [{"partition": number % 4, "value": b"v"} for number in range(40)]
    produce(embedded.bootstrap_servers, "orders", orders)
    offsets = _finish(membership, Offsets("billing"))
    before, began = len(frames), time.monotonic()
    calls = 20_000
    for _ in range(calls):
        assert membership.next_batch(offsets) is None
    # On a slow machine there is time for more of them: ten a second, and heartbeats.
    assert len(frames) - before <= 20 + 12 * (time.monotonic() - began)
    # And it does look: what is written now is planned soon.
    produce(embedded.bootstrap_servers, "orders", orders[:1])
    wait_until(lambda: membership.next_batch(offsets) is not None, 30, "the new record", interval_s=0.01)
