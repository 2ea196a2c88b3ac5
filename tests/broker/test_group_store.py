"""Groups in ``__consumer_offsets``: stored before the response, loaded, unloaded, and restored if that fails."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from consumer_coord.broker import group_store, record_batch
from consumer_coord.broker.classic_group import GroupState
from consumer_coord.broker.group_store import StoreHooks
from consumer_coord.broker.record_batch import Record
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.shard import LoadReport
from consumer_coord.wire import error_codes, offsets_topic
from consumer_coord.wire.messages.group import HeartbeatRequest
from tests.support.broker.bench import GROUP, SESSION_MS, Bench, on_bench, pause


@attrs.define
class Trouble:
    """The behaviour of the log: ``error`` for each append, after ``delay_ms``; ``loading_ms`` to load a partition."""

    error: int = 0
    delay_ms: int = 0
    loading_ms: int = 0

    def hooks(self) -> StoreHooks:
        """As hooks of the store."""
        return StoreHooks(
            append_error=lambda _: self.error,
            append_delay_ms=lambda _: self.delay_ms,
            loading_delay_ms=lambda _: self.loading_ms,
        )


def records(bench: Bench) -> list[Record]:
    """All records of the only partition."""
    found = []
    for record in bench.logs[0].records():
        assert isinstance(record, Record)
        found.append(record)
    return found


trouble = Trouble()


def fresh_trouble() -> StoreHooks:
    """For a new test."""
    trouble.error, trouble.delay_ms, trouble.loading_ms = 0, 0, 0
    return trouble.hooks()


@on_bench()
async def test_a_generation_is_in_the_log_before_it_is_answered(bench: Bench) -> None:
    members = await bench.form(2)
    record = records(bench)[-1]
    assert record.key is not None
    assert record.value is not None
    assert offsets_topic.decode_key(record.key) == offsets_topic.GroupMetadataKey(GROUP)
    value = offsets_topic.decode_group_value(record.value)
    assert (value.generation, value.leader, value.protocol) == (1, members.leader, "range")
    assert {one.member_id: one.assignment for one in value.members} == {
        member_id: b"%d" % index for index, member_id in enumerate(members.ids)
    }


@pytest.mark.behaviour(123)
@pytest.mark.parametrize(
    ("append_error", "told"),
    [
        (error_codes.NOT_ENOUGH_REPLICAS, error_codes.COORDINATOR_NOT_AVAILABLE),
        (error_codes.REQUEST_TIMED_OUT, error_codes.COORDINATOR_NOT_AVAILABLE),
        (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.NOT_COORDINATOR),
        (error_codes.KAFKA_STORAGE_ERROR, error_codes.NOT_COORDINATOR),
        (error_codes.MESSAGE_TOO_LARGE, error_codes.UNKNOWN_SERVER_ERROR),
        (error_codes.INVALID_TXN_STATE, error_codes.INVALID_TXN_STATE),
    ],
)
def test_an_assignment_that_cannot_be_stored_is_taken_back(append_error: int, told: int) -> None:
    @on_bench(hooks=fresh_trouble)
    async def scenario(bench: Bench) -> None:
        joined = [await join for join in [bench.start_join(), bench.start_join()]]
        leader = joined[0].leader
        (follower,) = (one.member_id for one in joined if one.member_id != leader)
        waiting = asyncio.ensure_future(bench.sync(follower, 1))
        await pause()
        trouble.error = append_error
        assert (await bench.sync(leader, 1, {follower: b"x"})).error_code == told
        assert (await waiting).error_code == told
        assert bench.state() is GroupState.PREPARING_REBALANCE, "all members join again"
        assert [member.assignment for member in bench.group().members.values()] == [b"", b""]

    scenario()


@pytest.mark.behaviour(123)
@on_bench(hooks=fresh_trouble)
async def test_a_static_member_whose_return_cannot_be_stored_is_not_replaced(bench: Bench) -> None:
    joined = await bench.join(instance_id="a")
    await bench.complete([joined])
    trouble.error = error_codes.NOT_ENOUGH_REPLICAS
    response = await bench.join(instance_id="a", protocols={"range": b"other"})
    assert (response.error_code, response.member_id) == (error_codes.COORDINATOR_NOT_AVAILABLE, "")
    assert tuple(bench.group().members) == (joined.member_id,)
    assert bench.group().leader_id == joined.member_id
    assert bench.group().members[joined.member_id].metadata("range") == b"topics"
    assert await bench.heartbeat(joined.member_id, 1, "a") == 0
    await pause(SESSION_MS + 1)
    assert bench.group().members == {}, "the session continues, and ends"


@pytest.mark.behaviour(123)
@on_bench(hooks=fresh_trouble)
async def test_a_commit_that_cannot_be_stored_changes_nothing(bench: Bench) -> None:
    assert await bench.commit(5) == 0
    trouble.error = error_codes.NOT_ENOUGH_REPLICAS
    assert await bench.commit(6) == error_codes.COORDINATOR_NOT_AVAILABLE
    assert bench.committed() == 5
    assert await bench.commit(1, group_id="new") == error_codes.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.group("new") is None


@pytest.mark.behaviour(123)
@on_bench(hooks=fresh_trouble)
async def test_a_group_that_cannot_be_stored_does_not_come_into_being(bench: Bench) -> None:
    trouble.error = error_codes.NOT_ENOUGH_REPLICAS
    assert (await bench.join()).error_code == error_codes.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.group(GROUP) is None
    trouble.error = 0
    assert (await bench.form(1)).generation_id == 1


@pytest.mark.behaviour(123)
@on_bench(hooks=fresh_trouble)
async def test_a_group_that_cannot_be_deleted_stays(bench: Bench) -> None:
    await bench.commit(5)
    trouble.error = error_codes.KAFKA_STORAGE_ERROR
    (result,) = await bench.coordinator.delete_groups([GROUP])
    assert result.error_code == error_codes.NOT_COORDINATOR
    assert await bench.coordinator.offsets.delete(GROUP, [("orders", 0)]) == (error_codes.NOT_COORDINATOR, [])
    assert bench.committed() == 5


@pytest.mark.behaviour(123)
@on_bench(hooks=fresh_trouble)
async def test_the_last_member_hears_that_its_leaving_could_not_be_stored(bench: Bench) -> None:
    members = await bench.form(1)
    trouble.error = error_codes.KAFKA_STORAGE_ERROR
    assert (await bench.leave(members.leader)).error_code == error_codes.NOT_COORDINATOR
    assert bench.state() is GroupState.EMPTY


@on_bench(hooks=fresh_trouble)
async def test_while_an_assignment_is_being_stored_a_new_member_starts_a_rebalance(bench: Bench) -> None:
    members = await bench.form(1)
    trouble.delay_ms = 500
    rejoined = await bench.join(members.leader)
    syncing = asyncio.ensure_future(bench.sync(members.leader, rejoined.generation_id, {members.leader: b"x"}))
    await pause(100)
    join = bench.start_join()
    assert (await syncing).error_code == error_codes.REBALANCE_IN_PROGRESS
    again = bench.start_join(members.leader)
    assert (await join).generation_id == (await again).generation_id == 3
    await pause(1_000)
    assert bench.state() is GroupState.COMPLETING_REBALANCE, "the late append no longer changes anything"


@on_bench(hooks=fresh_trouble)
async def test_commits_are_answered_when_they_are_stored_and_in_their_order(bench: Bench) -> None:
    trouble.delay_ms = 500
    first = asyncio.ensure_future(bench.commit(1))
    await pause(10)
    trouble.delay_ms = 0
    second = asyncio.ensure_future(bench.commit(2))
    await pause(100)
    assert (first.done(), second.done(), bench.committed()) == (False, False, None)
    assert (await first, await second, bench.committed()) == (0, 0, 2)


@pytest.mark.behaviour(129)
@on_bench()
async def test_a_loaded_group_is_as_it_was_and_its_members_go_on(bench: Bench) -> None:
    members = await bench.form(2)
    await bench.commit(7, generation_id=1, member_id=members.leader, metadata="seven")
    bench.restart()
    group = bench.group()
    assert (group.state, group.generation_id, group.leader_id) == (GroupState.STABLE, 1, members.leader)
    assert tuple(group.members) == members.ids
    assert bench.committed() == 7
    for index, member_id in enumerate(members.ids):
        assert await bench.heartbeat(member_id, 1) == 0
        assert (await bench.sync(member_id, 1)).assignment == b"%d" % index


@pytest.mark.behaviour(129)
@on_bench()
async def test_loaded_members_get_new_sessions(bench: Bench) -> None:
    members = await bench.form(2)
    await pause(SESSION_MS - 1)
    bench.restart()
    await pause(SESSION_MS - 1)
    assert tuple(bench.group().members) == members.ids
    assert await bench.heartbeat(members.leader, 1) == 0
    await pause(2)
    assert tuple(bench.group().members) == (members.leader,)


@pytest.mark.behaviour(124, 129)
@on_bench({"group.max.size": 2})
async def test_a_loaded_group_that_is_too_large_is_rebalanced(bench: Bench) -> None:
    members = await bench.form(2)
    bench.config = attrs.evolve(bench.config, group_max_size=1)
    bench.restart()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    joins = [bench.start_join(member_id) for member_id in members.ids]
    codes = [(await join).error_code for join in joins]
    assert codes == [0, error_codes.GROUP_MAX_SIZE_REACHED]


@pytest.mark.behaviour(129)
@on_bench(hooks=fresh_trouble)
async def test_while_a_partition_is_loaded_everybody_is_told_so(bench: Bench) -> None:
    members = await bench.form(1)
    trouble.loading_ms = 1_000
    bench.restart()
    loading = error_codes.COORDINATOR_LOAD_IN_PROGRESS
    assert (await bench.join()).error_code == loading
    assert (await bench.sync(members.leader, 1)).error_code == loading
    assert await bench.heartbeat(members.leader, 1) == 0, "heartbeats are answered blindly"
    assert (await bench.leave(members.leader)).error_code == loading
    assert await bench.commit(1) == loading
    assert bench.coordinator.offsets.fetch(GROUP, [("orders", 0)], False) == (loading, [])
    assert (await bench.coordinator.list_groups([], []))[0] == loading
    await pause(1_001)
    assert bench.state() is GroupState.STABLE
    assert await bench.heartbeat(members.leader, 1) == 0


@pytest.mark.behaviour(130)
@on_bench(hooks=fresh_trouble)
async def test_whoever_waits_is_told_when_the_coordinator_moves(bench: Bench) -> None:
    members = await bench.form(2)
    join = bench.start_join(members.leader)
    await pause()
    bench.resign()
    assert (await join).error_code == error_codes.NOT_COORDINATOR
    assert await bench.heartbeat(members.leader, 1) == error_codes.NOT_COORDINATOR
    assert await bench.commit(1) == error_codes.NOT_COORDINATOR
    bench.elect()
    rejoins = [bench.start_join(member_id) for member_id in members.ids]
    joined = [await rejoin for rejoin in rejoins]
    (follower,) = members.followers
    sync = asyncio.ensure_future(bench.sync(follower, joined[0].generation_id))
    trouble.delay_ms = 60_000
    commit = asyncio.ensure_future(bench.commit(1, group_id="other"))
    await pause()
    bench.resign()
    assert (await sync).error_code == error_codes.NOT_COORDINATOR
    assert await commit == error_codes.NOT_COORDINATOR, "an append under way fails"


@pytest.mark.behaviour(131)
@on_bench()
async def test_corrupt_future_and_foreign_records_are_skipped_and_counted(bench: Bench) -> None:
    await bench.commit(5)
    log = bench.logs[0]
    offset_key = offsets_topic.encode_offset_key(offsets_topic.OffsetCommitKey(GROUP, "orders", 0))
    group_key = offsets_topic.encode_group_key(offsets_topic.GroupMetadataKey("x"))
    stored = [
        (offset_key, b"\0\3\0\0"),  # too short
        (offset_key, b"\0\5" + bytes(30)),  # a version of the future
        (group_key, b"\0\7" + bytes(30)),
        (group_key, b"\0\3\xff\xff"),
        (b"\0\2\0\7x", b"\0\3"),  # a key that is cut off
        (None, b"value"),
        (b"\0\x0b\0\1g", b"\0\0whatever"),  # a share group
        (b"\0\x17", None),
    ]
    for record in stored:
        log.append_records([record], 0, 0)
    log.append_records([(group_key, None)], 0, 0)
    bench.restart()
    assert bench.coordinator.shards[0].report == LoadReport(records=10, foreign=2, corrupt=4, future=2)
    assert bench.committed() == 5


@pytest.mark.behaviour(131)
@on_bench()
async def test_a_batch_that_cannot_be_read_is_skipped_as_a_whole(bench: Bench) -> None:
    await bench.commit(5)
    log = bench.logs[0]
    damaged = bytearray(record_batch.build_batch([(b"k", b"x")], base_offset=1, timestamp_ms=0, leader_epoch=0))
    damaged[record_batch.HEADER_SIZE] = 0x7E  # the length of its record reaches beyond the batch
    log.restore(bytes(damaged), record_batch.read_header(bytes(damaged)))
    await bench.commit(6)
    bench.restart()
    assert bench.coordinator.shards[0].report.corrupt == 1
    assert bench.committed() == 6


@on_bench()
async def test_a_deleted_group_leaves_tombstones_and_stays_deleted(bench: Bench) -> None:
    members = await bench.form(1)
    await bench.commit(5, generation_id=1, member_id=members.leader)
    assert [one.error_code for one in await bench.coordinator.delete_groups([GROUP, "nobody"])] == [
        error_codes.NON_EMPTY_GROUP,
        error_codes.GROUP_ID_NOT_FOUND,
    ]
    await bench.leave(members.leader)
    assert [one.error_code for one in await bench.coordinator.delete_groups([GROUP])] == [0]
    assert [record.value for record in records(bench)[-2:]] == [None, None]
    assert bench.coordinator.group(GROUP) is None
    bench.restart()
    assert bench.coordinator.group(GROUP) is None


@on_bench()
async def test_groups_are_described_and_listed(bench: Bench) -> None:
    members = await bench.form(1)
    await bench.commit(1, group_id="simple")
    (stable,) = await bench.coordinator.describe_groups(RequestContext(5), [GROUP])
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    assert [(one.member_id, one.member_metadata, one.member_assignment) for one in stable.members] == [
        (members.leader, b"topics", b"0")
    ]
    (dead,) = await bench.coordinator.describe_groups(RequestContext(5), ["nobody"])
    assert (dead.error_code, dead.group_state) == (0, "Dead")
    (missing,) = await bench.coordinator.describe_groups(RequestContext(6), ["nobody"])
    assert missing.error_code == error_codes.GROUP_ID_NOT_FOUND

    async def listed(*states: str, types: tuple[str, ...] = ()) -> dict[str, str]:
        error_code, groups = await bench.coordinator.list_groups(states, types)
        assert error_code == 0
        return {one.group_id: one.group_state for one in groups}

    assert await listed() == {GROUP: "Stable", "simple": "Empty"}
    assert await listed("stable") == {GROUP: "Stable"}
    assert await listed(types=("Classic",)) == {GROUP: "Stable", "simple": "Empty"}
    assert await listed(types=("consumer",)) == {}


@on_bench({"offsets.topic.num.partitions": 2})
async def test_a_broker_answers_only_for_the_partitions_it_leads(bench: Bench) -> None:
    bench.coordinator.on_resignation(0)
    codes = set()
    for number in range(20):
        request = HeartbeatRequest(group_id=f"group-{number}", generation_id=1, member_id="m")
        codes.add((await bench.coordinator.heartbeat(RequestContext(4), request)).error_code)
    assert codes == {error_codes.NOT_COORDINATOR, error_codes.UNKNOWN_MEMBER_ID}


@pytest.mark.parametrize("reload", [False, True])
def test_a_log_of_groups_does_not_grow_without_end(reload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_store, "_COMPACT_AT", 20_000)

    @on_bench()
    async def scenario(bench: Bench) -> None:
        members = await bench.form(2)
        await bench.commit(1, group_id="simple", topic="other", metadata="kept")
        await bench.commit(1, group_id="deleted")
        await bench.coordinator.delete_groups(["deleted"])
        for offset in range(2_000):
            assert await bench.commit(offset, generation_id=1, member_id=members.leader) == 0
        log = bench.logs[0]
        assert log.log_start_offset > 0
        assert log.size < 100_000, "2,000 commits are 300,000 bytes"
        if reload:
            bench.restart()
        assert bench.coordinator.group("deleted") is None
        assert bench.committed() == 1_999
        assert bench.committed("other", group_id="simple") == 1
        assert tuple(bench.group().members) == members.ids
        assert await bench.heartbeat(members.leader, 1) == 0
        assert (await bench.sync(members.ids[1], 1)).assignment == b"1"
        assert await bench.commit(2_000, generation_id=1, member_id=members.leader) == 0
        assert bench.committed() == 2_000

    scenario()


def test_a_rebalance_under_way_is_not_in_a_compacted_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_store, "_COMPACT_AT", 20_000)

    @on_bench()
    async def scenario(bench: Bench) -> None:
        members = await bench.form(2, rebalance_ms=600_000)
        rejoin = bench.start_join(members.leader, rebalance_ms=600_000)
        await pause()
        for offset in range(500):
            assert await bench.commit(offset, generation_id=1, member_id=members.leader) == 0
        assert bench.logs[0].log_start_offset > 0
        bench.restart()
        assert (await rejoin).error_code == error_codes.NOT_COORDINATOR
        assert bench.state() is GroupState.STABLE, "the generation that was stored last"
        assert tuple(bench.group().members) == members.ids

    scenario()
