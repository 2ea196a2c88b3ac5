"""Groups of the consumer protocol compared with Apache Kafka's: the same requests give the same responses and records."""

from __future__ import annotations

import asyncio
import os
import struct
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group import membership
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.group_coordinator import GroupCoordinator
from consumer_coord.broker.java_hash import partition_for
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.topics import Topics
from consumer_coord.errors import MalformedMessageError
from consumer_coord.simulation import loop as virtual
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.wire import consumer_group_records, error_codes
from consumer_coord.wire.embedded_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from consumer_coord.wire.messages.consumer_group import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.conformance.broker.test_against_kafka import codes_of, read_log
from tests.support.admin import set_consumer_timeouts
from tests.support.broker.bench import GROUP, Bench
from tests.support.broker.consumer_bench import MODERN, Client, settle_all
from tests.support.broker.consumer_differential import (
    CONFIG,
    PARTITIONS,
    ConsumerRecording,
    differences,
    modern_state,
    record,
)
from tests.support.broker.differential import RealBroker, await_coordinator
from tests.support.broker.ours_to_kafka import write_internal

pytestmark = pytest.mark.kafka

#: As many sequences, always the same ones; thousands by hand: ``CONSUMER_SEQUENCES=5000 pytest …``, and
#: ``CONSUMER_FIRST_SEED`` for others.
SEQUENCES = int(os.environ.get("CONSUMER_SEQUENCES", "40"))
FIRST_SEED = int(os.environ.get("CONSUMER_FIRST_SEED", "1"))
STEPS = 40
OFFSETS_PARTITIONS = 4
PROPERTIES = {
    **{name: str(value) for name, value in CONFIG.items()},
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


@pytest.fixture(scope="module")
def modern_kafka(kafka_libs: Path) -> Iterator[RealKafka]:
    """A real broker with short sessions for members of the consumer protocol."""
    with RealKafka(kafka_libs, properties=PROPERTIES, outlives_test=True) as kafka:
        yield kafka


def connecting(kafka: RealKafka) -> Callable[[], Awaitable[RealBroker]]:
    """Makes connections to the only broker."""
    host, _, port = kafka.bootstrap_servers.partition(":")

    async def connect() -> RealBroker:
        return RealBroker(host, int(port))

    return connect


def on_broker(kafka: RealKafka, work: Callable[[RealBroker], Coroutine[Any, Any, Any]]) -> Any:
    """Run something with connections to the real broker."""

    async def main() -> Any:
        broker = await connecting(kafka)()
        try:
            return await work(broker)
        finally:
            await broker.close()

    return asyncio.run(main())


@pytest.mark.slow
@pytest.mark.timeout(900 + 2 * SEQUENCES)
def test_random_sequences_are_answered_as_kafka_answers_them(
    modern_kafka: RealKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + SEQUENCES)
    outcome = asyncio.run(differences(connecting(modern_kafka), seeds, length=STEPS, at_once=10))
    with capsys.disabled():
        print(
            f"\nconsumer groups: {outcome.sequences} sequences from seed {FIRST_SEED}, {outcome.steps} steps, "
            f"{outcome.recorded_again} recorded again, {len(outcome.differing)} differ"
        )
    assert not outcome.differing, "\n".join(f"seed {seed}: {found}" for seed, found in outcome.differing.items())


def test_a_group_whose_last_session_ends_before_a_classic_join_is_not_compared_further(modern_kafka: RealKafka) -> None:
    """Kafka's group is gone after that join, and ours stays (docs/embedded-kafka.md): sequence 452825."""
    outcome = asyncio.run(differences(connecting(modern_kafka), [452825], length=STEPS))
    assert not outcome.differing, outcome.differing


#: Request -> error codes that a batch of sequences must have produced, or the comparison shows nothing.
EXPECTED_CODES = {
    "ConsumerGroupHeartbeatResponse": {0, 25, 42, 69, 82, 110, 111, 128},
    "JoinGroupResponse": {0, 23, 25, 79},
    "SyncGroupResponse": {0, 22, 23, 25, 27},
    "HeartbeatResponse": {0, 22, 25, 27, 82},
    "OffsetCommitResponse": {0, 3, 22, 25, 35, 69, 113},
    "LeaveGroupResponse": {0, 25},
    "OffsetDeleteResponse": {0, 69, 86},
    "DeleteGroupsResponse": {68, 69},
}


@pytest.mark.slow
def test_random_sequences_come_upon_every_error_and_both_conversions(modern_kafka: RealKafka) -> None:
    seen: dict[str, Counter[int]] = {}
    kinds: Counter[tuple[str, str]] = Counter()

    async def collect(broker: RealBroker) -> None:
        places = asyncio.Semaphore(10)

        async def one(seed: int) -> None:
            async with places:
                recording = await record(broker, seed, f"codes-{seed}-{uuid.uuid4().hex[:8]}", STEPS, 1)
            before = ""
            for step in recording.steps:
                seen.setdefault(type(step.response).__name__, Counter()).update(codes_of(step.response))
                kind = kind_of(step.state)
                kinds[before, kind] += 1
                before = kind

        await asyncio.gather(*(one(seed) for seed in range(1, 61)))

    on_broker(modern_kafka, collect)
    missing = {name: codes - set(seen[name]) for name, codes in EXPECTED_CODES.items() if codes - set(seen[name])}
    assert not missing, f"never seen: {missing}"
    assert kinds["classic", "consumer"], "a group was converted"
    assert kinds["consumer", "classic"], "a group was converted back"


def kind_of(state: Any) -> str:
    """Whether a group was classic or of the consumer protocol, and had members."""
    classic, modern = state
    if len(modern) > 1:
        return "consumer" if modern[4] else "empty"
    return "classic" if classic[4] else "empty"


def test_a_planted_bug_of_our_coordinator_is_found(modern_kafka: RealKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes any former epoch does not pass for Kafka's."""
    monkeypatch.setattr(membership, "check_epoch", lambda member, epoch, owned: None)
    outcome = asyncio.run(differences(connecting(modern_kafka), range(1, 13), length=STEPS, tries=1))
    assert outcome.differing


# -- records


def test_groups_that_kafka_wrote_are_read_back_right(modern_kafka: RealKafka) -> None:
    """Every record comes out the same when it is written again, and the groups are what Kafka says they are."""
    names = {seed: f"stored-{seed}-{uuid.uuid4().hex[:8]}" for seed in range(70, 80)}
    for name in names.values():
        # Long enough that groups still have members when they are read, even on a busy machine.
        set_consumer_timeouts(modern_kafka.admin, name, session_ms=60_000, heartbeat_ms=500)

    async def scenario(broker: RealBroker) -> None:
        recordings = await asyncio.gather(*(record(broker, seed, name, 25, 1) for seed, name in names.items()))
        types: Counter[int] = Counter()
        compared = 0
        for recording in recordings:
            log, modern = await stable_log(broker, recording.group_id)
            types += rewritten_types(log)
            group, hashed = await asyncio.to_thread(load, log, recording)
            if len(modern) == 1:
                assert group is None
                continue
            assert group is not None
            assert (group.state.value, group.epoch, group.assignment_epoch) == modern[:3]
            assert [(m[0], m[3]) for m in modern[4]] == sorted((m.member_id, m.member_epoch) for m in group.members.values())
            grew = any(type(step.message).__name__.startswith("Create") for step in recording.steps)
            if not grew and group.members:
                assert group.metadata_hash == hashed
                compared += 1
        assert set(types) >= {3, 5, 6, 7, 8, 16}, f"seen {types}"
        assert compared, "some group's hash of topics was compared with ours"

    on_broker(modern_kafka, scenario)


async def stable_log(broker: RealBroker, group_id: str) -> tuple[PartitionLog, Any]:
    """Return the log of a group, and the group's state. If a session ended between the two, read both again."""
    request = ConsumerGroupDescribeRequest(group_ids=(group_id,))
    while True:
        before = await broker.call("probe", request, 1)
        log = await read_log(broker, partition_for(group_id, OFFSETS_PARTITIONS))
        after = await broker.call("probe", request, 1)
        assert isinstance(before, ConsumerGroupDescribeResponse)
        assert isinstance(after, ConsumerGroupDescribeResponse)
        if modern_state(before.groups[0]) == modern_state(after.groups[0]):
            return log, modern_state(after.groups[0])


def rewritten_types(log: PartitionLog) -> Counter[int]:
    """Count the records of each type; a record that is decoded and encoded must not change."""
    types: Counter[int] = Counter()
    for stored in log.records():
        assert not isinstance(stored, MalformedMessageError), stored
        number = int.from_bytes((stored.key or b"")[:2], "big")
        if stored.control or stored.key is None or number not in consumer_group_records.TYPES:
            continue
        types[number] += 1
        key = consumer_group_records.decode_key(stored.key)
        assert consumer_group_records.encode_key(key) == stored.key
        if stored.value is not None:
            value = consumer_group_records.decode_value(key, stored.value)
            assert value is not None
            assert consumer_group_records.encode_value(value) == stored.value
    return types


def load(log: PartitionLog, recording: ConsumerRecording) -> tuple[ConsumerGroup | None, int]:
    """A group as our coordinator reads it from a log, and the hash of its topics as they were in the beginning."""

    async def main() -> tuple[ConsumerGroup | None, int]:
        config = BrokerConfig.from_mapping({"offsets.topic.num.partitions": 1})
        topics = Topics(config, (0,), lambda *_: PartitionLog())
        for topic_id, name in recording.topic_ids.items():
            topics.create(name, PARTITIONS, topic_id, replication_factor=1, configs={}, is_up=lambda _: True)
        image = MetadataImage(topics)
        coordinator = GroupCoordinator(config, random=Random(1), wall_clock_ms=lambda: 0, purgatory=Purgatory(), image=image)
        coordinator.on_election(0, log, 0)
        report = coordinator.shards[0].report
        assert (report.corrupt, report.future) == (0, 0)
        group = coordinator.consumer_group(recording.group_id)
        hashed = 0 if group is None else image.group_hash(group.subscribed_topics())
        coordinator.close()
        return group, hashed

    return virtual.run(main())


# -- our groups on a real coordinator


@pytest.mark.slow
def test_a_real_coordinator_goes_on_with_a_group_that_we_wrote(modern_kafka: RealKafka) -> None:
    kafka = modern_kafka
    kafka.create_topic("orders", 4)

    async def metadata(broker: RealBroker) -> uuid.UUID:
        found = await broker.call("lookup", MetadataRequest(topics=(MetadataRequestTopic(name="orders"),)), 12)
        assert isinstance(found, MetadataResponse)
        return found.topics[0].topic_id

    topic_id = on_broker(kafka, metadata)
    ours = virtual.run(our_group(topic_id))
    on_broker(kafka, lambda broker: write_internal(broker, [ours], "__admin_client"))
    kafka.restart()

    async def check(broker: RealBroker) -> None:
        described = None
        for _ in range(900):
            answer = await broker.call("probe", ConsumerGroupDescribeRequest(group_ids=(ours.group_id,)), 1)
            assert isinstance(answer, ConsumerGroupDescribeResponse)
            described = answer.groups[0]
            if described.error_code == 0:
                break
            await asyncio.sleep(0.1)
        assert described is not None
        assert (described.error_code, described.group_state) == (0, "Stable")
        for member in described.members:
            # A member continues in its epoch, because the coordinator knows the member and its partitions.
            beat = ConsumerGroupHeartbeatRequest(
                group_id=ours.group_id, member_id=member.member_id, member_epoch=member.member_epoch
            )
            response = await broker.call("probe", beat, 1)
            assert isinstance(response, ConsumerGroupHeartbeatResponse)
            assert (response.error_code, response.member_epoch) == (0, described.group_epoch)
        assigned = {
            member.member_id: {one.topic_id: tuple(one.partitions) for one in member.assignment.topic_partitions}
            for member in described.members
        }
        assert assigned == ours.assigned
        assert described.group_epoch == ours.epoch, "the hash of the topics is Kafka's, or the epoch had risen"

    on_broker(kafka, check)


@attrs.frozen
class OurGroup:
    """A stable group of two members, and the batches of our log."""

    group_id: str
    partition: int
    epoch: int
    assigned: Mapping[str, Mapping[uuid.UUID, tuple[int, ...]]]
    batches: tuple[bytes, ...]


async def our_group(topic_id: uuid.UUID) -> OurGroup:
    """Made by our coordinator for a topic with this id."""
    bench = Bench(MODERN)
    bench.elect()
    bench.topics.create("orders", 4, topic_id, replication_factor=1, configs={}, is_up=lambda _: True)
    clients = [Client(bench, "a"), Client(bench, "b", instance_id="i")]
    for client in clients:
        await client.join()
    await settle_all(*clients)
    batches = []
    position = 0
    while position < bench.logs[0].end_offset:
        batches.append(bench.logs[0].read(position, 1, at_least_one=True))
        position += struct.unpack_from(">i", batches[-1], 23)[0] + 1
    epoch = bench.coordinator.consumer_group(GROUP)
    assert epoch is not None
    bench.close()
    return OurGroup(
        GROUP,
        partition_for(GROUP, OFFSETS_PARTITIONS),
        epoch.epoch,
        {client.member_id: dict(client.owned) for client in clients},
        tuple(batches),
    )


class ClassicPair:
    """Static members A and B of a classic group."""

    def __init__(self, broker: RealBroker, group_id: str) -> None:
        self._broker = broker
        self._group_id = group_id
        self._ids = {"A": "", "B": ""}

    async def join(self, member: str, *assignors: str) -> JoinGroupResponse:
        """Send JoinGroup, and wait for its response; again while the coordinator loads its groups."""
        metadata = encode_subscription(Subscription(("t",)))
        while True:
            request = JoinGroupRequest(
                group_id=self._group_id,
                session_timeout_ms=1_000,
                rebalance_timeout_ms=1_500,
                member_id=self._ids[member],
                group_instance_id=member,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in assignors],
            )
            joined = await self._broker.call(member, request, 9)
            assert isinstance(joined, JoinGroupResponse)
            if not error_codes.is_retriable(joined.error_code) or joined.error_code == error_codes.REBALANCE_IN_PROGRESS:
                self._ids[member] = joined.member_id or self._ids[member]
                return joined
            await asyncio.sleep(0.05)

    async def sync(self, member: str, joined: JoinGroupResponse) -> None:
        """Send SyncGroup, as the leader with an assignment."""
        nothing = encode_assignment(Assignment({}))
        rows = [SyncGroupRequestAssignment(one, nothing) for one in self._ids.values() if one]
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=member,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=rows if joined.leader == joined.member_id else [],
        )
        await self._broker.call(member, request, 5)

    async def be_in_a_generation(self, *, both: bool) -> None:
        """Make a stable generation of A, or of A and B."""
        joined = await self.join("A", *BOTH)
        if not both:
            await self.sync("A", joined)
            return
        second = asyncio.create_task(self.join("B", *BOTH))
        await asyncio.sleep(0.2)
        first, other = await self.join("A", *BOTH), await second
        await asyncio.gather(self.sync("A", first), self.sync("B", other))


BOTH = ("cooperative-sticky", "sticky")


async def conversion_of_a_stuck_group(broker: RealBroker, group_id: str, *, known: bool) -> list[Any]:
    """Return what a member of the consumer protocol sees of a group whose member B began a rebalance and then stopped.

    ``known``: B was in the generation before.
    """
    await await_coordinator(broker, group_id)
    pair = ClassicPair(broker, group_id)
    await pair.be_in_a_generation(both=known)
    begins = asyncio.create_task(pair.join("B", "sticky"))
    await asyncio.sleep(0.2)
    seen: list[Any] = []
    ends = asyncio.get_running_loop().time() + 5
    while asyncio.get_running_loop().time() < ends and not (seen and seen[-1][0] == error_codes.NONE):
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            member_epoch=0,
            rebalance_timeout_ms=5_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        answer = await broker.call("C", heartbeat, 1)
        described = await broker.call("D", DescribeGroupsRequest(groups=[group_id]), 6)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert isinstance(described, DescribeGroupsResponse)
        (group,) = described.groups
        row = (answer.error_code, answer.error_message, group.group_state, len(group.members))
        seen += [row] if row not in seen else []
        await asyncio.sleep(0.2)
    return [(await begins).error_code, *seen]


@pytest.mark.parametrize("known", [False, True])
def test_a_group_that_cannot_be_converted_keeps_a_new_static_member_that_stopped(modern_kafka: RealKafka, known: bool) -> None:
    """A member that joins for the first time has five minutes instead of a session; a failed conversion ends only its wait."""
    name = f"stuck-{known}"
    with EmbeddedKafka(config=dict(CONFIG)) as ours:
        host, _, port = ours.bootstrap_servers.partition(":")

        async def at_ours() -> Any:
            broker = RealBroker(host, int(port))
            try:
                return await conversion_of_a_stuck_group(broker, name, known=known)
            finally:
                await broker.close()

        expected = on_broker(modern_kafka, lambda broker: conversion_of_a_stuck_group(broker, name, known=known))
        assert asyncio.run(at_ours()) == expected
    refused, converted = error_codes.UNKNOWN_SERVER_ERROR, error_codes.NONE
    stuck = [
        (refused, None, "PreparingRebalance", 2),
        (converted, None, "Dead", 0) if known else (refused, None, "PreparingRebalance", 1),
    ]
    assert expected == [error_codes.REBALANCE_IN_PROGRESS, *stuck]
