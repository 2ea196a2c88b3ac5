"""Kafka's sticky assignor: even loads, and as few moves as possible from one generation to the next (KIP-54).

What Java's ``StickyAssignor`` promises, by other means, so the plans differ: loads are as even as the subscriptions
allow, and among the plans of which that is true this one moves the fewest partitions.  The user data are Java's,
so groups may mix both, and either's history counts for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors import sticky_user_data
from assignors.base import Assignor, Cluster, Member, Plan
from assignors.claims import MemberClaims
from assignors.sticky_plan import draft


class StickyAssignor(Assignor):
    """Sticky in the eager protocol: members give everything up before they join and get most of it back."""

    name = "sticky"

    def __init__(self) -> None:
        self._assignment: dict[str, Sequence[int]] | None = None
        self._generation = sticky_user_data.NO_GENERATION

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """An even plan with as few moves as possible: member id -> topic -> partition numbers."""
        return draft(cluster, members, {member_id: claims_of(member) for member_id, member in members.items()}).plan()

    def user_data(self, topics: Sequence[str]) -> bytes | None:
        """This member's last assignment and its generation, None before the first one."""
        if self._assignment is None:
            return None
        return sticky_user_data.encode(self._assignment, self._generation)

    def on_assignment(self, assignment: Mapping[str, Sequence[int]], generation: int) -> None:
        """Remember what this member was given."""
        self._assignment = dict(assignment)
        self._generation = generation


def claims_of(member: Member) -> MemberClaims:
    """What a member says in its user data; where it sends none that can be read, what its subscription says."""
    if member.user_data:
        try:
            return sticky_user_data.decode(member.user_data)
        except sticky_user_data.InvalidUserDataError:
            return member.owned, member.generation
    return member.owned, member.generation
