"""Sticky and cooperative sticky: as even as possible, then matching racks, then as few moves as possible."""

from __future__ import annotations

import os
import random

import pytest

from assignors import (
    Assignor,
    Cluster,
    CooperativeStickyAssignor,
    Member,
    RebalanceProtocol,
    StickyAssignor,
    verify,
)
from assignors.balancing import dealing
from tests.support.assignors.cases import changed, cluster_and_members, with_doubtful_claims, with_history
from tests.support.assignors.optimum import best, quality
from tests.support.assignors.plans import as_lists, loads, owning, racks_matter, settle_group

CASES = int(os.environ.get("ASSIGNOR_CASES", "1200"))
BOTH = pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda a: a.name)


@pytest.mark.behaviour(99, 102, 103, 104, 106)
@pytest.mark.parametrize(("racks", "seed"), [(False, 1), (True, 2)], ids=["without-racks", "with-racks"])
def test_no_plan_is_more_even_or_moves_less(racks: bool, seed: int) -> None:
    for number in range(CASES // 2):
        rng = random.Random(f"{seed}-{number}")
        cluster, members = cluster_and_members(rng, racks=racks, most_topics=6, most_members=8, most_partitions=9)
        if rng.random() < 0.85:
            members = with_history(rng, cluster, members)
        plan = StickyAssignor().assign(cluster, members)
        verify(cluster, members, plan)
        by_rack = racks_matter(cluster, members)
        assert quality(cluster, members, plan, by_rack) == best(cluster, members, by_rack), f"{cluster} {members}"


@pytest.mark.thorough
@pytest.mark.behaviour(99, 103)
def test_longer_runs_in_huge_groups_cost_no_evenness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "MOST_ENTRIES", 10)
    assert dealing.run_length(100) == 10
    for number in range(300):
        rng = random.Random(f"runs-{number}")
        cluster, members = cluster_and_members(rng, most_topics=6, most_members=8, most_partitions=40)
        plan = StickyAssignor().assign(cluster, members)
        verify(cluster, members, plan)
        assert quality(cluster, members, plan, False).loads == best(cluster, members, False).loads


@BOTH
@pytest.mark.behaviour(98, 100)
def test_the_order_in_which_members_and_claims_come_does_not_matter(assignor: Assignor) -> None:
    for number in range(300):
        rng = random.Random(f"order-{number}")
        cluster, members = cluster_and_members(rng, racks=rng.random() < 0.3)
        members = with_doubtful_claims(rng, cluster, with_history(rng, cluster, members))
        ids = list(members)
        rng.shuffle(ids)
        plan = assignor.assign(cluster, members)
        assert as_lists(assignor.assign(cluster, {id: members[id] for id in ids})) == as_lists(plan)


@BOTH
@pytest.mark.behaviour(98, 99, 104, 105, 106, 110)
def test_churn_stays_valid_and_settles_in_two_rounds(assignor: Assignor) -> None:
    for number in range(150):
        rng = random.Random(f"churn-{number}")
        cluster, members = cluster_and_members(rng, racks=rng.random() < 0.3)
        generation = 0
        for _ in range(4):
            if RebalanceProtocol.COOPERATIVE in assignor.protocols:
                members, rounds = settle_group([assignor], cluster, members, generation)
                assert rounds <= 2
            else:
                plan = assignor.assign(cluster, members)
                verify(cluster, members, plan)
                members = owning(members, plan, generation)
            generation += 10
            again = assignor.assign(cluster, members)
            assert as_lists(again) == as_lists({id: member.owned for id, member in members.items()})
            cluster, members = changed(rng, cluster, members)


@BOTH
@pytest.mark.behaviour(104, 106)
def test_one_who_comes_takes_its_share_and_nothing_else_moves(assignor: Assignor) -> None:
    cluster = Cluster({"orders": 12, "payments": 12})
    topics = ["orders", "payments"]
    members = owning({id: Member(topics) for id in "abc"}, assignor.assign(cluster, {id: Member(topics) for id in "abc"}), 1)
    plan = assignor.assign(cluster, members | {"d": Member(topics)})
    kept = {id: {topic: set(plan[id][topic]) for topic in topics} for id in "abc"}
    assert all(kept[id][topic] <= set(members[id].owned[topic]) for id in "abc" for topic in topics)
    assert [sum(map(len, kept[id].values())) for id in "abc"] == [6, 6, 6]
    # Each topic is spread evenly before and after.
    assert {len(partitions) for id in "abc" for partitions in kept[id].values()} == {3}


@BOTH
@pytest.mark.behaviour(98, 103)
def test_every_topic_is_spread_over_the_members(assignor: Assignor) -> None:
    topics = [f"topic-{number}" for number in range(5)]
    members = {f"member-{number}": Member(topics) for number in range(4)}
    plan = assignor.assign(Cluster(dict.fromkeys(topics, 10)), members)
    for given in plan.values():
        assert {len(given[topic]) for topic in topics} <= {2, 3}


@BOTH
@pytest.mark.behaviour(103)
def test_a_chain_of_members_passes_partitions_on(assignor: Assignor) -> None:
    """a can only have t1, b t1 and t2, c t2 and t3: the partition that a lacks comes from c through b."""
    members = {
        "a": Member(["t1"], {}, 1),
        "b": Member(["t1", "t2"], {"t1": [0, 1, 2]}, 1),
        "c": Member(["t2", "t3"], {"t2": [0, 1, 2], "t3": [0, 1, 2]}, 1),
    }
    plan = StickyAssignor().assign(Cluster({"t1": 3, "t2": 3, "t3": 3}), members)
    assert loads(plan) == [3, 3, 3]
    assert loads(assignor.assign(Cluster({"t1": 3, "t2": 3, "t3": 3}), members))[-1] == 3


@BOTH
@pytest.mark.behaviour(107, 108)
def test_of_two_claims_the_newer_one_counts(assignor: Assignor) -> None:
    members = {"a": Member(["t"], {"t": [0, 1]}, 4), "b": Member(["t"], {"t": [1, 2]}, 5)}
    assert as_lists(assignor.assign(Cluster({"t": 4}), members)) == {"a": {"t": [0, 3]}, "b": {"t": [1, 2]}}


@pytest.mark.behaviour(107)
def test_two_claims_of_one_generation_cost_both() -> None:
    cluster = Cluster({"t": 4})
    members = {"a": Member(["t"], {"t": [0, 1, 2]}, 5), "b": Member(["t"], {"t": [2, 3]}, 5), "c": Member(["t"])}
    eager = StickyAssignor().assign(cluster, members)
    assert 2 in eager["c"]["t"]
    cooperative = CooperativeStickyAssignor().assign(cluster, members)
    assert all(2 not in topics.get("t", ()) for topics in cooperative.values())


@pytest.mark.behaviour(109)
def test_cooperative_hands_nothing_over_before_its_owner_revoked_it() -> None:
    cluster = Cluster({"t": 4})
    assignor = CooperativeStickyAssignor()
    members = {"a": Member(["t"], {"t": [0, 1, 2, 3]}, 5), "b": Member(["t"])}
    first = assignor.assign(cluster, members)
    assert as_lists(first) == {"a": {"t": [0, 1]}, "b": {}}
    second = assignor.assign(cluster, owning(members, first, 6))
    assert as_lists(second) == {"a": {"t": [0, 1]}, "b": {"t": [2, 3]}}


@pytest.mark.behaviour(109)
def test_a_partition_that_its_owner_unsubscribed_from_waits_until_it_is_revoked() -> None:
    members = {"a": Member(["u"], {"t": [0]}, 5), "b": Member(["t"], {}, 5)}
    plan = CooperativeStickyAssignor().assign(Cluster({"t": 2, "u": 1}), members)
    assert as_lists(plan) == {"a": {"u": [0]}, "b": {"t": [1]}}


@pytest.mark.behaviour(102)
def test_racks_are_matched_where_that_costs_no_balance() -> None:
    racks = [frozenset("a"), frozenset("a"), frozenset("a"), frozenset("b")]
    cluster = Cluster({"t": 4}, {"t": racks})
    members = {"one": Member(["t"], rack="a"), "two": Member(["t"], rack="b")}
    plan = as_lists(StickyAssignor().assign(cluster, members))
    assert loads(plan) == [2, 2]
    assert 3 in plan["two"]["t"]


@BOTH
@pytest.mark.behaviour(97, 98, 107, 108, 109)
def test_doubtful_claims_lead_to_valid_plans(assignor: Assignor) -> None:
    protocol = assignor.protocols[0]
    for number in range(CASES):
        rng = random.Random(f"doubt-{number}")
        cluster, members = cluster_and_members(rng, racks=rng.random() < 0.3)
        members = with_doubtful_claims(rng, cluster, members)
        verify(cluster, members, assignor.assign(cluster, members), protocol)
