"""Members of both protocols in one group (KIP-848), and groups that change their protocol."""

from __future__ import annotations

from consumer_coord.wire import embedded_protocol as membership
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import MemberIdentity
from tests.support.broker.bench import GROUP, Bench, on_bench, pause
from tests.support.broker.consumer_bench import MODERN, Client, group_of

ORDERS = {"range": membership.encode_subscription(membership.Subscription(("orders",)))}


async def classic_group(bench: Bench, count: int) -> list[str]:
    """A stable classic group whose members share four partitions."""
    members = await bench.form(count, protocols=ORDERS)
    share = {
        member_id: membership.encode_assignment(membership.Assignment({"orders": range(index, 4, count)}))
        for index, member_id in enumerate(members.ids)
    }
    for member in bench.group().members.values():
        member.assignment = share[member.member_id]
    return list(members.ids)


@on_bench(MODERN)
async def test_a_classic_group_is_converted_by_its_first_member_of_the_consumer_protocol(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    (classic,) = await classic_group(bench, 1)
    await bench.commit(5, member_id=classic, generation_id=1)
    modern = Client(bench, "a")
    assert (await modern.join()).error_code == 0
    group = group_of(bench)
    assert (set(group.members), modern.partitions) == ({classic, "a"}, [])
    assert await bench.heartbeat(classic, 1) == error_codes.REBALANCE_IN_PROGRESS
    # The member joins again without the partitions to revoke: the response comes without waiting, and has no leader.
    joined = await bench.join(classic, protocols=ORDERS)
    assert (joined.error_code, joined.leader, joined.protocol_name) == (0, "", "range")
    synced = await bench.sync(classic, joined.generation_id, protocol_name="range")
    owned = membership.decode_assignment(synced.assignment).partitions["orders"]
    await modern.beat()
    assert (len(owned), len(modern.partitions)) == (2, 2)
    assert sorted([*owned, *modern.partitions]) == [0, 1, 2, 3]
    assert bench.committed() == 5
    bench.restart()
    assert set(group_of(bench).members) == {classic, "a"}


@on_bench(MODERN)
async def test_it_becomes_classic_again_when_the_last_of_them_leaves(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    (classic,) = await classic_group(bench, 1)
    modern = Client(bench, "a")
    await modern.join()
    epoch = group_of(bench).epoch
    await bench.commit(5, member_id="a", generation_id=modern.epoch)
    await modern.leave()
    assert bench.coordinator.consumer_group(GROUP) is None
    assert (bench.group().generation_id, bench.group().state.value) == (epoch, "PreparingRebalance")
    joined = await bench.join(classic, protocols=ORDERS)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, epoch + 1, classic)
    assert bench.committed() == 5
    bench.restart()
    assert bench.coordinator.consumer_group(GROUP) is None
    assert bench.committed() == 5


@on_bench(MODERN)
async def test_a_classic_member_without_a_readable_subscription_is_refused(bench: Bench) -> None:
    """Kafka 4.4 says so; before, its coordinator failed."""
    bench.add_topic("orders", 4)
    await Client(bench, "a").join()
    refused = await bench.join_twice(protocols={"range": b"\0\0garbage"})
    assert refused.error_code == error_codes.INCONSISTENT_GROUP_PROTOCOL


@on_bench({**MODERN, "group.consumer.migration.policy": "disabled"})
async def test_the_policy_forbids_it(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    await classic_group(bench, 1)
    assert (await Client(bench, "a").join()).error_code == error_codes.GROUP_ID_NOT_FOUND
    modern = Client(bench, "b")
    assert (await modern.beat(full=True, group_id="other")).error_code == 0
    refused = await bench.join(group_id="other", protocols=ORDERS)
    assert refused.error_code == error_codes.INCONSISTENT_GROUP_PROTOCOL


@on_bench({**MODERN, "group.consumer.migration.policy": "upgrade"})
async def test_a_policy_of_upgrades_leaves_the_group_as_it_is(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    (classic,) = await classic_group(bench, 1)
    modern = Client(bench, "a")
    await modern.join()
    await modern.leave()
    assert list(group_of(bench).members) == [classic]


@on_bench(MODERN)
async def test_empty_groups_give_way_to_either_protocol_and_keep_their_offsets(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    await bench.commit(5)
    client = Client(bench, "a")
    assert (await client.join()).error_code == 0
    await client.leave()
    assert (await bench.join("known", protocols=ORDERS)).error_code == error_codes.UNKNOWN_MEMBER_ID
    joined = await bench.join_twice(protocols=ORDERS)
    assert joined.error_code == 0
    await bench.leave(joined.member_id)
    assert (await client.join()).error_code == 0
    bench.restart()
    assert list(group_of(bench).members) == ["a"]
    assert bench.committed() == 5


@on_bench(MODERN)
async def test_administrators_take_members_out_of_a_consumer_group(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    first, second = Client(bench, "a", instance_id="i"), Client(bench, "b")
    await first.join()
    await second.join()
    answers = (await bench.leave(MemberIdentity(member_id="", group_instance_id="i"), "nobody")).members
    assert [one.error_code for one in answers] == [0, error_codes.UNKNOWN_MEMBER_ID]
    assert list(group_of(bench).members) == ["b"]


@on_bench(MODERN)
async def test_classic_members_that_are_late_are_fenced(bench: Bench) -> None:
    bench.add_topic("orders", 4)
    (classic,) = await classic_group(bench, 1)
    modern = Client(bench, "a")
    await modern.join()
    assert await bench.heartbeat(classic, 1) == error_codes.REBALANCE_IN_PROGRESS
    for _ in range(31):
        await pause(1_000)
        await modern.beat()
        await bench.heartbeat(classic, 1)
    assert list(group_of(bench).members) == ["a"], "the member did not join again within its rebalance timeout"


@on_bench(MODERN)
async def test_a_member_that_does_not_offer_the_groups_protocol_any_more_stands_in_the_way(bench: Bench) -> None:
    """As Kafka answers it: the heartbeat UNKNOWN_SERVER_ERROR, and the join that waits REBALANCE_IN_PROGRESS."""
    bench.add_topic("orders", 4)
    subscription = ORDERS["range"]
    members = await bench.form(2, protocols={"sticky": subscription, "range": subscription})
    assert bench.group().protocol_name == "sticky"
    waiting = bench.start_join(members.ids[0], protocols=ORDERS)
    await pause(1)
    assert (await Client(bench, "a").join()).error_code == error_codes.UNKNOWN_SERVER_ERROR
    assert (await waiting).error_code == error_codes.REBALANCE_IN_PROGRESS
    assert set(bench.group().members) == set(members.ids)
