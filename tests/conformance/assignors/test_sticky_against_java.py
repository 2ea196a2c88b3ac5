"""Sticky and cooperative sticky compared with Java's: as even or better, no more moves, equal user data, and mixed leaders."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping

import attrs
import pytest

from assignors import (
    Assignor,
    Cluster,
    CooperativeStickyAssignor,
    InvalidPlanError,
    Member,
    Plan,
    RebalanceProtocol,
    StickyAssignor,
    verify,
)
from assignors.balancing import sticky_user_data
from tests.support.assignors.cases import changed, cluster_and_members, with_history
from tests.support.assignors.optimum import quality
from tests.support.assignors.plans import as_lists, owning, racks_matter, settle_group
from tests.support.java_assignors import JavaAssignors

CASES = int(os.environ.get("ASSIGNOR_CASES", "1200"))

pytestmark = pytest.mark.kafka


class JavaLeader(Assignor):
    """Java's assignor in the place of the group's leader."""

    def __init__(self, java: JavaAssignors, assignor: Assignor) -> None:
        self.name = assignor.name
        self.protocols = assignor.protocols
        self._java = java

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        return self._java.assign(self.name, cluster, members)


def with_user_data(members: Mapping[str, Member]) -> dict[str, Member]:
    """Members of the eager protocol, whose history is in their user data alone."""
    return {
        member_id: attrs.evolve(
            member, owned={}, generation=-1, user_data=sticky_user_data.encode(member.owned, member.generation)
        )
        for member_id, member in members.items()
    }


@pytest.mark.behaviour(99, 102, 103, 104, 106)
@pytest.mark.parametrize(
    ("alike", "racks", "seed"),
    [(True, False, "alike"), (False, False, "uneven"), (False, True, "racks")],
    ids=["alike", "uneven", "uneven-with-racks"],
)
def test_never_less_even_and_never_more_moves_than_java(
    alike: bool, racks: bool, seed: str, java_assignors: JavaAssignors, record_testsuite_property: Callable[[str, object], None]
) -> None:
    ours_moved = java_moved = ours_better = java_invalid = 0
    for number in range(CASES // 3):
        rng = random.Random(f"{seed}-{number}")
        cluster, members = cluster_and_members(rng, racks=racks)
        if alike:
            topics = sorted(cluster.partitions)
            members = {member_id: attrs.evolve(member, topics=topics) for member_id, member in members.items()}
        members = with_history(rng, cluster, members)
        remembering = with_user_data(members)
        by_rack = racks_matter(cluster, members)
        java_plan = java_assignors.assign("sticky", cluster, remembering)
        plan = StickyAssignor().assign(cluster, remembering)
        verify(cluster, members, plan)
        try:
            verify(cluster, members, java_plan)
        except InvalidPlanError:
            # Java takes all for alike when those it looks at first subscribe to nothing, and then gives them partitions.
            assert any(not member.topics for member in members.values())
            java_invalid += 1
            continue
        java = quality(cluster, members, java_plan, by_rack)
        ours = quality(cluster, members, plan, by_rack)
        assert ours <= java, f"case {seed}-{number}: {cluster} {members}"
        ours_better += ours < java
        if (ours.loads, ours.far) == (java.loads, java.far):
            ours_moved += ours.moves
            java_moved += java.moves
    record_testsuite_property(f"{seed}: plans of Java's that are not valid", java_invalid)
    record_testsuite_property(f"{seed}: cases better than Java", ours_better)
    record_testsuite_property(f"{seed}: moves at equal balance", ours_moved)
    record_testsuite_property(f"{seed}: Java's moves at equal balance", java_moved)


@pytest.mark.behaviour(112)
def test_user_data_are_javas_byte_for_byte(java_assignors: JavaAssignors) -> None:
    for number in range(300):
        rng = random.Random(f"user-data-{number}")
        topics = [f"{rng.choice(('orders', 'Ünicode', 'a', 'z'))}.{rng.randint(0, 500)}" for _ in range(rng.randint(0, 60))]
        assignment = {topic: rng.sample(range(50), rng.randint(1, 5)) for topic in topics}
        pairs = [(topic, partition) for topic, partitions in assignment.items() for partition in partitions]
        generation = rng.randint(-1, 2**31 - 1)
        sticky, cooperative = StickyAssignor(), CooperativeStickyAssignor()
        sticky.on_assignment(assignment, generation)
        cooperative.on_assignment(assignment, generation)
        assert sticky.user_data(topics) == java_assignors.user_data("sticky", pairs, generation)
        assert cooperative.user_data(topics) == java_assignors.user_data("cooperative-sticky", pairs, generation)


@pytest.mark.behaviour(106, 112)
def test_what_a_java_member_remembers_counts(java_assignors: JavaAssignors) -> None:
    data = java_assignors.user_data("sticky", [("t", 3), ("u", 0), ("t", 1)], 7)
    members = {"java": Member(["t", "u"], user_data=data), "ours": Member(["t", "u"])}
    plan = as_lists(StickyAssignor().assign(Cluster({"t": 4, "u": 2}), members))
    assert plan == {"java": {"t": [1, 3], "u": [0]}, "ours": {"t": [0, 2], "u": [1]}}


@pytest.mark.behaviour(104, 105, 106, 109)
@pytest.mark.parametrize("first", ["java", "ours"])
def test_leaders_of_both_kinds_take_turns(first: str, java_assignors: JavaAssignors) -> None:
    """All members subscribe alike: after two rounds with either leader, neither leader moves a partition."""
    ours = CooperativeStickyAssignor()
    java = JavaLeader(java_assignors, ours)
    leaders: list[Assignor] = [java, ours] if first == "java" else [ours, java]
    for number in range(CASES // 15):
        rng = random.Random(f"turns-{number}")
        cluster, members = cluster_and_members(rng)
        topics = sorted(cluster.partitions)
        members = {member_id: attrs.evolve(member, topics=topics) for member_id, member in members.items()}
        generation = 0
        for _ in range(3):
            members, rounds = settle_group(leaders, cluster, members, generation)
            assert rounds <= 2
            generation += 10
            held = as_lists({member_id: member.owned for member_id, member in members.items()})
            assert as_lists(java.assign(cluster, members)) == held
            assert as_lists(ours.assign(cluster, members)) == held
            cluster, members = changed(rng, cluster, members)
            topics = sorted(cluster.partitions)
            members = {member_id: attrs.evolve(member, topics=topics) for member_id, member in members.items()}


@pytest.mark.behaviour(99, 109)
def test_java_moves_nothing_of_an_uneven_group_that_we_settled(java_assignors: JavaAssignors) -> None:
    ours = CooperativeStickyAssignor()
    assert RebalanceProtocol.COOPERATIVE in ours.protocols
    for number in range(CASES // 5):
        rng = random.Random(f"settled-{number}")
        cluster, members = cluster_and_members(rng)
        # Java fails without members, and takes those that subscribe to nothing for subscribers of everything.
        members = {member_id: member for member_id, member in members.items() if member.topics}
        if not members:
            continue
        members = with_history(rng, cluster, members)
        members, rounds = settle_group([ours], cluster, members, 10)
        assert rounds <= 2
        java = java_assignors.assign(ours.name, cluster, members)
        assert java == as_lists({member_id: member.owned for member_id, member in members.items()})
        assert as_lists(ours.assign(cluster, owning(members, java, 30))) == java
