"""LoadAssignor: even loads instead of even numbers, with a threshold and a budget."""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs
import pytest

from assignors import (
    Cluster,
    CooperativeStickyAssignor,
    InvalidInputError,
    LoadAssignor,
    Member,
    Plan,
    RebalanceProtocol,
    StickyAssignor,
    verify,
)
from assignors.balancing import sticky_user_data
from tests.support.assignors.cases import changed, cluster_and_members, with_doubtful_claims, with_history
from tests.support.assignors.plans import as_lists, owning, settle_group


def load_of(plan: Plan, lag: Mapping[str, list[int]]) -> dict[str, int]:
    return {
        member_id: sum(lag[topic][partition] for topic, partitions in topics.items() for partition in partitions)
        for member_id, topics in plan.items()
    }


def moves(members: Mapping[str, Member], plan: Plan) -> int:
    return sum(
        len(set(partitions) - set(plan[member_id].get(topic, ())))
        for member_id, member in members.items()
        for topic, partitions in member.owned.items()
    )


@pytest.mark.behaviour(103)
def test_one_busy_partition_is_as_much_as_many_idle_ones() -> None:
    lag = {"t": [900, 100, 100, 100, 100, 100, 100, 100, 100, 100]}
    plan = LoadAssignor().assign(Cluster({"t": 10}, lag=lag), {"a": Member(["t"]), "b": Member(["t"])})
    assert sorted(load_of(plan, lag).values()) == [900, 900]


@pytest.mark.behaviour(106)
@pytest.mark.parametrize(
    "lag",
    [{}, {"t": [0] * 8, "u": [0] * 3}, {"t": [None] * 8}, {"t": [0, None], "u": [None]}],
    ids=["not-asked-for", "zero", "unknown", "zero-or-unknown"],
)
def test_without_figures_the_plan_is_plain_sticky(lag: dict[str, list[int | None]]) -> None:
    members = {"a": Member(["t", "u"], {"t": [0, 1, 2, 3, 4]}, 1), "b": Member(["t"], {"t": [5]}, 1), "c": Member(["u"])}
    cluster = Cluster({"t": 8, "u": 3}, lag=lag)
    assert as_lists(LoadAssignor().assign(cluster, members)) == as_lists(CooperativeStickyAssignor().assign(cluster, members))


def test_an_unknown_figure_counts_as_the_mean_of_its_topic() -> None:
    members = {"a": Member(["t"]), "b": Member(["t"])}
    plan = LoadAssignor().assign(Cluster({"t": 4}, lag={"t": [100, 100, None, 100]}), members)
    assert [len(topics["t"]) for topics in plan.values()] == [2, 2]


@pytest.mark.behaviour(106)
def test_nothing_moves_for_less_than_the_threshold() -> None:
    members = {"a": Member(["t"], {"t": [0, 1]}, 1), "b": Member(["t"], {"t": [2, 3]}, 1)}
    cluster = Cluster({"t": 4}, lag={"t": [60, 50, 50, 40]})
    assert moves(members, LoadAssignor(threshold=0.3, budget=1).assign(cluster, members)) == 0
    assert moves(members, LoadAssignor(threshold=0.05, budget=1).assign(cluster, members)) > 0


@pytest.mark.behaviour(106)
def test_one_plan_moves_at_most_the_budget() -> None:
    rng = random.Random(1)
    lag = {"t": [rng.randint(0, 10_000) for _ in range(100)]}
    cluster = Cluster({"t": 100}, lag=lag)
    members = {f"m{number}": Member(["t"], {"t": range(number * 10, number * 10 + 10)}, 1) for number in range(10)}
    before = load_of({member_id: member.owned for member_id, member in members.items()}, lag)
    for budget in (0.0, 0.05, 0.2):
        plan = LoadAssignor(threshold=0.0, budget=budget).assign(cluster, members)
        assert moves(members, plan) <= budget * 100
        assert (max(load_of(plan, lag).values()) < max(before.values())) == (budget > 0)


@pytest.mark.behaviour(104)
def test_a_newcomer_gets_its_share_even_without_a_budget() -> None:
    members = {name: Member(["t"], {"t": [place, place + 3, place + 6]}, 1) for place, name in enumerate("abc")}
    cluster = Cluster({"t": 9}, lag={"t": [100] * 9})
    settled, rounds = settle_group([LoadAssignor(budget=0)], cluster, members | {"d": Member(["t"])}, 1)
    assert rounds == 2
    assert sorted(len(member.owned["t"]) for member in settled.values()) == [2, 2, 2, 3]


@pytest.mark.behaviour(99, 109, 110)
def test_churn_settles_and_stays_valid() -> None:
    assignor = LoadAssignor()
    for number in range(150):
        rng = random.Random(f"load-{number}")
        cluster, members = cluster_and_members(rng)
        for generation in range(10, 40, 10):
            lag = {
                topic: [rng.choice((0, 5, rng.randint(0, 10**6), None)) for _ in range(count)]
                for topic, count in cluster.partitions.items()
            }
            members, rounds = settle_group([assignor], attrs.evolve(cluster, lag=lag), members, generation)
            assert rounds <= 3
            cluster, members = changed(rng, cluster, members)


@pytest.mark.behaviour(107, 108, 109)
def test_doubtful_claims_lead_to_valid_plans() -> None:
    for number in range(300):
        rng = random.Random(f"doubt-{number}")
        cluster, members = cluster_and_members(rng)
        cluster = attrs.evolve(cluster, lag={topic: list(range(count)) for topic, count in cluster.partitions.items()})
        members = with_doubtful_claims(rng, cluster, members)
        verify(cluster, members, LoadAssignor().assign(cluster, members), RebalanceProtocol.COOPERATIVE)


@pytest.mark.behaviour(106, 112)
def test_in_the_eager_protocol_the_history_comes_from_user_data() -> None:
    rng = random.Random(5)
    cluster, members = cluster_and_members(rng)
    owned = with_history(rng, cluster, members)
    eager = {
        member_id: attrs.evolve(members[member_id], user_data=sticky_user_data.encode(member.owned, member.generation))
        for member_id, member in owned.items()
    }
    plan = LoadAssignor().assign(cluster, eager)
    verify(cluster, eager, plan)
    assert as_lists(plan) == as_lists(StickyAssignor().assign(cluster, eager))
    remembering = LoadAssignor()
    assert remembering.user_data(["t"]) is None
    remembering.on_assignment({"t": [1, 2]}, 7)
    assert sticky_user_data.decode(remembering.user_data(["t"]) or b"") == ({"t": (1, 2)}, 7)


def test_weights_of_ones_own_need_nothing_to_be_fetched() -> None:
    assignor = LoadAssignor(weights={"big": 10.0, "small": [1.0, 1.0, 1.0, 1.0]})
    assert assignor.needs == frozenset()
    assert LoadAssignor().needs == {"lag"}
    assert LoadAssignor("weights").needs == {"weights"}
    members = {"a": Member(["big", "small"]), "b": Member(["big", "small"])}
    plan = assignor.assign(Cluster({"big": 1, "small": 4}), members)
    assert sorted(as_lists(plan).values(), key=len) == [{"big": [0]}, {"small": [0, 1, 2, 3]}]


def test_weights_that_the_coordinator_fetched() -> None:
    cluster = Cluster({"t": 3}, weights={"t": [30.0, 10.0, 20.0]})
    plan = LoadAssignor("weights").assign(cluster, {"a": Member(["t"]), "b": Member(["t"])})
    assert sorted(as_lists(plan).values(), key=lambda topics: len(topics["t"])) == [{"t": [0]}, {"t": [1, 2]}]


def test_bad_settings_and_figures_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="threshold must be from 0 to 1, not 2"):
        LoadAssignor(threshold=2)
    with pytest.raises(ValueError, match="by must be 'lag' or 'weights', not 'size'"):
        LoadAssignor("size")  # type: ignore[arg-type]  # an error that mypy reports
    with pytest.raises(InvalidInputError, match="lag of partition 1 of 't' is 'x'"):
        LoadAssignor().assign(Cluster({"t": 2}, lag={"t": [1, "x"]}), {"a": Member(["t"])})  # type: ignore[list-item]  # an error that mypy reports
    plan = LoadAssignor().assign(Cluster({"t": 3}, lag={"t": [-5, 10, 10**30]}), {"a": Member(["t"]), "b": Member(["t"])})
    verify(Cluster({"t": 3}), {"a": Member(["t"]), "b": Member(["t"])}, plan)


def test_the_plan_depends_on_nothing_but_the_input() -> None:
    rng = random.Random(3)
    cluster, members = cluster_and_members(rng)
    cluster = attrs.evolve(cluster, lag={topic: list(range(count)) for topic, count in cluster.partitions.items()})
    members = owning(members, LoadAssignor().assign(cluster, members), 1)
    backwards = dict(reversed(members.items()))
    assert as_lists(LoadAssignor().assign(cluster, members)) == as_lists(LoadAssignor().assign(cluster, backwards))
