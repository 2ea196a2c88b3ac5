"""Groups that our coordinator wrote, copied to a real broker as records of its ``__consumer_offsets``."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Protocol

import attrs

from consumer_coord.broker.java_hash import partition_for
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.group import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from consumer_coord.wire.messages.log import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from consumer_coord.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from consumer_coord.wire.schema import Struct
from tests.support.broker.bench import Bench, Members, subscription
from tests.support.broker.differential import RealBroker

_LONG_MS = 600_000
#: Errors of a partition that was created a moment ago.
_NOT_YET = (error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.NOT_LEADER_OR_FOLLOWER)


@attrs.frozen
class Written:
    """A stable group, its offset of orders-1, and the batches that contain both."""

    group_id: str
    partition: int
    members: Members
    offset: int
    batches: tuple[bytes, ...]

    async def check(self, broker: RealBroker) -> None:
        """Check that the real coordinator knows the group as ours left it, and continues with it."""
        generation_id = self.members.generation_id
        for index, member_id in enumerate(self.members.ids):
            sync = SyncGroupRequest(
                group_id=self.group_id,
                generation_id=generation_id,
                member_id=member_id,
                protocol_type="consumer",
                protocol_name="range",
            )
            synced = await _answered_without_error(broker, sync, 5)
            assert isinstance(synced, SyncGroupResponse)
            assert synced.assignment == b"%d" % index
            heartbeat = HeartbeatRequest(group_id=self.group_id, generation_id=generation_id, member_id=member_id)
            assert await broker.call("probe", heartbeat, 4) == HeartbeatResponse(error_code=0)
        wanted = OffsetFetchRequestTopics(name="orders", partition_indexes=(1,))
        request = OffsetFetchRequest(
            groups=(OffsetFetchRequestGroup(group_id=self.group_id, topics=(wanted,)),), require_stable=True
        )
        fetched = await broker.call("probe", request, 8)
        assert isinstance(fetched, OffsetFetchResponse)
        offset = fetched.groups[0].topics[0].partitions[0]
        assert (offset.committed_offset, offset.metadata) == (self.offset, "written by us")
        rejoin = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=_LONG_MS,
            rebalance_timeout_ms=_LONG_MS,
            member_id=self.members.leader,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=subscription("orders")),),
        )
        if len(self.members.ids) == 1:
            joined = await broker.call("join", rejoin, 9)
            assert isinstance(joined, JoinGroupResponse)
            assert (joined.error_code, joined.generation_id) == (0, generation_id + 1), "generations continue from ours"


async def _answered_without_error(broker: RealBroker, request: Struct, version: int) -> Struct:
    """Repeat a request until it succeeds: a broker that has just started must load its groups first."""
    answer: Struct | None = None
    for _ in range(300):
        answer = await broker.call("probe", request, version)
        if getattr(answer, "error_code", None) == 0:
            return answer
        await asyncio.sleep(0.1)
    raise AssertionError(f"{request} is answered {answer}")


def groups_written_by_us(partitions: int) -> list[Written]:
    """Return a few groups of different sizes, each made by our coordinator on a separate log."""
    return [virtual.run(_write(f"ours-{count}", count, 100 + count, partitions)) for count in (1, 2, 5)]


async def _write(group_id: str, count: int, offset: int, partitions: int) -> Written:
    bench = Bench({"group.max.session.timeout.ms": _LONG_MS})
    bench.elect()
    # Kafka 4.4.0 cannot load a partition with an invalid subscription, so this one is valid.
    members = await bench.form(
        count,
        group_id=group_id,
        protocols={"range": subscription("orders")},
        session_ms=_LONG_MS,
        rebalance_ms=_LONG_MS,
    )
    assert (
        await bench.commit(
            offset,
            partition=1,
            group_id=group_id,
            member_id=members.leader,
            generation_id=members.generation_id,
            metadata="written by us",
        )
        == 0
    )
    log = bench.logs[0]
    batches = []
    position = 0
    while position < log.end_offset:
        batches.append(log.read(position, 1, at_least_one=True))
        position += struct.unpack_from(">i", batches[-1], 23)[0] + 1
    bench.close()
    return Written(group_id, partition_for(group_id, partitions), members, offset, tuple(batches))


class Stored(Protocol):
    """A group's records, for the partition of ``__consumer_offsets`` that stores the group."""

    @property
    def group_id(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def batches(self) -> tuple[bytes, ...]: ...


async def write_internal(broker: RealBroker, groups: Sequence[Stored], client_id: str) -> None:
    """Produce the batches to the partitions of the groups, in the order of the log."""
    # The first look-up makes the broker create the topic.
    for group in groups:
        await _coordinated(broker, group.group_id)
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    for group in groups:
        for number, batch in enumerate(group.batches):
            unplaced = bytes(8) + batch[8:]  # a producer's batches start at offset 0
            data = PartitionProduceData(index=group.partition, records=unplaced)
            topic = TopicProduceData(name="__consumer_offsets", partition_data=(data,))
            request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))
            frame = encode_request(request, 9, number, client_id)
            for _ in range(100):
                writer.write(struct.pack(">i", len(frame)) + frame)
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                _, response = decode_response(ProduceResponse, 9, await reader.readexactly(length))
                error_code = response.responses[0].partition_responses[0].error_code
                if error_code not in _NOT_YET:
                    break
                await asyncio.sleep(0.1)
            assert error_code == 0, response
    writer.close()
    await writer.wait_closed()


async def _coordinated(broker: RealBroker, group_id: str) -> None:
    for _ in range(300):
        found = await broker.call("lookup", FindCoordinatorRequest(key_type=0, coordinator_keys=(group_id,)), 4)
        assert isinstance(found, FindCoordinatorResponse)
        if found.coordinators[0].error_code == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the broker has no coordinator")
