"""Kafka's cooperative sticky assignor: the sticky plan in two rounds (KIP-429).

If a partition must move, the plan omits it until its owner has revoked the partition. The owner finds that the partition is no
longer assigned, revokes the partition and joins again. The second round assigns the partition to the next owner. The sticky
plan has the fewest moves possible, so the second round moves nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors.balancing import sticky_user_data
from assignors.balancing.claims import MemberClaims
from assignors.balancing.sticky_plan import draft
from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol


class CooperativeStickyAssignor(Assignor):
    """Sticky assignor for the cooperative protocol; uses the eager protocol while members also list eager assignors."""

    name = "cooperative-sticky"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self) -> None:
        self._generation = sticky_user_data.NO_GENERATION

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Plan one round: member id -> topic -> partition numbers, without partitions that their owners must revoke first."""
        claims = {member_id: claims_of(member) for member_id, member in members.items()}
        return draft(cluster, members, claims).plan_without_hand_over()

    def user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the generation of the last assignment, for leaders that do not support KIP-792."""
        return sticky_user_data.encode_generation(self._generation)

    def on_assignment(self, assignment: Mapping[str, Sequence[int]], generation: int) -> None:
        """Store the generation of this assignment."""
        self._generation = generation


def claims_of(member: Member) -> MemberClaims:
    """Return a member's owned partitions, with the generation from its subscription or, for older members, its user data."""
    if member.generation != sticky_user_data.NO_GENERATION:
        return member.owned, member.generation
    return member.owned, sticky_user_data.decode_generation(member.user_data)
