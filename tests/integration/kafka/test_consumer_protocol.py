"""Our members with ``group.protocol=consumer`` on a real broker: alone, and with members of librdkafka and Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.errors import ConfigurationError
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.kafka.producing import produce
from tests.support.members import Client, Member, Members, await_shared
from tests.support.waiting import eventually
from tests.support.white_box import coordinator_of

pytestmark = pytest.mark.kafka

MODERN = {"group.protocol": "consumer"}
PEERS: tuple[Client, ...] = ("java", "confluent-kafka")
#: Every successful operation ends earlier.
DEADLINE_S = 180.0


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("peers_protocol", ["consumer", "classic"])
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours_first", "peer_first"])
def test_shares_with_a_peer_of_either_protocol(
    ours_first: bool,
    peers_protocol: str,
    peer: Client,
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    group: str,
    members: Members,
) -> None:
    """A classic founder's group becomes one of the consumer protocol while it is in it."""
    name = topic(6)
    protocols: Mapping[str, Mapping[str, Any]] = {"ours": MODERN, peer: MODERN if peers_protocol == "consumer" else {}}
    clients: tuple[Client, Client] = ("ours", peer) if ours_first else (peer, "ours")
    first = members.start(clients[0], group, [name], config=protocols[clients[0]])
    await_shared([first], {name: 6})
    second = members.start(clients[1], group, [name], config=protocols[clients[1]])
    await_shared([first, second], {name: 6}, at_least=3)
    produce(kafka, name, 6, 50)
    for one in (first, second):
        one.wait_for_total(150)
        assert one.command("commit")["offsets"] == {name: {str(number): 50 for number in one.owned[name]}}
    first.leave()
    await_shared([second], {name: 6})
    assert second.total == 150, "a committed record came twice"
    assert not first.named("error")
    assert not second.named("error")


@pytest.mark.parametrize("peer", PEERS)
def test_a_group_of_ours_moves_to_the_consumer_protocol_and_back(
    peer: Client, kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """Our members are replaced one by one, while a peer's member remains unchanged."""
    name = topic(6)

    def all_read(many: Sequence[Member], each: int) -> None:
        produce(kafka, name, 6, 20)
        many[0].wait_until(lambda: sum(one.total for one in many) >= each, f"{each} records")

    stays = members.start(peer, group, [name])
    classic = members.start("ours", group, [name])
    await_shared([stays, classic], {name: 6}, at_least=3)
    all_read([stays, classic], 120)
    modern = members.start("ours", group, [name], config=MODERN)
    await_shared([stays, classic, modern], {name: 6}, at_least=2)
    classic.command("commit")
    classic.leave()
    await_shared([stays, modern], {name: 6}, at_least=3)
    modern.command("commit")
    stays.command("commit")
    again = members.start("ours", group, [name])
    await_shared([stays, modern, again], {name: 6}, at_least=2)
    modern.leave()
    await_shared([stays, again], {name: 6}, at_least=3)
    for one in (stays, classic, modern, again):
        assert not one.named("error")


def _consumer(kafka: KafkaCluster, group: str, **settings: Any) -> GroupConsumer:
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return GroupConsumer(config)


def _poll_each(*consumers: GroupConsumer) -> Callable[[], object]:
    """Return a function that lets each consumer read what there is."""
    return lambda: [one.consume(100, 0.02) for one in consumers]


def test_a_pattern_is_resolved_by_the_broker(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    first, second = topic(2), topic(3)
    pattern = f"^({first}|{second})$"
    with _consumer(kafka, group) as one:
        one.subscribe([pattern])
        eventually(lambda: len(one.assignment()) == 5, step=_poll_each(one))
        assert {row.topic for row in one.assignment()} == {first, second}


def test_a_static_member_comes_back_to_its_place(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    name = topic(4)
    with _consumer(kafka, group) as other:
        other.subscribe([name])
        static = _consumer(kafka, group, group_instance_id="i")
        static.subscribe([name])
        eventually(lambda: len(other.assignment()) == len(static.assignment()) == 2, step=_poll_each(other, static))
        held = static.assignment()
        static.close()
        again = _consumer(kafka, group, group_instance_id="i")
        again.subscribe([name])
        eventually(lambda: len(again.assignment()) == 2, step=_poll_each(other, again))
        assert again.assignment() == held
        assert len(other.assignment()) == 2
        again.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_that_leaves_for_good_is_replaced_at_once(
    protocol: str, kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    name = topic(4)
    with _consumer(kafka, group, group_protocol=protocol) as other:
        other.subscribe([name])
        static = _consumer(kafka, group, group_protocol=protocol, group_instance_id="i")
        static.subscribe([name])
        eventually(lambda: len(other.assignment()) == len(static.assignment()) == 2, step=_poll_each(other, static))
        static.close(leave_group=True)
        eventually(lambda: len(other.assignment()) == 4, step=_poll_each(other))


def test_commits_survive_a_change_of_the_epoch(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    name = topic(4)
    produce(kafka, name, 4, 10)
    with _consumer(kafka, group) as one, _consumer(kafka, group) as two:
        one.subscribe([name])
        eventually(lambda: len(one.assignment()) == 4, step=_poll_each(one))
        two.subscribe([name])
        refused: list[Any] = []

        def read_and_commit() -> None:
            for consumer in (one, two):
                if consumer.consume(10, 0.02):
                    rows = consumer.commit(asynchronous=False) or []
                    refused.extend(row for row in rows if row.error is not None)

        eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2, step=read_and_commit)
        assert refused == []
        assert coordinator_of(one).metrics()["commit-refused-total"] == 0


def test_an_assignor_that_the_broker_does_not_have(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    name = topic(1)
    with _consumer(kafka, group, group_remote_assignor="mine", poll_raises_errors=True) as one:
        one.subscribe([name])
        with pytest.raises(ConfigurationError, match=r"group\.remote\.assignor"):
            eventually(lambda: False, step=_poll_each(one))


def test_the_session_timeout_is_learnt_from_the_groups_configuration(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    name = topic(1)
    with _consumer(kafka, group) as one:
        one.subscribe([name])
        eventually(lambda: coordinator_of(one).protocol._session.timeout_ms > 20_000, step=_poll_each(one))  # type: ignore[attr-defined]
        left_s = coordinator_of(one).lease.until - coordinator_of(one).lease.clock()
        assert 20 < left_s <= 45
