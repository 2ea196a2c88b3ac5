"""The first record that a group has not read: what counts as a record, and how many requests it takes."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.record_batch import HEADER_SIZE, LOG_OVERHEAD, build_batch, read_header
from consumer_coord.errors import AuthorizationError, CoordinatorError, MalformedMessageError, RetriableError
from consumer_coord.lag.first_unread import FirstUnread, Unread, first_unread
from consumer_coord.net.answers import Results
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.crc32c import crc32c
from consumer_coord.wire.messages.log import FetchRequest, FetchResponse
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import WALL_CLOCK_MS, FakeBrokers, RealCoordinator
from tests.support.group.ill_leaders import at_node
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time

T0 = TopicPartition("t", 0)
RECORD = ((None, b"v"),)
NOTHING = FirstUnread()


def log_of(brokers: RealCoordinator, number: int = 0) -> PartitionLog:
    partition = brokers.cluster.topics.partition("t", number)
    assert partition is not None
    return partition.log


async def look_up(
    brokers: FakeBrokers, positions: Mapping[TopicPartition, Unread], *, read_committed: bool = True
) -> Results[FirstUnread]:
    cluster = new_cluster(brokers)
    try:
        return await first_unread(cluster, positions, Deadline.after(5_000), read_committed=read_committed)
    finally:
        await cluster.close()


async def one(brokers: RealCoordinator, position: int, *, read_committed: bool = True) -> FirstUnread:
    """Return the first unread record of t-0, whose end is the last stable offset or the high watermark."""
    log = log_of(brokers)
    end = log.last_stable_offset if read_committed else log.end_offset
    return (await look_up(brokers, {T0: Unread(position, end)}, read_committed=read_committed)).complete()[T0]


@in_virtual_time
async def test_a_record_inside_a_batch_has_its_own_offset_and_time() -> None:
    brokers = RealCoordinator({"t": 1})
    log = log_of(brokers)
    log.append_records(RECORD * 3, 1_000, 0)
    log.append_records(RECORD * 3, 2_000, 0)
    assert await one(brokers, 2) == FirstUnread(2, 1_000)
    assert await one(brokers, 4) == FirstUnread(4, 2_000)


@in_virtual_time
async def test_markers_are_no_records() -> None:
    brokers = RealCoordinator({"t": 1})
    log = log_of(brokers)
    log.append_records(RECORD, 1_000, 0, 7, 0)
    log.append_marker(1_500, 0, 7, 0, committed=True)
    assert await one(brokers, 0) == FirstUnread(0, 1_000)
    assert await one(brokers, 1) == NOTHING
    log.append_records(RECORD, 2_000, 0)
    assert await one(brokers, 1) == FirstUnread(2, 2_000)


@in_virtual_time
async def test_aborted_records_are_none_for_a_member_with_read_committed() -> None:
    brokers = RealCoordinator({"t": 1})
    log = log_of(brokers)
    for _ in range(50):
        log.append_records(RECORD * 100, 1_000, 0, 7, 0)
    log.append_marker(1_500, 0, 7, 0, committed=False)
    assert await one(brokers, 0) == NOTHING
    assert await one(brokers, 0, read_committed=False) == FirstUnread(0, 1_000)
    log.append_records(RECORD, 3_000, 0)
    assert await one(brokers, 0) == FirstUnread(5_001, 3_000)


@in_virtual_time
async def test_records_of_an_open_transaction_are_after_the_end() -> None:
    brokers = RealCoordinator({"t": 1})
    log = log_of(brokers)
    log.append_records(RECORD, 1_000, 0)
    log.append_records(RECORD, 2_000, 0, 7, 0)
    assert log.last_stable_offset == 1
    assert await one(brokers, 0) == FirstUnread(0, 1_000)
    assert await one(brokers, 1, read_committed=False) == FirstUnread(1, 2_000)


@in_virtual_time
async def test_after_compaction_the_next_record_is_the_first() -> None:
    brokers = RealCoordinator({"t": 1})
    log = log_of(brokers)
    log.append_records(RECORD * 3, 1_000, 0)
    kept = build_batch(RECORD, base_offset=40, timestamp_ms=4_000, leader_epoch=0)
    log.restore(kept, read_header(kept))
    assert await one(brokers, 3) == FirstUnread(40, 4_000)


@in_virtual_time
async def test_where_retention_deleted_records_the_first_of_the_log_is_unread() -> None:
    brokers = RealCoordinator({"t": 1})
    log = log_of(brokers)
    log.append_records(RECORD * 3, 1_000, 0)
    log.append_records(RECORD * 3, 2_000, 0)
    log.delete_before(3)
    assert await one(brokers, 1) == FirstUnread(3, 2_000)
    log.delete_before(6)
    assert await one(brokers, 1) == NOTHING


@in_virtual_time
async def test_a_record_without_a_timestamp_has_no_time() -> None:
    brokers = RealCoordinator({"t": 1})
    log_of(brokers).append_records(RECORD, -1, 0)
    assert await one(brokers, 0) == FirstUnread(0, None)


def compressed(batch: bytes) -> bytes:
    """Return the batch with gzip."""
    payload = gzip.compress(batch[HEADER_SIZE:])
    covered = struct.pack(">h", 1) + batch[23:HEADER_SIZE] + payload
    length = len(covered) + 21 - LOG_OVERHEAD
    return batch[:8] + struct.pack(">i", length) + batch[12:17] + struct.pack(">I", crc32c(covered)) + covered


@in_virtual_time
async def test_compressed_batches_are_read() -> None:
    brokers = RealCoordinator({"t": 1})
    log_of(brokers).append(compressed(build_batch(RECORD * 3, base_offset=0, timestamp_ms=1_000, leader_epoch=0)), 0)
    assert await one(brokers, 2) == FirstUnread(2, 1_000)


@in_virtual_time
async def test_batches_larger_than_the_first_request_are_read_with_few_requests() -> None:
    brokers = RealCoordinator({"t": 12})
    for number in range(12):
        log_of(brokers, number).append_records([(None, bytes(60_000))], 1_000 + number, 0)
    found = await look_up(brokers, {TopicPartition("t", number): Unread(0, 1) for number in range(12)})
    assert not found.failed
    assert {one.partition: first.timestamp_ms for one, first in found.found.items()} == {n: 1_000 + n for n in range(12)}
    assert len(brokers.all(FetchRequest)) == 2, "the first with 16 KiB for each partition, the second with room"


def changed(brokers: FakeBrokers, **row: Any) -> Callable[[FetchRequest], Struct]:
    """Return the usual response to Fetch, with a change in every row."""

    def reply(request: FetchRequest) -> Struct:
        answer: FetchResponse = brokers.usual(request)
        topics = [
            attrs.evolve(one, partitions=tuple(attrs.evolve(each, **row) for each in one.partitions))
            for one in answer.responses
        ]
        return attrs.evolve(answer, responses=tuple(topics))

    return reply


@in_virtual_time
async def test_a_partition_that_is_refused_costs_itself_only() -> None:
    brokers = FakeBrokers({"t": 2}, brokers=2)
    refused = changed(brokers, error_code=codes.TOPIC_AUTHORIZATION_FAILED, records=b"")
    brokers.always(FetchRequest, at_node(brokers, 1, refused))
    found = await look_up(brokers, {TopicPartition("t", number): Unread(5, 100) for number in range(2)})
    assert found.found == {T0: FirstUnread(5, WALL_CLOCK_MS)}
    (error,) = found.failed.values()
    assert isinstance(error, AuthorizationError)
    assert "READ" in str(error)


@pytest.mark.parametrize(("records", "error"), [(b"", RetriableError), (b"\0" * 61, MalformedMessageError)])
@in_virtual_time
async def test_a_leader_without_a_usable_answer_is_named(records: bytes, error: type[CoordinatorError]) -> None:
    brokers = FakeBrokers({"t": 1})
    brokers.always(FetchRequest, changed(brokers, records=records))
    found = await look_up(brokers, {T0: Unread(5, 100)})
    assert not found.found
    with pytest.raises(error, match="t-0"):
        found.complete()


@pytest.mark.parametrize("version", [4, 7, 12, 13, 18])
@in_virtual_time
async def test_every_form_of_the_request_is_understood(version: int) -> None:
    """Topics have names up to version 12, and ids after it; before version 7 there are no sessions."""
    brokers = FakeBrokers({"t": 1})
    brokers.newest[1] = version
    brokers.written_ms[T0] = 1_000
    assert (await look_up(brokers, {T0: Unread(5, 100)})).complete() == {T0: FirstUnread(5, 1_000)}
    assert [seen.version for seen in brokers.seen if isinstance(seen.message, FetchRequest)] == [version]
    (request,) = brokers.all(FetchRequest)
    assert (request.session_id, request.session_epoch) == (0, -1), "no session that the broker would have to keep"
