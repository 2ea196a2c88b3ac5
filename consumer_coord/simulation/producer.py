"""A producer in virtual time, in place of ``confluent_kafka.Producer``: over the simulated network, with transactions.

``produce`` puts a record into a queue. A task of the producer's process takes batches from the queue, one at a time, and sends
them to the leaders with increasing sequence numbers, again with the same number after a lost response, so that the broker
recognizes a batch that it has. ``poll`` calls ``on_delivery`` with the outcomes that are known, as confluent-kafka does.

Time cannot pass in a call, so neither ``poll`` nor ``flush`` waits. The calls that need a broker's answer
(``init_transactions``, ``send_offsets_to_transaction``, ``commit_transaction``, ``abort_transaction``) are coroutines, as those
of ``confluent_kafka.aio.AIOProducer`` are.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from consumer_coord.confluent.topic_partitions import positions_of
from consumer_coord.confluent.types import KafkaError, KafkaException, Message
from consumer_coord.consumer import group_metadata
from consumer_coord.errors import CoordinatorError
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, by_leader
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.retry import Deadline
from consumer_coord.settings import addresses
from consumer_coord.simulation.transaction_manager import Identity, TransactionManager
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

#: The settings that have an effect, with the defaults of librdkafka; all others are accepted.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "transactional.id": None,
    "transaction.timeout.ms": 60_000,
    "enable.idempotence": False,
    "queue.buffering.max.messages": 100_000,
    "batch.num.messages": 10_000,
    "message.timeout.ms": 300_000,
    "request.timeout.ms": 30_000,
    "retry.backoff.ms": 100,
    "bootstrap.servers": "",
    "client.id": "rdkafka",
    "on_delivery": None,
}
#: Other names of these settings.
_ALIASES: Final[Mapping[str, str]] = {
    "delivery.timeout.ms": "message.timeout.ms",
    "dr_cb": "on_delivery",
}
_ALL_REPLICAS: Final = -1
_NO_IDENTITY: Final = (-1, -1)
_NO_SEQUENCE: Final = -1
#: The producer chooses the partition (``PARTITION_UA``).
_ANY_PARTITION: Final = -1
_TRANSACTIONAL: Final = 0x10
_CREATE_TIME: Final = 1

Header: TypeAlias = tuple[str, "str | bytes | None"]
Headers: TypeAlias = "Sequence[Header] | Mapping[str, str | bytes | None]"
OnDelivery: TypeAlias = Callable[[Any, Any], object]


@attrs.frozen(eq=False)
class Produced:
    """A record that was handed over, with the function to call with its outcome. ``timestamp`` is in milliseconds."""

    partition: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    timestamp: int
    on_delivery: OnDelivery | None


@attrs.frozen(eq=False)
class _Outcome:
    record: Produced
    partition: TopicPartition
    offset: int
    error: KafkaError | None

    def message(self) -> Any:
        record = self.record
        at = self.partition
        return Message(
            at.topic, at.partition, self.offset, record.key, record.value, None, self.error, (_CREATE_TIME, record.timestamp)
        )


class SimulatedProducer:
    """The producer of one process. Call :meth:`close` before the end of the process's program."""

    def __init__(
        self, settings: Mapping[str, Any], cluster: ClusterClient | None = None, *, topics: Collection[str] = ()
    ) -> None:
        """Create a producer on the running loop with confluent-kafka's settings.

        ``cluster``: a client of the process, which its owner closes after the producer; with None, the producer has a client of
        its own. ``topics``: topics that will be produced to, if they are known in advance. Raise
        :class:`~consumer_coord.errors.ConfigurationError` without valid addresses.
        """
        named = {_ALIASES.get(name, name): value for name, value in settings.items()}
        self._settings = chosen = {**_DEFAULTS, **named}
        self._owns_cluster = cluster is None
        if cluster is None:
            servers = addresses("bootstrap.servers", chosen["bootstrap.servers"])
            cluster = cluster_client(ClientConfig(bootstrap_servers=servers, client_id=chosen["client.id"]))
        self._cluster = cluster
        self._queue: deque[Produced] = deque()
        self._outcomes: deque[_Outcome] = deque()
        self._in_flight = 0
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._topics = set(topics)
        self._watch = cluster.watch(frozenset(self._topics), lambda _: None)
        self._request_ms = float(chosen["request.timeout.ms"])
        self._retry_ms = float(chosen["retry.backoff.ms"])
        self._delivery_ms = float(chosen["message.timeout.ms"])
        #: (producer id, epoch) of an idempotent producer, and the next sequence number of each partition.
        self._identity: Identity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._transactions: TransactionManager | None = None
        if chosen["transactional.id"]:
            timeout_ms = int(chosen["transaction.timeout.ms"])
            self._delivery_ms = min(self._delivery_ms, timeout_ms)
            self._transactions = TransactionManager(
                chosen["transactional.id"], timeout_ms, cluster, self._request_ms, self._retry_ms
            )
        #: Selects the partition of records without a key; the next batch has another one.
        self._without_key = 0
        self._task = asyncio.get_running_loop().create_task(self._run(), name="producer")

    # -- records ------------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = _ANY_PARTITION,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Queue a record; raise BufferError if the queue is full, as confluent-kafka does.

        Without a ``timestamp``, the record gets the present time. A transactional producer raises :class:`KafkaException`
        outside of a transaction.
        """
        if self._transactions is not None:
            self._transactions.check("produce")
        if len(self._queue) + self._in_flight >= self._settings["queue.buffering.max.messages"]:
            raise BufferError("Local: Queue full")
        if topic not in self._topics:
            self._topics.add(topic)
            self._cluster.change_watch(self._watch, frozenset(self._topics))
        record = Produced(
            TopicPartition(topic, partition),
            _encoded(value),
            _encoded(key),
            tuple(headers.items() if isinstance(headers, Mapping) else headers or ()),
            timestamp or self._cluster.environment.wall_clock_ms(),
            on_delivery or callback or self._settings["on_delivery"],
        )
        self._queue.append(record)
        self._idle.clear()
        self._arrived.set()

    def poll(self, timeout: float = 0.0) -> int:
        """Call ``on_delivery`` for each known outcome, without a wait; return their number."""
        if self._task.done():
            self._task.result()
        count = 0
        while self._outcomes:
            outcome = self._outcomes.popleft()
            count += 1
            if outcome.record.on_delivery is not None:
                outcome.record.on_delivery(outcome.error, outcome.message())
        return count

    def flush(self, timeout: float = 0.0) -> int:
        """Call ``on_delivery`` for each known outcome, without a wait; return the number of records without an outcome."""
        self.poll()
        return len(self)

    def __len__(self) -> int:
        """Return the number of records whose outcome was not reported yet."""
        return len(self._queue) + self._in_flight + len(self._outcomes)

    async def close(self) -> None:
        """Drop what is not sent. An open transaction stays open until it times out, or another producer has its id."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()
        self._cluster.unwatch(self._watch)
        if self._owns_cluster:
            await self._cluster.close()

    # -- transactions -------------------------------------------------------------------------------------------------

    async def init_transactions(self, timeout: float = -1.0) -> None:
        """Get a producer id, and fence every other producer with this transactional id.

        All times are in seconds; with -1, they are ``transaction.timeout.ms``. After a retriable error, call again.
        """
        transactions = self._transactional()
        await transactions.initialize(self._deadline(timeout))

    def begin_transaction(self) -> None:
        """Begin a transaction. The coordinator learns of it with the first record or offset."""
        self._transactional().begin()

    async def send_offsets_to_transaction(self, positions: Iterable[Any], group_metadata: Any, timeout: float = -1.0) -> None:
        """Commit a group's offsets with this transaction; pass what ``consumer_group_metadata()`` returned (KIP-447).

        If the group's member has another generation meanwhile, the error is abortable.
        """
        member = _member(group_metadata)
        # Of a partition without a position, librdkafka ignores the row, too.
        known = [one for one in positions if one.offset >= 0]
        if known:
            await self._transactional().send_offsets(positions_of(known), member, self._deadline(timeout))

    async def commit_transaction(self, timeout: float = -1.0) -> None:
        """Send all queued records, and commit the transaction.

        After a retriable error, call again: only the coordinator knows whether the transaction was committed.
        """
        transactions, deadline = self._transactional(), self._deadline(timeout)
        transactions.begin_commit()
        await self._until_idle(deadline)
        self.poll()
        transactions.check_sent()
        await transactions.end(deadline)
        self._sequences.clear()

    async def abort_transaction(self, timeout: float = -1.0) -> None:
        """Drop all records that are not sent, and abort the transaction."""
        transactions, deadline = self._transactional(), self._deadline(timeout)
        transactions.begin_abort()
        self._arrived.set()
        await self._until_idle(deadline)
        self.poll()
        await transactions.end(deadline)
        self._sequences.clear()

    def _transactional(self) -> TransactionManager:
        if self._transactions is None:
            text = "The Transactional API requires transactional.id to be configured"
            raise KafkaException(KafkaError(KafkaError._NOT_CONFIGURED, text))
        return self._transactions

    def _deadline(self, timeout: float) -> Deadline:
        return Deadline.after(self._settings["transaction.timeout.ms"] if timeout < 0 else timeout * 1000)

    async def _until_idle(self, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout_at(deadline.at):
                await self._idle.wait()
        except TimeoutError:
            text = f"{len(self._queue) + self._in_flight} records have no outcome yet: call again"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True)) from None

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                await self._send_batch()
            self._idle.set()

    async def _send_batch(self) -> None:
        """Send the next records of one partition, and report the outcome."""
        batch = [self._queue.popleft()]
        partition, others = self._placed(batch[0]), deque[Produced]()
        # A record whose partition is not known yet has a batch of its own.
        while partition.partition != _ANY_PARTITION and self._queue and len(batch) < self._settings["batch.num.messages"]:
            record = self._queue.popleft()
            (batch if self._placed(record) == partition else others).append(record)
        self._queue.extendleft(reversed(others))
        self._in_flight = len(batch)
        self._without_key += not batch[0].key
        partition, offset, error = await self._delivered(partition, batch, Deadline.after(self._delivery_ms))
        self._in_flight = 0
        self._outcomes.extend(
            _Outcome(record, partition, offset + number if offset >= 0 else offset, error)
            for number, record in enumerate(batch)
        )

    async def _delivered(
        self, partition: TopicPartition, batch: Sequence[Produced], deadline: Deadline
    ) -> tuple[TopicPartition, int, KafkaError | None]:
        """Send a batch until a leader has it, or the time is over; return partition and offset, or why it may be missing."""
        nowhere = -1
        while not deadline.passed:
            if self._transactions is not None and not self._transactions.sends:
                return partition, nowhere, KafkaError(KafkaError._PURGE_QUEUE)
            try:
                identity = await self._identified(deadline)
                partition, leaders = self._led(partition, batch[0])
                if not leaders:
                    await self._cluster.refresh(deadline)
                    partition, leaders = self._led(partition, batch[0])
                for leader in leaders:
                    code, offset = await self._ask(leader, partition, batch, identity)
                    if code in (error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER):
                        self._sequences[partition] = self._sequences.get(partition, 0) + len(batch)
                        return partition, offset, None
                    if not error_codes.is_retriable(code):
                        return partition, nowhere, self._failed(code)
                    self._cluster.refresh_soon()
            except CoordinatorError:
                self._cluster.refresh_soon()
            await asyncio.sleep(self._retry_ms / 1000)
        # The broker may have the batch or not, so the next batch needs an identity of its own.
        return partition, nowhere, self._failed(KafkaError._MSG_TIMED_OUT)

    def _failed(self, code: int) -> KafkaError:
        self._identity = None
        return KafkaError(code) if self._transactions is None else self._transactions.batch_failed(code)

    def _led(self, partition: TopicPartition, record: Produced) -> tuple[TopicPartition, Collection[Broker]]:
        """Return the partition of a batch, which begins with ``record``, and its leader, if they are known."""
        if partition.partition == _ANY_PARTITION:
            partition = self._placed(record)
        known = partition.partition != _ANY_PARTITION
        return partition, by_leader(self._cluster.metadata, [partition])[0] if known else ()

    def _placed(self, record: Produced) -> TopicPartition:
        """Return the partition of a record: by its key, as librdkafka's ``consistent_random``, unless the caller chose it.

        Records without a key go to one partition after the other, a batch to each.
        """
        partition, topic = record.partition, self._cluster.metadata.topics.get(record.partition.topic)
        if partition.partition != _ANY_PARTITION or topic is None:
            return partition
        number = zlib.crc32(record.key) if record.key else self._without_key
        return TopicPartition(partition.topic, number % topic.partition_count)

    async def _identified(self, deadline: Deadline) -> Identity:
        if self._transactions is not None:
            assert self._transactions.identity is not None
            self._transactions.may_have_begun = True
            return self._transactions.identity
        if not self._settings["enable.idempotence"]:
            return _NO_IDENTITY
        if self._identity is None:
            request = InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=60_000, enable2_pc=False, keep_prepared_txn=False
            )
            answer: InitProducerIdResponse = await self._cluster.request_any(request, deadline, attempt_ms=self._request_ms)
            if answer.error_code:
                raise CoordinatorError(f"InitProducerId was answered with {answer.error_code}", code=answer.error_code)
            self._identity = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return self._identity

    async def _ask(
        self, leader: Broker, partition: TopicPartition, batch: Sequence[Produced], identity: Identity
    ) -> tuple[int, int]:
        """Send a Produce request; return the partition's error code, and the offset of the first record."""
        transactional_id = None if self._transactions is None else self._transactions.transactional_id
        sequence = _NO_SEQUENCE if identity == _NO_IDENTITY else self._sequences.get(partition, 0)
        records = batch_of(batch, identity, sequence, transactional=transactional_id is not None)
        data = TopicProduceData(
            name=partition.topic, partition_data=(PartitionProduceData(index=partition.partition, records=records),)
        )
        request = ProduceRequest(
            transactional_id=transactional_id, acks=_ALL_REPLICAS, timeout_ms=int(self._request_ms), topic_data=(data,)
        )
        answer: ProduceResponse = await self._cluster.request(leader, request, timeout_ms=self._request_ms)
        rows = [row for topic in answer.responses for row in topic.partition_responses if row.index == partition.partition]
        return (rows[0].error_code, rows[0].base_offset) if rows else (error_codes.UNKNOWN_SERVER_ERROR, -1)


def _member(metadata: Any) -> group_metadata.ConsumerGroupMetadata:
    try:
        return group_metadata.decode(metadata)
    except (ValueError, AttributeError) as error:
        raise TypeError(str(error)) from error


def _encoded(part: str | bytes | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def batch_of(records: Sequence[Produced], identity: Identity, sequence: int, *, transactional: bool = False) -> bytes:
    """Return a record batch in format 2."""
    body = bytearray()
    first_ms = records[0].timestamp
    for delta, record in enumerate(records):
        one = bytearray(b"\0") + _varint(record.timestamp - first_ms) + _varint(delta)
        for part in (record.key, record.value):
            one += _bytes(part)
        one += _varint(len(record.headers))
        for name, value in record.headers:
            one += _bytes(name.encode()) + _bytes(_encoded(value))
        body += _varint(len(one)) + one
    count, newest_ms = len(records), max(record.timestamp for record in records)
    attributes = _TRANSACTIONAL if transactional else 0
    covered = struct.pack(">hiqqqhii", attributes, count - 1, first_ms, newest_ms, *identity, sequence, count) + body
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc32c(covered)) + covered


def _varint(value: int) -> bytes:
    return write_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def _bytes(part: bytes | None) -> bytes:
    return _varint(-1) if part is None else _varint(len(part)) + part
