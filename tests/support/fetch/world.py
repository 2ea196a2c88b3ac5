"""A cluster, a network and a fetcher in virtual time, and a reader that decodes the fetched records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

import attrs
import pytest

from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.kafka_apis import ClientConnection
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.record_batch import Record, read_records
from consumer_coord.broker.topics import Partition
from consumer_coord.errors import AuthenticationError
from consumer_coord.fetch import FetchedRecords, Fetcher, FetchStart, Stopped
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.simulation import loop as virtual
from consumer_coord.simulation.network import Server as VirtualServer
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.virtual_kafka import VirtualKafka
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.codec import (
    Request,
    decode_request,
    decode_request_header,
    decode_response,
    encode_response,
)
from consumer_coord.wire.messages.log import FetchRequest, FetchResponse
from tests.support.broker.record_batches import read_headers

FETCH = 1
#: Virtual time in which every event that a test waits for has happened, in milliseconds.
PATIENCE_MS = 120_000

Edit = Callable[[FetchResponse], FetchResponse]


@attrs.define(eq=False)
class Server:
    """A broker whose Fetch responses a test can edit, and whose requests a test can see."""

    apis: VirtualServer
    edit: Edit | None = None
    requests: list[Request] = attrs.field(factory=list)
    #: The highest number of concurrent Fetch requests.
    most_at_once: int = 0
    _at_once: int = 0

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self.apis.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Handle a frame, and return the response."""
        header = decode_request_header(frame)
        if header.api_key != FETCH:
            return await self.apis.handle(frame, client)
        self.requests.append(decode_request(frame))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = await self.apis.handle(frame, client)
        finally:
            self._at_once -= 1
        if self.edit is None or answer is None:
            return answer
        correlation_id, response = decode_response(FetchResponse, header.version, answer)
        return encode_response(self.edit(response), header.version, correlation_id)


class World:
    """Brokers 0 to n - 1, each a replica of every partition, and a client."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        topics: Mapping[str, int] | None = None,
        racks: Sequence[str | None] = (),
        config: Mapping[str, object] | None = None,
        seed: int = 1,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual.VirtualTimeLoop)
        self.loop = loop
        settings = {"offsets.topic.num.partitions": 1, "auto.create.topics.enable": False, **(config or {})}
        self.servers: list[Server] = []
        self.kafka = VirtualKafka(
            loop,
            seed,
            config=BrokerConfig.from_mapping(settings),
            topics={},
            brokers=brokers,
            racks=racks,
            new_log=lambda topic, number, settings: PartitionLog(settings),
            serve=self._serve,
        )
        self.network = self.kafka.network
        self.cluster: BrokerCluster = self.kafka.cluster.kafka
        for name, count in (topics or {"t": 2}).items():
            # Partition 0 has leader 0, whatever topics of its own the cluster has.
            replicas = {index: [(index + step) % brokers for step in range(brokers)] for index in range(count)}
            self.cluster.create_topic(name, count, assignments=replicas)
        self.cluster.start_all()
        self.process = Process.on(loop, "client")
        self._seed = seed
        self._written = 0
        self.clients: list[ClusterClient] = []

    def _serve(self, apis: VirtualServer) -> Server:
        self.servers.append(Server(apis))
        return self.servers[-1]

    def client(self, **settings: Any) -> ClusterClient:
        """Return a client of the cluster; call this in the client's process."""
        self.clients.append(self.kafka.client(self.process, Random(self._seed + 2), **settings))
        return self.clients[-1]

    def partition(self, partition: TopicPartition) -> Partition:
        """Return a partition of the cluster."""
        found = self.cluster.topics.partition(partition.topic, partition.partition)
        assert found is not None
        return found

    def write(
        self, partition: TopicPartition, count: int = 1, *, value: bytes = b"", producer_id: int = -1
    ) -> list[tuple[int, bytes]]:
        """Append one batch of distinct records, in a transaction if there is a producer id; return (offset, value) of each."""
        found = self.partition(partition)
        base = found.log.end_offset
        values = [b"%d-" % (self._written + number) + value for number in range(count)]
        self._written += count
        found.log.append_records([(None, one) for one in values], 1_000, found.leader_epoch, producer_id, 0)
        return list(enumerate(values, base))

    def end_transaction(self, partition: TopicPartition, producer_id: int, *, committed: bool) -> None:
        """Append the control record that ends a transaction."""
        found = self.partition(partition)
        found.log.append_marker(1_000, found.leader_epoch, producer_id, 0, committed)

    def fetches(self) -> list[Request]:
        """Return every received Fetch request, broker after broker."""
        return [request for server in self.servers for request in server.requests]


def play(test: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    """Run a test in the client's process of a world; leftover tasks and timers fail the test."""

    async def main() -> None:
        world = World(**settings)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        async def client() -> None:
            try:
                await test(world)
            finally:
                for one in world.clients:
                    await one.close()

        def ended(task: asyncio.Task[None]) -> None:
            error = task.exception()
            if error is None:
                over.set_result(None)
            else:
                over.set_exception(error)

        world.process.create_task(client(), name="test").add_done_callback(ended)
        try:
            await over
        finally:
            world.cluster.close()
            await asyncio.sleep(60)

    virtual.run(main(), max_time_s=100_000)


@attrs.define
class RefusedFetches:
    """A client whose password is wrong for Fetch, or not yet ``right``."""

    right: bool = False
    refused: int = 0

    @classmethod
    def by(cls, client: ClusterClient, patch: pytest.MonkeyPatch) -> RefusedFetches:
        refusal, ask = cls(), client.request

        async def request(broker: Broker, message: Any, **settings: Any) -> Any:
            if not refusal.right and getattr(message, "request_class", None) is FetchRequest:
                refusal.refused += 1
                raise AuthenticationError("wrong password")
            return await ask(broker, message, **settings)

        patch.setattr(client, "request", request)
        return refusal


@attrs.define
class Reader:
    """The caller of a fetcher: takes, decodes and advances, and checks that no record is missing."""

    fetcher: Fetcher
    read_committed: bool = False
    row_of: Callable[[Record], Any] = lambda record: (record.offset, record.value or b"")
    records: dict[TopicPartition, list[Any]] = attrs.field(factory=dict)
    #: The number of responses that were taken.
    taken: int = 0
    stopped: list[Stopped] = attrs.field(factory=list)
    positions: dict[TopicPartition, tuple[int, int]] = attrs.field(factory=dict)
    epochs: dict[TopicPartition, int] = attrs.field(factory=dict)

    def assign(self, starts: Mapping[TopicPartition, FetchStart]) -> None:
        """Read these partitions from these starts."""
        for partition, start in starts.items():
            self.positions[partition] = (start.serial, start.offset)
            self.epochs[partition] = start.leader_epoch
        self.fetcher.assign(starts)

    def take(self, max_bytes: int = 1 << 30) -> int:
        """Take all available items, and return their number."""
        found = self.fetcher.take(max_bytes)
        self.taken += len(found)
        for one in found:
            if isinstance(one, Stopped):
                assert one.serial == self.positions[one.partition][0]
                self.stopped.append(one)
            else:
                self._decode(one)
        return len(found)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Take items until a condition holds."""
        deadline = Deadline.after(PATIENCE_MS)
        while not condition():
            assert await self.fetcher.wait(deadline), f"in vain: {self.positions}, {self.stopped}"
            self.take()

    async def read_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take items until every partition is read up to its end."""
        await self.until(lambda: all(self.positions[partition][1] >= end for partition, end in ends.items()))

    def _decode(self, fetched: FetchedRecords) -> None:
        serial, offset = self.positions[fetched.partition]
        assert (fetched.serial, fetched.offset) == (serial, offset)
        found = self.records.setdefault(fetched.partition, [])
        for record in records_of(fetched, read_committed=self.read_committed):
            if record.offset >= offset:
                found.append(self.row_of(record))
        self.positions[fetched.partition] = (serial, fetched.next_offset)
        self.epochs[fetched.partition] = fetched.leader_epoch
        self.fetcher.advance(fetched.partition, serial, fetched.next_offset)


def records_of(fetched: FetchedRecords, *, read_committed: bool) -> list[Record]:
    """Return the records of a response, without control records and, if requested, without those of aborted transactions."""
    data = bytes(fetched.records)
    pending = list(fetched.aborted)
    assert pending == sorted(pending, key=lambda one: one[1])
    aborting: set[int] = set()
    found: list[Record] = []
    for header in read_headers(data):
        while pending and pending[0][1] <= header.base_offset + header.last_offset_delta:
            aborting.add(pending.pop(0)[0])
        if header.control:
            (marker,) = read_records(data, header)
            if not marker.committed:
                aborting.discard(header.producer_id)
        elif not (read_committed and header.transactional and header.producer_id in aborting):
            found += read_records(data, header)
    return found
