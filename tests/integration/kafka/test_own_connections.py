"""On a real broker: urgent requests do not wait behind a JoinGroup, and the group accepts commits during the JoinGroup."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from assignors import CooperativeStickyAssignor, RangeAssignor
from assignors.base import Assignor
from consumer_coord.group.classic_protocol.membership import MemberState
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from tests.support.group.classic import classic
from tests.support.waiting import eventually


@pytest.fixture
def pair(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> Iterator[Callable[..., list[BlockingCoordinator]]]:
    """Two coordinators of one group that subscribe to a topic of four partitions."""
    made: list[BlockingCoordinator] = []

    def make(assignors: Sequence[type[Assignor]]) -> list[BlockingCoordinator]:
        name = topic(partitions=4)
        for number in range(2):
            settings = {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": group,
                # Each member has separate connections.
                "client.id": f"member-{number}",
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 200,
                "max.poll.interval.ms": 60_000,
            }
            made.append(BlockingCoordinator(settings, assignors=assignors))
            made[-1].subscribe([name])
        return made

    yield make
    for each in made:
        each.release(each.owned_partitions)
        each.close(5_000)


def _poll(member: BlockingCoordinator) -> None:
    member.record_poll()
    change = member.pending_change()
    member.release(change.lost)
    member.release(change.revoked)
    member.accept(change)


def _poll_each(*members: BlockingCoordinator) -> Callable[[], None]:
    """Return a function that polls each member, and waits a moment for its coordinator."""

    def step() -> None:
        for each in members:
            _poll(each)
            each.core.application.bell.wait(0.01)
            each.core.application.bell.clear()

    return step


@pytest.mark.kafka
@pytest.mark.behaviour(72, 84)
def test_commit_heartbeat_and_leave_return_while_a_join_waits(
    pair: Callable[..., list[BlockingCoordinator]],
) -> None:
    one, two = pair([CooperativeStickyAssignor])
    eventually(
        lambda: (
            len(one.owned_partitions) == len(two.owned_partitions) == 2
            and not one.core.rebalancing
            and not two.core.rebalancing
        ),
        step=_poll_each(one, two),
    )
    generation, mine = one.generation, next(iter(one.owned_partitions))
    # An eager member would hold the group up; here the other's join is held back instead, as a transaction does it.
    two.hold_joins()
    one.enforce_rebalance("the test wants it")
    eventually(lambda: classic(one.core).session.joining)
    # The broker answers the join when the other one joins too: what waited behind it would come back after that.
    assert one.commit({mine: OffsetAndMetadata(5)}) == {mine: None}
    one.call(classic(one.core).session.send_heartbeat)
    assert one.committed([mine]) == {mine: OffsetAndMetadata(5)}
    assert classic(one.core).session.joining, "the JoinGroup was answered first, so some request waited for it"
    assert one.generation == generation
    one.leave_group("the test leaves")
    assert two.generation == generation, "leaving waited for the other one's join"
    eventually(lambda: len(two.owned_partitions) == 4, step=_poll_each(two))


@pytest.mark.kafka
@pytest.mark.behaviour(84)
def test_a_commit_while_the_rebalance_completes_is_sent_again_for_what_is_kept(
    pair: Callable[..., list[BlockingCoordinator]],
) -> None:
    class Slow(CooperativeStickyAssignor):
        """Takes its time once."""

        pauses = 0.0

        def assign(self, cluster, members):  # type: ignore[no-untyped-def]  # as its base
            pause, type(self).pauses = type(self).pauses, 0.0
            time.sleep(pause)
            return super().assign(cluster, members)

    one, two = pair([Slow])
    eventually(
        lambda: (
            len(one.owned_partitions) == len(two.owned_partitions) == 2
            and not one.core.rebalancing
            and not two.core.rebalancing
        ),
        step=_poll_each(one, two),
    )
    kept = {member: next(iter(member.owned_partitions)) for member in (one, two)}
    generation = one.generation
    Slow.pauses = 1.0
    one.enforce_rebalance("the test wants it")
    eventually(lambda: all(each.core.protocol.state is MemberState.COMPLETING_REBALANCE for each in (one, two)))
    commits = [
        (member, partition, member.submit(functools.partial(member.core.commit, {partition: OffsetAndMetadata(7)})))
        for member, partition in kept.items()
    ]
    for member, partition, commit in commits:
        assert commit.result(90) == {partition: None}
        assert member.generation == generation + 1
        assert member.metrics()["commit-resent-total"] == 1
        assert not member.pending_change().lost
    assert one.committed(kept.values()) == dict.fromkeys(kept.values(), OffsetAndMetadata(7))


@pytest.mark.kafka
@pytest.mark.behaviour(35)
def test_an_eager_owner_that_works_on_commits_with_its_old_generation(
    pair: Callable[..., list[BlockingCoordinator]],
) -> None:
    one, two = pair([RangeAssignor])
    eventually(
        lambda: (
            len(one.owned_partitions) == len(two.owned_partitions) == 2
            and not one.core.rebalancing
            and not two.core.rebalancing
        ),
        step=_poll_each(one, two),
    )
    mine = next(iter(two.owned_partitions))
    one.enforce_rebalance("the test wants it")
    eventually(lambda: classic(one.core).session.joining, step=_poll_each(one))
    # The other member has not revoked its partitions yet, so the group waits for it, and accepts its commits.
    eventually(lambda: two.core.rebalancing)
    assert two.commit({mine: OffsetAndMetadata(9)}) == {mine: None}
    assert two.pending_change().revoked
    eventually(lambda: len(one.owned_partitions) == len(two.owned_partitions) == 2, step=_poll_each(one, two))
    assert two.committed([mine]) == {mine: OffsetAndMetadata(9)}
