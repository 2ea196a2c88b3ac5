"""Committed offsets: who may commit, what a commit does, transactions, deletion and expiry."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.group_offsets import Commit, Committer
from consumer_coord.wire import error_codes
from tests.support.broker.bench import GROUP, SESSION_MS, Bench, on_bench, pause, subscription

MINUTE_MS = 60_000
SHORT_RETENTION = {"offsets.retention.minutes": 10, "offsets.retention.check.interval.ms": MINUTE_MS}


@on_bench()
async def test_a_commit_carries_the_generation_and_the_member(bench: Bench) -> None:
    members = await bench.form(1)
    leader = members.leader
    assert await bench.commit(1, generation_id=1, member_id=leader) == 0
    assert await bench.commit(2, generation_id=0, member_id=leader) == error_codes.ILLEGAL_GENERATION
    assert await bench.commit(2, generation_id=2, member_id=leader) == error_codes.ILLEGAL_GENERATION
    assert await bench.commit(2, generation_id=1, member_id="nobody") == error_codes.UNKNOWN_MEMBER_ID
    assert await bench.commit(2) == error_codes.UNKNOWN_MEMBER_ID, "no simple commits while the group has members"
    assert bench.committed() == 1
    await bench.leave(leader)
    assert await bench.commit(3) == 0
    assert await bench.commit(4, generation_id=2, member_id=leader) == error_codes.UNKNOWN_MEMBER_ID


@on_bench()
async def test_commits_while_a_rebalance_is_under_way(bench: Bench) -> None:
    members = await bench.form(2)
    rejoin = bench.start_join(members.leader)
    await pause()
    assert await bench.commit(1, generation_id=1, member_id=members.leader) == 0, "members join: the old one counts"
    await bench.join(members.followers[0])
    assert (await rejoin).generation_id == 2
    assert await bench.commit(2, generation_id=1, member_id=members.leader) == error_codes.ILLEGAL_GENERATION
    assert await bench.commit(2, generation_id=2, member_id=members.leader) == error_codes.REBALANCE_IN_PROGRESS
    assert await bench.heartbeat(members.leader, 2) == 0
    await bench.sync(members.leader, 2, {})
    assert await bench.commit(2, generation_id=2, member_id=members.leader) == 0


@on_bench()
async def test_a_commit_to_no_group_makes_a_simple_one_or_says_that_there_is_none(bench: Bench) -> None:
    assert await bench.commit(1, generation_id=3, member_id="m", version=9) == error_codes.GROUP_ID_NOT_FOUND
    assert await bench.commit(1, generation_id=3, member_id="m", version=8) == error_codes.ILLEGAL_GENERATION
    assert bench.coordinator.group(GROUP) is None
    assert await bench.commit(1) == 0
    assert bench.group().is_simple
    assert await bench.commit(1, group_id="") == 0, "as in Kafka, for clients without a group"


@on_bench({"offset.metadata.max.bytes": 5})
async def test_metadata_that_is_too_large_is_refused_for_its_partition_alone(bench: Bench) -> None:
    results = await bench.coordinator.offsets.commit(
        9, Committer(GROUP), [Commit("orders", 0, 1, metadata="123456"), Commit("orders", 1, 2, metadata="12345")]
    )
    assert [code for _, code in results] == [error_codes.OFFSET_METADATA_TOO_LARGE, 0]
    assert (bench.committed(partition=0), bench.committed(partition=1)) == (None, 2)
    assert await bench.commit(1, metadata="123456", group_id="new") == error_codes.OFFSET_METADATA_TOO_LARGE
    assert bench.coordinator.group("new") is None


@pytest.mark.behaviour(126)
@on_bench()
async def test_a_commit_extends_the_session(bench: Bench) -> None:
    members = await bench.form(2)
    for _ in range(4):
        await pause(SESSION_MS // 2)
        assert await bench.commit(1, generation_id=1, member_id=members.leader) == 0
    assert tuple(bench.group().members) == (members.leader,), "who commits lives, who does not is gone"
    assert bench.state() is GroupState.PREPARING_REBALANCE
    for _ in range(2):
        await pause(SESSION_MS - 10)
        assert await bench.commit(1, generation_id=1, member_id=members.leader) == 0, "also while members join"


@pytest.mark.behaviour(127)
@on_bench(SHORT_RETENTION)
async def test_offsets_of_an_empty_group_expire_when_it_has_been_empty_long_enough(bench: Bench) -> None:
    members = await bench.form(1)
    await bench.commit(1, generation_id=1, member_id=members.leader)
    for _ in range(60):
        await pause(SESSION_MS - 1)
        await bench.heartbeat(members.leader, 1)
    assert bench.committed() == 1, "an offset of a live group does not expire, however old"
    await bench.leave(members.leader)
    await pause(9 * MINUTE_MS)
    assert bench.committed() == 1
    await pause(2 * MINUTE_MS)
    assert bench.committed() is None
    assert bench.coordinator.group(GROUP) is None, "and the group goes with its last offset"


@pytest.mark.behaviour(127)
@on_bench(SHORT_RETENTION)
async def test_offsets_of_topics_that_an_active_group_no_longer_reads_expire_by_their_age(bench: Bench) -> None:
    protocols = {"range": subscription("orders")}
    members = await bench.form(1, protocols=protocols)
    for topic in ("orders", "old"):
        await bench.commit(1, topic=topic, generation_id=1, member_id=members.leader)
    for _ in range(80):
        await pause(SESSION_MS - 1)
        await bench.heartbeat(members.leader, 1)
    assert (bench.committed("orders"), bench.committed("old")) == (1, None)


@pytest.mark.behaviour(127)
@on_bench(SHORT_RETENTION)
async def test_offsets_of_a_simple_group_expire_by_their_own_age(bench: Bench) -> None:
    await bench.commit(1, partition=0)
    await pause(6 * MINUTE_MS)
    await bench.commit(2, partition=1)
    await pause(6 * MINUTE_MS)
    assert (bench.committed(partition=0), bench.committed(partition=1)) == (None, 2)
    await pause(6 * MINUTE_MS)
    assert bench.coordinator.group(GROUP) is None


@pytest.mark.behaviour(127)
@on_bench(SHORT_RETENTION)
async def test_a_retention_that_the_client_asked_for_counts_before_the_brokers(bench: Bench) -> None:
    await bench.commit(1, partition=0, retention_ms=2 * MINUTE_MS)
    await bench.commit(1, partition=1)
    await pause(4 * MINUTE_MS)
    assert (bench.committed(partition=0), bench.committed(partition=1)) == (None, 1)
    bench.restart()
    assert bench.committed(partition=0) is None, "its tombstone is in the log"


@on_bench()
async def test_offsets_are_deleted_unless_somebody_reads_the_topic(bench: Bench) -> None:
    delete = bench.coordinator.offsets.delete
    assert await delete(GROUP, [("orders", 0)]) == (error_codes.GROUP_ID_NOT_FOUND, [])
    assert await delete("", [("orders", 0)]) == (error_codes.INVALID_GROUP_ID, [])
    members = await bench.form(1, protocols={"range": subscription("orders")})
    for topic in ("orders", "old"):
        await bench.commit(1, topic=topic, generation_id=1, member_id=members.leader)
    assert await delete(GROUP, [("orders", 0), ("old", 0), ("old", 1)]) == (
        0,
        [("orders", 0, error_codes.GROUP_SUBSCRIBED_TO_TOPIC), ("old", 0, 0), ("old", 1, 0)],
    )
    assert (bench.committed("orders"), bench.committed("old")) == (1, None)
    await bench.form(1, group_id="connect", protocol_type="connect")
    assert await delete("connect", [("orders", 0)]) == (error_codes.NON_EMPTY_GROUP, [])


@on_bench()
async def test_offsets_of_a_deleted_topic_go_with_it(bench: Bench) -> None:
    for topic in ("orders", "old"):
        await bench.commit(1, topic=topic)
    bench.coordinator.offsets.delete_topic(("old",))
    assert (bench.committed("orders"), bench.committed("old")) == (1, None)
    bench.restart()
    assert (bench.committed("orders"), bench.committed("old")) == (1, None)


# -- transactions


async def txn_commit(bench: Bench, offset: int, producer_id: int = 7, **committer: object) -> int:
    """Commit the offset of orders-0 in a transaction; its error code."""
    results = await bench.coordinator.offsets.commit(
        5,
        Committer(GROUP, **committer),  # type: ignore[arg-type]  # keywords of the class
        [Commit("orders", 0, offset)],
        producer_id,
        0,
    )
    return results[0][1]


UNSTABLE = -1000 - error_codes.UNSTABLE_OFFSET_COMMIT


@pytest.mark.behaviour(128)
@on_bench()
async def test_an_offset_in_a_transaction_counts_when_the_transaction_does(bench: Bench) -> None:
    await bench.commit(1)
    assert await txn_commit(bench, 5) == 0
    assert (bench.committed(), bench.committed(require_stable=True)) == (1, UNSTABLE)
    assert bench.coordinator.offsets.end_transaction(0, 7, 0, committed=True)
    assert bench.committed(require_stable=True) == 5
    assert await txn_commit(bench, 9) == 0
    bench.coordinator.offsets.end_transaction(0, 7, 0, committed=False)
    assert bench.committed(require_stable=True) == 5


@pytest.mark.behaviour(128)
@pytest.mark.parametrize("reload", [False, True])
def test_of_a_plain_and_a_transactional_commit_the_later_one_in_the_log_stays(reload: bool) -> None:
    @on_bench()
    async def scenario(bench: Bench) -> None:
        await txn_commit(bench, 5, producer_id=1)
        await bench.commit(6)
        await txn_commit(bench, 7, producer_id=2)
        if reload:
            bench.restart()
        bench.coordinator.offsets.end_transaction(0, 1, 0, committed=True)
        assert bench.committed() == 6, "the plain one came after the first transaction's"
        bench.coordinator.offsets.end_transaction(0, 2, 0, committed=True)
        assert bench.committed() == 7
        bench.restart()
        assert bench.committed() == 7

    scenario()


@pytest.mark.behaviour(128)
@on_bench(SHORT_RETENTION)
async def test_an_open_transaction_keeps_offset_and_group(bench: Bench) -> None:
    await bench.commit(1)
    await txn_commit(bench, 5)
    await pause(30 * MINUTE_MS)
    assert bench.committed() == 1
    bench.coordinator.offsets.end_transaction(0, 7, 0, committed=False)
    await pause(2 * MINUTE_MS)
    assert bench.coordinator.group(GROUP) is None


@pytest.mark.behaviour(128)
@on_bench()
async def test_transactional_commits_are_fenced_by_generation_but_not_by_the_state(bench: Bench) -> None:
    members = await bench.form(2)
    leader = members.leader
    assert await txn_commit(bench, 1, generation_id=1, member_id=leader) == 0
    assert await txn_commit(bench, 1, generation_id=2, member_id=leader) == error_codes.ILLEGAL_GENERATION
    assert await txn_commit(bench, 1, generation_id=1, member_id="nobody") == error_codes.UNKNOWN_MEMBER_ID
    assert await txn_commit(bench, 1) == 0, "older producers do not say who they are"
    rejoins = [asyncio.ensure_future(bench.join(member_id)) for member_id in (leader, *members.followers)]
    await asyncio.gather(*rejoins)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    assert await txn_commit(bench, 1, generation_id=2, member_id=leader) == 0
    assert await txn_commit(bench, 1, generation_id=1, member_id=leader) == error_codes.ILLEGAL_GENERATION
