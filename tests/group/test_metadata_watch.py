"""Reactions of the group to changes of the cluster (behaviours 47, 48, 60 to 67)."""

from __future__ import annotations

import re

import pytest

from assignors.base import RebalanceProtocol
from consumer_coord.errors import AuthorizationError, ConfigurationError, UnknownTopicError
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.embedded_protocol import Subscription
from consumer_coord.wire.messages.cluster import MetadataRequest
from consumer_coord.wire.messages.group import JoinGroupRequest, SyncGroupRequest
from tests.support.group.fake import FakeBrokers, asked_for, plan_in
from tests.support.group.member import ScriptedAssignor, everything_to_first, member, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

#: Metadata is refreshed every five seconds.
FRESH = {"metadata_max_age_ms": 5_000}


@pytest.mark.behaviour(60)
@in_virtual_time
async def test_the_leader_rejoins_when_a_topic_grows() -> None:
    brokers = FakeBrokers({"t": 2, "zoes": 1})
    brokers.others = {"zoe": Subscription(["zoes"])}
    assignor = ScriptedAssignor(
        lambda cluster, members: {
            name: {topic: range(cluster.partitions[topic]) for topic in members[name].topics} for name in members
        }
    )
    async with member(brokers, [assignor], client=FRESH) as one:
        await one.join()
        joins = len(brokers.all(JoinGroupRequest))
        brokers.topics["t"] = 3
        await eventually_async(lambda: one.held == parts("t", 0, 1, 2))
        assert len(brokers.all(JoinGroupRequest)) == joins + 1
        # The member also leads other members, whose topics it does not read.
        brokers.topics["zoes"] = 2
        await eventually_async(lambda: one.coordinator.generation == 3 and one.stable)
        assert plan_in(brokers.last(SyncGroupRequest))["zoe"] == {"zoes": [0, 1]}
        await pause(30_000)
        assert one.coordinator.generation == 3, "it rejoined without a reason"


@pytest.mark.behaviour(61)
@in_virtual_time
async def test_a_follower_does_not_rejoin_when_a_topic_grows() -> None:
    brokers = FakeBrokers({"t": 2})
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0]}
    async with member(brokers, client=FRESH) as one:
        await one.join()
        brokers.topics["t"] = 9
        await pause(60_000)
        assert one.coordinator.cluster.metadata.partitions(["t"]) == {"t": 9}
        assert one.coordinator.generation == 1


@pytest.mark.behaviour(62)
@in_virtual_time
async def test_a_topic_that_is_deleted_leaves_the_group_with_the_others() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    async with member(brokers, client=FRESH) as one:
        await one.join(["t", "u"])
        del brokers.topics["u"]
        await eventually_async(lambda: one.held == parts("t", 0, 1))
        await pause(1_000)
        assert one.stable
        assert one.callbacks[-1] == ("revoked", parts("u", 0, 1))


@pytest.mark.behaviour(62)
@pytest.mark.parametrize("outdated", [{}, {"t": 1}])
@in_virtual_time
async def test_a_topic_that_one_outdated_broker_does_not_know_stays_assigned(outdated: dict[str, int]) -> None:
    brokers = FakeBrokers({"t": 2})
    async with member(brokers, client=FRESH) as one:
        await one.join()
        known, brokers.topics = brokers.topics, outdated
        asked = len(brokers.all(MetadataRequest))
        await eventually_async(lambda: len(brokers.all(MetadataRequest)) > asked)
        brokers.topics = known
        await pause(30_000)
        assert one.callbacks == [("assigned", parts("t", 0, 1))]
        assert one.coordinator.generation == 1


@pytest.mark.behaviour(63)
@in_virtual_time
async def test_a_topic_that_appears_later_is_assigned() -> None:
    brokers = FakeBrokers({"t": 2})
    async with member(brokers) as one:
        await one.join(["t", "later"])
        assert one.held == parts("t", 0, 1)
        await pause(30_000)
        assert one.coordinator.generation == 1
        brokers.topics["later"] = 1
        # A missing topic is looked up at least every second, not every metadata.max.age.ms.
        await eventually_async(lambda: one.held == parts("t", 0, 1) | parts("later", 0), within_s=2)


@pytest.mark.behaviour(63)
@in_virtual_time
async def test_a_topic_that_never_appears_is_reported_once_within_the_api_timeout() -> None:
    brokers = FakeBrokers({"t": 2})
    async with member(brokers, default_api_timeout_ms=20_000) as one:
        await one.join(["t", "tpyo"])
        await eventually_async(lambda: one.errors, within_s=30)
        assert 20_000 <= now_ms() <= 23_000
        await pause(120_000)
        [error] = one.errors
        assert isinstance(error, UnknownTopicError)
        assert "tpyo" in str(error)
        assert "do not exist" in str(error)
        assert one.stable, "the other topic continued"


@pytest.mark.behaviour(63, 3)
@pytest.mark.parametrize(
    ("code", "kind"),
    [(codes.TOPIC_AUTHORIZATION_FAILED, AuthorizationError), (codes.INVALID_TOPIC_EXCEPTION, Exception)],
)
@in_virtual_time
async def test_a_topic_that_may_not_be_read_is_reported_at_once(code: int, kind: type[Exception]) -> None:
    brokers = FakeBrokers({"t": 2, "secret": 1})
    brokers.topic_errors["secret"] = code
    async with member(brokers) as one:
        one.coordinator.subscribe(["t", "secret"])
        one.start()
        await eventually_async(lambda: one.errors, within_s=2)
        assert isinstance(one.errors[0], kind)
        assert "secret" in str(one.errors[0])
        await pause(60_000)
        assert len(one.errors) == 1


@pytest.mark.behaviour(47, 48, 64)
@in_virtual_time
async def test_a_pattern_follows_the_metadata() -> None:
    brokers = FakeBrokers({"orders-eu": 1, "orders-us": 1, "xorders-us": 1, "orders-us.dlq": 1, "__consumer_offsets": 3})
    brokers.internal = {"__consumer_offsets"}
    async with member(brokers, client=FRESH) as one:
        one.coordinator.subscribe_pattern(re.compile("orders-[a-z]+|__consumer.*"))
        one.start()
        await eventually_async(lambda: one.stable)
        assert asked_for(brokers.last(JoinGroupRequest)) == ["orders-eu", "orders-us"]
        brokers.topics["orders-jp"] = 2
        await eventually_async(lambda: one.held == parts("orders-eu", 0) | parts("orders-us", 0) | parts("orders-jp", 0, 1))
        del brokers.topics["orders-us"]
        await eventually_async(lambda: one.held == parts("orders-eu", 0) | parts("orders-jp", 0, 1))
        assert one.callbacks[-1] == ("revoked", parts("orders-us", 0))
        await pause(20_000)
        assert one.stable
    # The client requests all topics, right before the join.
    for join in brokers.times(JoinGroupRequest)[1:]:
        asked = [seen for seen in brokers.seen if isinstance(seen.message, MetadataRequest) and join - 30 <= seen.at_ms <= join]
        assert asked, "a join with a pattern used old metadata"
        assert all(seen.message.topics is None for seen in asked)


@pytest.mark.behaviour(48)
@in_virtual_time
async def test_the_first_refresh_without_a_topic_of_the_pattern_is_confirmed_soon() -> None:
    brokers = FakeBrokers({"orders-eu": 1, "orders-us": 1})
    async with member(brokers) as one:
        one.coordinator.subscribe_pattern(re.compile("orders-[a-z]+"))
        one.start()
        await eventually_async(lambda: one.stable)
        del brokers.topics["orders-us"]
        one.cluster.refresh_soon()
        began = now_ms()
        await eventually_async(lambda: one.held == parts("orders-eu", 0))
        assert now_ms() - began < 5_000


@pytest.mark.behaviour(48)
@in_virtual_time
async def test_internal_topics_are_there_for_those_who_ask() -> None:
    brokers = FakeBrokers({"__consumer_offsets": 2, "t": 1})
    brokers.internal = {"__consumer_offsets"}
    async with member(brokers, exclude_internal_topics=False) as one:
        one.coordinator.subscribe_pattern(re.compile(".*"))
        one.start()
        await eventually_async(lambda: one.stable)
        assert one.held == parts("__consumer_offsets", 0, 1) | parts("t", 0)


@pytest.mark.behaviour(47)
@in_virtual_time
async def test_a_pattern_that_matches_nothing_yet_waits() -> None:
    brokers = FakeBrokers({"other": 1})
    async with member(brokers, client=FRESH) as one:
        one.coordinator.subscribe_pattern(re.compile("orders"))
        one.start()
        await pause(30_000)
        assert one.held == frozenset()
        assert not one.errors
        brokers.topics["orders"] = 1
        await eventually_async(lambda: one.held == parts("orders", 0), within_s=6)


@pytest.mark.behaviour(46)
@in_virtual_time
async def test_topics_and_pattern_replace_each_other() -> None:
    brokers = FakeBrokers({"t": 1, "u": 1})
    async with member(brokers) as one:
        await one.join(["t"])
        one.coordinator.subscribe_pattern(re.compile("u"))
        await eventually_async(lambda: one.held == parts("u", 0))
        one.coordinator.subscribe(["t"])
        await eventually_async(lambda: one.held == parts("t", 0))
        for wrong, says in (("t", "a list of topics"), ([], "at least one topic"), (["a b"], "'a b' cannot be a topic")):
            with pytest.raises(ConfigurationError, match=says):
                one.coordinator.subscribe(wrong)
        assert one.held == parts("t", 0)


@pytest.mark.behaviour(65, 66)
@in_virtual_time
async def test_racks_that_change_lead_to_a_rejoin_and_racks_that_flap_do_not() -> None:
    brokers = FakeBrokers({"t": 2}, brokers=2)
    brokers.racks = {0: "east", 1: "west"}
    assignor = ScriptedAssignor(everything_to_first)
    async with member(brokers, [assignor], client_rack="east", client=FRESH) as one:
        await one.join()
        assert assignor.clusters[-1].racks == {"t": (frozenset({"east"}), frozenset({"west"}))}
        await pause(60_000)
        assert one.coordinator.generation == 1
        # A restarting broker is missing from one metadata response.
        brokers.racks[1] = None
        looks = len(brokers.all(MetadataRequest))
        await eventually_async(lambda: len(brokers.all(MetadataRequest)) > looks)
        brokers.racks[1] = "west"
        await pause(30_000)
        assert one.coordinator.generation == 1
        brokers.racks[1] = "north"
        await eventually_async(lambda: one.coordinator.generation == 2)
        assert assignor.clusters[-1].racks == {"t": (frozenset({"east"}), frozenset({"north"}))}
        await pause(30_000)
        assert one.coordinator.generation == 2


@pytest.mark.behaviour(65)
@in_virtual_time
async def test_racks_are_nobodys_business_when_no_member_has_one() -> None:
    brokers = FakeBrokers({"t": 2}, brokers=2)
    brokers.racks = {0: "east", 1: "west"}
    assignor = ScriptedAssignor(everything_to_first, RebalanceProtocol.EAGER)
    async with member(brokers, [assignor], client=FRESH) as one:
        await one.join()
        brokers.racks = {0: "north", 1: "south"}
        await pause(60_000)
        assert one.coordinator.generation == 1
        assert assignor.clusters[-1].racks == {}
