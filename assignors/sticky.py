"""Kafka's sticky assignor: even loads, and as few moves as possible from one generation to the next (KIP-54).

What Java's ``StickyAssignor`` promises, by other means, so the plans differ: loads are as even as the subscriptions
allow, and among the plans of which that is true this one moves the fewest partitions.  The user data are Java's,
so groups may mix both, and either's history counts for the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from assignors.balancing import sticky_user_data
from assignors.balancing.claims import MemberClaims
from assignors.balancing.last_assignment import SendsLastAssignment
from assignors.balancing.sticky_plan import draft
from assignors.base import Cluster, Member, Plan


class StickyAssignor(SendsLastAssignment):
    """Sticky in the eager protocol: members revoke all their partitions before they join, and get most of them back."""

    name = "sticky"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """An even plan with as few moves as possible: member id -> topic -> partition numbers."""
        return draft(cluster, members, {member_id: claims_of(member) for member_id, member in members.items()}).plan()


def claims_of(member: Member) -> MemberClaims:
    """What a member says in its user data; where it sends none that can be read, what its subscription says."""
    if member.user_data:
        try:
            return sticky_user_data.decode(member.user_data)
        except sticky_user_data.InvalidUserDataError:
            return member.owned, member.generation
    return member.owned, member.generation
