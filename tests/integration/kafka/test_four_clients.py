"""This library, librdkafka, Java and franz-go in one group, whose members are restarted one after the other."""

from __future__ import annotations

import pytest

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.conftest import fetched_or_skipped
from tests.support.go import go_program
from tests.support.kafka.four_clients import CLIENTS, PARTITIONS, PROTOCOLS, Group, Writing, ends_of
from tests.support.members import Members, await_shared

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_of_four_clients_are_restarted_and_nothing_is_lost(
    protocol: str,
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    group: str,
    members: Members,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetched_or_skipped(lambda: go_program("group_member"))
    name = topic(PARTITIONS)
    together = Group(kafka, members, group, name, protocol)
    with Writing(kafka.bootstrap_servers, name):
        for client in CLIENTS:
            together.start(client)
        await_shared(list(together.running.values()), {name: PARTITIONS}, at_least=2, deadline_s=90)
        for client in CLIENTS:
            together.running.pop(client).leave()
            await_shared(list(together.running.values()), {name: PARTITIONS}, at_least=2, deadline_s=90)
            together.start(client)
            await_shared(list(together.running.values()), {name: PARTITIONS}, at_least=2, deadline_s=90)
    counted = together.check_nothing_is_lost(ends_of(kafka, name))
    with capsys.disabled():
        print(f"\n{protocol}: {counted}")
    for member in together.running.values():
        assert not member.named("lost")
        assert not member.named("error")
