"""Groups in which this client and others sit together, on a real broker."""

from __future__ import annotations

import pytest

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.admin import GroupDescription, await_group
from tests.support.kafka.producing import produce
from tests.support.members import Client, Member, Members, await_shared
from tests.support.reversed_range import REVERSED_RANGE

pytestmark = pytest.mark.kafka

PEERS: tuple[Client, ...] = ("java", "confluent-kafka", "kafka-python")
ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")


def plan_of(described: GroupDescription, topic: str) -> list[tuple[int, ...]]:
    """The partitions of a topic, member by member in the order of their ids."""
    return [described.members[one].assignment.get(topic, ()) for one in sorted(described.members)]


def check_agreement(kafka: KafkaCluster, group: str, members: list[Member], assignor: str) -> None:
    """The members' view of the group is the coordinator's view."""
    described = await_group(kafka.admin, group, members=len(members))
    assert described.assignor == assignor
    told = {one.command("state")["member_id"]: dict(one.owned) for one in members}
    assert told == {one.member_id: dict(one.assignment) for one in described.members.values()}


@pytest.mark.parametrize(
    ("peer", "assignor"),
    [*((peer, assignor) for peer in PEERS for assignor in ASSIGNORS), ("aiokafka", "range"), ("aiokafka", "roundrobin")],
)
def test_shares_with_a_peer_as_leader_and_as_follower(
    peer: Client,
    assignor: str,
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    group: str,
    members: Members,
) -> None:
    """The member that founded the group is its leader, and remains it; when it has left, the other one is."""
    name = topic(6)
    first = members.start("ours", group, [name], assignors=[assignor])
    await_shared([first], {name: 6})
    second = members.start(peer, group, [name], assignors=[assignor])
    read_share_and_commit(kafka, group, name, [first, second], assignor, rounds=1)
    first.leave()
    await_shared([second], {name: 6})
    assert second.total == 150, "a committed record came twice"
    third = members.start("ours", group, [name], assignors=[assignor])
    read_share_and_commit(kafka, group, name, [second, third], assignor, rounds=2)
    second.leave()
    await_shared([third], {name: 6})
    assert third.total == 150, "a committed record came twice"
    for one in (first, second, third):
        assert not one.named("error")


def read_share_and_commit(
    kafka: KafkaCluster, group: str, topic: str, both: list[Member], assignor: str, *, rounds: int
) -> None:
    """Two members share the partitions; each reads fifty more records of each of its partitions, and commits."""
    await_shared(both, {topic: 6}, at_least=3)
    check_agreement(kafka, group, both, assignor)
    before = [one.total for one in both]
    produce(kafka, topic, 6, 50)
    for one, total in zip(both, before, strict=True):
        one.wait_for_total(total + 150)
        offsets = one.command("commit")["offsets"]
        assert offsets == {topic: {str(number): 50 * rounds for number in one.owned[topic]}}


@pytest.mark.parametrize("peer", PEERS)
def test_our_plan_is_obeyed_where_we_lead(
    peer: Client, kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """The plan is one that only our assignor makes."""
    name = topic(5)
    first = members.start("ours", group, [name], assignors=[REVERSED_RANGE])
    await_shared([first], {name: 5})
    second = members.start(peer, group, [name], assignors=["range"])
    await_shared([first, second], {name: 5}, at_least=2)
    assert plan_of(await_group(kafka.admin, group, members=2), name) == [(3, 4), (0, 1, 2)]


@pytest.mark.parametrize("peer", PEERS)
def test_a_peers_plan_is_obeyed_where_it_leads(
    peer: Client, kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """Our assignor would have planned otherwise."""
    name = topic(5)
    first = members.start(peer, group, [name], assignors=["range"])
    await_shared([first], {name: 5})
    second = members.start("ours", group, [name], assignors=[REVERSED_RANGE])
    await_shared([first, second], {name: 5}, at_least=2)
    assert plan_of(await_group(kafka.admin, group, members=2), name) == [(0, 1, 2), (3, 4)]


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_all_clients_in_one_group(
    assignor: str, kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """Ours takes the lead when the leader is killed, and nothing is left without an owner."""
    name = topic(8)
    leader = members.start("java", group, [name], assignors=[assignor])
    await_shared([leader], {name: 8})
    others = [members.start(one, group, [name], assignors=[assignor]) for one in ("ours", "confluent-kafka")]
    others.append(members.start("kafka-python", group, [name], assignors=[assignor]))
    await_shared([leader, *others], {name: 8}, at_least=2)
    check_agreement(kafka, group, [leader, *others], assignor)
    leader.kill()
    await_shared(others, {name: 8}, at_least=2)
    check_agreement(kafka, group, others, assignor)


@pytest.mark.parametrize("peer", PEERS)
def test_with_a_cooperative_assignor_only_what_moves_is_given_up(
    peer: Client, topic: NewTopicFactory, group: str, members: Members
) -> None:
    name = topic(6)
    first = members.start("ours", group, [name], assignors=["cooperative-sticky"])
    await_shared([first], {name: 6})
    second = members.start(peer, group, [name], assignors=["cooperative-sticky"])
    await_shared([first, second], {name: 6}, at_least=3)
    given_up = [number for event in first.named("revoked") for number in event["partitions"].get(name, ())]
    assert sorted(given_up) == sorted(second.owned[name])
    assert not first.named("lost")


def test_a_live_upgrade_from_range_to_cooperative_sticky(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """Members with both names sit in a range group until its last old member has left."""
    name = topic(4)
    old = members.start("java", group, [name], assignors=["range"])
    await_shared([old], {name: 4})
    both = [members.start("ours", group, [name], assignors=["cooperative-sticky", "range"]) for _ in range(2)]
    await_shared([old, *both], {name: 4})
    assert await_group(kafka.admin, group, members=3).assignor == "range"
    old.leave()
    await_shared(both, {name: 4}, at_least=2)
    assert await_group(kafka.admin, group, members=2).assignor == "cooperative-sticky"
