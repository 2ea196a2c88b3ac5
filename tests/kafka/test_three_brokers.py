"""Brokers that die at the worst moment, in a cluster of three."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.producing import produce
from tests.support.admin import await_group, committed_offsets, describe_group
from tests.support.members import Member, Members, await_shared
from tests.support.processes import wait_until
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_the_coordinators_broker_is_killed_in_mid_rebalance(
    assignor: str, kafka3: RealKafka, group: str, members: Members
) -> None:
    """One member keeps the rebalance waiting, its coordinator dies, and the group comes out whole, twice."""
    name = kafka3.new_topic(6, replication_factor=3)
    where = kafka3.bootstrap_servers

    def start() -> None:
        everybody.append(members.start("ours", group, [name], assignors=[assignor], bootstrap_servers=where))

    everybody: list[Member] = []
    start()
    start()
    await_shared(everybody, {name: 6}, at_least=2)
    produce(kafka3, name, 6, 50)
    wait_until(lambda: sum(one.total for one in everybody) == 300, 60, "300 records")
    for one in everybody:
        one.command("commit")
    # A frozen member keeps the group in the middle of its rebalance.
    everybody[0].pause()
    start()
    await_group(kafka3.admin, group, state="PREPARING_REBALANCING")
    coordinator = describe_group(kafka3.admin, group).coordinator
    kafka3.kill(coordinator)
    everybody[0].resume()
    await_shared(everybody, {name: 6}, at_least=1, deadline_s=90)
    kafka3.restart(coordinator)
    start()
    await_shared(everybody, {name: 6}, at_least=1, deadline_s=90)
    produce(kafka3, name, 6, 50)
    wait_until(lambda: sum(one.total for one in everybody) >= 600, 60, "600 records")
    for one in everybody:
        one.command("commit")
    # librdkafka 2.16's admin client crashes the process when it asks for offsets over a coordinator that was killed and came
    # back: a new one asks.
    admin = AdminClient({"bootstrap.servers": where})
    assert committed_offsets(admin, group) == {(name, number): 100 for number in range(6)}
    assert sum(one.total for one in everybody) == 600, "a committed record came twice"
