"""The books of a group: states, the protocol vote, member ids, Java's hashes."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from consumer_coord.broker import java_hash
from consumer_coord.broker.classic_group import (
    TRANSITIONS,
    GroupMember,
    GroupMetadata,
    GroupState,
    IllegalTransitionError,
    generate_member_id,
)
from consumer_coord.wire.messages.group import JoinGroupRequestProtocol
from tests.support.broker.bench import subscription

#: Kafka's table, by hand: state -> the states it may be entered from (``ClassicGroupState.validPreviousStates``).
KAFKAS_PREVIOUS_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


def member(member_id: str, *protocols: str, metadata: bytes = b"", instance_id: str | None = None) -> GroupMember:
    """A member that offers these protocols, all with the same metadata."""
    offers = tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols)
    return GroupMember(member_id, instance_id, "client", "/host", 30_000, 10_000, "consumer", offers)


def group_of(*members: GroupMember) -> GroupMetadata:
    """A group with these members, joining."""
    group = GroupMetadata("group")
    for one in members:
        group.add(one)
    group.transition_to(GroupState.PREPARING_REBALANCE, 0)
    return group


@pytest.mark.behaviour(113)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(GroupState, GroupState)))
def test_a_group_goes_where_kafka_lets_it_go_and_nowhere_else(source: GroupState, target: GroupState) -> None:
    group = GroupMetadata("group", state=source)
    if source in KAFKAS_PREVIOUS_STATES[target]:
        group.transition_to(target, 7)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, source, 7)
    else:
        with pytest.raises(IllegalTransitionError, match=f"{source.value} to {target.value}"):
            group.transition_to(target, 7)
        assert group.state is source


@pytest.mark.behaviour(113)
def test_each_transition_says_what_brings_it_about() -> None:
    assert {(source, target) for target, sources in KAFKAS_PREVIOUS_STATES.items() for source in sources} == set(TRANSITIONS)
    assert all(TRANSITIONS.values())


@pytest.mark.behaviour(120)
def test_the_vote_goes_to_the_protocol_that_most_members_prefer_among_those_all_offer() -> None:
    group = group_of(member("a", "sticky", "range"), member("b", "range", "sticky"), member("c", "range", "sticky", "mine"))
    assert group.select_protocol() == "range"
    group.remove("b")
    group.remove("c")
    assert group.select_protocol() == "sticky"


@pytest.mark.behaviour(120)
def test_a_favourite_that_one_member_does_not_offer_gets_no_votes() -> None:
    group = group_of(member("a", "mine", "range"), member("b", "mine", "range"), member("c", "range"))
    assert group.select_protocol() == "range"


@pytest.mark.behaviour(120)
def test_equal_votes_go_to_the_first_in_the_order_of_a_java_hash_map() -> None:
    # In a map of 16 buckets "sticky" has bucket 8 and "range" 9: neither the alphabet nor the first vote decides.
    group = group_of(member("a", "range", "sticky"), member("b", "sticky", "range"))
    assert group.select_protocol() == "sticky"


def test_a_few_strings_stand_in_the_order_of_a_java_hash_map() -> None:
    names = ["cooperative-sticky", "range", "roundrobin", "sticky"]
    assert java_hash.hash_map_order(names) == ["sticky", "range", "roundrobin", "cooperative-sticky"]
    assert java_hash.hash_map_order(["q", "a"]) == ["q", "a"], "one bucket: as they came"
    grown = java_hash.hash_map_order(f"p{number}" for number in range(20))
    assert grown == [f"p{number}" for number in (*range(11), 12, 11, 14, 13, 16, 15, 18, 17, 19)]


def test_the_first_member_leads_and_the_next_one_after_it_left() -> None:
    group = group_of(member("a", "range"), member("b", "range"), member("c", "range"))
    assert group.leader_id == "a"
    group.remove("a")
    assert group.leader_id == "b"
    group.remove("b")
    group.remove("c")
    assert group.leader_id is None


def test_a_member_without_a_protocol_that_all_share_is_not_supported() -> None:
    group = group_of(member("a", "range", "sticky"), member("b", "range"))
    assert group.supports_protocols("consumer", [JoinGroupRequestProtocol(name="range", metadata=b"")])
    assert not group.supports_protocols("consumer", [JoinGroupRequestProtocol(name="sticky", metadata=b"")])
    assert not group.supports_protocols("connect", [JoinGroupRequestProtocol(name="range", metadata=b"")])
    assert not GroupMetadata("empty").supports_protocols("consumer", [])


def test_what_the_members_of_a_generation_subscribe_to_is_known() -> None:
    group = group_of(member("a", "range", metadata=subscription("x", "y")), member("b", "range", metadata=subscription("z")))
    group.init_next_generation(0)
    assert group.subscribed_topics() == frozenset({"x", "y", "z"})
    assert group.is_subscribed_to("x")
    assert not group.is_subscribed_to("w")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0",
        b"\0\1\0\0\0\2\0\1x",
        b"\0\1\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
        b"\xff\xff\0\0\0\0",
    ],
)
def test_with_a_subscription_that_cannot_be_read_every_topic_counts_as_subscribed(garbage: bytes) -> None:
    group = group_of(member("a", "range", metadata=garbage))
    group.init_next_generation(0)
    assert group.subscribed_topics() is None
    assert group.is_subscribed_to("anything")


def test_member_ids_name_the_instance_or_the_client_and_are_drawn_from_the_seed() -> None:
    first = generate_member_id(Random(3), "client", None)
    assert first.startswith("client-")
    assert len(first) == len("client-") + 36
    assert generate_member_id(Random(3), "client", "instance") == first.replace("client", "instance")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("group", 98629247),
        ("polygenelubricants", -(2**31)),
        ("Grüße", 69215351),
        ("\U0001f600", 1772899),
    ],
)
def test_strings_hash_as_in_java(text: str, value: int) -> None:
    assert java_hash.string_hash(text) == value


@pytest.mark.parametrize(
    ("group_id", "partitions", "partition"),
    [("group", 50, 47), ("ours-1", 6, 5), ("ours-2", 6, 4), ("polygenelubricants", 50, 0)],
)
def test_a_group_is_in_the_partition_where_kafka_looks_for_it(group_id: str, partitions: int, partition: int) -> None:
    # "ours-1" has a negative hash, "polygenelubricants" the least one, which Java cannot negate.
    assert java_hash.partition_for(group_id, partitions) == partition
