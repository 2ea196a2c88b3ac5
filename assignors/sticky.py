"""Kafka's sticky assignor: even loads, and as few moves as possible from one generation to the next (KIP-54).

The goals are those of Java's ``StickyAssignor``, but method and plans differ: loads are as even as the subscriptions allow, and
no plan with such loads moves fewer partitions. The user data have Java's format. So a group may use both assignors, and each
assignor reads the last assignments of all members.
"""

from __future__ import annotations

from collections.abc import Mapping

from assignors.balancing import sticky_user_data
from assignors.balancing.claims import MemberClaims
from assignors.balancing.last_assignment import SendsLastAssignment
from assignors.balancing.sticky_plan import draft
from assignors.base import Cluster, Member, Plan


class StickyAssignor(SendsLastAssignment):
    """Sticky assignor for the eager protocol: members revoke all partitions before a join; most return to their owners."""

    name = "sticky"

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Return an even plan with as few moves as possible: member id -> topic -> partition numbers."""
        return draft(cluster, members, {member_id: claims_of(member) for member_id, member in members.items()}).plan()


def claims_of(member: Member) -> MemberClaims:
    """Return a member's claims from its user data; if it has no valid user data, from its subscription."""
    if member.user_data:
        try:
            return sticky_user_data.decode(member.user_data)
        except sticky_user_data.InvalidUserDataError:
            return member.owned, member.generation
    return member.owned, member.generation
