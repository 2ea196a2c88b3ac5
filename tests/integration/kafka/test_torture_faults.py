"""Members and brokers that die or freeze at the worst moment, on real brokers."""

from __future__ import annotations

import time

import pytest

from consumer_coord.group.classic_protocol.membership import MemberState
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from consumer_coord.topic_partition import TopicPartition
from tests.support.admin import await_group, committed_offsets, describe_group
from tests.support.group.classic import classic
from tests.support.kafka.producing import produce
from tests.support.members import Members, await_shared
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SHORT_SESSION = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 300}


def test_a_killed_members_partitions_go_to_the_others(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    name = topic(4)
    victim, other = (
        members.start("ours", group, [name], assignors=["cooperative-sticky"], config=SHORT_SESSION) for _ in range(2)
    )
    await_shared([victim, other], {name: 4}, at_least=2)
    produce(kafka, name, 4, 50)
    eventually(lambda: victim.total + other.total == 200, "200 records")
    victim.command("commit")
    other.command("commit")
    victim.kill()
    await_shared([other], {name: 4})
    produce(kafka, name, 4, 50)
    other.wait_for_total(300)
    assert other.total == 300, "what the victim had committed came again"
    assert not other.named("lost")


@pytest.mark.behaviour(40)
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_a_frozen_member_loses_its_partitions_and_goes_on(
    assignor: str, kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """The member's commits are refused; it reports *lost*, rejoins, and moves no other member's offsets back."""
    name = topic(4)
    frozen = members.start("ours", group, [name], assignors=[assignor], config=SHORT_SESSION)
    await_shared([frozen], {name: 4})
    produce(kafka, name, 4, 50)
    frozen.wait_for_total(200)
    frozen.command("stop_polling")
    frozen.pause()
    other = members.start("ours", group, [name], assignors=[assignor], config=SHORT_SESSION)
    await_shared([other], {name: 4}, condition=lambda: other.total == 200)
    produce(kafka, name, 4, 10)
    other.wait_for_total(240)
    everything = {(name, number): 60 for number in range(4)}
    assert other.command("commit")["offsets"] == {name: {str(number): 60 for number in range(4)}}
    frozen.resume()
    answer = frozen.try_command("commit")
    assert "error" in answer, f"a zombie's commit was taken: {answer}"
    assert committed_offsets(kafka.admin, group) == everything
    frozen.command("start_polling")
    lost = frozen.wait_for("lost")
    assert lost["partitions"] == {name: [0, 1, 2, 3]}
    await_shared([frozen, other], {name: 4}, at_least=2)
    produce(kafka, name, 4, 10)
    eventually(lambda: frozen.total + other.total == 200 + 240 + 40, "the new records, once")
    assert not frozen.named("revoked") or assignor == "range"


def test_a_zombies_commit_is_refused_when_nobody_else_is_left(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """An empty group would take any commit: the client must not send one for what it has lost."""
    name = topic(1)
    zombie = members.start("ours", group, [name], assignors=["cooperative-sticky"], config=SHORT_SESSION)
    await_shared([zombie], {name: 1})
    produce(kafka, name, 1, 10)
    zombie.wait_for_total(10)
    zombie.command("stop_polling")
    zombie.pause()
    other = members.start("ours", group, [name], config=SHORT_SESSION, assignors=["cooperative-sticky"])
    await_shared([other], {name: 1})
    produce(kafka, name, 1, 10)
    other.wait_for_total(20)
    other.command("commit")
    other.leave()
    await_group(kafka.admin, group, state="EMPTY")
    zombie.resume()
    assert "error" in zombie.try_command("commit")
    assert committed_offsets(kafka.admin, group) == {(name, 0): 20}


def test_commit_heartbeat_and_leave_do_not_wait_for_a_join(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members
) -> None:
    """A frozen member delays our JoinGroup; the broker answers our other requests during this time."""
    name = topic(2)
    frozen = members.start("ours", group, [name], assignors=["cooperative-sticky"])
    await_shared([frozen], {name: 2})
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": group,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    with BlockingCoordinator(settings) as ours:
        ours.subscribe([name])
        held = next_assignment(ours)
        frozen.pause()
        ours.enforce_rebalance("to wait for the frozen one")
        await_group(kafka.admin, group, state="PREPARING_REBALANCING")
        took_ms = {}
        began = time.monotonic()
        result = ours.commit(dict.fromkeys(held, OffsetAndMetadata(0)))
        took_ms["commit"] = (time.monotonic() - began) * 1000
        assert all(error is None for error in result.values())
        assert ours.core.protocol.state is MemberState.PREPARING_REBALANCE, "the join was answered: this shows nothing"
        began = time.monotonic()
        ours.call(classic(ours.core).session.send_heartbeat)
        took_ms["heartbeat"] = (time.monotonic() - began) * 1000
        assert ours.core.protocol.state is MemberState.PREPARING_REBALANCE
        assert describe_group(kafka.admin, group).state == "PREPARING_REBALANCING"
        began = time.monotonic()
        ours.leave_group("enough")
        took_ms["leave"] = (time.monotonic() - began) * 1000
        assert len(describe_group(kafka.admin, group).members) == 1
    # The frozen member would have kept each of them for the rest of its session.
    print(", ".join(f"{what} {ms:.1f} ms" for what, ms in took_ms.items()))


def next_assignment(coordinator: BlockingCoordinator) -> frozenset[TopicPartition]:
    """Join, and accept the group's assignment."""

    def took_up() -> bool:
        coordinator.record_poll()
        coordinator.join_group_if_needed(30_000)
        return bool(coordinator.accept(coordinator.pending_change()) or coordinator.owned_partitions)

    eventually(took_up, "an assignment")
    return coordinator.owned_partitions
