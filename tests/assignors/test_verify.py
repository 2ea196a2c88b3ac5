"""verify: complete, no duplicate, only subscribers, safe moves; messages that name member, topic and partition."""

from __future__ import annotations

import pytest

from assignors import Cluster, InvalidPlanError, Member, Plan, RebalanceProtocol, verify

CLUSTER = Cluster({"t": 3, "u": 2})
MEMBERS = {"a": Member(["t", "u"]), "b": Member(["t"])}
COOPERATIVE = RebalanceProtocol.COOPERATIVE


@pytest.mark.behaviour(29)
@pytest.mark.parametrize(
    "plan",
    [
        {"a": {"t": [0], "u": [0, 1]}, "b": {"t": [2, 1]}},
        {"a": {"t": (), "u": range(2)}, "b": {"t": range(3)}},
        {"a": {"t": range(3), "u": (1, 0)}, "b": {}},
        {"a": {"t": range(3), "u": (1, 0)}, "b": {"u": []}},
    ],
    ids=["lists", "ranges", "nothing-for-one", "an-empty-entry"],
)
def test_valid_plans_pass(plan: Plan) -> None:
    verify(CLUSTER, MEMBERS, plan)
    verify(CLUSTER, MEMBERS, plan, COOPERATIVE)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"a": {"t": range(3), "u": range(2)}}, "member 'b' has no entry"),
        ({"a": {"t": [0, 1], "u": range(2)}, "b": {}}, "partition 2 of topic 't' is not assigned"),
        ({"a": {"t": range(3), "u": range(2)}, "b": {"t": [1]}}, "member 'b' is given partition 1 of topic 't' as well as 'a'"),
        ({"a": {"t": [0, 1, 2, 2], "u": range(2)}, "b": {}}, "member 'a' is given partition 2 of topic 't' twice"),
        ({"a": {"t": range(3), "u": [0]}, "b": {"u": [1]}}, "member 'b' is given topic 'u', to which it does not subscribe"),
        (
            {"a": {"t": range(4), "u": range(2)}, "b": {}},
            "'a' is given partition 3 of topic 't', but the topic's partition count is 3",
        ),
        ({"a": {"t": range(3), "u": [[0], 1]}, "b": {}}, "member 'a' is given partition [0] of topic 'u'"),
        ({"a": {"t": range(3), "u": 2}, "b": {}}, "member 'a' is given 2 of topic 'u': expected a sequence"),
        ({"a": {"t": range(3), "u": range(2)}, "b": None}, "member 'b' is given None: expected topic -> partitions"),
        (None, "the plan is None: expected member -> topic -> partitions"),
        ({"a": {"t": range(-1, 3), "u": range(2)}, "b": {}}, "member 'a' is given partition -1 of topic 't'"),
        ({"a": {"t": [0, 1, "x"], "u": range(2)}, "b": {}}, "member 'a' is given partition 'x' of topic 't'"),
        ({"a": {"t": range(3), "u": range(2)}, "b": {}, "z": {}}, "there is no member 'z' in the group"),
        ({"a": {"t": range(3), "u": range(2), "v": [0]}, "b": {}}, "partition 0 of topic 'v', but the topic does not exist"),
    ],
)
@pytest.mark.behaviour(29)
def test_the_message_names_the_fault(plan: Plan, problem: str) -> None:
    for protocol in RebalanceProtocol:
        with pytest.raises(InvalidPlanError, match="the plan is not valid: ") as caught:
            verify(CLUSTER, MEMBERS, plan, protocol)
        assert any(problem in message for message in caught.value.problems)


def test_a_thousand_violations_make_a_short_message() -> None:
    with pytest.raises(InvalidPlanError) as caught:
        verify(Cluster({"t": 1000}), {"a": Member(["t"])}, {"a": {}})
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "and more"


@pytest.mark.behaviour(29, 109)
def test_a_partition_is_not_handed_over_before_its_owner_revoked_it() -> None:
    members = {"a": Member(["t"], {"t": [0, 1, 2]}, 4), "b": Member(["t"], {}, 4)}
    plan = {"a": {"t": [0, 1]}, "b": {"t": [2]}}
    verify(CLUSTER, members, plan)
    with pytest.raises(InvalidPlanError, match="'b' is given partition 2 of topic 't', which 'a' has not revoked"):
        verify(CLUSTER, members, plan, COOPERATIVE)
    verify(CLUSTER, members, {"a": {"t": [0, 1]}, "b": {}}, COOPERATIVE)


@pytest.mark.behaviour(30, 108)
def test_the_highest_generation_owns() -> None:
    members = {"stale": Member(["t"], {"t": [0]}, 3), "fresh": Member(["t"], {"t": [0, 1, 2]}, 4), "new": Member(["t"])}
    verify(CLUSTER, members, {"stale": {}, "fresh": {"t": [0, 1, 2]}, "new": {}}, COOPERATIVE)
    with pytest.raises(InvalidPlanError, match="'stale' is given partition 0 of topic 't', which 'fresh' has not revoked"):
        verify(CLUSTER, members, {"stale": {"t": [0]}, "fresh": {"t": [1, 2]}, "new": {}}, COOPERATIVE)


@pytest.mark.behaviour(30, 107)
def test_conflicting_claims_of_one_generation_count_as_none() -> None:
    members = {"a": Member(["t"], {"t": [0, 1]}, 4), "b": Member(["t"], {"t": [1, 2]}, 4), "c": Member(["t"])}
    verify(CLUSTER, members, {"a": {"t": [0]}, "b": {"t": [2]}, "c": {"t": [1]}}, COOPERATIVE)
    verify(CLUSTER, members, {"a": {"t": [0]}, "b": {"t": [2]}, "c": {}}, COOPERATIVE)


@pytest.mark.behaviour(30)
def test_a_partition_without_an_owner_may_not_be_left_out() -> None:
    members = {"a": Member(["t"], {"t": [0, 1]}, 4)}
    with pytest.raises(InvalidPlanError, match="partition 2 of topic 't' is not assigned"):
        verify(CLUSTER, members, {"a": {"t": [0, 1]}}, COOPERATIVE)
