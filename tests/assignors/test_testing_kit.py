"""The kit for users' own assignors passes correct assignors, and names the fault of others."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import pytest

from assignors import (
    Assignor,
    Cluster,
    CooperativeStickyAssignor,
    LoadAssignor,
    Member,
    Plan,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
)
from assignors.testing import check_assignor
from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.errors import ConfigurationError
from examples.custom_assignor import CapacityAssignor


@pytest.mark.behaviour(97, 98, 99, 110)
@pytest.mark.parametrize(
    "assignor",
    [
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
        LoadAssignor(),
        CapacityAssignor(),
    ],
    ids=lambda assignor: assignor.name,
)
def test_good_assignors_pass(assignor: Assignor) -> None:
    report = check_assignor(assignor, examples=30, sizes=[(10, 100)])
    assert report.plans >= 30
    assert report.sizes[0].partitions == 100
    assert "plans, all valid" in str(report)


def test_the_report_distinguishes_sticky_assignors() -> None:
    sticky = check_assignor(StickyAssignor(), examples=40, sizes=[])
    assert sticky.moves == sticky.least_moves > 0
    assert sticky.unevenness <= 1
    assert check_assignor(RoundRobinAssignor(), examples=40, sizes=[]).moves > sticky.moves


class Faulty(RoundRobinAssignor):
    """Round-robin with a fault."""

    name = "faulty"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        plan = {member_id: dict(topics) for member_id, topics in super().assign(cluster, members).items()}
        self.spoil(cluster, members, plan)  # type: ignore[arg-type]  # a mutable plan
        return plan

    def spoil(self, cluster: Cluster, members: Mapping[str, Member], plan: dict[str, dict[str, list[int]]]) -> None:
        raise NotImplementedError


class Forgets(Faulty):
    def spoil(self, cluster: Cluster, members: Mapping[str, Member], plan: dict[str, dict[str, list[int]]]) -> None:
        for topics in plan.values():
            for topic in topics:
                topics[topic] = [partition for partition in topics[topic] if partition != 0]


class Repeats(Faulty):
    def spoil(self, cluster: Cluster, members: Mapping[str, Member], plan: dict[str, dict[str, list[int]]]) -> None:
        for topics in plan.values():
            for topic in topics:
                topics[topic] = [*topics[topic], topics[topic][0]]


class Rolls(Faulty):
    turns = itertools.count()

    def spoil(self, cluster: Cluster, members: Mapping[str, Member], plan: dict[str, dict[str, list[int]]]) -> None:
        subscribers = [member_id for member_id in plan if "orders" in members[member_id].topics]
        if len(subscribers) > 1:
            orders = [partition for topics in plan.values() for partition in topics.pop("orders", ())]
            plan[sorted(subscribers)[next(self.turns) % 2]]["orders"] = orders


class FirstComes(Faulty):
    def spoil(self, cluster: Cluster, members: Mapping[str, Member], plan: dict[str, dict[str, list[int]]]) -> None:
        for member_id in members:
            if "orders" in members[member_id].topics:
                orders = [partition for topics in plan.values() for partition in topics.pop("orders", ())]
                plan[member_id]["orders"] = orders
                return


class Writes(Faulty):
    def spoil(self, cluster: Cluster, members: Mapping[str, Member], plan: dict[str, dict[str, list[int]]]) -> None:
        cluster.partitions["extra"] = 1  # type: ignore[index]  # a mistake of a careless author


class Snatches(RoundRobinAssignor):
    """Declares the cooperative protocol, but moves partitions before they are revoked."""

    name = "snatches"
    protocols = (RebalanceProtocol.COOPERATIVE,)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("assignor", "complaint"),
    [
        (Forgets(), r"partition 0 of topic .* is not assigned"),
        (Repeats(), "twice"),
        (Rolls(), "returns another plan for the same input"),
        (FirstComes(), "depends on the order in which members are listed"),
        (Writes(), "changes its input"),
        (Snatches(), "has not revoked"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Assignor) else "",
)
@pytest.mark.behaviour(29)
def test_faults_are_named(assignor: Assignor, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_assignor(assignor, examples=60, sizes=[])


def test_capacity_is_respected() -> None:
    """This test belongs to the custom assignor of the documentation."""
    members = {"small": Member(["orders"], user_data=b"1"), "big": Member(["orders"], user_data=b"3")}
    plan = CapacityAssignor().assign(Cluster({"orders": 8}), members)
    assert {member_id: len(topics["orders"]) for member_id, topics in plan.items()} == {"small": 2, "big": 6}
    assert CapacityAssignor(3).user_data(["orders"]) == b"3"


class FailsOnOrders(RoundRobinAssignor):
    """Raises for each group in which a member subscribes to orders."""

    name = "fails-on-orders"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        if any("orders" in member.topics for member in members.values()):
            raise KeyError("orders")
        return super().assign(cluster, members)


def test_an_assignor_that_raises_is_shown_with_the_smallest_group() -> None:
    with pytest.raises(AssertionError, match=r"^fails-on-orders raises KeyError: 'orders': Group\(") as raised:
        check_assignor(FailsOnOrders(), sizes=[])
    assert isinstance(raised.value.__cause__, KeyError)
    # The smallest failing group, with a member or two: it fits on a screen.
    assert "'orders'" in str(raised.value).partition("Group(")[2]
    assert str(raised.value).count("Member(") <= 2


class FailsInLargeGroups(RoundRobinAssignor):
    name = "fails-in-large-groups"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        if len(members) > 20:
            raise RuntimeError("too many")
        return super().assign(cluster, members)


def test_an_assignor_that_raises_at_size_is_shown_with_the_size() -> None:
    with pytest.raises(AssertionError, match="raises RuntimeError: too many: 50 members, 100 partitions"):
        check_assignor(FailsInLargeGroups(), examples=3, sizes=[(50, 100)])


class WithoutName(RangeAssignor):
    name = ""


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (RangeAssignor, r"RangeAssignor is a class: give an object, RangeAssignor\(\)"),
        (WithoutName(), "WithoutName has no name: set the class attribute `name`"),
    ],
)
def test_an_assignor_that_no_group_can_use_is_refused(candidate: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_assignor(candidate, examples=1, sizes=[])


MISSPELLED = [
    (frozenset({"lags"}), "needs contains 'lags', but only 'lag' and 'weights' can be fetched"),
    ({"lag", "rate"}, "needs contains 'rate', but only 'lag' and 'weights' can be fetched"),
    ("lag", "needs is 'lag', which is not a set of names: write frozenset({'lag'})"),
    (None, "needs is None, which is not a set of names: write frozenset({'lag'})"),
]


@pytest.mark.parametrize(("needs", "message"), MISSPELLED, ids=("lags", "rate", "text", "none"))
def test_needs_that_cannot_be_met_are_refused(needs: object, message: str) -> None:
    """The kit refuses them, and so does a consumer before it joins; the assignor may be a class or an object."""
    wrong = type("Needy", (RangeAssignor,), {"name": "needy", "needs": needs})
    with pytest.raises(AssertionError, match=re.escape(f"assignor 'needy': {message}")):
        check_assignor(wrong(), examples=1, sizes=[])
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with pytest.raises(ConfigurationError, match=re.escape(f"assignor 'needy': {message}")):
        GroupConsumer(config, assignors=[wrong()])
    own = RangeAssignor()
    own.needs = needs  # type: ignore[assignment]  # wrong on purpose
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        GroupConsumer(config, assignors=[own])


def test_a_broker_refuses_an_assignor_that_needs_figures() -> None:
    """The broker has no figures to pass."""
    kafka = EmbeddedKafka(config={"group.consumer.assignors": f"{__name__}:NeedsLag"})
    with pytest.raises(ConfigurationError, match="a broker has no lag"), kafka:
        pass


class NeedsLag(RangeAssignor):
    name = "needs-lag"
    needs = frozenset({"lag"})
