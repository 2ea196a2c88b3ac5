"""Properties of plans, for the tests of assignors."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from assignors import Assignor, Cluster, Member, Plan, RebalanceProtocol, verify
from assignors.balancing.lots import racks_of_members
from assignors.subscriptions import Subscriptions


def as_lists(plan: Plan) -> dict[str, dict[str, list[int]]]:
    """Return a plan with sorted lists, to compare with another one."""
    return {
        member_id: {topic: sorted(partitions) for topic, partitions in topics.items()} for member_id, topics in plan.items()
    }


def loads(plan: Plan) -> list[int]:
    """Return how many partitions the members have, ascending."""
    return sorted(sum(map(len, topics.values())) for topics in plan.values())


def racks_matter(cluster: Cluster, members: Mapping[str, Member]) -> bool:
    """Return whether Kafka would consider racks."""
    return racks_of_members(cluster, Subscriptions.of(cluster, members), members) is not None


def owning(members: Mapping[str, Member], plan: Plan, generation: int) -> dict[str, Member]:
    """Return the members after a plan was carried out: each owns its assigned partitions."""
    return {
        member_id: attrs.evolve(member, owned=plan[member_id], generation=generation) for member_id, member in members.items()
    }


def settle_group(
    leaders: list[Assignor], cluster: Cluster, members: Mapping[str, Member], generation: int
) -> tuple[dict[str, Member], int]:
    """Rebalance in the cooperative protocol until no member has to revoke anything; return the group and the number of rounds.

    The first leader makes the first plan, the second leader the second plan, and the last leader any later plans.
    """
    group = dict(members)
    for rounds in range(1, 10):
        leader = leaders[min(rounds, len(leaders)) - 1]
        plan = leader.assign(cluster, group)
        verify(cluster, group, plan, RebalanceProtocol.COOPERATIVE)
        revoked = any(
            not set(partitions) <= set(plan[member_id].get(topic, ()))
            for member_id, member in group.items()
            for topic, partitions in member.owned.items()
        )
        group = owning(group, plan, generation + rounds)
        if not revoked:
            return group, rounds
    raise AssertionError("the group does not become stable")
