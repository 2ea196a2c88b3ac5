"""Any input leads to a valid plan, or to an error that names the culprit."""

from __future__ import annotations

import random
import struct

import attrs
import pytest

from assignors import (
    Assignor,
    Cluster,
    CooperativeStickyAssignor,
    InvalidInputError,
    LoadAssignor,
    Member,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    verify,
)
from assignors.balancing import sticky_user_data
from tests.support.assignors.cases import cluster_and_members, with_doubtful_claims

ALL = pytest.mark.parametrize(
    "assignor",
    [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor(), LoadAssignor()],
    ids=lambda assignor: assignor.name,
)


@ALL
@pytest.mark.behaviour(97)
@pytest.mark.parametrize("count", [-1, 10**12, 1.5, None, "3"])
def test_an_absurd_number_of_partitions_is_an_error_that_names_the_topic(assignor: Assignor, count: object) -> None:
    cluster = Cluster({"fine": 1, "absurd": count})  # type: ignore[dict-item]  # the point of the test
    with pytest.raises(InvalidInputError, match="'absurd' cannot have"):
        assignor.assign(cluster, {"a": Member(["fine", "absurd"])})


@ALL
@pytest.mark.behaviour(97)
def test_a_string_in_the_place_of_topics_is_an_error_that_names_the_member(assignor: Assignor) -> None:
    with pytest.raises(InvalidInputError, match="'careless' subscribes to the string 'orders'"):
        assignor.assign(Cluster({"orders": 3}), {"careless": Member("orders")})


@ALL
@pytest.mark.behaviour(97, 98)
def test_ten_thousand_members_with_nothing(assignor: Assignor) -> None:
    members = {f"empty-{number}": Member([]) for number in range(10_000)}
    cluster = Cluster({"t": 7})
    verify(cluster, members, assignor.assign(cluster, members))
    members |= {"one": Member(["t"]), "other": Member(["t", "unknown"])}
    plan = assignor.assign(cluster, members)
    verify(cluster, members, plan)
    assert sorted(len(plan[member_id]["t"]) for member_id in ("one", "other")) == [3, 4]


@ALL
@pytest.mark.behaviour(97, 98)
def test_more_members_than_partitions(assignor: Assignor) -> None:
    members = {f"m{number}": Member(["t", "t"]) for number in range(9)}
    cluster = Cluster({"t": 4})
    plan = assignor.assign(cluster, members)
    verify(cluster, members, plan)
    assert sorted(sum(map(len, topics.values())) for topics in plan.values()) == [0] * 5 + [1] * 4


@ALL
@pytest.mark.behaviour(97, 98, 107, 112)
def test_garbage_in_user_data_costs_nothing_but_the_history(assignor: Assignor) -> None:
    for number in range(300):
        rng = random.Random(f"garbage-{number}")
        cluster, members = cluster_and_members(rng)
        members = with_doubtful_claims(rng, cluster, members)
        sound = sticky_user_data.encode({"orders": [0, 1], "gone": [7]}, 3)
        for member_id, member in members.items():
            data = bytearray(rng.choice((sound, rng.randbytes(rng.randint(0, 40)))))
            if data and rng.random() < 0.7:
                data[rng.randrange(len(data))] = rng.randrange(256)
            members[member_id] = attrs.evolve(member, owned={}, user_data=bytes(data[: rng.randint(0, len(data))]))
        verify(cluster, members, assignor.assign(cluster, members))


@pytest.mark.behaviour(112)
def test_user_data_of_version_0_have_no_generation() -> None:
    version_1 = sticky_user_data.encode({"t": [1, 2]}, 9)
    assert sticky_user_data.decode(version_1) == ({"t": (1, 2)}, 9)
    assert sticky_user_data.decode(version_1[:-4]) == ({"t": (1, 2)}, -1)
    assert sticky_user_data.decode(version_1 + b"later versions") == ({"t": (1, 2)}, 9)


@pytest.mark.behaviour(112)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ih", 1, -1),
        struct.pack(">ih1si", 1, 1, b"t", 2**31 - 1),
        struct.pack(">ih1si", 1, 1, b"t", -1),
        struct.pack(">ih1s", 1, 1, b"t"),
    ],
)
def test_bytes_that_are_no_user_data_are_refused_without_allocating_what_they_announce(data: bytes) -> None:
    with pytest.raises(sticky_user_data.InvalidUserDataError):
        sticky_user_data.decode(data)


@pytest.mark.behaviour(108, 112)
def test_the_generation_of_an_older_cooperative_member_comes_from_its_user_data() -> None:
    older = Member(["t"], {"t": [0, 1]}, user_data=sticky_user_data.encode_generation(5))
    newer = Member(["t"], {"t": [1, 2]}, generation=4)
    plan = CooperativeStickyAssignor().assign(Cluster({"t": 3}), {"older": older, "newer": newer})
    assert {member_id: list(topics["t"]) for member_id, topics in plan.items()} == {"older": [0, 1], "newer": [2]}
    assert sticky_user_data.decode_generation(b"\0") == -1
