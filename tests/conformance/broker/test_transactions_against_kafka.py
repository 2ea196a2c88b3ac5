"""Our transaction coordinator and producer checks, compared with Apache Kafka's: the same requests have the same outcomes.

Thousands of sequences by hand: ``TXN_SEQUENCES=5000 TXN_FIRST_SEED=1000 pytest`` with this file.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from random import Random

import attrs
import pytest

from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.producers import ProducerStates
from consumer_coord.broker.record_batch import Record
from consumer_coord.broker.transaction import Transaction
from consumer_coord.broker.transaction_coordinator import TRANSACTION_STATE_TOPIC
from consumer_coord.simulation import loop as virtual
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.wire.codec import decode_at
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic
from consumer_coord.wire.offsets_topic import decode_versioned, encode_versioned
from consumer_coord.wire.transaction_records import TransactionLogKey, TransactionLogValue
from tests.conformance.broker.test_against_kafka import read_log
from tests.support.broker.differential import RealBroker, caller
from tests.support.broker.txn_sequences import Names, Outcome, TxnPlayer, codes_seen, first_difference

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEQUENCES = int(os.environ.get("TXN_SEQUENCES", "300"))
FIRST_SEED = int(os.environ.get("TXN_FIRST_SEED", "0"))
LENGTH = 40
AT_ONCE = 20
#: As on the real broker of the tests.
CONFIG = {"offsets.topic.num.partitions": 6, "transaction.state.log.num.partitions": 3}
#: Kind of move -> error codes that a batch of sequences must have produced, or the comparison shows nothing.
EXPECTED = {
    "init": {0, 42, 47, 50, 51, 90},
    "add": {0},
    "produce": {0, 45, 47, 48, 49, 53},
    "commit": {0, 3, 12, 22, 24, 25, 47, 48, 49},
    "end": {0, 47, 48, 49, 90},
    "marker": {0, 47, 52},
}


async def play_kafka(address: tuple[str, int], seed: int, names: Names) -> list[Outcome]:
    """Play a sequence to the real broker."""
    broker = RealBroker(*address)
    try:
        return await TxnPlayer(Random(seed), lambda *asked: broker.call("one", *asked), names, nap_s=0.01).play(LENGTH)
    finally:
        await broker.close()


def play_ours(seed: int, names: Names) -> list[Outcome]:
    """Play a sequence to our broker in virtual time."""

    async def main() -> list[Outcome]:
        loop = asyncio.get_running_loop()
        cluster = BrokerCluster(
            BrokerConfig.from_mapping(CONFIG),
            {names.topic: 2 * AT_ONCE},
            random=Random(seed),
            wall_clock_ms=lambda: 1 + round(loop.time() * 1000),
        )
        cluster.start_all()
        mine = Names(names.topic, cluster.topics.by_name[names.topic].topic_id, names.partitions, names.group, names.prefix)
        outcomes = await TxnPlayer(Random(seed), caller(cluster), mine, nap_s=1.0).play(LENGTH)
        cluster.close()
        return outcomes

    return virtual.run(main(), seed=seed)


async def compare(kafka: KafkaCluster, topic: str, seeds: range) -> tuple[dict[int, str], dict[str, set[int]], int]:
    """Return (seed -> the first difference, the error codes seen, the number of outcomes)."""
    host, _, port = kafka.bootstrap_servers.partition(":")
    address = (host, int(port))
    broker = RealBroker(*address)
    metadata = await broker.call("one", MetadataRequest(topics=(MetadataRequestTopic(name=topic),)), 12)
    topic_id = metadata.topics[0].topic_id  # type: ignore[attr-defined]  # a MetadataResponse
    run = uuid.uuid4()
    await broker.close()
    places: asyncio.Queue[int] = asyncio.Queue()
    for place in range(AT_ONCE):
        places.put_nowait(place)
    differing: dict[int, str] = {}
    seen: dict[str, set[int]] = {}
    steps = 0

    async def one(seed: int) -> None:
        nonlocal steps
        place = await places.get()
        try:
            names = Names(topic, topic_id, (2 * place, 2 * place + 1), f"g-{run}-{seed}", f"t-{run}-{seed}")
            theirs = await play_kafka(address, seed, names)
            difference = first_difference(theirs, await asyncio.to_thread(play_ours, seed, names))
            if difference is not None:
                differing[seed] = difference
            steps += len(theirs)
            for kind, codes in codes_seen(theirs).items():
                seen.setdefault(kind, set()).update(codes)
        except AssertionError as error:  # a transaction that does not end
            differing[seed] = str(error)
        finally:
            places.put_nowait(place)

    await asyncio.gather(*map(one, seeds))
    return differing, seen, steps


@pytest.mark.timeout(900 + SEQUENCES)
def test_drawn_sequences_have_the_outcomes_of_kafka(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    """And they come upon the errors there are, or it would show little."""
    seeds = range(FIRST_SEED, FIRST_SEED + SEQUENCES)
    differing, seen, steps = asyncio.run(compare(kafka, topic(2 * AT_ONCE), seeds))
    print(SEQUENCES, "sequences,", steps, "outcomes,", {kind: sorted(codes) for kind, codes in seen.items()})
    assert not differing, f"{len(differing)} differ:\n" + "\n".join(
        f"seed {seed}: {found}" for seed, found in sorted(differing.items())[:8]
    )
    if (FIRST_SEED, SEQUENCES) == (0, 300):
        missing = {kind: codes - seen[kind] for kind, codes in EXPECTED.items() if codes - seen[kind]}
        assert not missing, f"never seen: {missing}"


def test_a_planted_bug_is_found(kafka: KafkaCluster, topic: NewTopicFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that accepts every sequence number does not pass for Kafka."""
    monkeypatch.setattr(ProducerStates, "check", lambda self, header: None)
    differing, _, _ = asyncio.run(compare(kafka, topic(2 * AT_ONCE), range(20)))
    assert differing


def test_kafkas_transaction_log_is_read_and_written_with_the_same_bytes(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    """Every record of ``__transaction_state`` becomes a transaction, whose record has the bytes that Kafka wrote."""

    async def main() -> list[Record]:
        await compare(kafka, topic(2 * AT_ONCE), range(20))
        host, _, port = kafka.bootstrap_servers.partition(":")
        broker = RealBroker(host, int(port))
        found: list[Record] = []
        for partition in range(CONFIG["transaction.state.log.num.partitions"]):
            log = await read_log(broker, partition, TRANSACTION_STATE_TOPIC)
            found += [record for record in log.records() if isinstance(record, Record)]
        await broker.close()
        return found

    states = set()
    for record in asyncio.run(main()):
        assert record.key is not None
        key = decode_at(TransactionLogKey, 0, record.key, 2)[0]
        assert encode_versioned(key, 0) == record.key
        if record.value is not None:
            value = decode_versioned(TransactionLogValue, record.value)
            again = Transaction.from_value(key.transactional_id, value)
            states.add(again.state)
            assert sorted_partitions(again.to_value()) == sorted_partitions(value)
            assert encode_versioned(value, 1) == record.value
    assert len(states) == 6


def sorted_partitions(value: TransactionLogValue) -> TransactionLogValue:
    """Return the value with its partitions in order; Kafka has them in the order of a hash set."""
    rows = value.transaction_partitions
    if rows is None:
        return value
    in_order = [attrs.evolve(row, partition_ids=tuple(sorted(row.partition_ids))) for row in rows]
    return attrs.evolve(value, transaction_partitions=tuple(sorted(in_order, key=lambda row: row.topic)))
