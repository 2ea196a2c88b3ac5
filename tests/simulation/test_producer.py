"""The transactions of the simulated producer, against the brokers' production code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consumer_coord.broker.record_batch import Record
from consumer_coord.confluent.types import KafkaError, KafkaException, TopicPartition
from consumer_coord.consumer import group_metadata
from consumer_coord.group.generation import Generation
from consumer_coord.net.group_requests import coordinator_in, find_coordinator, offset_fetch
from consumer_coord.retry import Deadline
from consumer_coord.simulation.producer import SimulatedProducer
from tests.support.simulation.small_cluster import SmallCluster, simulated

TOPIC = "topic"


def _settings(small: SmallCluster, name: str = "one", **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": small.servers, "transactional.id": name, "request.timeout.ms": 2_000, **more}


def _committed(small: SmallCluster, partition: int = 0) -> list[bytes | None]:
    """Return what a consumer with ``isolation.level=read_committed`` reads."""
    log = small.log(TOPIC, partition)

    def is_aborted(record: Record) -> bool:
        return any(
            one.producer_id == record.producer_id and one.first_offset <= record.offset < one.last_offset
            for one in log.aborted_transactions(0)
        )

    return [
        record.value
        for record in log.records()
        if isinstance(record, Record)
        and record.offset < log.last_stable_offset
        and not record.control
        and not is_aborted(record)
    ]


async def _played(small: SmallCluster, program: Callable[[SimulatedProducer], Coroutine[Any, Any, None]], **more: Any) -> None:
    """Run a program with a producer of its own that is initialized."""
    process = small.process("client")

    async def main() -> None:
        producer = SimulatedProducer(_settings(small, **more))
        await producer.init_transactions(10)
        await program(producer)
        await producer.close()

    await small.run(process, main())
    small.close()


async def _send(producer: SimulatedProducer, *values: bytes) -> None:
    """Begin a transaction, and wait until the broker has these records."""
    outcomes: list[object] = []
    producer.begin_transaction()
    for value in values:
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
    async with asyncio.timeout(30):
        while len(outcomes) < len(values):
            await asyncio.sleep(0.05)
            producer.poll()
    assert outcomes == [None] * len(values)


def _error_of(error: pytest.ExceptionInfo[KafkaException]) -> KafkaError:
    found = error.value.args[0]
    assert isinstance(found, KafkaError)
    return found


@simulated
async def test_committed_records_are_read_and_aborted_ones_are_not() -> None:
    small = SmallCluster(topics={TOPIC: 2})

    async def program(producer: SimulatedProducer) -> None:
        for number in range(6):
            await _send(producer, b"a%d" % number, b"b%d" % number)
            assert _committed(small)[-1:] != [b"b%d" % number], "the transaction is open"
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        assert _committed(small) == [b"a0", b"b0", b"a2", b"b2", b"a4", b"b4"]
        # Without a record, there is nothing for the coordinator to end.
        end = small.log("__transaction_state", _shard(small)).end_offset
        producer.begin_transaction()
        await producer.commit_transaction()
        assert small.log("__transaction_state", _shard(small)).end_offset == end

    await _played(small, program)


def _shard(small: SmallCluster) -> int:
    return next(
        partition.index
        for partition in small.cluster.kafka.topics.by_name["__transaction_state"].partitions
        if partition.log.end_offset
    )


@simulated
async def test_a_lost_answer_to_the_commit_commits_once() -> None:
    small = SmallCluster(topics={TOPIC: 1})
    host = small.cluster.kafka.nodes[0].host

    async def program(producer: SimulatedProducer) -> None:
        await _send(producer, b"first")
        small.network.block(host, "client")
        with pytest.raises(KafkaException) as error:
            await producer.commit_transaction(1)
        assert _error_of(error).retriable()
        assert _committed(small) == [b"first"], "the broker committed"
        with pytest.raises(KafkaException) as error:
            await producer.abort_transaction()
        assert _error_of(error).code() == KafkaError._STATE
        small.network.disconnect("client")
        small.network.unblock(host, "client")
        await producer.commit_transaction(20)
        await _send(producer, b"second")
        await producer.commit_transaction()
        assert _committed(small) == [b"first", b"second"]

    await _played(small, program)


@simulated
async def test_a_second_producer_fences_the_first() -> None:
    small = SmallCluster(topics={TOPIC: 1})

    async def second() -> None:
        producer = SimulatedProducer(_settings(small))
        await producer.init_transactions(10)
        await _send(producer, b"second")
        await producer.commit_transaction()
        await producer.close()

    async def program(first: SimulatedProducer) -> None:
        await _send(first, b"first")
        await small.run(small.process("other"), second())
        with pytest.raises(KafkaException) as error:
            await first.commit_transaction()
        assert _error_of(error).fatal()
        assert _error_of(error).code() == KafkaError._FENCED
        assert _committed(small) == [b"second"]
        for call in (first.begin_transaction, lambda: first.produce(TOPIC, b"third")):
            with pytest.raises(KafkaException) as error:
                call()
            assert _error_of(error).fatal()

    await _played(small, program)


@simulated
async def test_a_record_after_the_time_out_of_the_transaction_requires_an_abort() -> None:
    small = SmallCluster(topics={TOPIC: 1})

    async def program(producer: SimulatedProducer) -> None:
        await _send(producer, b"first")
        await asyncio.sleep(30)
        producer.produce(TOPIC, b"late", partition=0)
        with pytest.raises(KafkaException) as error:
            await producer.commit_transaction()
        assert _error_of(error).txn_requires_abort()
        assert _error_of(error).code() == KafkaError.INVALID_PRODUCER_EPOCH
        await producer.abort_transaction()
        await _send(producer, b"second")
        await producer.commit_transaction()
        assert _committed(small) == [b"second"]
        await _send(producer, b"third")
        await asyncio.sleep(30)
        with pytest.raises(KafkaException) as error:
            await producer.commit_transaction()
        assert _error_of(error).fatal(), "the coordinator aborted what was to be committed"
        assert _committed(small) == [b"second"]

    await _played(small, program, **{"transaction.timeout.ms": 5_000})


@simulated
async def test_offsets_are_committed_with_the_transaction_or_not_at_all() -> None:
    small = SmallCluster(topics={TOPIC: 1, "input": 1})
    rows = [TopicPartition("input", 0, 7)]

    async def program(producer: SimulatedProducer) -> None:
        unfenced = group_metadata.unfenced("group")
        await _send(producer, b"first")
        await producer.send_offsets_to_transaction(rows, unfenced)
        await producer.abort_transaction()
        assert await _offset(small) == -1
        await _send(producer, b"second")
        await producer.send_offsets_to_transaction(rows, unfenced)
        assert await _offset(small) == -1
        await producer.commit_transaction()
        assert await _offset(small) == 7
        # A member that the group does not have.
        stale = group_metadata.encode("group", Generation(3, "gone"), None)
        await _send(producer, b"third")
        with pytest.raises(KafkaException) as error:
            await producer.send_offsets_to_transaction([TopicPartition("input", 0, 9)], stale)
        assert _error_of(error).txn_requires_abort()
        with pytest.raises(KafkaException) as error:
            await producer.commit_transaction()
        assert _error_of(error).txn_requires_abort()
        await producer.abort_transaction()
        assert (await _offset(small), _committed(small)) == (7, [b"second"])
        with pytest.raises(TypeError, match="consumer_group_metadata"):
            await producer.send_offsets_to_transaction(rows, b"other bytes")

    await _played(small, program)


async def _offset(small: SmallCluster) -> int:
    """Return the committed offset of the only partition of the topic ``input``."""
    process, found = small.process("looks"), -1

    async def look() -> None:
        nonlocal found
        client = small.client(process)
        asked = await client.request_any(find_coordinator("group"), Deadline.after(5_000))
        code, coordinator = coordinator_in(asked, "group", client.answers)
        assert code == 0
        answer = await client.request(coordinator, offset_fetch("group", None), timeout_ms=5_000)
        found = max((row.committed_offset for topic in answer.groups[0].topics for row in topic.partitions), default=-1)
        await client.close()

    await small.run(process, look())
    return found


@simulated
async def test_a_transaction_outlives_brokers_that_crash() -> None:
    small = SmallCluster(brokers=3, topics={TOPIC: 3})

    async def program(producer: SimulatedProducer) -> None:
        for number in range(6):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce(TOPIC, b"%d" % number, partition=partition)
            small.cluster.stop_broker(number % 3)
            await producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, number)], group_metadata.unfenced("group"), 30)
            small.cluster.start_broker(number % 3)
            small.cluster.stop_broker((number + 1) % 3)
            await producer.commit_transaction(30)
            small.cluster.start_broker((number + 1) % 3)
        for partition in range(3):
            assert _committed(small, partition) == [b"%d" % number for number in range(6)]

    await _played(small, program)


@simulated
async def test_without_idempotence_a_lost_answer_doubles_a_record() -> None:
    small = SmallCluster(topics={TOPIC: 1})
    process, host = small.process("client"), small.cluster.kafka.nodes[0].host

    async def program() -> None:
        producer = SimulatedProducer({"bootstrap.servers": small.servers, "request.timeout.ms": 2_000})
        with pytest.raises(KafkaException) as error:
            await producer.init_transactions()
        assert _error_of(error).code() == KafkaError._NOT_CONFIGURED
        outcomes: list[tuple[int, bytes]] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            outcomes.append((message.offset(), message.value()))

        producer.produce(TOPIC, "first", "key", callback=delivered)
        await asyncio.sleep(1)
        small.network.block(host, "client")
        producer.produce(TOPIC, "second", "key", callback=delivered)
        await asyncio.sleep(1)
        small.network.disconnect("client")
        small.network.unblock(host, "client")
        await asyncio.sleep(10)
        producer.flush()
        assert outcomes == [(0, b"first"), (2, b"second")]
        assert _committed(small) == [b"first", b"second", b"second"]
        await producer.close()

    await small.run(process, program())
    small.close()


@simulated
async def test_records_with_a_key_stay_together_and_others_are_spread() -> None:
    small = SmallCluster(topics={TOPIC: 4})
    process = small.process("client")

    async def program() -> None:
        producer = SimulatedProducer({"bootstrap.servers": small.servers, "enable.idempotence": True, "batch.num.messages": 2})
        for number in range(40):
            producer.produce(TOPIC, f"{number}", None if number % 2 else "key", headers={"number": b"%d" % number})
        await asyncio.sleep(10)
        assert producer.flush() == 0
        spread = [_committed(small, partition) for partition in range(4)]
        with_key = {number for number, values in enumerate(spread) for value in values if value and int(value) % 2 == 0}
        assert len(with_key) == 1
        assert all(spread)
        assert sorted(int(value or b"") for values in spread for value in values) == list(range(40))
        await producer.close()

    await small.run(process, program())
    small.close()


@pytest.mark.parametrize("instance", [None, "instance"])
def test_group_metadata_is_read_as_it_was_written(instance: str | None) -> None:
    written = group_metadata.encode("group", Generation(5, "member"), instance)
    assert group_metadata.decode(written) == group_metadata.ConsumerGroupMetadata("group", 5, "member", instance)
    with pytest.raises(ValueError, match="consumer_group_metadata"):
        group_metadata.decode(b"CGMDv1:group")
