"""Members that send impossible data: the rest of the group continues, and the log names these members."""

from __future__ import annotations

import attrs
import pytest

from assignors import CooperativeStickyAssignor, LoadAssignor, StickyAssignor
from assignors.balancing.sticky_user_data import encode as encode_user_data
from assignors.balancing.sticky_user_data import encode_generation
from assignors.base import Assignor
from consumer_coord.wire.embedded_protocol import Subscription
from consumer_coord.wire.messages.group import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
)
from tests.support.group.fake import GROUP, SILENCE, FakeBrokers, plan_in
from tests.support.group.member import member, parts
from tests.support.group.virtual import in_virtual_time
from tests.support.waiting import eventually_async


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\x00\x01\x7f", b"\xff\xff", b"\x00\x01\x7f\xff\xff\xff"])
@in_virtual_time
async def test_a_member_whose_subscription_is_garbage_gets_nothing_and_is_named(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A hostile member must not stop the group: the others share all partitions, and the log names the client."""
    brokers = FakeBrokers()

    def with_garbage(request: JoinGroupRequest) -> JoinGroupResponse:
        brokers.generation += 1
        answer = brokers.joined(request)
        return attrs.evolve(answer, members=(*answer.members, JoinGroupResponseMember("zoe-1", None, garbage)))

    def described(request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        zoe = DescribedGroupMember(member_id="zoe-1", client_id="rusty", client_host="/10.0.0.9")
        return DescribeGroupsResponse(groups=(DescribedGroup(group_id=GROUP, members=(zoe,)),))

    brokers.answer(JoinGroupRequest, brokers.usual, with_garbage, with_garbage)
    brokers.always(DescribeGroupsRequest, described)
    async with member(brokers) as one:
        await one.join()
        assert one.held == parts("t", 0, 1, 2, 3)
        one.coordinator.protocol.rejoin("once more")
        await eventually_async(lambda: one.coordinator.generation == 2 and one.stable)
    assert plan_in(brokers.last(SyncGroupRequest))["zoe-1"] == {}
    said = [record.getMessage() for record in caplog.records if "zoe-1" in record.getMessage()]
    assert len(said) == 1, "it is logged once, not at each rebalance"
    assert "client rusty, host /10.0.0.9" in said[0]
    assert "cannot be read" in said[0]


@in_virtual_time
async def test_a_member_that_cannot_be_read_is_named_although_the_coordinator_does_not_describe_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers()

    def with_garbage(request: JoinGroupRequest) -> JoinGroupResponse:
        answer = brokers.joined(request)
        return attrs.evolve(answer, members=(*answer.members, JoinGroupResponseMember("zoe-1", None, b"")))

    brokers.answer(JoinGroupRequest, brokers.usual, with_garbage)
    brokers.always(DescribeGroupsRequest, SILENCE)
    async with member(brokers) as one:
        await one.join()
        assert one.held == parts("t", 0, 1, 2, 3)
    assert "member zoe-1 (client unknown) cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("assignor", "claims"),
    [
        (CooperativeStickyAssignor(), Subscription(["t"], None, {"t": [0, 1, 2, 3]}, 2**31 - 1)),
        (CooperativeStickyAssignor(), Subscription(["t"], encode_generation(2**31 - 1), {"t": [0, 1, 2, 3]})),
        (StickyAssignor(), Subscription(["t"], encode_user_data({"t": [0, 1, 2, 3]}, 2**31 - 1))),
        (LoadAssignor(), Subscription(["t"], encode_user_data({"t": [0, 1, 2, 3]}, 2**31 - 1))),
    ],
    ids=["subscription", "cooperative user data", "sticky user data", "load user data"],
)
@in_virtual_time
async def test_a_generation_that_the_group_has_not_had_is_not_believed(assignor: Assignor, claims: Subscription) -> None:
    """A member that claims every partition at the highest generation would starve the other members for ever."""
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0, 1, 2, 3]}
    async with member(brokers, [assignor]) as one:
        await one.join()
        assert one.held == parts("t", 0, 1, 2, 3)
        brokers.leader = None
        brokers.others = {"liar": claims}
        one.coordinator.protocol.rejoin("the liar joins")
        await eventually_async(lambda: one.coordinator.generation >= 2 and one.stable)
        plan = plan_in(brokers.last(SyncGroupRequest))
        ours = plan["member-1"].get("t", [])
        assert len(ours) >= 2, "it keeps its partitions, or half of them"


@in_virtual_time
async def test_generations_that_the_coordinator_could_not_write_are_believed() -> None:
    """The next coordinator continues from the last generation that was written, and each member reports a later one."""
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0, 1]}
    async with member(brokers, [CooperativeStickyAssignor()]) as one:
        await one.join()
        brokers.leader = None
        brokers.others = {"zoe": Subscription(["t"], None, {"t": [2, 3]}, 14), "new": Subscription(["t"], None, {}, -1)}
        one.coordinator.protocol.rejoin("the coordinator moved")
        await eventually_async(lambda: one.coordinator.generation >= 2 and one.stable)
        plan = plan_in(brokers.last(SyncGroupRequest))
    assert not {2, 3} & {*plan["new"].get("t", []), *plan["member-1"].get("t", [])}, "zoe has not revoked them"
