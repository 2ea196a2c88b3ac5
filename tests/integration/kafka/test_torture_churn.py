"""Groups whose members are killed, frozen, stopped and started all the time, on a real broker."""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.churn import Group, check, churn, migrate, outcome
from tests.support.churn_checks import Batch, Moved, backward_commits, double_owners, lost_records, refused_though_held
from tests.support.long_runs import long_runs
from tests.support.waiting import eventually


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "assignor"), [("classic", "cooperative-sticky"), ("classic", "range"), ("consumer", "uniform")]
)
def test_nothing_is_lost_and_no_commit_refused_under_churn(
    protocol: str, assignor: str, kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    name = topic(12)
    with contextlib.closing(Group(kafka, name, group, assignor=assignor, protocol=protocol)) as members:
        check(churn(kafka, name, 12, members, seconds=10.0, seed=7))


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [False, pytest.param(True, marks=pytest.mark.skipif(not long_runs(), reason="LONG_RUNS=1 runs it, too"))],
    ids=["in_order", "with_kills"],
)
def test_a_group_under_load_moves_to_the_consumer_protocol_and_back(
    kills: bool, kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    """The members of the group are replaced one by one, twice."""
    name = topic(12)
    with contextlib.closing(Group(kafka, name, group)) as members:
        disturb = functools.partial(migrate, kills=kills)
        size = 5 if long_runs() else 2
        found = churn(kafka, name, 12, members, seconds=1.0, seed=7, per_s=1_000, disturb=disturb, size=size)
        check(found)
        if not kills:
            assert found.repeated == 0, f"a clean hand-over processes nothing twice: {found}"


@pytest.mark.kafka
@pytest.mark.slow
def test_many_messages_through_members_that_come_and_go(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    """A million with ``LONG_RUNS=1``."""
    records, partitions = 1_000_000 if long_runs() else 200_000, 12
    name = topic(partitions)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": 1_000_000, "enable.idempotence": True}
    )
    for number in range(records):
        while True:
            try:
                producer.produce(name, b"%d" % number, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(360) == 0

    chance = random.Random(3)
    with contextlib.closing(Group(kafka, name, group, batch=1_000)) as members:
        for member in [members.start() for _ in range(5)]:
            member.await_ready()
        ends = members.ends(partitions)
        assert sum(ends.values()) == records
        # One goes and one comes each time the group has done another tenth.
        for step in range(1, 6):
            await_handed(members, step * records // 10)
            victim = chance.choice(members.living)
            (members.kill if step % 2 else members.stop)(victim)
            members.start()
        members.await_no_lag(ends, 150)
        check(outcome(members, ends, 0.0, {}))


def await_handed(group: Group, records: int) -> None:
    """Wait until the members have received ``records`` records."""

    def reached() -> bool:
        return sum(count for batch in group.batches for _, _, count in batch.ranges.values()) >= records

    eventually(reached, f"the first {records} records", within_s=360)


# -- the checks themselves: each finds what it is there for ---------------------------------------------------------------


def batch(member: str, generation: int, first: int, last: int, refused: Mapping[int, str] | None = None) -> Batch:
    """A batch of partition 0."""
    return Batch(member, time.monotonic_ns(), generation, {0: (first, last, last - first + 1)}, refused or {})


def test_the_checks_find_a_lost_record() -> None:
    assert lost_records([batch("a", 1, 0, 4), batch("b", 2, 6, 9)], {0: 12}) == 3


def test_the_checks_find_two_owners() -> None:
    assert double_owners([batch("a", 1, 0, 4), batch("b", 1, 5, 9)]) == ["partition 0 in generation 1: a, b"]
    assert double_owners([batch("a", 1, 0, 4), batch("b", 2, 5, 9)]) == []
    announced_twice = batch("a", 1, 0, 4, {0: "ILLEGAL_GENERATION"})
    assert double_owners([announced_twice, batch("b", 1, 0, 9)]) == []


def test_the_checks_find_a_commit_that_went_backwards() -> None:
    assert backward_commits([(0, 5), (1, 3), (0, 4), (0, 6)]) == ["partition 0: 4 after 5"]


@pytest.mark.parametrize(("what", "found"), [("lost", 0), ("revoked", 1), (None, 1)])
def test_the_checks_find_a_refused_commit_of_a_partition_that_was_held(what: str | None, found: int) -> None:
    refused = batch("a", 1, 0, 4, {0: "ILLEGAL_GENERATION"})
    moved = [] if what is None else [Moved("a", time.monotonic_ns(), what, frozenset({0}))]
    assert len(refused_though_held([refused], moved)) == found
