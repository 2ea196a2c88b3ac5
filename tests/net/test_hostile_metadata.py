"""Metadata whose counts do not match its bytes: false counts must not cost memory or time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from consumer_coord.environment import RunBlocking
from consumer_coord.errors import MalformedMessageError
from consumer_coord.net.metadata import MOST_MISSING_PARTITIONS, Metadata, read_metadata
from consumer_coord.retry import Deadline
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import Request, encode_response
from consumer_coord.wire.messages.cluster import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from consumer_coord.wire.messages.group import HeartbeatRequest
from tests.support.group.fake import Drop, FakeBrokers
from tests.support.group.member import member, new_cluster, new_member, parts
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async

T = TypeVar("T")

INT32_MAX = 2**31 - 1


def answer(*topics: tuple[str, list[int]]) -> MetadataResponse:
    """Return topics with rows of these partition numbers."""
    return MetadataResponse(
        brokers=(MetadataResponseBroker(node_id=0, host="broker-0", port=9092),),
        topics=tuple(
            MetadataResponseTopic(
                name=name,
                partitions=tuple(
                    MetadataResponsePartition(partition_index=number, leader_id=0, leader_epoch=3) for number in numbers
                ),
            )
            for name, numbers in topics
        ),
    )


def read(response: MetadataResponse, asked: frozenset[str] | None) -> Metadata:
    """Return the metadata that a client derives from its first response."""
    return read_metadata(12, encode_response(response, 12, 1), Metadata(), asked, 0.0)[1]


@pytest.mark.parametrize("numbers", [[INT32_MAX], [0, INT32_MAX], [200_000_000], [-1], [0, -(2**31)]])
def test_a_partition_number_alone_makes_no_memory(numbers: list[int]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match="partition"):
            read(answer(("t", numbers)), None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_gaps_of_many_topics_are_counted_together() -> None:
    topics = [(f"t{number}", [MOST_MISSING_PARTITIONS // 10]) for number in range(11)]
    read(answer(*topics[:9]), None)
    with pytest.raises(MalformedMessageError):
        read(answer(*topics), None)


def test_a_partition_without_a_row_has_no_leader() -> None:
    """Brokers with ZooKeeper leave out partitions that never had a leader."""
    found = read(answer(("t", [0, 3])), None).topics["t"]
    assert found.leaders == (0, -1, -1, 0)
    assert found.leader_epochs == (3, -1, -1, 3)


def test_rows_in_any_order_and_twice_are_the_same_topic() -> None:
    numbers = [*range(9), 4, 4]
    random.Random(1).shuffle(numbers)
    assert read(answer(("t", numbers)), None).topics["t"].partition_count == 9


def test_topics_that_were_not_asked_for_and_endless_names_are_left_out() -> None:
    topics = answer(("t", [0]), ("u", [INT32_MAX]))
    assert set(read(topics, frozenset({"t"})).topics) == {"t"}
    assert set(read(answer(("x" * 249, [0]), ("x" * 250, [0])), None).topics) == {"x" * 249}


@in_virtual_time
async def test_a_member_survives_an_absurd_response_and_uses_the_next() -> None:
    brokers = FakeBrokers()
    brokers.answer(MetadataRequest, answer(("t", [INT32_MAX])), answer(("t", [-7])))
    async with member(brokers) as one:
        await one.join()
        await eventually_async(lambda: one.held == parts("t", 0, 1, 2, 3))
        assert one.errors == []


@pytest.mark.parametrize("partitions", [[], [0]])
@in_virtual_time
async def test_an_answer_of_many_rows_is_read_off_the_loop(partitions: list[int]) -> None:
    """Members of other clusters must send heartbeats at the same time; topics without partitions are rows, too."""
    brokers = FakeBrokers()
    topics = [(f"t{number}", partitions) for number in range(10_001)]
    brokers.always(MetadataRequest, answer(*topics))
    taken: list[str] = []

    async def away(function: Callable[[], T], /) -> T:
        taken.append(getattr(function, "__qualname__", ""))
        return function()

    cluster = new_cluster(brokers, run_blocking=away)
    cluster.watch(None, lambda _: None)
    try:
        metadata = await cluster.refresh(Deadline.after(10_000))
    finally:
        await cluster.close()
    assert len(metadata.topics) == 10_001
    assert any(name.startswith("Connection.") for name in taken), "the bytes are decoded off the loop"


class LongAnswers(FakeBrokers):
    """A broker that answers Metadata with enough topics that reading them takes long; the response is encoded in advance."""

    def __init__(self, topics: int) -> None:
        super().__init__()
        newest = api_for(MetadataRequest).max_version
        self._encoded = encode_response(answer(*((f"t{number}", [0, 1]) for number in range(topics))), newest, 0)

    async def serve(self, node: int, request: Request, frame: bytes) -> bytes | Drop:
        """Return the long response to Metadata, and the usual responses to other requests."""
        if not isinstance(request.message, MetadataRequest):
            return await super().serve(node, request, frame)
        return request.correlation_id.to_bytes(4, "big") + self._encoded[4:]


@contextlib.contextmanager
def calls_per_turn() -> Iterator[tuple[list[int], RunBlocking]]:
    """Return how many functions each turn of the loop calls, and a ``run_blocking`` whose work is not part of its turn.

    The calls are counted, not timed: the number is the same on a busy machine.
    """
    turns: list[int] = []
    calls, away = 0, False

    def count(_: object, event: str, function: object) -> None:
        nonlocal calls
        if event == "c_call" and isinstance(getattr(function, "__self__", None), contextvars.Context):
            # The loop runs the next ready callback.
            turns.append(calls)
            calls = 0
        elif not away:
            calls += 1

    async def in_a_thread(function: Callable[[], T], /) -> T:
        nonlocal away
        await asyncio.sleep(2)
        away = True
        try:
            return function()
        finally:
            away = False

    sys.setprofile(count)
    try:
        yield turns, in_a_thread
    finally:
        sys.setprofile(None)


@pytest.mark.thorough
@in_virtual_time
async def test_a_long_answer_of_one_cluster_does_not_delay_heartbeats_to_another() -> None:
    healthy, hostile = FakeBrokers(), LongAnswers(8_000)
    async with member(healthy) as one:
        await one.join()
        with calls_per_turn() as (turns, in_a_thread):
            cluster = new_cluster(hostile, run_blocking=in_a_thread, metadata_max_age_ms=5_000)
            other = new_member(hostile, cluster=cluster)
            other.coordinator.subscribe_pattern(re.compile("t[0-6]"))
            other.start(every_ms=100)
            await eventually_async(lambda: other.stable)
            assert len(other.held) == 14
            await pause(20_000)
            await other.close(1_000)
        assert max(turns) < 4_000, "less than half a call for each topic in any turn of the loop"
        beats = healthy.times(HeartbeatRequest)
        assert len(beats) > 5
        assert max(after - before for before, after in itertools.pairwise(beats)) <= 3_100
