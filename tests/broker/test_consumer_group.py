"""Groups of the consumer protocol (KIP-848): joining, handing over, fencing, leaving, and what is left after a restart."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from assignors import Assignor, Cluster, Member, Plan
from consumer_coord.broker import group_store
from consumer_coord.broker.consumer_group.group import ConsumerGroupState
from consumer_coord.broker.consumer_group.member import MemberState
from consumer_coord.broker.consumer_group.subscriptions import metadata_is_due
from consumer_coord.broker.group_offsets import Commit, Committer
from consumer_coord.broker.group_store import StoreHooks
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatRequest
from tests.support.broker.bench import GROUP, Bench, on_bench, pause
from tests.support.broker.consumer_bench import INTERVAL_MS, MODERN, REBALANCE_MS, SESSION_MS, Client, group_of, settle_all

STATIC = {**MODERN, "group.consumer.max.size": 3}


@on_bench(MODERN)
async def test_the_first_member_has_everything_at_once(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    client = Client(bench, "a")
    response = await client.join()
    assert (response.error_code, response.member_epoch, response.heartbeat_interval_ms) == (0, 2, INTERVAL_MS)
    assert client.partitions == [0, 1, 2, 3]
    assert group_of(bench).state is ConsumerGroupState.STABLE
    assert (await client.beat()).assignment is None, "nothing changed, and nothing is said"


@on_bench(MODERN)
async def test_a_newcomer_gets_its_share_when_the_other_gave_it_up(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    await second.join()
    group = group_of(bench)
    assert group.state.value == "Reconciling"
    assert (second.partitions, group.members["b"].state) == ([], MemberState.UNRELEASED_PARTITIONS)
    first.holds_on = True
    told = await first.beat()
    assert told.assignment is not None
    assert (told.member_epoch, group.members["a"].state) == (2, MemberState.UNREVOKED_PARTITIONS), "in its epoch until then"
    await second.beat()
    assert second.partitions == [], "the first member has not revoked anything yet"
    first.holds_on = False
    await first.beat()
    await first.beat()
    await second.beat()
    assert (len(first.partitions), len(second.partitions)) == (2, 2)
    assert group.state.value == "Stable"
    assert {first.epoch, second.epoch} == {group.epoch}


@on_bench(MODERN)
async def test_a_member_without_heartbeats_is_fenced_and_its_partitions_are_free(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    await second.join()
    await settle_all(first, second)
    for _ in range(SESSION_MS // INTERVAL_MS + 1):
        await pause(INTERVAL_MS)
        await first.beat()
    assert list(group_of(bench).members) == ["a"]
    assert first.partitions == [0, 1, 2, 3]
    assert (await second.beat()).error_code == error_codes.UNKNOWN_MEMBER_ID


@on_bench(MODERN)
async def test_a_member_that_does_not_give_up_in_time_is_fenced(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    await second.join()
    first.holds_on = True
    for _ in range(REBALANCE_MS // INTERVAL_MS + 1):
        await first.beat()
        await second.beat()
        await pause(INTERVAL_MS)
    assert list(group_of(bench).members) == ["b"]
    await second.beat()
    assert second.partitions == [0, 1, 2, 3]


@on_bench(MODERN)
async def test_epochs_fence(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    client = Client(bench, "a")
    await client.join()
    await Client(bench, "b").join()
    assert (await client.beat(member_epoch=client.epoch + 5)).error_code == error_codes.FENCED_MEMBER_EPOCH
    assert (await client.beat(member_id="stranger")).error_code == error_codes.UNKNOWN_MEMBER_ID
    owned, before = client.owned, client.epoch
    await client.beat()
    await client.beat()
    assert client.epoch > before
    # The answer may have been lost: the epoch before counts with nothing owned but what is assigned.
    again = Client(bench, "a")
    again.epoch, again.owned = before, dict(client.owned)
    assert (await again.beat()).error_code == 0
    again.epoch, again.owned = before, owned
    assert (await again.beat()).error_code == error_codes.FENCED_MEMBER_EPOCH


@on_bench(MODERN)
async def test_a_static_member_that_comes_back_has_its_partitions_again(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, other = Client(bench, "a", instance_id="i"), Client(bench, "b")
    await first.join()
    await other.join()
    await settle_all(first, other)
    kept, epoch = first.partitions, group_of(bench).epoch
    late = Client(bench, "a2", instance_id="i")
    assert (await late.join()).error_code == error_codes.UNRELEASED_INSTANCE_ID
    assert (await first.leave(-2)).member_epoch == -2
    await other.beat()
    assert (await late.join()).error_code == 0
    assert (late.partitions, group_of(bench).epoch) == (kept, epoch), "no rebalance"
    assert (await first.beat()).error_code == error_codes.FENCED_INSTANCE_ID
    assert set(group_of(bench).members) == {"a2", "b"}


@on_bench(MODERN)
async def test_a_static_member_that_does_not_come_back_in_time_is_gone(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, other = Client(bench, "a", instance_id="i"), Client(bench, "b")
    await first.join()
    await other.join()
    await settle_all(first, other)
    await first.leave(-2)
    for _ in range(SESSION_MS // INTERVAL_MS + 1):
        await pause(INTERVAL_MS)
        await other.beat()
    assert (other.partitions, list(group_of(bench).members)) == ([0, 1, 2, 3], ["b"])


@on_bench(MODERN)
async def test_an_instance_id_that_was_given_up_is_free(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    client = Client(bench, "a", instance_id="i")
    await client.join()
    client.instance_id = "j"
    assert (await client.join()).error_code == 0
    assert group_of(bench).static_members == {"j": "a"}
    assert (await Client(bench, "b", instance_id="i").join()).error_code == 0


@on_bench(STATIC)
async def test_a_full_group_takes_nobody(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    static = Client(bench, "s", instance_id="i")
    for client in (Client(bench, "a"), Client(bench, "b"), static):
        assert (await client.join()).error_code == 0
    assert (await Client(bench, "d").join()).error_code == error_codes.GROUP_MAX_SIZE_REACHED
    assert (await Client(bench, "b").join()).error_code == 0
    await static.leave(-2)
    again = Client(bench, "s2", instance_id="i")
    assert (await again.join()).error_code == 0, "a static member that returns is no newcomer"


@on_bench(MODERN)
async def test_a_group_that_is_left_by_all_has_an_assignment_of_its_epoch(bench: Bench) -> None:
    """As in Kafka from 4.4 on (KAFKA-20442)."""
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    await second.join()
    await first.leave()
    assert group_of(bench).assignment_epoch < group_of(bench).epoch
    await second.leave()
    group = group_of(bench)
    assert (group.state, group.assignment_epoch) == (ConsumerGroupState.EMPTY, group.epoch)
    assert group.assignment_timestamp_ms == 0, "the next member waits for no interval"


@on_bench(MODERN)
async def test_the_epoch_rises_with_another_assignor(bench: Bench) -> None:
    """As in Kafka from 4.4 on (KAFKA-20434): static members may all return with another assignor."""
    bench.add_topic("orders", 4)
    client = Client(bench, "a", instance_id="i")
    await client.join()
    epoch = group_of(bench).epoch
    await client.leave(-2)
    again = Client(bench, "a2", instance_id="i", assignor="uniform")
    await again.join()
    assert group_of(bench).epoch == epoch, "uniform is the default"
    await again.beat(server_assignor="range")
    assert group_of(bench).epoch == epoch + 1


@on_bench(MODERN)
async def test_a_dynamic_member_that_takes_an_instance_id_counts_as_its_former_owner(bench: Bench) -> None:
    """As in Kafka, which looks at the assignors of the group before and after the former owner names another."""
    bench.add_topic("orders", 4)
    first, former = (Client(bench, name, instance_id=name, assignor="uniform") for name in "ab")
    dynamic = Client(bench, "c", assignor="range")
    for client in (first, former, dynamic):
        await client.join()
    await settle_all(first, former, dynamic)
    await former.leave(-2)
    epoch = group_of(bench).epoch
    dynamic.instance_id = "b"
    assert (await dynamic.join()).error_code == 0
    assert group_of(bench).epoch == epoch + 1, "two of uniform and one of range were there, one and two are found"


@on_bench(MODERN)
async def test_requests_that_make_no_sense_are_refused(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    client = Client(bench, "a")
    invalid = error_codes.INVALID_REQUEST
    assert (await client.beat(full=True, member_id=" ")).error_code == invalid
    assert (await client.beat(full=True, rebalance_timeout_ms=-1)).error_code == invalid
    assert (await client.beat(full=True, topic_partitions=None)).error_code == invalid
    assert (await client.beat(full=True, subscribed_topic_names=None)).error_code == invalid
    assert (await client.beat(member_epoch=-3)).error_code == invalid
    assert (await client.leave(-2)).error_code == invalid, "only a static member leaves for a while"
    assert (await client.beat(full=True, group_id="")).error_code == invalid
    assert (await client.beat(full=True, server_assignor="mine")).error_code == error_codes.UNSUPPORTED_ASSIGNOR
    client.regex = "("
    assert (await client.join()).error_code == error_codes.INVALID_REGULAR_EXPRESSION
    assert (await client.beat(member_epoch=1)).error_code == error_codes.GROUP_ID_NOT_FOUND
    assert bench.coordinator.consumer_group(GROUP) is None


@on_bench(MODERN)
async def test_new_partitions_and_new_topics_are_found_by_the_next_heartbeat(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    client = Client(bench, "a", ("orders", "later"))
    await client.join()
    assert client.partitions == [0, 1]
    bench.grow_topic("orders", 3)
    await client.beat()
    assert client.partitions == [0, 1, 2]
    later = bench.add_topic("later", 1)
    await client.beat()
    assert client.owned[later] == (0,)


@on_bench(MODERN)
async def test_a_regular_expression_is_resolved_behind_the_heartbeat_and_again_for_new_topics(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    bench.add_topic("other", 5)
    client = Client(bench, "a", (), regex="ord.*|pay[a-z]+")
    response = await client.join()
    assert (response.member_epoch, client.partitions) == (1, [])
    await pause()
    assert group_of(bench).state is ConsumerGroupState.ASSIGNING
    await client.beat()
    assert client.partitions == [0, 1]
    payments = bench.add_topic("payments", 1)
    await client.beat()
    await pause()
    await client.beat()
    assert payments not in client.owned, "topics are not looked up more often than every ten seconds"
    for _ in range(11):
        await pause(1_000)
        await client.beat()
    await pause()
    await client.beat()
    assert client.owned[payments] == (0,)
    client.regex, client.topics = "", ("other",)
    await client.beat(full=True)
    await client.beat()
    await client.beat()
    assert client.partitions == [0, 1, 2, 3, 4]
    assert not group_of(bench).resolved_regexes


@on_bench(MODERN)
async def test_another_groups_topics_do_not_raise_the_epoch_before_a_regular_expression_is_resolved(bench: Bench) -> None:
    """The hash is computed again only when a topic of the group changed, so it may be the hash of a former expression."""
    bench.add_topic("orders", 2)
    client = Client(bench, "a", (), regex="ord.*")
    await client.join()
    await pause()
    await client.beat()
    epoch, metadata_hash = group_of(bench).epoch, group_of(bench).metadata_hash
    client.regex = "pay.*"
    await client.beat(full=True)
    bench.add_topic("other", 1)
    await client.beat()
    bench.topics.delete("other")
    await client.beat()
    assert (group_of(bench).epoch, group_of(bench).metadata_hash) == (epoch, metadata_hash)
    for _ in range(11):
        await pause(1_000)
        await client.beat()
    assert group_of(bench).epoch == epoch + 1
    assert client.partitions == []


@on_bench(MODERN)
async def test_a_change_of_one_of_its_topics_makes_a_group_look_at_them_again(bench: Bench) -> None:
    topics = bench.topics
    bench.add_topic("orders", 2)
    bench.add_topic("other", 1)
    client, leaver = Client(bench, "a"), Client(bench, "b", ("orders", "other"))
    await client.join()
    await leaver.join()
    await settle_all(client, leaver)
    changes = (
        lambda: bench.grow_topic("orders", 3),
        lambda: topics.set_leader(topics.by_name["orders"].partitions[0], 0),
        lambda: topics.delete("orders"),
        lambda: bench.add_topic("orders", 1),
    )
    for change in changes:
        assert not metadata_is_due(group_of(bench), bench.image)
        change()
        assert metadata_is_due(group_of(bench), bench.image)
        await client.beat()
    topics.delete("other")
    await leaver.leave()
    assert metadata_is_due(group_of(bench), bench.image), "although its only subscriber has left"
    await client.beat()
    assert not metadata_is_due(group_of(bench), bench.image)


@on_bench({**MODERN, "group.consumer.assignment.interval.ms": 2_000})
async def test_targets_are_computed_no_more_often_than_the_assignment_interval(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    await second.join()
    assert (group_of(bench).epoch, group_of(bench).assignment_epoch) == (3, 2)
    await pause(2_000)
    await second.beat()
    assert group_of(bench).assignment_epoch == 3


@on_bench({**MODERN, "group.consumer.assignment.interval.ms": 2_000})
async def test_the_first_target_with_topics_does_not_wait_for_the_interval(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    client = Client(bench, "a", (), regex="ord.*")
    await client.join()
    assert (group_of(bench).assignment_epoch, group_of(bench).assignment_timestamp_ms) == (1, 0), "nothing was computed"
    await pause()
    await client.beat()
    assert client.partitions == [0, 1]


# -- the log


@on_bench(MODERN)
async def test_a_group_goes_on_after_a_restart(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b", (), regex="ord.*")
    await first.join()
    await second.join()
    await pause()
    await settle_all(first, second)
    await Client(bench, "c").join()
    await first.beat()
    before = group_of(bench)
    bench.restart()
    after = group_of(bench)
    assert after is not before
    for name in ("epoch", "metadata_hash", "assignment_epoch", "members", "static_members", "target", "resolved_regexes"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.state is before.state
    assert (await first.beat()).error_code == 0
    await pause(SESSION_MS + 1_000)
    assert group_of(bench).is_empty, "the members got new sessions, which have ended"


@on_bench(MODERN)
async def test_a_large_log_is_written_anew_with_its_consumer_groups(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b", (), regex="ord.*")
    await first.join()
    await second.join()
    await pause()
    await settle_all(first, second)
    await bench.commit(5, member_id="a", generation_id=first.epoch)
    before, log = group_of(bench), bench.logs[0]
    end = log.end_offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_store, "_COMPACT_AT", 20_000)
        while log.log_start_offset == 0:
            assert await bench.commit(6, member_id="a", generation_id=first.epoch, metadata="x" * 4_000) == 0
    assert log.log_start_offset > end
    bench.restart()
    after = group_of(bench)
    assert (after.members, after.target, after.epoch) == (before.members, before.target, before.epoch)
    assert after.resolved_regexes == before.resolved_regexes
    assert bench.committed() == 6


@attrs.define
class Disk:
    """The result of appends to the log, and the time that an append takes."""

    error_code: int = 0
    delay_ms: int = 0


def hooks_of(disk: Disk) -> StoreHooks:
    return StoreHooks(append_error=lambda _: disk.error_code, append_delay_ms=lambda _: disk.delay_ms)


FULL_DISK = Disk()


@on_bench(MODERN, lambda: hooks_of(FULL_DISK))
async def test_what_the_log_refuses_has_not_happened(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    client = Client(bench, "a")
    FULL_DISK.error_code = error_codes.NOT_ENOUGH_REPLICAS
    assert (await client.join()).error_code == error_codes.COORDINATOR_NOT_AVAILABLE
    assert bench.coordinator.consumer_group(GROUP) is None
    FULL_DISK.error_code = 0
    await client.join()
    FULL_DISK.error_code = error_codes.KAFKA_STORAGE_ERROR
    assert (await client.leave()).error_code == error_codes.NOT_COORDINATOR
    await pause(SESSION_MS + 1_000)
    assert not group_of(bench).is_empty, "the session has ended, but the log does not know"
    FULL_DISK.error_code = 0
    await pause(1_000)
    assert group_of(bench).is_empty, "the fencing is tried again"


SLOW_DISK = Disk(delay_ms=300)


@on_bench(MODERN, lambda: hooks_of(SLOW_DISK))
async def test_an_answer_waits_for_the_log_and_for_what_it_saw(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    client = Client(bench, "a")
    begun = bench.clock()
    await client.join()
    assert bench.clock() - begun == 300
    SLOW_DISK.delay_ms = 0
    await client.beat()
    assert bench.clock() - begun == 300, "nothing was written, and nothing was under way"


# -- offsets, administration


@on_bench({**MODERN, "group.consumer.assignment.epochs.enable": False})
async def test_brokers_before_4_3_take_commits_with_the_present_epoch_alone(bench: Bench) -> None:
    topic_id = bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    old = first.epoch
    await second.join()
    await settle_all(first, second)

    async def commit(epoch: int) -> int:
        return await bench.commit(
            7, partition=first.partitions[0], member_id="a", generation_id=epoch, version=9, topic_id=topic_id
        )

    assert first.epoch > old
    assert await commit(old) == error_codes.STALE_MEMBER_EPOCH
    assert await commit(first.epoch) == 0


@on_bench(MODERN)
async def test_commits_carry_the_member_epoch(bench: Bench) -> None:
    topic_id = bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    old = first.epoch
    await second.join()
    await settle_all(first, second)
    assert first.epoch > old

    async def commit(epoch: int, partition: int, member_id: str = "a", version: int = 9) -> int:
        return await bench.commit(
            7, partition=partition, member_id=member_id, generation_id=epoch, version=version, topic_id=topic_id
        )

    kept, given = first.partitions[0], second.partitions[0]
    assert await commit(first.epoch, kept) == 0
    assert await commit(old, kept) == 0, "it has had this partition since then"
    assert await commit(old, given) == error_codes.STALE_MEMBER_EPOCH
    assert await commit(first.epoch + 1, kept) == error_codes.STALE_MEMBER_EPOCH
    assert await commit(first.epoch, kept, "stranger") == error_codes.UNKNOWN_MEMBER_ID
    assert await commit(first.epoch, kept, version=8) == error_codes.UNSUPPORTED_VERSION
    fetch = bench.coordinator.offsets.fetch
    assert fetch(GROUP, [("orders", kept)], False)[0] == 0, "administrators name no member"
    assert fetch(GROUP, [("orders", kept)], False, "a", first.epoch)[0] == 0
    assert fetch(GROUP, [("orders", kept)], False, "a", old)[0] == error_codes.STALE_MEMBER_EPOCH
    assert fetch(GROUP, [("orders", kept)], False, "x", old)[0] == error_codes.UNKNOWN_MEMBER_ID
    await first.leave()
    await second.leave()
    assert await bench.commit(9) == 0, "an empty group takes any commit"


@on_bench(MODERN)
async def test_commits_in_a_transaction_carry_it_too(bench: Bench) -> None:
    topic_id = bench.add_topic("orders", 4)
    client = Client(bench, "a")
    await client.join()
    offsets = bench.coordinator.offsets

    async def commit(epoch: int, member_id: str = "a", version: int = 5) -> int:
        committer = Committer(GROUP, epoch, member_id)
        return (await offsets.commit(version, committer, [Commit("orders", 0, 7, topic_id=topic_id)], 1, 0))[0][1]

    assert await commit(client.epoch) == 0
    assert await commit(client.epoch - 1) == error_codes.ILLEGAL_GENERATION, "what old producers know instead"
    assert await commit(client.epoch - 1, version=6) == error_codes.STALE_MEMBER_EPOCH
    assert await commit(client.epoch, "stranger") == error_codes.UNKNOWN_MEMBER_ID
    assert await commit(-1, "") == 0, "a producer that does not say for whom"
    assert bench.committed() is None
    offsets.end_transaction(0, 1, 0, committed=True)
    assert bench.committed() == 7


@on_bench(MODERN)
async def test_groups_are_listed_described_and_deleted(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    client = Client(bench, "a", instance_id="i")
    await client.join()
    await bench.commit(1, group_id="simple")
    coordinator = bench.coordinator
    _, listed = await coordinator.list_groups((), ())
    assert {(one.group_id, one.group_type, one.group_state) for one in listed} == {
        (GROUP, "consumer", "Stable"),
        ("simple", "classic", "Empty"),
    }
    assert [one.group_id for one in (await coordinator.list_groups((), ("Consumer",)))[1]] == [GROUP]
    assert [one.group_id for one in (await coordinator.list_groups(("empty",), ()))[1]] == ["simple"]
    (described,) = await coordinator.consumer_group_describe((GROUP,))
    assert (described.group_state, described.group_epoch, described.assignor_name) == ("Stable", 2, "uniform")
    (member,) = described.members
    assert (member.member_id, member.instance_id, member.member_type) == ("a", "i", 1)
    assert member.assignment == member.target_assignment
    (classic,) = await coordinator.describe_groups(RequestContext(6), (GROUP,))
    assert (classic.error_code, classic.group_state) == (error_codes.GROUP_ID_NOT_FOUND, "Dead")
    unknown, wrong = await coordinator.consumer_group_describe(("nobody", "simple"))
    assert {unknown.error_code, wrong.error_code} == {error_codes.GROUP_ID_NOT_FOUND}
    code, results = await coordinator.offsets.delete(GROUP, [("orders", 0)])
    assert (code, results[0][2]) == (0, error_codes.GROUP_SUBSCRIBED_TO_TOPIC)
    assert (await coordinator.delete_groups([GROUP]))[0].error_code == error_codes.NON_EMPTY_GROUP
    await client.leave()
    await bench.commit(3)
    assert (await coordinator.delete_groups([GROUP]))[0].error_code == 0
    bench.restart()
    assert bench.coordinator.consumer_group(GROUP) is None
    assert bench.committed() is None


@on_bench({**MODERN, "offsets.retention.minutes": 10})
async def test_an_empty_group_is_forgotten_with_its_last_offset(bench: Bench) -> None:
    bench.add_topic("orders", 2)
    client = Client(bench, "a")
    await client.join()
    await bench.commit(3, member_id="a", generation_id=client.epoch)
    await client.leave()
    await pause(30 * 60_000)
    assert bench.coordinator.consumer_group(GROUP) is None


@on_bench(MODERN)
async def test_most_members_choose_the_assignor_and_a_tie_goes_as_in_kafka(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a", assignor="range"), Client(bench, "b", assignor="uniform")
    await first.join()
    group = group_of(bench)
    assert group.preferred_assignor("uniform") == "range"
    await second.join()
    # The only member that wants an assignor brings it to the front with its next heartbeat.
    assert group.assignor_for(group.members["a"], "uniform") == "range"
    assert group.assignor_for(group.members["b"], "uniform") == "uniform"
    third = Client(bench, "c", assignor="range")
    await third.join()
    assert group.assignor_for(group.members["b"], "uniform") == "range"


# -- assignors in Python


MINE = "tests.support.reversed_range:ReversedRangeAssignor,cooperative-sticky"


@on_bench({**MODERN, "group.consumer.assignors": MINE})
async def test_assignors_of_this_package_and_your_own_assign_in_the_broker(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a"), Client(bench, "b")
    await first.join()
    await second.join()
    await settle_all(first, second)
    assert (first.partitions, second.partitions) == ([2, 3], [0, 1])
    first.assignor = second.assignor = "cooperative-sticky"
    await first.beat(full=True)
    await second.beat(full=True)
    third = Client(bench, "c", assignor="cooperative-sticky")
    await third.join()
    await settle_all(first, second, third)
    assert sorted(map(len, (first.partitions, second.partitions, third.partitions))) == [1, 1, 2]
    assert sorted([*first.partitions, *second.partitions, *third.partitions]) == [0, 1, 2, 3]


class BrokenAssignor(Assignor):
    """Has a bug."""

    name = "broken"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Never comes to an end of it."""
        raise LookupError("no such member")


@on_bench({**MODERN, "group.consumer.assignors": "tests.broker.test_consumer_group:BrokenAssignor"})
async def test_an_assignor_that_fails_fails_the_heartbeat_and_nothing_else(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    response = await Client(bench, "a").join()
    assert response.error_code == error_codes.UNKNOWN_SERVER_ERROR
    assert bench.coordinator.consumer_group(GROUP) is None
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=1)
    answered = await bench.coordinator.consumer_group_heartbeat(RequestContext(1), request)
    assert answered.error_code == error_codes.GROUP_ID_NOT_FOUND
