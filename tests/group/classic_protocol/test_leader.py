"""The leader's assignment, SyncGroup, and how a member uses its part of the assignment (behaviours 25 to 34)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import attrs
import pytest

from assignors import RangeAssignor
from assignors.base import Cluster, Member, Plan, RebalanceProtocol
from consumer_coord.errors import AssignorError, AuthorizationError, BrokerError, CoordinatorError
from consumer_coord.group.classic_protocol.leader import GroupView, withheld
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.embedded_protocol import Subscription, decode_subscription, encode_subscription
from consumer_coord.wire.messages.group import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.support.group.classic import classic
from tests.support.group.fake import SILENCE, FakeBrokers, Reply, assignment_of, owned_in, plan_in
from tests.support.group.member import ScriptedAssignor, everything_to_first, member, new_cluster, new_member, parts
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async

T = TypeVar("T")


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@in_virtual_time
async def test_every_version_of_a_subscription_is_decoded(version: int) -> None:
    brokers = FakeBrokers({"t": 4, "u": 2})
    brokers.generation = 8
    told = Subscription(["t", "u"], b"data", {"u": [1]}, 7, "west")

    def with_other(request: JoinGroupRequest) -> JoinGroupResponse:
        answer = brokers.joined(request)
        data = encode_subscription(told, min(version, 3))
        if version == 4:
            data = b"\x00\x04" + data[2:] + b"from the future"
        return attrs.evolve(answer, members=(*answer.members, JoinGroupResponseMember("zoe", "till-2", data)))

    assignor = ScriptedAssignor(everything_to_first, RebalanceProtocol.EAGER)
    brokers.answer(JoinGroupRequest, brokers.usual, with_other)
    async with member(brokers, [assignor]) as one:
        await one.join()
    found = assignor.groups[0]["zoe"]
    assert (list(found.topics), found.user_data, found.instance_id) == (["t", "u"], b"data", "till-2")
    assert {topic: list(row) for topic, row in found.owned.items()} == ({"u": [1]} if version >= 1 else {})
    assert found.generation == (7 if version >= 2 else -1)
    assert found.rack == ("west" if version >= 3 else None)


@pytest.mark.behaviour(26)
@in_virtual_time
async def test_a_follower_sends_no_assignments() -> None:
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [1, 2]}
    assignor = ScriptedAssignor(everything_to_first)
    async with member(brokers, [assignor]) as one:
        await one.join()
        assert one.held == parts("t", 1, 2)
        assert not one.coordinator.protocol.is_leader
    request = brokers.last(SyncGroupRequest)
    assert list(request.assignments) == []
    assert (request.protocol_type, request.protocol_name, request.member_id) == ("consumer", "scripted", "member-1")
    assert assignor.groups == []


@pytest.mark.behaviour(27)
@in_virtual_time
async def test_an_exception_in_an_assignor_reaches_the_caller_and_the_group_is_left() -> None:
    brokers = FakeBrokers()
    broken = True

    def plan(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        if broken:
            raise ZeroDivisionError("no members to divide by")
        return everything_to_first(cluster, members)

    one = new_member(brokers, [ScriptedAssignor(plan)])
    one.coordinator.subscribe(["t"])
    with pytest.raises(AssignorError, match=r"'scripted'.*ZeroDivisionError: no members to divide by") as raised:
        await one.coordinator.join_group_if_needed(5_000)
    cause: BaseException | None = raised.value
    while cause is not None and not isinstance(cause, ZeroDivisionError):
        cause = cause.__cause__
    assert cause is not None, "the assignor's own exception is not among the causes"
    # The other members do not wait for a leader that cannot assign.
    assert [identity.member_id for identity in brokers.last(LeaveGroupRequest).members] == ["member-1"]
    broken = False
    one.start()
    await eventually_async(lambda: one.stable and one.held)
    await one.close()


@pytest.mark.behaviour(27)
@in_virtual_time
async def test_an_assignor_that_hangs_costs_its_member_the_group_until_it_returns() -> None:
    brokers = FakeBrokers()
    returns = asyncio.Event()
    works = 0

    async def in_a_thread(function: Callable[[], T]) -> T:
        nonlocal works
        works += 1
        if works == 1:
            await returns.wait()
        return function()

    cluster = new_cluster(brokers, run_blocking=in_a_thread)
    one = new_member(brokers, [ScriptedAssignor(everything_to_first)], cluster=cluster, assignor_timeout_ms=2_000)
    one.coordinator.subscribe(["t"])
    with pytest.raises(AssignorError, match=r"'scripted' did not return within assignor.timeout.ms=2000"):
        await one.coordinator.join_group_if_needed(5_000)
    assert len(brokers.all(LeaveGroupRequest)) == 1
    joins = len(brokers.all(JoinGroupRequest))
    one.start()
    await pause(60_000)
    assert len(brokers.all(JoinGroupRequest)) == joins, "it joined while its assignor still ran"
    assert not one.errors
    returns.set()
    await eventually_async(lambda: one.stable and one.held)
    await one.close()


def _twice(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {name: {"t": [0, 1, 2, 3]} if name == "member-1" else {"t": [3]} for name in members}


def _to_a_stranger(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {**everything_to_first(cluster, members), "stranger": {}}


def _to_a_non_subscriber(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {name: {"t": range(4)} if name == "zoe" else {} for name in members}


def _beyond_the_end(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {name: {"t": range(5)} if name == "member-1" else {} for name in members}


def _of_no_topic(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {name: {"t": range(4), "t2": [0]} if name == "member-1" else {} for name in members}


def _without_a_member(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {"member-1": {"t": range(4)}}


def _without_a_partition(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {name: {"t": range(3)} if name == "member-1" else {} for name in members}


def _of_texts(cluster: Cluster, members: Mapping[str, Member]) -> Any:
    return {name: {"t": "0123"} if name == "member-1" else {} for name in members}


def _nothing(cluster: Cluster, members: Mapping[str, Member]) -> Any:
    return None


def _a_list(cluster: Cluster, members: Mapping[str, Member]) -> Any:
    return [("member-1", "t", 0)]


@pytest.mark.behaviour(27)
@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (_twice, r"partition 3 of topic 't'.*as well as"),
        (_to_a_stranger, "no member 'stranger'"),
        (_to_a_non_subscriber, "'zoe' is given topic 't', to which it does not subscribe"),
        (_beyond_the_end, "partition 4 of topic 't', but the topic's partition count is 4"),
        (_of_no_topic, "'t2'"),
        (_without_a_member, "'zoe' has no entry"),
        (_without_a_partition, "partition 3 of topic 't' is not assigned"),
        (_of_texts, "'scripted'"),
        (_nothing, "the plan is None: expected member -> topic -> partitions"),
        (_a_list, r"the plan is \[.*\]: expected member -> topic -> partitions"),
    ],
)
@in_virtual_time
async def test_a_wrong_plan_is_not_sent_and_what_is_wrong_is_said(plan: Callable[..., Plan], says: str) -> None:
    brokers = FakeBrokers({"t": 4, "u": 1})
    brokers.others = {"zoe": Subscription(["u"])} if plan is _to_a_non_subscriber else {"zoe": Subscription(["t"])}
    async with member(brokers, [ScriptedAssignor(plan)]) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(AssignorError, match=says) as raised:
            await one.coordinator.join_group_if_needed(5_000)
        assert "'scripted'" in str(raised.value)
        assert one.coordinator.protocol.state.value == "unjoined"
    assert not brokers.all(SyncGroupRequest), "a wrong plan was sent"
    assert len(brokers.all(LeaveGroupRequest)) == 1


def _static_leader_comes_back(brokers: FakeBrokers, described: Reply) -> None:
    """Let till-1, the leader of generation 6 of a group with zoe, return before its session ends."""
    brokers.others = {"zoe": Subscription(["only-zoe"])}
    brokers.generation = 6
    brokers.answer(JoinGroupRequest, lambda request: brokers.joined(request, skip_assignment=True))
    brokers.answer(SyncGroupRequest, lambda request: brokers.synced(assignment_of(t=[0, 1])))
    brokers.always(DescribeGroupsRequest, described)


def _described(*assignments: bytes, state: str = "Stable", code: int = codes.NONE) -> DescribeGroupsResponse:
    members = tuple(DescribedGroupMember(member_id=f"m-{n}", member_assignment=data) for n, data in enumerate(assignments))
    return DescribeGroupsResponse(groups=(DescribedGroup(error_code=code, group_state=state, members=members),))


def _all_of_it(cluster: Cluster, members: Mapping[str, Member]) -> Plan:
    return {name: {topic: range(cluster.partitions[topic]) for topic in member.topics} for name, member in members.items()}


@pytest.mark.behaviour(28, 67)
@in_virtual_time
async def test_a_static_leader_that_comes_back_watches_over_the_assignment_it_finds() -> None:
    brokers = FakeBrokers({"t": 4, "only-zoe": 2})
    found = _described(assignment_of(t=[0, 1]), assignment_of(t=[2, 3]), assignment_of(**{"only-zoe": [0, 1]}), b"")
    _static_leader_comes_back(brokers, found)
    assignor = ScriptedAssignor(_all_of_it)
    async with member(brokers, [assignor], group_instance_id="till-1", client={"metadata_max_age_ms": 5_000}) as one:
        await one.join()
        assert one.held == parts("t", 0, 1)
        assert one.coordinator.protocol.is_leader
        assert list(brokers.last(SyncGroupRequest).assignments) == []
        await pause(20_000)
        assert assignor.groups == [], "the group keeps its assignment"
        # Only the leader notifies the group that a topic grew, even if the leader does not read that topic.
        brokers.topics["only-zoe"] = 3
        await eventually_async(lambda: len(assignor.groups) == 1)
    assert dict(assignor.clusters[0].partitions) == {"t": 4, "only-zoe": 3}


_COVERS = (assignment_of(t=[0, 1, 2, 3]), assignment_of(**{"only-zoe": [0, 1]}))


@pytest.mark.behaviour(28, 67)
@pytest.mark.parametrize(
    ("described", "anew"),
    [
        (_described(assignment_of(t=[0, 1, 2, 3]), assignment_of(**{"only-zoe": [0]})), True),
        (_described(assignment_of(t=[0, 1, 2, 3])), True),
        (SILENCE, True),
        (_described(code=codes.NOT_COORDINATOR), True),
        (_described(*_COVERS), False),
        (_described(state="PreparingRebalance"), False),
        (_described(code=codes.GROUP_AUTHORIZATION_FAILED), False),
        (_described(b"\x00\x01\xff"), False),
    ],
    ids=["it grew", "it is new", "no answer", "moved", "all topics are assigned", "a rebalance", "not authorized", "garbage"],
)
@in_virtual_time
async def test_partitions_added_while_a_static_leader_was_away_are_assigned(described: Reply, anew: bool) -> None:
    """Found by seed 189040286: the leader assumed that it had assigned the new partitions, so they had no owner."""
    brokers = FakeBrokers({"t": 4, "only-zoe": 2})
    _static_leader_comes_back(brokers, described)
    assignor = ScriptedAssignor(_all_of_it)
    async with member(brokers, [assignor], group_instance_id="till-1") as one:
        await one.join()
        await pause(5_000)
        assert [dict(cluster.partitions) for cluster in assignor.clusters] == [{"t": 4, "only-zoe": 2}] * anew


@pytest.mark.behaviour(29)
@pytest.mark.parametrize("leaves_out", [True, False], ids=["waits for it", "assigns it"])
@in_virtual_time
async def test_an_eager_leader_may_wait_for_what_a_cooperative_member_holds(leaves_out: bool) -> None:
    """Found by seed 500000045: in a rolling upgrade the leader lists both protocols, another member only the new one."""
    brokers = FakeBrokers({"t": 2})
    brokers.generation = 3
    brokers.others = {"zoe": Subscription(["t"], None, {"t": [0, 1]}, 3), "yan": Subscription(["t"])}
    plan = {"member-1": {}, "zoe": {"t": [0]}, "yan": {} if leaves_out else {"t": [1]}}
    one_day = ScriptedAssignor(lambda cluster, members: plan)
    one_day.protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
    async with member(brokers, [one_day, RangeAssignor()]) as one:
        assert classic(one.coordinator).rebalance_protocol is RebalanceProtocol.EAGER
        if leaves_out:
            await one.join()
            assert [each.member_id for each in brokers.last(SyncGroupRequest).assignments] == ["member-1", "zoe", "yan"]
        else:
            one.coordinator.subscribe(["t"])
            with pytest.raises(AssignorError, match=r"which 'zoe' has not revoked"):
                await one.coordinator.join_group_if_needed(5_000)


def _cooperative(owned: Mapping[str, tuple[int, list[int]]]) -> FakeBrokers:
    """Add zoe and yan with their claims: member -> (generation, partitions)."""
    brokers = FakeBrokers()
    brokers.generation = 10
    brokers.others = {name: Subscription(["t"], None, {"t": row}, generation) for name, (generation, row) in owned.items()}
    return brokers


@pytest.mark.behaviour(29)
@in_virtual_time
async def test_a_cooperative_plan_that_hands_over_what_its_owner_holds_is_refused() -> None:
    brokers = _cooperative({"zoe": (5, [2])})
    async with member(brokers, [ScriptedAssignor(everything_to_first)]) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(AssignorError, match=r"'member-1' is given partition 2 of topic 't', which 'zoe' has not revoked"):
            await one.coordinator.join_group_if_needed(5_000)
    assert not brokers.all(SyncGroupRequest)


@pytest.mark.behaviour(29)
@in_virtual_time
async def test_a_cooperative_plan_may_leave_out_partitions_that_must_be_revoked_first() -> None:
    brokers = _cooperative({"zoe": (5, [2])})
    plan: Plan = {"member-1": {"t": [0, 1, 3]}, "zoe": {}}
    async with member(brokers, [ScriptedAssignor(lambda cluster, members: plan)]) as one:
        await one.join()
        assert one.held == parts("t", 0, 1, 3)
    assert plan_in(brokers.all(SyncGroupRequest)[0]) == {"member-1": {"t": [0, 1, 3]}, "zoe": {}}


@in_virtual_time
async def test_the_leader_asks_for_the_rebalance_that_the_owners_of_withheld_partitions_do_not_ask_for() -> None:
    """A static member that loses its generation before it revokes rejoins without a rebalance, and has nothing to revoke."""
    brokers = _cooperative({"zoe": (5, [2])})
    given = {"member-1": {"t": [0, 1, 3]}, "zoe": {}}
    async with member(brokers, [ScriptedAssignor(lambda cluster, members: given)], rebalance_timeout_ms=30_000) as one:
        await one.join()
        brokers.others = {"zoe": Subscription(["t"], None, {}, 5)}
        given["zoe"] = {"t": [2]}
        await pause(29_000)
        assert len(brokers.all(SyncGroupRequest)) == 1
        await pause(2_000)
        assert "withheld partitions: " in (brokers.all(JoinGroupRequest)[-1].reason or "")
        await pause(100_000)
        assert len(brokers.all(SyncGroupRequest)) == 2, "nothing is withheld now"
    assert plan_in(brokers.all(SyncGroupRequest)[1]) == given


@pytest.mark.parametrize(
    ("owned", "plan", "count"),
    [
        pytest.param({"a": {"t": [0, 1]}}, {"a": {"t": [0]}, "b": {}}, 1, id="a partition that its owner releases"),
        pytest.param({"a": {"t": [0, 1]}}, {"a": {"t": [0]}, "b": {"t": [1, 2]}}, 0, id="all partitions are assigned"),
        pytest.param({"a": {"t": [0]}}, {"a": {"t": [0]}, "b": {}}, 0, id="not assigned, and without an owner"),
        pytest.param(
            {"a": {"t": [0, 7]}, "b": {"t": [0], "gone": [0]}}, {"a": {}, "b": {}}, 1, id="assigned twice, or missing"
        ),
    ],
)
def test_the_partitions_that_a_plan_withholds(owned: dict[str, dict[str, list[int]]], plan: Plan, count: int) -> None:
    members = {name: Member(topics=["t"], owned=owned.get(name, {})) for name in "ab"}
    assert withheld(Cluster({"t": 3}), GroupView(members), plan) == count


@pytest.mark.behaviour(30)
@pytest.mark.parametrize(
    ("claims", "refused"),
    [
        pytest.param({"zoe": (5, [2]), "yan": (4, [2, 3])}, {2, 3}, id="an older claim counts if there is no newer one"),
        pytest.param({"zoe": (5, [2]), "yan": (5, [2])}, set(), id="claims that conflict within a generation do not count"),
        pytest.param({"zoe": (-1, [2])}, {2}, id="a claim without a generation counts if it is the only one"),
    ],
)
@in_virtual_time
async def test_claims_count_by_the_highest_generation(claims: dict[str, tuple[int, list[int]]], refused: set[int]) -> None:
    brokers = _cooperative(claims)
    async with member(brokers, [ScriptedAssignor(everything_to_first)]) as one:
        one.coordinator.subscribe(["t"])
        if refused:
            with pytest.raises(AssignorError) as raised:
                await one.coordinator.join_group_if_needed(5_000)
            named = {int(number) for number in re.findall(r"partition (\d+) of topic 't', which", str(raised.value))}
            assert named == refused
            assert "'yan'" not in str(raised.value) or 3 in refused
        else:
            assert (await one.coordinator.join_group_if_needed(5_000)).partitions == parts("t", 0, 1, 2, 3)


@pytest.mark.behaviour(30)
@in_virtual_time
async def test_the_check_of_hand_overs_is_for_the_cooperative_protocol_only() -> None:
    brokers = _cooperative({"zoe": (5, [2])})
    async with member(brokers, [ScriptedAssignor(everything_to_first, RebalanceProtocol.EAGER)]) as one:
        await one.join()
        assert one.held == parts("t", 0, 1, 2, 3)


@pytest.mark.behaviour(30)
@in_virtual_time
async def test_the_check_of_hand_overs_exempts_no_assignor() -> None:
    """Java does not check the plans of its cooperative-sticky assignor; this client checks every plan."""
    brokers = _cooperative({"zoe": (5, [2])})
    brokers.protocol = "cooperative-sticky"
    assignor = ScriptedAssignor(everything_to_first)
    assignor.name = "cooperative-sticky"
    async with member(brokers, [assignor]) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(AssignorError, match="has not revoked"):
            await one.coordinator.join_group_if_needed(5_000)


@pytest.mark.behaviour(31)
@in_virtual_time
async def test_a_topic_that_the_leader_adds_and_the_pattern_matches_is_followed() -> None:
    brokers = FakeBrokers({"t1": 2})
    brokers.leader = "zoe"
    brokers.assignment = {"t1": [0], "t2": [1]}

    def appears(request: SyncGroupRequest) -> object:
        brokers.topics["t2"] = 2
        return brokers.usual(request)

    brokers.answer(SyncGroupRequest, appears)
    async with member(brokers) as one:
        one.coordinator.subscribe_pattern(re.compile("t.*"))
        one.start()
        await eventually_async(lambda: one.stable)
        assert one.held == parts("t1", 0) | parts("t2", 1)
        joins = len(brokers.all(JoinGroupRequest))
        await pause(20_000)
        assert len(brokers.all(JoinGroupRequest)) == joins, "known metadata led to a rejoin"


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\x00", id="no version"),
        pytest.param(assignment_of(t=[0, 1])[:-7], id="cut off"),
        pytest.param(b"\x00\x01\x7f\xff\xff\xff", id="two billion topics"),
        pytest.param(b"\x00\x01\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff", id="two billion partitions"),
        pytest.param(b"\xff\xff" + assignment_of(t=[0])[2:], id="version -1"),
    ],
)
@in_virtual_time
async def test_a_malformed_assignment_is_refused_and_the_group_joined_again(garbage: bytes) -> None:
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0, 1]}
    brokers.answer(SyncGroupRequest, brokers.synced(garbage))
    async with member(brokers) as one:
        await one.join()
        assert one.held == parts("t", 0, 1)
        assert one.callbacks == [("assigned", parts("t", 0, 1))]
        assert not one.errors
    assert [request.generation_id for request in brokers.all(SyncGroupRequest)] == [1, 2]


@pytest.mark.behaviour(32)
@in_virtual_time
async def test_a_member_that_the_leader_left_out_holds_nothing() -> None:
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.answer(SyncGroupRequest, brokers.synced(b""))
    async with member(brokers) as one:
        await one.join()
        assert one.held == frozenset()
        assert one.stable


@pytest.mark.behaviour(33)
@pytest.mark.parametrize(
    ("code", "member_id", "generation", "lookups"),
    [
        (codes.NOT_COORDINATOR, "member-1", 1, 2),
        (codes.COORDINATOR_NOT_AVAILABLE, "member-1", 1, 2),
        (codes.COORDINATOR_LOAD_IN_PROGRESS, "member-1", 1, 1),
        (codes.REBALANCE_IN_PROGRESS, "member-1", 1, 1),
        (codes.ILLEGAL_GENERATION, "member-1", -1, 1),
        (codes.UNKNOWN_MEMBER_ID, "", -1, 1),
    ],
)
@in_virtual_time
async def test_each_error_of_a_sync_leads_to_the_right_rejoin(code: int, member_id: str, generation: int, lookups: int) -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        joins = len(brokers.all(JoinGroupRequest))
        brokers.answer(SyncGroupRequest, code)
        one.coordinator.enforce_rebalance()
        await pause(2_000)
        assert one.stable
        again = brokers.all(JoinGroupRequest)[joins + 1]
        kept = generation > 0
        assert again.member_id == member_id
        # A generation without a SyncGroup response proves no ownership.
        assert owned_in(again) == (parts("t", 0, 1, 2, 3) if kept else set())
        assert (decode_subscription(again.protocols[0].metadata).generation_id == -1) is not kept
        assert [what for what, _ in one.callbacks] == (["assigned"] if kept else ["assigned", "lost", "assigned"])
    assert len(brokers.all(FindCoordinatorRequest)) == lookups


@pytest.mark.behaviour(33)
@pytest.mark.parametrize(
    ("code", "kind"),
    [(codes.GROUP_AUTHORIZATION_FAILED, AuthorizationError), (codes.UNKNOWN_SERVER_ERROR, BrokerError)],
)
@in_virtual_time
async def test_fatal_errors_of_syncgroup_are_raised(code: int, kind: type[CoordinatorError]) -> None:
    brokers = FakeBrokers()
    # The first refusal of a principal is excused: its token may have expired.
    brokers.answer(SyncGroupRequest, code, code)
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(kind, match="SyncGroup"):
            await one.coordinator.join_group_if_needed(5_000)


@pytest.mark.behaviour(34, 59)
@in_virtual_time
async def test_an_assignment_for_a_former_subscription_leads_to_one_more_rejoin() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])

        def meanwhile(request: SyncGroupRequest) -> Any:
            one.coordinator.subscribe(["u"])
            return brokers.usual(request)

        brokers.answer(SyncGroupRequest, meanwhile)
        one.start()
        await eventually_async(lambda: one.held == parts("u", 0, 1))
        await pause(1_000)
        assert one.stable
        assert len(brokers.all(SyncGroupRequest)) == 2


@pytest.mark.behaviour(34, 49)
@in_virtual_time
async def test_an_unwanted_assignment_is_not_used_and_causes_no_storm() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0], "u": [1]}
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        one.start()
        await pause(10_000)
        assert one.held == parts("t", 0)
        times = brokers.times(JoinGroupRequest)
        assert len(times) > 3, "it never sent the request again"
        assert len(times) < 30, "a storm of rebalances"
        assert max(after - before for before, after in pairwise(times)) > 500
        brokers.assignment = {"t": [0]}
        await eventually_async(lambda: one.stable)
        await pause(2_000)
        assert one.stable
