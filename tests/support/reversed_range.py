"""An assignor that answers to ``range`` and plans otherwise, so that a plan tells who was the leader."""

from __future__ import annotations

from collections.abc import Mapping

from assignors import Cluster, Member, Plan, RangeAssignor


class ReversedRangeAssignor(RangeAssignor):
    """Range, with the members in the opposite order; for groups whose members all subscribe to the same topics."""

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """The plan of range, the first member getting what range gives the last one."""
        plan = super().assign(cluster, members)
        ordered = sorted(members)
        return {member: plan[other] for member, other in zip(ordered, reversed(ordered), strict=True)}


#: As ``partition.assignment.strategy`` names it.
REVERSED_RANGE = f"{__name__}:{ReversedRangeAssignor.__name__}"
