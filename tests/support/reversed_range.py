"""An assignor with the name ``range`` but another plan, so that a plan shows which member was the leader."""

from __future__ import annotations

from collections.abc import Mapping

from assignors import Cluster, Member, Plan, RangeAssignor


class ReversedRangeAssignor(RangeAssignor):
    """Range, with the members in the opposite order, for groups whose members all subscribe to the same topics."""

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Return the plan of range, in which the first member gets the partitions that range assigns to the last one."""
        plan = super().assign(cluster, members)
        ordered = sorted(members)
        return {member: plan[other] for member, other in zip(ordered, reversed(ordered), strict=True)}


#: Its value in ``partition.assignment.strategy``.
REVERSED_RANGE = f"{__name__}:{ReversedRangeAssignor.__name__}"
