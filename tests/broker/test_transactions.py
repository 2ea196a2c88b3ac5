"""Transactions in the embedded Kafka: producers, fencing, time-outs, markers, offsets, and the log of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.data_dir import DataDirectory
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.group import FindCoordinatorRequest
from consumer_coord.wire.messages.log import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from consumer_coord.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from consumer_coord.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from consumer_coord.wire.offsets_topic import encode_versioned
from consumer_coord.wire.schema import Struct
from consumer_coord.wire.transaction_records import TransactionLogKey, TransactionLogValue
from tests.support.broker.record_batches import producer_batch

ID = "payments"
GROUP = "readers"
TIMEOUT_MS = 60_000


@attrs.define
class TxnProducer:
    """A transactional producer that sends one request at a time. ``new``: it has the versions of KIP-890."""

    cluster: BrokerCluster
    new: bool = True
    produce_version: int = 11
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[int, int] = attrs.field(factory=dict)

    async def ask(self, message: Struct, version: int, broker: int = 0) -> Any:
        """Send a request to a broker; return the response."""
        frame = encode_request(message, version, 1, "client")
        answer = await KafkaApis(self.cluster.nodes[broker]).handle(frame, ClientConnection())
        assert answer is not None
        return decode_response(api_for(type(message)).response, version, answer)[1]

    async def init(self, timeout_ms: int = TIMEOUT_MS, *, resume: bool = False) -> int:
        """Find the coordinator, and send InitProducerId; return the error code."""
        await self.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=(ID,)), 4)
        request = InitProducerIdRequest(ID, timeout_ms)
        if resume:
            request = attrs.evolve(request, producer_id=self.producer_id, producer_epoch=self.epoch)
        response = await self.ask(request, 5)
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return int(response.error_code)

    async def add(self, *partitions: int) -> set[int]:
        """Send AddPartitionsToTxn; return the error codes."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=(AddPartitionsToTxnTopic("orders", partitions),),
        )
        topics = (await self.ask(request, 3)).results_by_topic_v3_and_below
        return {row.partition_error_code for topic in topics for row in topic.results_by_partition}

    async def send(self, partition: int = 0, *, sequence: int | None = None, count: int = 1, transactional: bool = True) -> int:
        """Send Produce with one batch; return the error code."""
        first = self.sequences.get(partition, 0) if sequence is None else sequence
        batch = producer_batch(count, self.producer_id, self.epoch, first, transactional=transactional)
        request = ProduceRequest(
            transactional_id=ID if transactional else None,
            acks=-1,
            timeout_ms=1_000,
            topic_data=(TopicProduceData("orders", (PartitionProduceData(partition, batch),)),),
        )
        code = int(
            (await self.ask(request, 12 if self.new else self.produce_version)).responses[0].partition_responses[0].error_code
        )
        if not code and sequence is None:
            self.sequences[partition] = first + count
        return code

    async def offset(self, offset: int) -> int:
        """Send TxnOffsetCommit, for an old client after AddOffsetsToTxn; return the error code."""
        if not self.new:
            added = await self.ask(AddOffsetsToTxnRequest(ID, self.producer_id, self.epoch, GROUP), 3)
            if added.error_code:
                return int(added.error_code)
        topic = TxnOffsetCommitRequestTopic("orders", partitions=(TxnOffsetCommitRequestPartition(0, offset, -1, ""),))
        request = TxnOffsetCommitRequest(ID, GROUP, self.producer_id, self.epoch, topics=(topic,))
        return int((await self.ask(request, 5 if self.new else 3)).topics[0].partitions[0].error_code)

    async def end(self, committed: bool) -> int:
        """Send EndTxn; return the error code."""
        request = EndTxnRequest(ID, self.producer_id, self.epoch, committed)
        response = await self.ask(request, 5 if self.new else 4)
        if not response.error_code and self.new:
            if self.epoch != response.producer_epoch:
                self.sequences.clear()
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    async def described(self) -> DescribedTransaction:
        """Return the response to DescribeTransactions."""
        found: DescribedTransaction = (await self.ask(DescribeTransactionsRequest((ID,)), 0)).transaction_states[0]
        return found

    async def committed(self, require_stable: bool = False) -> tuple[int, int]:
        """Return (committed offset, error code) of the group."""
        wanted = OffsetFetchRequestGroup(group_id=GROUP, topics=(OffsetFetchRequestTopics("orders", partition_indexes=(0,)),))
        response = await self.ask(OffsetFetchRequest(groups=(wanted,), require_stable=require_stable), 9)
        row = response.groups[0].topics[0].partitions[0]
        return row.committed_offset, row.error_code


SMALL = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def on_cluster(
    work: Callable[[BrokerCluster], Awaitable[None]],
    *,
    brokers: int = 1,
    config: dict[str, object] | None = None,
    storage: DataDirectory | None = None,
) -> None:
    """Run a coroutine function with a cluster in virtual time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        settings = {**SMALL, **(config or {})}
        cluster = BrokerCluster(
            BrokerConfig.from_mapping(settings),
            {"orders": 3},
            brokers,
            random=Random(1),
            wall_clock_ms=lambda: round(loop.time() * 1000),
            storage=storage,
        )
        cluster.start_all()
        await work(cluster)
        cluster.close()

    virtual.run(main())


def log_of(cluster: BrokerCluster, partition: int = 0, topic: str = "orders") -> PartitionLog:
    """Return the log of a partition."""
    found = cluster.topics.partition(topic, partition)
    assert found is not None
    return found.log


@pytest.mark.parametrize("committed", [True, False])
def test_a_new_client_gets_the_next_epoch_with_each_transaction(committed: bool) -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        assert (await producer.init(), producer.epoch) == (0, 0)
        for epoch in (0, 1):
            assert producer.epoch == epoch
            assert [await producer.send(), await producer.send(), await producer.send(2)] == [0, 0, 0]
            assert log_of(cluster).last_stable_offset == 3 * epoch
            assert (await producer.described()).transaction_state == "Ongoing"
            assert await producer.end(committed) == 0
        log = log_of(cluster)
        assert (log.last_stable_offset, log.end_offset, len(log.aborted_transactions(0))) == (6, 6, 0 if committed else 2)
        assert (await producer.described()).transaction_state == ("CompleteCommit" if committed else "CompleteAbort")

    on_cluster(work)


def test_an_old_client_adds_partitions_and_keeps_its_epoch() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster, new=False)
        await producer.init()
        assert await producer.send() == error_codes.TRANSACTION_ABORTABLE
        assert await attrs.evolve(producer, produce_version=10).send() == error_codes.INVALID_TXN_STATE
        assert await producer.add(0, 1) == {0}
        assert [await producer.send(), await producer.send(1)] == [0, 0]
        assert await producer.add(0, 7) == {error_codes.OPERATION_NOT_ATTEMPTED, error_codes.UNKNOWN_TOPIC_OR_PARTITION}
        assert (await producer.described()).topics[0].partitions == (0, 1)
        assert await producer.end(True) == 0
        assert producer.epoch == 0
        assert await producer.end(False) == error_codes.INVALID_TXN_STATE
        assert await producer.end(True) == 0, "a repeated request"

    on_cluster(work)


def test_a_second_producer_fences_the_first() -> None:
    async def work(cluster: BrokerCluster) -> None:
        first, second = TxnProducer(cluster), TxnProducer(cluster)
        await first.init()
        await first.send()
        assert await second.init() == error_codes.CONCURRENT_TRANSACTIONS, "the open transaction is aborted first"
        assert await second.init() == 0
        assert second.producer_id == first.producer_id
        assert second.epoch == 2
        assert await first.send() == error_codes.INVALID_PRODUCER_EPOCH
        assert await first.end(True) == error_codes.PRODUCER_FENCED
        assert await first.init(resume=True) == error_codes.PRODUCER_FENCED
        assert len(log_of(cluster).aborted_transactions(0)) == 1
        assert await second.init(resume=True) == 0
        assert second.epoch == 3

    on_cluster(work)


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        assert await producer.init(900_001) == error_codes.INVALID_TRANSACTION_TIMEOUT
        await producer.init(30_000)
        await producer.send()
        await asyncio.sleep(30)
        assert (await producer.described()).transaction_state == "Ongoing"
        await asyncio.sleep(11)
        assert (await producer.described()).transaction_state == "CompleteAbort"
        assert log_of(cluster).last_stable_offset == 2
        assert await producer.end(True) == error_codes.INVALID_TXN_STATE
        assert await producer.init() == 0

    on_cluster(work)


def test_a_transactional_id_without_use_is_forgotten() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        await asyncio.sleep(120)
        assert (await producer.described()).error_code == error_codes.TRANSACTIONAL_ID_NOT_FOUND
        assert await producer.end(True) == error_codes.INVALID_PRODUCER_ID_MAPPING
        assert not len((await producer.ask(ListTransactionsRequest(), 2)).transaction_states)

    on_cluster(work, config={"transactional.id.expiration.ms": 100_000})


def test_sequence_numbers_of_a_producer_are_checked() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        assert await producer.send(sequence=4) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        for _ in range(6):
            assert await producer.send() == 0
        assert await producer.send(sequence=1) == 0, "one of the last five batches"
        assert await producer.send(sequence=0) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await producer.send(sequence=7) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await producer.send(sequence=6, transactional=False) == error_codes.INVALID_TXN_STATE
        assert log_of(cluster).end_offset == 6

    on_cluster(work)


@pytest.mark.parametrize("new", [True, False])
def test_offsets_of_a_transaction_are_committed_with_it(new: bool) -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster, new)
        await producer.init()
        assert await producer.offset(7) == 0
        assert await producer.committed(require_stable=True) == (-1, error_codes.UNSTABLE_OFFSET_COMMIT)
        await producer.end(False)
        assert await producer.committed(require_stable=True) == (-1, 0)
        assert await producer.offset(8) == 0
        await producer.end(True)
        assert await producer.committed(require_stable=True) == (8, 0)
        stranger = attrs.evolve(producer, epoch=producer.epoch + 1)
        assert await stranger.offset(9) in (error_codes.INVALID_PRODUCER_EPOCH, error_codes.PRODUCER_FENCED)

    on_cluster(work)


def test_markers_wait_for_a_partition_that_cannot_be_written() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        assert [await producer.send(partition) for partition in range(3)] == [0, 0, 0]
        cluster.topics.set_leader(cluster.topics.by_name["orders"].partitions[1], -1)
        assert await producer.end(True) == 0
        described = await producer.described()
        assert (described.transaction_state, described.topics[0].partitions) == ("PrepareCommit", (1,))
        assert await producer.end(True) == error_codes.PRODUCER_FENCED, "the producer has the next epoch already"
        assert await producer.init() == error_codes.CONCURRENT_TRANSACTIONS
        cluster.topics.set_leader(cluster.topics.by_name["orders"].partitions[1], 0)
        await asyncio.sleep(1)
        assert (await producer.described()).transaction_state == "CompleteCommit"

    on_cluster(work)


def test_the_log_has_the_transactions_when_another_broker_leads_it() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        await producer.send()
        cluster.move_leader("__transaction_state", 0, 1)
        request = DescribeTransactionsRequest((ID,))
        assert (await producer.described()).error_code == error_codes.NOT_COORDINATOR
        moved = (await producer.ask(request, 0, broker=1)).transaction_states[0]
        assert (moved.transaction_state, moved.topics[0].partitions) == ("Ongoing", (0,))
        assert await producer.send(2) == 0, "a leader asks the new coordinator"
        end = EndTxnRequest(ID, producer.producer_id, producer.epoch, True)
        assert (await producer.ask(end, 5, broker=1)).error_code == 0

    on_cluster(work, brokers=2, config={"default.replication.factor": 2})


def test_a_full_disk_refuses_transactions_and_delays_their_end() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        await producer.send()
        cluster.faults.is_full = True
        assert await producer.end(True) == error_codes.NOT_COORDINATOR
        assert await producer.add(1) == {error_codes.NOT_COORDINATOR}
        cluster.faults.is_full = False
        assert await producer.end(True) == 0
        assert log_of(cluster).last_stable_offset == 2

    on_cluster(work)


def test_transactions_are_listed_by_state_producer_duration_and_pattern() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        await producer.send()
        await asyncio.sleep(2)

        async def listed(**filters: Any) -> tuple[int, int, tuple[str, ...]]:
            response = await producer.ask(ListTransactionsRequest(**filters), 2)
            return response.error_code, len(response.transaction_states), response.unknown_state_filters

        assert await listed() == (0, 1, ())
        assert await listed(state_filters=("Ongoing", "Strange")) == (0, 1, ("Strange",))
        assert await listed(state_filters=("Empty",)) == (0, 0, ())
        assert await listed(producer_id_filters=(producer.producer_id + 1,)) == (0, 0, ())
        assert await listed(duration_filter=1_000) == (0, 1, ())
        assert await listed(duration_filter=3_000) == (0, 0, ())
        assert await listed(transactional_id_pattern="pay.*") == (0, 1, ())
        assert await listed(transactional_id_pattern="pay") == (0, 0, ())
        assert (await listed(transactional_id_pattern="("))[0] == error_codes.INVALID_REGULAR_EXPRESSION

    on_cluster(work)


def test_a_producer_that_used_all_epochs_gets_a_new_id() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        first = producer.producer_id
        value = TransactionLogValue(
            producer_id=first,
            producer_epoch=32_766,
            transaction_timeout_ms=TIMEOUT_MS,
            transaction_start_timestamp_ms=-1,
            client_transaction_version=2,
        )
        log = log_of(cluster, topic="__transaction_state")
        log.append_records([(encode_versioned(TransactionLogKey(ID), 0), encode_versioned(value, 1))], 0, 0)
        cluster.nodes[0].transactions.on_election(0, log, 1)
        producer.epoch = 32_766
        assert await producer.send() == 0
        assert await producer.end(True) == 0
        assert (producer.producer_id > first, producer.epoch) == (True, 0)
        repeated = attrs.evolve(producer, producer_id=first, epoch=32_766)
        assert (await repeated.end(True), repeated.producer_id, repeated.epoch) == (0, producer.producer_id, 0)
        assert await producer.send() == 0

    on_cluster(work)


def test_transactions_survive_a_restart(tmp_path: Path) -> None:
    """An open one stays open, and one whose end is decided is completed."""

    def restarted(work: Callable[[BrokerCluster], Awaitable[None]]) -> None:
        storage = DataDirectory.open(tmp_path, BrokerConfig.from_mapping(SMALL))
        try:
            on_cluster(work, storage=storage)
        finally:
            storage.close()

    producer_of: dict[str, TxnProducer] = {}

    async def begin(cluster: BrokerCluster) -> None:
        producer = producer_of["one"] = TxnProducer(cluster)
        await producer.init()
        assert [await producer.send(), await producer.offset(7)] == [0, 0]

    async def decide(cluster: BrokerCluster) -> None:
        producer = producer_of["one"] = attrs.evolve(producer_of["one"], cluster=cluster)
        assert (await producer.described()).transaction_state == "Ongoing"
        assert log_of(cluster).last_stable_offset == 0
        assert await producer.send(sequence=0) == 0, "a repeated batch, which the log knows"
        assert await producer.send() == 0
        cluster.topics.set_leader(cluster.topics.by_name["orders"].partitions[0], -1)
        assert await producer.end(True) == 0
        assert (await producer.described()).transaction_state == "PrepareCommit"

    async def complete(cluster: BrokerCluster) -> None:
        producer = attrs.evolve(producer_of["one"], cluster=cluster)
        assert (await producer.described()).transaction_state == "CompleteCommit"
        log = log_of(cluster)
        assert (log.last_stable_offset, log.end_offset, len(log.aborted_transactions(0))) == (3, 3, 0)
        assert await producer.committed(require_stable=True) == (7, 0)
        assert await producer.send() == 0

    for work in (begin, decide, complete):
        restarted(work)
