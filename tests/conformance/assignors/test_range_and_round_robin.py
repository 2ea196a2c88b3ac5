"""Range and round-robin give the plan of Java's assignors, partition for partition, on every input."""

from __future__ import annotations

import os
import random

import pytest

from assignors import Assignor, Cluster, Member, Plan, RangeAssignor, RoundRobinAssignor, verify
from tests.support.assignors.cases import cluster_and_members
from tests.support.java_assignors import JavaAssignors

#: Set ASSIGNOR_CASES to run more of them.
CASES = int(os.environ.get("ASSIGNOR_CASES", "1200"))


def as_lists(plan: Plan) -> dict[str, dict[str, list[int]]]:
    return {member_id: {topic: list(partitions) for topic, partitions in topics.items()} for member_id, topics in plan.items()}


@pytest.mark.kafka
@pytest.mark.behaviour(97, 98, 99, 100, 101, 102)
@pytest.mark.parametrize(
    ("assignor", "racks", "seed"),
    [(RangeAssignor(), False, 1), (RangeAssignor(), True, 2), (RoundRobinAssignor(), False, 3)],
    ids=["range", "range-with-racks", "roundrobin"],
)
def test_the_plan_is_javas(assignor: Assignor, racks: bool, seed: int, java_assignors: JavaAssignors) -> None:
    for number in range(CASES):
        rng = random.Random(f"{seed}-{number}")
        cluster, members = cluster_and_members(rng, racks=racks)
        expected = java_assignors.assign(assignor.name, cluster, members)
        plan = assignor.assign(cluster, members)
        verify(cluster, members, plan)
        assert as_lists(plan) == expected, f"case {seed}-{number}: {cluster} {members}"


@pytest.mark.behaviour(100)
@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()], ids=lambda assignor: assignor.name)
def test_a_static_member_that_comes_back_with_a_new_id_gets_what_it_had(assignor: Assignor) -> None:
    cluster = Cluster({"orders": 7, "payments": 4})

    def group(second: str) -> dict[str, Member]:
        topics = ["orders", "payments"]
        return {
            "member-z": Member(topics, instance_id="a"),
            second: Member(topics, instance_id="b"),
            "member-a": Member(topics),
        }

    before = assignor.assign(cluster, group("member-y"))
    after = assignor.assign(cluster, group("member-0"))
    assert after["member-0"] == before["member-y"]
    assert {id: after[id] for id in ("member-z", "member-a")} == {id: before[id] for id in ("member-z", "member-a")}


@pytest.mark.behaviour(101)
def test_range_gives_equal_partitions_of_equal_topics_to_one_member() -> None:
    members = {name: Member(["orders", "payments"]) for name in "abc"}
    plan = RangeAssignor().assign(Cluster({"orders": 8, "payments": 8}), members)
    for topics in plan.values():
        assert list(topics["orders"]) == list(topics["payments"])


@pytest.mark.behaviour(97)
@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()], ids=lambda assignor: assignor.name)
def test_nothing_to_give(assignor: Assignor) -> None:
    assert assignor.assign(Cluster({}), {}) == {}
    assert assignor.assign(Cluster({"orders": 3}), {"a": Member([])}) == {"a": {}}
    assert assignor.assign(Cluster({}), {"a": Member(["unknown"])}) == {"a": {}}
    assert assignor.assign(Cluster({"empty": 0}), {"a": Member(["empty"]), "b": Member([])}) == {"a": {}, "b": {}}
