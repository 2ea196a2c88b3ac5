"""A producer in virtual time, in place of ``confluent_kafka.Producer``: idempotent, over the simulated network.

``produce`` puts a record into a queue. A task of the producer's process takes batches from the queue, one at a time, and sends
them to the leaders with increasing sequence numbers, again with the same number after a lost response, so that the broker
recognizes a batch that it has. ``poll`` calls ``on_delivery`` with the outcomes that are known, as confluent-kafka does. Time
cannot pass in a call of this class, so neither ``poll`` nor ``flush`` waits.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from consumer_coord.confluent.types import KafkaError
from consumer_coord.errors import CoordinatorError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, by_leader
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.crc32c import crc32c
from consumer_coord.wire.messages.log import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from consumer_coord.wire.varint import write_uvarint

#: The settings ``queue.buffering.max.messages`` and ``batch.num.messages``.
_QUEUE: Final = 20
_BATCH: Final = 5
#: The settings ``delivery.timeout.ms`` and ``request.timeout.ms``, and the pause before an attempt is repeated.
_DELIVERY_MS: Final = 20_000.0
_REQUEST_MS: Final = 5_000.0
_RETRY_S: Final = 0.2
_ALL_REPLICAS: Final = -1

Header = tuple[str, "str | bytes | None"]


@attrs.frozen(eq=False)
class Produced:
    """A record that was handed over, with the function to call with its outcome."""

    partition: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    timestamp: int
    on_delivery: Callable[[Any, Any], object] | None


class SimulatedProducer:
    """The producer of one process. ``cluster`` is a client of that process; call :meth:`close` before the client is closed."""

    def __init__(self, cluster: ClusterClient, topic: str) -> None:
        """Begin to produce to ``topic``, on the running loop."""
        self._cluster = cluster
        self._queue: deque[Produced] = deque()
        self._outcomes: deque[tuple[Produced, KafkaError | None]] = deque()
        self._in_flight = 0
        self._arrived = asyncio.Event()
        self._watch = cluster.watch(frozenset({topic}), lambda _: None)
        #: (producer id, epoch), and the next sequence number of each partition.
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._task = asyncio.get_running_loop().create_task(self._run(), name="sends letters")

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = 0,
        on_delivery: Callable[[Any, Any], object] | None = None,
        timestamp: int = 0,
        headers: Sequence[Header] = (),
    ) -> None:
        """Queue a record; raise BufferError if the queue is full, as confluent-kafka does."""
        if len(self._queue) + self._in_flight >= _QUEUE:
            raise BufferError("Local: Queue full")
        self._queue.append(Produced(TopicPartition(topic, partition), value, key, tuple(headers), timestamp, on_delivery))
        self._arrived.set()

    def poll(self, timeout: float = 0.0) -> int:
        """Call ``on_delivery`` for each known outcome, without a wait; return their number."""
        count = 0
        while self._outcomes:
            record, error = self._outcomes.popleft()
            count += 1
            if record.on_delivery is not None:
                record.on_delivery(error, None)
        return count

    def flush(self, timeout: float = 0.0) -> int:
        """Call ``on_delivery`` for each known outcome, without a wait; return the number of records without an outcome."""
        self.poll()
        return len(self)

    def __len__(self) -> int:
        """Return the number of records whose outcome was not reported yet."""
        return len(self._queue) + self._in_flight + len(self._outcomes)

    async def close(self) -> None:
        """Drop what is not sent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._cluster.unwatch(self._watch)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                await self._send_batch()

    async def _send_batch(self) -> None:
        """Send the next records of one partition, and report the outcome."""
        partition = self._queue[0].partition
        batch: list[Produced] = []
        while self._queue and len(batch) < _BATCH and self._queue[0].partition == partition:
            batch.append(self._queue.popleft())
        self._in_flight = len(batch)
        error = await self._delivered(partition, batch, Deadline.after(_DELIVERY_MS))
        self._in_flight = 0
        self._outcomes.extend((record, error) for record in batch)

    async def _delivered(self, partition: TopicPartition, batch: Sequence[Produced], deadline: Deadline) -> KafkaError | None:
        """Send a batch until a leader has it, or the time is over; return None, or why it may be missing."""
        while deadline.remaining_ms > 0:
            try:
                identity = await self._identified(deadline)
                leaders, _ = by_leader(self._cluster.metadata, [partition])
                if not leaders:
                    await self._cluster.refresh(deadline)
                    leaders, _ = by_leader(self._cluster.metadata, [partition])
                for leader in leaders:
                    code = await self._ask(leader, partition, batch, identity)
                    if code in (error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER):
                        self._sequences[partition] = self._sequences.get(partition, 0) + len(batch)
                        return None
                    if not error_codes.is_retriable(code):
                        self._identity = None
                        return KafkaError(code)
                    self._cluster.refresh_soon()
            except CoordinatorError:
                self._cluster.refresh_soon()
            await asyncio.sleep(_RETRY_S)
        # The broker may have the batch or not, so the next batch needs an identity of its own.
        self._identity = None
        return KafkaError(KafkaError._MSG_TIMED_OUT)

    async def _identified(self, deadline: Deadline) -> tuple[int, int]:
        if self._identity is None:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=60_000, enable2_pc=False, keep_prepared_txn=False
            )
            answer: InitProducerIdResponse = await self._cluster.request_any(request, deadline, attempt_ms=_REQUEST_MS)
            if answer.error_code:
                raise CoordinatorError(f"InitProducerId was answered with {answer.error_code}", code=answer.error_code)
            self._identity = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return self._identity

    async def _ask(
        self, leader: Broker, partition: TopicPartition, batch: Sequence[Produced], identity: tuple[int, int]
    ) -> int:
        """Send a Produce request; return the partition's error code."""
        records = batch_of(batch, identity, self._sequences.get(partition, 0))
        data = TopicProduceData(
            name=partition.topic, partition_data=(PartitionProduceData(index=partition.partition, records=records),)
        )
        request = ProduceRequest(acks=_ALL_REPLICAS, timeout_ms=int(_REQUEST_MS), topic_data=(data,))
        answer: ProduceResponse = await self._cluster.request(leader, request, timeout_ms=_REQUEST_MS)
        rows = [row for topic in answer.responses for row in topic.partition_responses if row.index == partition.partition]
        return rows[0].error_code if rows else error_codes.UNKNOWN_SERVER_ERROR


def batch_of(records: Sequence[Produced], identity: tuple[int, int], sequence: int) -> bytes:
    """Return a record batch of an idempotent producer, in format 2."""
    body = bytearray()
    first_ms = records[0].timestamp
    for delta, record in enumerate(records):
        one = bytearray(b"\0") + _varint(record.timestamp - first_ms) + _varint(delta)
        for part in (record.key, record.value):
            one += _bytes(part)
        one += _varint(len(record.headers))
        for name, value in record.headers:
            one += _bytes(name.encode()) + _bytes(value.encode() if isinstance(value, str) else value)
        body += _varint(len(one)) + one
    count, newest_ms = len(records), max(record.timestamp for record in records)
    covered = struct.pack(">hiqqqhii", 0, count - 1, first_ms, newest_ms, *identity, sequence, count) + body
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc32c(covered)) + covered


def _varint(value: int) -> bytes:
    return write_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def _bytes(part: bytes | None) -> bytes:
    return _varint(-1) if part is None else _varint(len(part)) + part
