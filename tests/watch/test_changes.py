"""Messages from snapshots: the changes, and the rebalance they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.watch.changes import Tracker, runs
from consumer_coord.watch.history import State
from consumer_coord.watch.reasons import SECOND_ROUND, UNDER_WAY
from consumer_coord.watch.snapshots import GroupSnapshot, MemberSnapshot, OffsetsSnapshot
from tests.support.watch.looks import TOPIC, group, member, offsets, owners, rebalancing


class Watched:
    """A tracker with a snapshot per second from 100 on, and the state of a page."""

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.state = State()
        self.at = 99.0

    def look(self, look: GroupSnapshot, told: dict[str, OffsetsSnapshot] | None = None) -> dict[str, Any]:
        """Take a snapshot, and return the changes of the group."""
        self.at += 1
        message = self.tracker.take([look], told or {}, self.at)
        self.state.apply(message)
        changed: dict[str, Any] = message.get("groups", {}).get("shop", {})
        return changed

    @property
    def rebalances(self) -> list[list[Any]]:
        """Return rows of [id, began, ended, reasons, moved]."""
        found: list[list[Any]] = self.state.as_message()["groups"]["shop"]["rebalances"]
        return found


def test_the_first_message_is_everything() -> None:
    watched = Watched()
    change = watched.look(group(member("ann", "0-3", generation=4), member("bob", "4-5", instance_id="b")))
    assert change["info"]["state"] == "Stable"
    assert change["topics"] == {TOPIC: 6}
    assert change["owners"] == {TOPIC: [[0, 3, 0], [4, 5, 1]]}
    assert change["members"]["0"]["generation"] == 4
    assert (change["members"]["1"]["instance"], change["members"]["1"]["label"]) == ("b", "b")
    assert "rebalances" not in change


def test_a_group_in_peace_costs_nothing() -> None:
    watched = Watched()
    look = group(member("ann", "0-3"))
    watched.look(look)
    assert watched.look(look) == {}
    assert watched.tracker.take([look], {}, 200.0) == {"at": 200.0}


def test_a_rebalance_from_its_beginning_to_its_end() -> None:
    watched = Watched()
    ann, bob = member("ann", "0-3"), member("bob")
    watched.look(group(ann))
    watched.look(rebalancing(ann, bob))
    assert watched.rebalances == [[1, 101.0, None, ["bob-123456 joined"], 0]]
    assert watched.look(rebalancing(ann, bob, state="CompletingRebalance"))["info"] == {"state": "CompletingRebalance"}
    watched.look(group(member("ann", "0-1"), member("bob", "2-3")))
    assert watched.rebalances == [[1, 101.0, 103.0, ["bob-123456 joined"], 2]]
    assert owners(watched.state) == ["ann", "ann", "bob", "bob"]


def test_a_rebalance_between_two_looks_is_seen_by_what_it_changed() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0-1"), member("bob", "2-3")))
    watched.look(group(member("ann", "0-3")))
    assert watched.rebalances == [[1, 100.0, 101.0, ["bob-123456 left or timed out"], 2]]


def test_a_rebalance_that_moved_nothing_is_seen_by_the_generation() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0-3", generation=7)))
    watched.look(group(member("ann", "0-3", generation=8)))
    assert watched.rebalances == [[1, 100.0, 101.0, [], 0]]


def test_a_rebalance_that_was_under_way_when_the_watch_began() -> None:
    watched = Watched()
    watched.look(rebalancing(member("ann")))
    watched.look(group(member("ann", "0")))
    assert watched.rebalances == [[1, 100.0, 101.0, [UNDER_WAY], 0]]


def test_the_second_round_of_a_cooperative_rebalance() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0-3")))
    watched.look(group(member("ann", "0-1"), member("bob"), assignor="range"), offsets(4, {}, {}))
    assert owners(watched.state) == ["ann", "ann", None, None]
    watched.look(group(member("ann", "0-1"), member("bob", "2-3")))
    assert [row[3] for row in watched.rebalances] == [["bob-123456 joined"], [SECOND_ROUND]]


def test_the_consumer_protocol_rebalances_by_its_epoch_and_always_reports_the_owners() -> None:
    watched = Watched()
    new = {"type": "Consumer", "assignor": "uniform"}
    watched.look(group(member("ann", "0-3", generation=1), epoch=1, **new))
    watched.look(group(member("ann", "0-1", generation=2), member("bob"), epoch=2, **{**new, "state": "Reconciling"}))
    assert owners(watched.state) == ["ann", "ann", None, None]
    assert watched.rebalances[0][2] is None
    change = watched.look(group(member("ann", "0-1", generation=2), member("bob", "2-3", generation=2), epoch=2, **new))
    assert watched.rebalances == [[1, 101.0, 102.0, ["bob-123456 joined"], 2]]
    assert change["members"]["1"]["generation"] == 2


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            group(member("ann", "0", topics=("a",)), member("bob", "1")),
            group(member("ann", "1", topics=("a", "b")), member("bob", "0")),
            "ann-123456 changed the subscription",
        ),
        (
            group(member("ann", "0")),
            group(member("ann", "0", generation=2), assignor="sticky"),
            "assignor sticky instead of range",
        ),
        (
            group(*(member(f"m{number}") for number in range(4))),
            group(member("ann", "0")),
            "ann-123456 joined; 4 members left or timed out",
        ),
        (
            group(member("ann", "0")),
            group(member("ann", "0", generation=3), coordinator="kafka:9093 (broker 2)"),
            "the coordinator moved to kafka:9093 (broker 2)",
        ),
    ],
)
def test_reasons(before: GroupSnapshot, after: GroupSnapshot, reason: str) -> None:
    watched = Watched()
    watched.look(before)
    watched.look(after)
    assert "; ".join(watched.rebalances[0][3]) == reason


def test_a_topic_that_grew_is_the_reason_of_the_rebalance_that_follows() -> None:
    watched = Watched()
    look = group(member("ann", "0-1"))
    watched.look(look, offsets(2, {}, {}))
    watched.look(look, offsets(4, {}, {}))
    assert watched.rebalances == []
    assert owners(watched.state) == ["ann", "ann", None, None]
    watched.look(group(member("ann", "0-3")))
    assert [row[3] for row in watched.rebalances] == [["orders now has 4 partitions instead of 2"]]


def test_a_static_member_keeps_its_number_when_it_restarts() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0-1", instance_id="a"), member("bob", "2-3")))
    back = MemberSnapshot("other-id", "ann", "/10.0.0.2", "a", owned={TOPIC: (0, 1)}, topics=(TOPIC,))
    change = watched.look(group(back, member("bob", "2-3")))
    assert list(change["members"]) == ["0"]
    assert "owners" not in change
    assert watched.rebalances == []


def test_in_a_rebalance_the_owners_stay_but_for_members_that_are_gone() -> None:
    watched = Watched()
    ann, bob = member("ann", "0-1", generation=3), member("bob", "2-3")
    watched.look(group(ann, bob))
    watched.look(rebalancing(ann, bob))
    assert owners(watched.state) == ["ann", "ann", "bob", "bob"]
    change = watched.look(rebalancing(ann))
    assert owners(watched.state) == ["ann", "ann", None, None]
    assert change["unowned"] == [2, 0.0]
    # The coordinator does not report the generation now, so the last reported one is kept.
    assert watched.state.as_message()["groups"]["shop"]["members"]["0"]["generation"] == 3


def test_time_without_an_owner_is_counted_in_partition_seconds() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0-2")))
    watched.look(group(member("ann", "0")), offsets(3, {}, {}))
    watched.look(group(member("ann", "0")))
    change = watched.look(group(member("ann", "0-2")))
    assert change["unowned"] == [0, 4.0]


def test_lag_and_pace() -> None:
    watched = Watched()
    look = group(member("ann", "0"), member("bob", "1"))
    change = watched.look(look, offsets(2, {0: 100, 1: 50}, {0: 130, 1: 50}))
    assert change["lag"] == {TOPIC: [30, None, None]}
    assert change["member_lag"] == {"0": 30, "1": 0}
    assert change["behind"] == [[TOPIC, 0, 30]]
    watched.look(look)
    change = watched.look(look, offsets(2, {0: 140, 1: 60}, {0: 150, 1: 80}))
    assert change["lag"] == {TOPIC: [30, 25.0, 25.0]}
    assert change["behind"] == [[TOPIC, 1, 20], [TOPIC, 0, 10]]


def test_a_reset_of_offsets_is_no_negative_pace() -> None:
    watched = Watched()
    look = group(member("ann", "0"))
    watched.look(look, offsets(1, {0: 100}, {0: 100}))
    assert watched.look(look, offsets(1, {0: 0}, {0: 100}))["lag"] == {TOPIC: [100, 0.0, 0.0]}


def test_the_topics_of_an_empty_group_are_those_it_committed() -> None:
    watched = Watched()
    watched.look(group(state="Empty"), offsets(2, {0: 1}, {0: 5, 1: 5}))
    assert owners(watched.state) == [None, None]


def test_a_topic_that_is_no_longer_subscribed_goes() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0")))
    change = watched.look(group(member("ann", topics=("bills",), generation=2)))
    assert change["topics"] == {TOPIC: None}
    assert watched.state.as_message()["groups"]["shop"]["owners"] == {}


def test_an_error_leaves_what_was_known() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0")))
    assert watched.look(GroupSnapshot("shop", error="not allowed")) == {"info": {"error": "not allowed"}}
    assert watched.look(group(member("ann", "0"))) == {"info": {"error": None}}


def test_a_group_that_is_gone() -> None:
    watched = Watched()
    watched.look(group(member("ann", "0")))
    assert watched.tracker.take([], {}, 200.0) == {"at": 200.0, "gone": ["shop"]}


@given(st.lists(st.integers(-1, 3), max_size=8), st.lists(st.integers(-1, 3), max_size=8))
def test_runs_are_the_whole_difference(before: list[int], after: list[int]) -> None:
    now = before[: len(after)] + [99] * (len(after) - len(before))
    for first, last, owner in runs(before, after):
        assert any(was != owner for was in now[first : last + 1])
        now[first : last + 1] = [owner] * (last + 1 - first)
    assert now == after


_STATES = ("Stable", "PreparingRebalance", "CompletingRebalance")


@st.composite
def _histories(draw: st.DrawFn) -> Sequence[GroupSnapshot]:
    looks = []
    for _ in range(draw(st.integers(1, 8))):
        present = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True))
        shares: dict[str, list[int]] = {name: [] for name in present}
        for number in range(draw(st.integers(0, 6)) if present else 0):
            owner = draw(st.sampled_from([*present, None]))
            if owner is not None:
                shares[owner].append(number)
        members = [member(name, " ".join(map(str, share))) for name, share in shares.items()]
        state = draw(st.sampled_from(_STATES))
        looks.append(group(*members) if state == "Stable" else rebalancing(*members, state=state))
    return looks


@given(_histories())
def test_the_messages_match_the_last_snapshot(looks: Sequence[GroupSnapshot]) -> None:
    watched = Watched()
    for look in looks:
        watched.look(look)
    told = owners(watched.state)
    present = {one.client_id for one in look.members}
    assert {owner for owner in told if owner is not None} <= present
    if look.reports_owners:
        expected = {number: one.client_id for one in look.members for number in one.owned.get(TOPIC, ())}
        assert {number: owner for number, owner in enumerate(told) if owner is not None} == expected
        assert all(row[2] is not None for row in watched.rebalances)
