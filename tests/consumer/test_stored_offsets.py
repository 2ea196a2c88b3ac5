"""An offset that store_offsets accepts is committed before its partition is given up, or the call raises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from assignors import CooperativeStickyAssignor, RangeAssignor
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaError, KafkaException, TopicPartition
from consumer_coord.wire import error_codes as codes
from tests.consumer.test_async_consumer import MODERN
from tests.consumer.test_async_consumer import consumer as async_consumer
from tests.support.consumer.embedded import (
    BROKER,
    DEADLINE_S,
    KeepingConsumer,
    consumer,
    held,
    poll_each,
    produce,
    row,
    take,
)
from tests.support.waiting import eventually, eventually_async
from tests.support.white_box import coordinator_of

COUNT = 10

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"strategy": "range"},
    "cooperative": {"strategy": "cooperative-sticky"},
    "KIP-848": {"group_protocol": "consumer"},
}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        produce(running, "orders", {number: range(COUNT) for number in (0, 1)})
        yield running


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PROTOCOLS[request.param]


def storing(kafka: EmbeddedKafka, **settings: Any) -> KeepingConsumer:
    """A consumer whose automatic commits come only at a revocation, with the stored offsets."""
    return consumer(kafka, enable_auto_offset_store=False, auto_commit_interval_ms=3_600_000, **settings)


def committed(kafka: EmbeddedKafka) -> list[int]:
    with consumer(kafka) as other:
        return [each.offset for each in other.committed([row(0), row(1)], DEADLINE_S)]


def store_all(who: Any, rows: Any) -> None:
    who.store_offsets(offsets=[TopicPartition(each.topic, each.partition, COUNT) for each in rows])


def _close(one: KeepingConsumer, _: EmbeddedKafka, __: Mapping[str, Any]) -> None:
    one.close()


def _unsubscribe(one: KeepingConsumer, _: EmbeddedKafka, __: Mapping[str, Any]) -> None:
    one.unsubscribe()
    eventually(lambda: not held(one), step=one.poll_and_keep)
    one.close()


def _share(one: KeepingConsumer, kafka: EmbeddedKafka, protocol: Mapping[str, Any]) -> None:
    """Another member takes a partition; then the first member closes."""
    with consumer(kafka, enable_auto_commit=False, **protocol) as two:
        two.subscribe(["orders"])
        eventually(lambda: len(held(two)) == 1 and len(held(one)) == 1, step=poll_each(one, two))
        one.kept.clear()
        two.kept.clear()
    one.close()


@pytest.mark.parametrize("ending", [_close, _unsubscribe, _share])
def test_on_revoke_stores_the_last_offsets(kafka: EmbeddedKafka, protocol: dict[str, Any], ending: Callable[..., None]) -> None:
    one = storing(kafka, **protocol)
    one.subscribe(["orders"], on_revoke=store_all)
    take(one, 2 * COUNT)
    ending(one, kafka, protocol)
    assert committed(kafka) == [COUNT, COUNT]


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
def test_a_worker_stores_during_the_last_commit(kafka: EmbeddedKafka, protocol: dict[str, Any], ending: str) -> None:
    """The commit before the revocation is in flight when the worker finishes its records."""
    one = storing(kafka, **protocol)
    one.subscribe(["orders"])
    take(one, 2 * COUNT)
    one.store_offsets(offsets=[row(0, 1), row(1, 1)])
    stored = threading.Event()

    def commit_arrived() -> bool:
        if not stored.is_set():
            store_all(one, [row(0), row(1)])
            stored.set()
        return True

    kafka.add_fault("OffsetCommit", Fault(wait_until=commit_arrived), times=1)
    getattr(one, ending)()
    one.close()
    assert stored.is_set()
    assert committed(kafka) == [COUNT, COUNT]


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
@pytest.mark.parametrize("by", ["subscribe", "assign"])
def test_the_last_accepted_offset_is_the_committed_one(kafka: EmbeddedKafka, by: str, ending: str) -> None:
    """A thread stores ever higher offsets until a call raises, at whichever point of the revocation that is."""
    one = storing(kafka, strategy="range")
    if by == "subscribe":
        one.subscribe(["orders"])
    else:
        one.assign([row(0, 0), row(1, 0)])
    take(one, 2 * COUNT)
    accepted, refused, begun = [0], [], threading.Event()

    def work() -> None:
        while True:
            try:
                one.store_offsets(offsets=[row(0, accepted[-1] + 1)])
            except (KafkaException, RuntimeError) as error:
                refused.append(error)
                return
            accepted.append(accepted[-1] + 1)
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(DEADLINE_S)
    if ending == "close":
        one.close()
    elif by == "subscribe":
        one.unsubscribe()
    else:
        one.unassign()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    one.close()
    assert refused[0].args[0].code() == KafkaError._STATE
    # The refused position may have been committed, too.
    assert committed(kafka)[0] in (accepted[-1], accepted[-1] + 1)


def test_a_lost_partition_accepts_no_offset(kafka: EmbeddedKafka) -> None:
    errors: list[KafkaError] = []

    def on_lost(who: Any, rows: Any) -> None:
        with pytest.raises(KafkaException) as raised:
            store_all(who, rows)
        errors.append(raised.value.args[0])

    with storing(kafka) as one:
        one.subscribe(["orders"], on_lost=on_lost)
        take(one, 2 * COUNT)
        kafka.add_fault("Heartbeat", Fault(error_code=codes.UNKNOWN_MEMBER_ID), times=1)
        eventually(lambda: coordinator_of(one).assignment.any_lost)
        eventually(lambda: errors, step=one.poll_and_keep)
        one.kept.clear()
    assert errors[0].code() == KafkaError._STATE


def test_a_failed_commit_is_not_repeated_after_on_revoke(kafka: EmbeddedKafka) -> None:
    one = storing(kafka, strategy="range")
    one.subscribe(["orders"], on_revoke=lambda *_: None)
    take(one, 2 * COUNT)
    one.store_offsets(offsets=[row(0, 1), row(1, 1)])
    kafka.add_fault("OffsetCommit", Fault(error_code=codes.OFFSET_METADATA_TOO_LARGE), times=1)
    one.close()
    assert committed(kafka) == [-1001, -1001]


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
@pytest.mark.parametrize("assignors", [RangeAssignor, CooperativeStickyAssignor, MODERN])
def test_on_revoke_of_asyncio_stores_the_last_offsets(kafka: EmbeddedKafka, assignors: Any, ending: str) -> None:
    async def on_revoke(who: Any, rows: Any) -> None:
        await who.store_offsets(offsets=[TopicPartition(each.topic, each.partition, COUNT) for each in rows])

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            one = async_consumer(kafka, assignors, enable_auto_offset_store=False, auto_commit_interval_ms=3_600_000)
            await one.subscribe(["orders"], on_revoke=on_revoke)
            seen: list[Any] = []

            async def step() -> None:
                seen.extend(await one.consume(COUNT, 0.05))

            await eventually_async(lambda: len(seen) == 2 * COUNT, step=step)
            await getattr(one, ending)()
            await one.close()

    asyncio.run(main())
    assert committed(kafka) == [COUNT, COUNT]
