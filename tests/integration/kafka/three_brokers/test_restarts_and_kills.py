"""Brokers that die at the worst moment, in a cluster of three."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka.admin import AdminClient

from consumer_coord.testing.real_kafka import RealKafka
from tests.support.admin import await_group, committed_offsets, describe_group
from tests.support.kafka.lease_process import LeaseProcess, changes_of, shared
from tests.support.kafka.producing import produce
from tests.support.members import Member, Members, await_shared
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_the_coordinators_broker_is_killed_in_mid_rebalance(
    assignor: str, kafka3: RealKafka, group: str, members: Members
) -> None:
    """A member keeps the rebalance waiting, its coordinator dies, and the group comes out whole, twice."""
    name = kafka3.new_topic(6, replication_factor=3)
    where = kafka3.bootstrap_servers

    def start() -> None:
        joined.append(members.start("ours", group, [name], assignors=[assignor], bootstrap_servers=where))

    joined: list[Member] = []
    start()
    start()
    await_shared(joined, {name: 6}, at_least=2)
    produce(kafka3, name, 6, 50)
    eventually(lambda: sum(one.total for one in joined) == 300, "300 records")
    for one in joined:
        one.command("commit")
    # A frozen member keeps the group in the middle of its rebalance.
    joined[0].pause()
    start()
    await_group(kafka3.admin, group, state="PREPARING_REBALANCING")
    coordinator = describe_group(kafka3.admin, group).coordinator
    kafka3.kill(coordinator)
    joined[0].resume()
    await_shared(joined, {name: 6}, at_least=1, deadline_s=90)
    kafka3.restart(coordinator)
    start()
    await_shared(joined, {name: 6}, at_least=1, deadline_s=90)
    produce(kafka3, name, 6, 50)
    eventually(lambda: sum(one.total for one in joined) >= 600, "600 records")
    for one in joined:
        one.command("commit")
    # librdkafka 2.16's admin client crashes the process when it asks for offsets over a coordinator that was killed and came
    # back: a new one asks.
    admin = AdminClient({"bootstrap.servers": where})
    assert committed_offsets(admin, group) == {(name, number): 100 for number in range(6)}
    assert sum(one.total for one in joined) == 600, "a committed record came twice"


def test_a_rolling_restart_of_all_brokers_suspends_no_lease_and_moves_no_partition(kafka3: RealKafka, group: str) -> None:
    """Each broker in turn is the coordinator that goes away; all of that is over within a session."""
    name = kafka3.new_topic(6, replication_factor=3)
    settings = {
        "bootstrap.servers": kafka3.bootstrap_servers,
        "group.id": group,
        "topic": name,
        # Longer than a restart on a slow machine.
        "session.timeout.ms": 120_000,
        "heartbeat.interval.ms": 1_000,
    }
    processes = [LeaseProcess(**settings) for _ in range(3)]
    try:
        eventually(lambda: all(process.may_deliver == 2 for process in processes), "two partitions for each")
        begins = [len(process.samples) for process in processes]
        for broker in (1, 2, 3):
            kafka3.await_in_sync()
            kafka3.stop(broker)
            kafka3.restart(broker)
            # A new admin client: an older one may wait for the coordinator that was.
            admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
            await_group(admin, group, state="STABLE")
    finally:
        ended = [process.end() for process in processes]
    changes = [changes_of(samples[begin:]) for samples, begin in zip(ended, begins, strict=True)]
    assert all(len(held) == 1 for held in changes), f"a lease was suspended, or partitions moved: {changes}"
    for one, other in itertools.permutations(ended, 2):
        assert shared(one, other) == 0
