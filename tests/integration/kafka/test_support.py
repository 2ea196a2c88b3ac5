"""The tests' own footing: what they use to make members and trouble does what it says on a real broker."""

from __future__ import annotations

import pytest

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.admin import await_group, committed_offsets, delete_group, log_offsets
from tests.support.kafka.producing import produce
from tests.support.members import Client, Members, await_shared

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("client", ["java", "confluent-kafka", "kafka-python", "aiokafka"])
def test_a_peer_consumes_commits_and_leaves(
    client: Client, kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    name = topic(3)
    produce(kafka, name, 3, 100)
    member = members.start(client, group, [name])
    await_shared([member], {name: 3})
    member.wait_for_total(300)
    assert member.command("commit")["offsets"] == {name: {"0": 100, "1": 100, "2": 100}}
    state = member.command("state")
    assert (state["owned"], state["total"]) == ({name: [0, 1, 2]}, 300)
    assert state["generation"] >= 1
    assert state["member_id"] != ""
    member.leave()
    assert member.owned == {}
    assert not member.named("error")


@pytest.mark.parametrize("clients", [("java", "confluent-kafka"), ("kafka-python", "aiokafka")])
def test_peers_share_and_take_over(
    clients: tuple[Client, Client], topic: NewTopicFactory, group: str, members: Members
) -> None:
    name = topic(4)
    first, second = (members.start(client, group, [name]) for client in clients)
    await_shared([first, second], {name: 4}, at_least=2)
    first.kill()
    await_shared([second], {name: 4})


def test_the_broker_tells_of_groups_and_logs(kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members) -> None:
    name = topic(2)
    produce(kafka, name, 2, 10)
    member = members.start("confluent-kafka", group, [name], instance_id="one", config={"client.id": "teller"})
    described = await_group(kafka.admin, group, members=1)
    assert (described.assignor, described.coordinator) == ("range", 1)
    (only,) = described.members.values()
    assert (only.client_id, only.instance_id, only.assignment) == ("teller", "one", {name: (0, 1)})
    member.wait_for_total(20)
    member.command("commit")
    everything = {(name, 0): 10, (name, 1): 10}
    assert committed_offsets(kafka.admin, group) == everything
    assert log_offsets(kafka.admin, name, 2) == everything
    member.leave()
    await_group(kafka.admin, group, state="EMPTY")
    delete_group(kafka.admin, group)
    assert committed_offsets(kafka.admin, group) == {}
