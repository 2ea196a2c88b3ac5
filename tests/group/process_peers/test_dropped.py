"""Members that are dropped without close(), and what a process keeps of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.group.process_peers.registry import groups_of
from consumer_coord.offsets import CommitResult
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from tests.support.group.fake import GROUP, FakeBrokers
from tests.support.group.member import at, member, new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually
from tests.support.white_box import closes_at_exit

#: The session timeout is far longer than a successful test.
_SESSION_S = 60


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"t": 4}) as kafka:
        yield kafka


def _coordinator(kafka: EmbeddedKafka) -> BlockingCoordinator:
    made = BlockingCoordinator(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": GROUP,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": _SESSION_S * 1000,
            "heartbeat.interval.ms": 100,
        }
    )
    made.subscribe(["t"])
    return made


def _poll_until_held(one: BlockingCoordinator, count: int) -> None:
    def poll() -> None:
        one.record_poll()
        change = one.pending_change()
        one.release(change.lost)
        one.release(change.revoked)
        one.accept(change)
        one.core.application.bell.wait(0.01)
        one.core.application.bell.clear()

    eventually(lambda: len(one.owned_partitions) == count, within_s=_SESSION_S / 2, step=poll)


def test_a_member_that_is_collected_without_close_leaves_its_group(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    exits = closes_at_exit()
    one = _coordinator(kafka)
    _poll_until_held(one, 4)
    assert closes_at_exit() == exits + 1
    alive = weakref.ref(one)
    with caplog.at_level(logging.WARNING):
        del one
        gc.collect()
        assert alive() is None, "it is still referenced"
        with _coordinator(kafka) as two:
            _poll_until_held(two, 4)
            assert closes_at_exit() == exits + 1
            two.release(two.owned_partitions)
    assert "dropped without close()" in caplog.text


def test_a_closed_member_is_not_reported(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    one = _coordinator(kafka)
    _poll_until_held(one, 4)
    one.release(one.owned_partitions)
    with caplog.at_level(logging.WARNING):
        one.close()
        del one
        gc.collect()
    assert "dropped" not in caplog.text


@in_virtual_time
async def test_nothing_is_kept_of_groups_that_were_used() -> None:
    brokers = FakeBrokers()
    cluster = new_cluster(brokers)
    for number in range(3):
        one, two = (new_member(brokers, cluster=cluster, group_id=f"group-{number}") for _ in range(2))
        await one.join()
        await one.stop()
        one.coordinator.release(one.held)
        await one.coordinator.close(1_000)
        assert groups_of(cluster) == {f"group-{number}"}, "there is still a member"
        await two.coordinator.close(1_000)
    assert not groups_of(cluster)
    await cluster.close()


@in_virtual_time
async def test_a_member_that_commits_for_weeks_keeps_nothing_of_the_commits_that_are_over() -> None:
    async with member(FakeBrokers()) as one:
        await one.join()
        commits: list[weakref.ref[asyncio.Future[CommitResult]]] = []
        for offset in range(5):
            commit = one.coordinator.start_commit(at("t", 0, offset), timeout_ms=1_000)
            await pause(1)
            commits.append(weakref.ref(commit))
            await commit
            del commit
        await pause(10)
        gc.collect()
        assert all(over() is None for over in commits)
