"""What is pushed when, and what each error does, in virtual time against scripted brokers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import attrs
import pytest

from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.telemetry.push import DEFAULT_INTERVAL_MS, MetricsPusher, Reading
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from consumer_coord.wire.schema import ZERO_UUID
from tests.support.group.fake import DROP, SILENCE, FakeBrokers
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.telemetry.pushed import CUMULATIVE, DELTA, Pushed, pushed

INSTANCE = uuid.uuid4()
INTERVAL_MS = 10_000
EVERYTHING = GetTelemetrySubscriptionsResponse(
    client_instance_id=INSTANCE,
    subscription_id=7,
    accepted_compression_types=(4, 3, 1, 2),
    push_interval_ms=INTERVAL_MS,
    telemetry_max_bytes=1 << 20,
    delta_temporality=True,
    requested_metrics=("*",),
)
TAKEN = PushTelemetryResponse()


@attrs.define
class FakeConsumer:
    """A consumer with three metrics, one of which counts."""

    brokers: Sequence[Broker]
    alive: bool = True
    total: float = 0.0
    lags: int = 1

    def takes_metrics(self) -> Broker | None:
        return self.brokers[0] if self.brokers else None

    def read(self) -> Sequence[Reading]:
        self.total += 5
        lags = [Reading("org.x.lag", 3.0, False, {"topic": "t", "partition": str(one)}) for one in range(self.lags)]
        return [Reading("org.x.total", self.total, True), Reading("org.y.avg", 1.5, False), *lags]

    def labels(self) -> Mapping[str, str]:
        return {"group_id": "orders"}


@contextlib.asynccontextmanager
async def pushing(brokers: FakeBrokers, **consumer: Any) -> AsyncIterator[tuple[FakeConsumer, MetricsPusher]]:
    """Run a pusher for a consumer until the end of the block, with a last push."""
    cluster = new_cluster(brokers)
    await cluster.refresh(Deadline.after(10_000))
    one = FakeConsumer(cluster.brokers(), **consumer)
    pusher = MetricsPusher(cluster, one)
    running = asyncio.create_task(pusher.run())
    yield one, pusher
    pusher.close()
    await running
    await cluster.close()


def scripted(subscription: Any = EVERYTHING, answer: Any = TAKEN) -> FakeBrokers:
    brokers = FakeBrokers()
    brokers.always(GetTelemetrySubscriptionsRequest, subscription)
    brokers.always(PushTelemetryRequest, answer)
    return brokers


def pushes(brokers: FakeBrokers) -> list[Pushed]:
    return [pushed(one.metrics, one.compression_type) for one in brokers.all(PushTelemetryRequest)]


@in_virtual_time
async def test_the_first_push_is_spread_and_the_others_are_an_interval_apart() -> None:
    brokers = scripted()
    async with pushing(brokers):
        await pause(INTERVAL_MS * 4)
    asked, (first, *later) = brokers.times(GetTelemetrySubscriptionsRequest), brokers.times(PushTelemetryRequest)
    assert len(asked) == 1
    assert 0.5 * INTERVAL_MS <= first - asked[0] <= 1.5 * INTERVAL_MS + 10
    *regular, _ = later
    gaps = [after - before for before, after in zip([first, *regular], regular, strict=False)]
    assert gaps
    assert all(INTERVAL_MS <= gap < INTERVAL_MS + 10 for gap in gaps)
    assert brokers.all(GetTelemetrySubscriptionsRequest)[0].client_instance_id == ZERO_UUID
    sent = brokers.all(PushTelemetryRequest)
    assert {(one.client_instance_id, one.subscription_id, one.compression_type) for one in sent} == {(INSTANCE, 7, 4)}
    assert [one.terminating for one in sent] == [False] * (len(sent) - 1) + [True], "the last push is at the close"


@in_virtual_time
async def test_sums_are_since_the_last_push_or_since_the_start() -> None:
    for delta in (True, False):
        brokers = scripted(attrs.evolve(EVERYTHING, delta_temporality=delta))
        async with pushing(brokers):
            await pause(INTERVAL_MS * 4)
        found = pushes(brokers)
        values = [one.value("org.x.total") for one in found]
        assert values == ([5.0] * len(found) if delta else [5.0 * (number + 1) for number in range(len(found))])
        points = [one.metrics["org.x.total"][0] for one in found]
        assert {one.temporality for one in points} == {DELTA if delta else CUMULATIVE}
        assert all(one.monotonic for one in points)
        starts = [one.start_ns for one in points]
        assert starts == ([points[0].start_ns, *(one.time_ns for one in points[:-1])] if delta else [starts[0]] * len(starts))
        assert found[0].metrics["org.y.avg"][0].temporality is None
        assert found[0].labels == {"group_id": "orders"}


@in_virtual_time
async def test_a_refused_push_is_added_to_the_next_one() -> None:
    brokers = scripted()
    brokers.answer(PushTelemetryRequest, codes.UNKNOWN_SUBSCRIPTION_ID)
    async with pushing(brokers):
        await pause(INTERVAL_MS * 5)
    assert [one.value("org.x.total") for one in pushes(brokers)][:3] == [5.0, 10.0, 5.0]


@pytest.mark.parametrize(
    ("prefixes", "names"),
    [
        (("*",), {"org.x.total", "org.x.lag", "org.y.avg"}),
        (("",), {"org.x.total", "org.x.lag", "org.y.avg"}),
        (("org.x.",), {"org.x.total", "org.x.lag"}),
        (("org.y", "org.x.t"), {"org.x.total", "org.y.avg"}),
    ],
)
@in_virtual_time
async def test_only_wanted_names_are_pushed(prefixes: tuple[str, ...], names: set[str]) -> None:
    brokers = scripted(attrs.evolve(EVERYTHING, requested_metrics=prefixes))
    async with pushing(brokers):
        await pause(INTERVAL_MS * 2)
    assert set(pushes(brokers)[0].metrics) == names


@in_virtual_time
async def test_without_wanted_names_the_subscription_is_asked_for_at_the_interval() -> None:
    brokers = scripted(attrs.evolve(EVERYTHING, requested_metrics=()))
    async with pushing(brokers):
        await pause(INTERVAL_MS * 3.5)
        brokers.always(GetTelemetrySubscriptionsRequest, EVERYTHING)
        assert not brokers.all(PushTelemetryRequest)
        await pause(INTERVAL_MS * 3)
        assert brokers.all(PushTelemetryRequest)
    asked = brokers.times(GetTelemetrySubscriptionsRequest)
    assert all(after - before >= INTERVAL_MS for before, after in itertools.pairwise(asked))
    assert {one.client_instance_id for one in brokers.all(GetTelemetrySubscriptionsRequest)[1:]} == {INSTANCE}


@pytest.mark.parametrize(
    ("code", "wait_ms"),
    [
        (codes.UNKNOWN_SUBSCRIPTION_ID, 0),
        (codes.UNSUPPORTED_COMPRESSION_TYPE, 0),
        (codes.TELEMETRY_TOO_LARGE, INTERVAL_MS),
        (codes.THROTTLING_QUOTA_EXCEEDED, INTERVAL_MS),
        (DROP, INTERVAL_MS),
    ],
)
@in_virtual_time
async def test_after_an_error_the_subscription_is_asked_for_again(code: Any, wait_ms: float) -> None:
    brokers = scripted()
    brokers.answer(PushTelemetryRequest, code)
    async with pushing(brokers):
        await pause(INTERVAL_MS * 5)
    refused = brokers.times(PushTelemetryRequest)[0]
    again = brokers.times(GetTelemetrySubscriptionsRequest)[1]
    assert wait_ms <= again - refused < wait_ms + 100
    assert len(brokers.all(PushTelemetryRequest)) > 2, "the next pushes are taken"
    types = [one.compression_type for one in brokers.all(PushTelemetryRequest)]
    assert types[0] == 4
    assert set(types[1:]) == {3 if code == codes.UNSUPPORTED_COMPRESSION_TYPE else 4}


@pytest.mark.parametrize("code", [codes.INVALID_RECORD, codes.INVALID_REQUEST, codes.CLUSTER_AUTHORIZATION_FAILED])
@pytest.mark.parametrize("kind", [PushTelemetryRequest, GetTelemetrySubscriptionsRequest])
@in_virtual_time
async def test_other_errors_end_it_and_say_so(kind: type[Any], code: int, caplog: pytest.LogCaptureFixture) -> None:
    brokers = scripted()
    brokers.answer(kind, code)
    async with pushing(brokers):
        await pause(INTERVAL_MS * 20)
    assert len(brokers.all(kind)) == 1
    assert f"refuses this client's metrics, so none are pushed any more: {codes.error_name(code)}" in caplog.text


@in_virtual_time
async def test_without_an_answer_the_question_is_repeated_after_five_minutes() -> None:
    brokers = scripted(DROP)
    async with pushing(brokers):
        await pause(DEFAULT_INTERVAL_MS * 2.5)
    first, second, third = brokers.times(GetTelemetrySubscriptionsRequest)
    assert second - first >= DEFAULT_INTERVAL_MS
    assert third - second >= DEFAULT_INTERVAL_MS


@in_virtual_time
async def test_too_many_metrics_are_pushed_without_those_of_partitions() -> None:
    brokers = scripted(attrs.evolve(EVERYTHING, accepted_compression_types=(), telemetry_max_bytes=1_000))
    async with pushing(brokers, lags=100):
        await pause(INTERVAL_MS * 2)
    request, found = brokers.all(PushTelemetryRequest)[0], pushes(brokers)[0]
    assert request.compression_type == 0
    assert len(request.metrics) <= 1_000
    assert set(found.metrics) == {"org.x.total", "org.y.avg"}


@in_virtual_time
async def test_a_push_in_flight_is_waited_for_before_the_last_one() -> None:
    """Otherwise sums that the broker has already taken would be pushed a second time."""
    brokers = scripted()
    answered = asyncio.Event()

    async def late(_: PushTelemetryRequest) -> PushTelemetryResponse:
        await answered.wait()
        return TAKEN

    brokers.answer(PushTelemetryRequest, late)
    async with pushing(brokers) as (_, pusher):
        while not brokers.all(PushTelemetryRequest):
            await pause(100)
        pusher.close()
        await pause(100)
        assert len(brokers.all(PushTelemetryRequest)) == 1
        answered.set()
    assert [one.value("org.x.total") for one in pushes(brokers)] == [5.0, 5.0]
    assert [one.terminating for one in brokers.all(PushTelemetryRequest)] == [False, True]


@in_virtual_time
async def test_the_last_push_opens_no_connection() -> None:
    brokers = scripted()
    async with pushing(brokers):
        await pause(INTERVAL_MS * 0.4)
        brokers.down.add(0)
        brokers.disconnect()
        await pause(10)
        opened = len(brokers.opened)
    assert len(brokers.opened) == opened
    assert not brokers.all(PushTelemetryRequest)


@in_virtual_time
async def test_a_consumer_that_was_dropped_ends_the_pushes() -> None:
    brokers = scripted()
    async with pushing(brokers) as (one, _):
        await pause(INTERVAL_MS * 2)
        one.alive = False
        before = len(brokers.seen)
        await pause(INTERVAL_MS * 5)
        assert len(brokers.seen) == before


@in_virtual_time
async def test_a_broker_that_hangs_is_asked_again_after_the_request_timeout() -> None:
    brokers = scripted()
    brokers.answer(GetTelemetrySubscriptionsRequest, SILENCE)
    async with pushing(brokers):
        began = now_ms()
        while len(brokers.all(GetTelemetrySubscriptionsRequest)) < 2:
            await pause(1_000)
        assert now_ms() - began >= DEFAULT_INTERVAL_MS
