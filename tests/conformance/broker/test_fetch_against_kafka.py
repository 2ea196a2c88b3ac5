"""Fetch of the embedded broker and of Apache Kafka, compared response by response.

Both have the same log: the real broker's is copied batch by batch.  A seed draws requests: versions, sessions with right and
wrong epochs, added, changed and forgotten partitions, unknown topics, offsets and epochs that exist or not, isolation levels.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import attrs
import pytest
from confluent_kafka import Producer

from consumer_coord.broker import record_batch as batches
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.simulation import loop as virtual
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from consumer_coord.wire.messages.log import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tests.support.broker.differential import RealBroker, caller
from tests.support.broker.record_batches import read_headers

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 2
STEPS = 40
SEQUENCES = int(os.environ.get("FETCH_SEQUENCES", "40"))
FIRST_SEED = int(os.environ.get("FETCH_FIRST_SEED", "0"))
UNKNOWN = uuid.UUID("00000000-0000-4000-8000-000000000001")
DEADLINE_S = 180


def fill(kafka: KafkaCluster, topic: str) -> None:
    """Plain batches, and transactions that commit and abort, one of which stays open in partition 1."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5}
    plain = Producer(settings)
    # The open transaction must outlast the test on a slow machine.  The broker aborts it after 60 s by default, 15 min at most.
    transactional = {**settings, "transaction.timeout.ms": 900_000}
    one, two = (Producer({**transactional, "transactional.id": f"{topic}-{which}"}) for which in "ab")
    for producer in (one, two):
        producer.init_transactions(DEADLINE_S)
    for round_ in range(4):
        one.begin_transaction()
        two.begin_transaction()
        for producer in (plain, one, two):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"v" * 10, partition=partition)
            assert producer.flush(DEADLINE_S) == 0
        for producer in (two, one):
            aborts = (round_ + (producer is one)) % 2
            (producer.abort_transaction if aborts else producer.commit_transaction)(DEADLINE_S)
    one.begin_transaction()
    one.produce(topic, b"open", partition=1)
    assert one.flush(DEADLINE_S) == 0


class Draw:
    """Draws the requests of one client, by what the broker says."""

    def __init__(self, seed: int, topic: str, topic_id: uuid.UUID, end: int) -> None:
        self._random = Random(seed)
        self._topic, self._topic_id, self._end = topic, topic_id, end
        #: (id, epoch, version) of the session as it should be.
        self._session = (0, 0, 18)

    def request(self) -> tuple[FetchRequest, int]:
        """The next one, and its version."""
        random = self._random
        session_id, epoch, version = self._session
        if epoch == 0 or random.random() < 0.05:
            version = random.choice((4, 7, 9, 11, 12, 13, 15, 16, 18))
        if random.random() < 0.05:
            epoch = random.choice((0, 1, 5, -1))
        if random.random() < 0.03:
            session_id, epoch = 1_234_567, 1
        if version < 7:
            session_id, epoch = 0, -1
        by_id = version >= 13
        topics = []
        for name, topic_id in ((self._topic, self._topic_id), ("unknown", UNKNOWN)):
            numbers = [
                n for n in range(PARTITIONS + 1) if random.random() < (0.5 if name == self._topic and n < PARTITIONS else 0.1)
            ]
            if numbers:
                rows = [self._row(number, version) for number in numbers]
                topics.append(
                    FetchTopic(topic="" if by_id else name, topic_id=topic_id if by_id else uuid.UUID(int=0), partitions=rows)
                )
        forgotten = []
        if epoch > 0 and random.random() < 0.3:
            name, topic_id = ("", self._topic_id) if by_id else (self._topic, uuid.UUID(int=0))
            forgotten.append(ForgottenTopic(topic=name, topic_id=topic_id, partitions=[random.randrange(PARTITIONS)]))
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=10_000_000,
            isolation_level=random.randrange(2),
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        return request, version

    def _row(self, number: int, version: int) -> FetchPartition:
        random = self._random
        return FetchPartition(
            partition=number,
            fetch_offset=random.choice((0, self._end, self._end + 1, -1, *(random.randrange(self._end) for _ in range(4)))),
            current_leader_epoch=random.choice((-1, 0, 0, 1)) if version >= 9 else -1,
            last_fetched_epoch=random.choice((-1, 0, 0, 3)) if version >= 12 else -1,
            partition_max_bytes=10_000_000,
        )

    def answered(self, request: FetchRequest, version: int, response: FetchResponse) -> None:
        """Continue the session, if there is one."""
        if response.error_code or not response.session_id:
            self._session = (0, 0, version)
        else:
            self._session = (response.session_id, request.session_epoch + 1, version)


def row_of(row: PartitionData) -> Any:
    """Return the compared fields of a row; of the aborted transactions only those whose records may be in the row."""
    data = row.records or b""
    ends = [header.base_offset + header.last_offset_delta + 1 for header in read_headers(data)]
    aborted = None
    if row.aborted_transactions is not None:
        met = [one for one in row.aborted_transactions if ends and one.first_offset < ends[-1]]
        aborted = [(one.producer_id, one.first_offset) for one in met]
    return (
        row.partition_index,
        row.error_code,
        row.high_watermark,
        row.last_stable_offset,
        row.log_start_offset,
        (row.diverging_epoch.epoch, row.diverging_epoch.end_offset),
        (row.current_leader.leader_id >= 0, row.current_leader.leader_epoch),
        row.preferred_read_replica,
        aborted,
        data,
    )


def comparable(response: FetchResponse) -> Any:
    """A response without its session's id, and without the order of its rows, which follows what was read before."""
    rows = [(topic.topic, topic.topic_id, row_of(row)) for topic in response.responses for row in topic.partitions]
    return (
        response.error_code,
        response.session_id > 0,
        len(response.node_endpoints),
        sorted(rows, key=lambda row: row[:2] + row[2][:1]),
    )


def difference(ours: FetchResponse, theirs: FetchResponse) -> str:
    """The rows that only one of two responses has."""
    here, there = comparable(ours)[3], comparable(theirs)[3]
    return f"ours {[row for row in here if row not in there]}, Kafka's {[row for row in there if row not in here]}"


async def copy(broker: RealBroker, topic: str, number: int) -> Sequence[bytes]:
    """The batches of a partition."""
    found: list[bytes] = []
    offset = 0
    while True:
        row = FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=10_000_000)
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic=topic, partitions=(row,)),))
        response = await broker.call("copy", request, 11)
        assert isinstance(response, FetchResponse)
        data = response.responses[0].partitions[0].records
        if not data:
            return found
        for header in read_headers(data):
            found.append(data[header.position : header.position + header.size])
            offset = header.base_offset + header.last_offset_delta + 1


Exchange = tuple[FetchRequest, int, FetchResponse]


async def record(broker: RealBroker, seed: int, topic: str, topic_id: uuid.UUID, end: int) -> list[Exchange]:
    """Play a drawn sequence to the real broker."""
    draw, found = Draw(seed, topic, topic_id, end), []
    for _ in range(STEPS):
        request, version = draw.request()
        response = await broker.call(f"draw-{seed}", request, version)
        assert isinstance(response, FetchResponse)
        draw.answered(request, version, response)
        found.append((request, version, response))
    for session_id in {response.session_id for _, _, response in found} - {0}:
        # The broker has a thousand places, and evicts nothing for two minutes.
        farewell = FetchRequest(max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=-1)
        await broker.call(f"draw-{seed}", farewell, 18)
    return found


async def replay(
    exchanges: Sequence[Exchange], topic: str, topic_id: uuid.UUID, logs: Mapping[int, Sequence[bytes]]
) -> list[FetchResponse]:
    """Play the same requests to ours, with its own session ids."""
    cluster = BrokerCluster(
        BrokerConfig.from_mapping({"offsets.topic.num.partitions": 1, "auto.create.topics.enable": False}),
        random=Random(1),
        wall_clock_ms=lambda: 1_000,
    )
    made = cluster.topics.create(topic, PARTITIONS, topic_id, replication_factor=1, configs={}, is_up=lambda _: True)
    for number, data in logs.items():
        for batch in data:
            made.partitions[number].log.restore(batch, batches.read_header(batch))
    cluster.start_all()
    call = caller(cluster)
    ids: dict[int, int] = {0: 0}
    found = []
    for request, version, theirs in exchanges:
        sent = attrs.evolve(request, session_id=ids.get(request.session_id, request.session_id))
        response = await call(sent, version)
        assert isinstance(response, FetchResponse)
        ids[theirs.session_id] = response.session_id
        found.append(response)
    cluster.close()
    return found


def test_the_same_requests_get_the_same_responses(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    name = topic(PARTITIONS)
    fill(kafka, name)
    host, _, port = kafka.bootstrap_servers.partition(":")

    async def recorded() -> tuple[uuid.UUID, dict[int, Sequence[bytes]], dict[int, list[Exchange]]]:
        broker = RealBroker(host, int(port))
        metadata = await broker.call("metadata", MetadataRequest(topics=(MetadataRequestTopic(name=name),)), 12)
        assert isinstance(metadata, MetadataResponse)
        topic_id = metadata.topics[0].topic_id
        logs = {number: await copy(broker, name, number) for number in range(PARTITIONS)}
        last = batches.read_header(logs[0][-1])
        end = last.base_offset + last.last_offset_delta + 1
        seeds = range(FIRST_SEED, FIRST_SEED + SEQUENCES)
        found = {seed: await record(broker, seed, name, topic_id, end) for seed in seeds}
        await broker.close()
        return topic_id, logs, found

    topic_id, logs, found = asyncio.run(recorded())
    met: set[int] = set()
    for seed, exchanges in found.items():
        ours = virtual.run(replay(exchanges, name, topic_id, logs))
        for step, ((request, version, theirs), response) in enumerate(zip(exchanges, ours, strict=True)):
            assert comparable(response) == comparable(theirs), (
                f"seed {seed}, step {step}, version {version}: {difference(response, theirs)}; {request}"
            )
            met.add(theirs.error_code)
            met.update(row.error_code for one in theirs.responses for row in one.partitions)
    assert {0, 1, 3, 70, 71, 75, 100} <= met
