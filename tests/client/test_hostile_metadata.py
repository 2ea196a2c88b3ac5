"""Metadata whose numbers are no measure of its bytes: what it claims must cost nothing."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest

from consumer_coord.errors import MalformedMessageError
from consumer_coord.net.metadata import MOST_MISSING_PARTITIONS, Metadata, from_response
from consumer_coord.retry import Deadline
from consumer_coord.wire.messages.cluster import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.client.support.fake import FakeBrokers
from tests.client.support.member import member, new_cluster, parts
from tests.client.support.virtual import in_virtual_time, until

T = TypeVar("T")

INT32_MAX = 2**31 - 1


def answer(*topics: tuple[str, list[int]]) -> MetadataResponse:
    """Topics with rows of these partition numbers."""
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


@pytest.mark.parametrize("numbers", [[INT32_MAX], [0, INT32_MAX], [200_000_000], [-1], [0, -(2**31)]])
def test_a_partition_number_alone_makes_no_memory(numbers: list[int]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match="partition"):
            from_response(answer(("t", numbers)), Metadata(), None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_gaps_of_many_topics_are_counted_together() -> None:
    topics = [(f"t{number}", [MOST_MISSING_PARTITIONS // 10]) for number in range(11)]
    from_response(answer(*topics[:9]), Metadata(), None)
    with pytest.raises(MalformedMessageError):
        from_response(answer(*topics), Metadata(), None)


def test_a_partition_without_a_row_has_no_leader() -> None:
    """Brokers of the ZooKeeper age leave out partitions that never had a leader."""
    found = from_response(answer(("t", [0, 3])), Metadata(), None).topics["t"]
    assert found.leaders == (0, -1, -1, 0)
    assert found.leader_epochs == (3, -1, -1, 3)


def test_rows_in_any_order_and_twice_are_the_same_topic() -> None:
    numbers = [*range(9), 4, 4]
    random.Random(1).shuffle(numbers)
    assert from_response(answer(("t", numbers)), Metadata(), None).topics["t"].partition_count == 9


def test_topics_that_were_not_asked_for_and_endless_names_are_left_out() -> None:
    topics = answer(("t", [0]), ("u", [INT32_MAX]))
    assert set(from_response(topics, Metadata(), frozenset({"t"})).topics) == {"t"}
    assert set(from_response(answer(("x" * 249, [0]), ("x" * 250, [0])), Metadata(), None).topics) == {"x" * 249}


@in_virtual_time
async def test_a_member_survives_an_absurd_answer_and_goes_on_with_the_next() -> None:
    brokers = FakeBrokers()
    brokers.answer(MetadataRequest, answer(("t", [INT32_MAX])), answer(("t", [-7])))
    async with member(brokers) as one:
        await one.join()
        await until(lambda: one.held == parts("t", 0, 1, 2, 3))
        assert one.errors == []


@pytest.mark.parametrize("partitions", [[], [0]])
@in_virtual_time
async def test_an_answer_of_many_rows_is_read_off_the_loop(partitions: list[int]) -> None:
    """Members of other clusters have heartbeats to send meanwhile; topics without partitions are rows, too."""
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
    assert any("_read_metadata" in name for name in taken), "the value is made off the loop"
    assert any(name.startswith("Connection.") for name in taken), "the bytes are decoded off the loop"
