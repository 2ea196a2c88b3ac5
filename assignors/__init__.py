"""Partition assignors for Kafka consumer groups: pure functions from subscriptions to a plan."""

from collections.abc import Mapping as _Mapping

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.cooperative_sticky import CooperativeStickyAssignor
from assignors.load_aware import LoadAssignor
from assignors.range import RangeAssignor
from assignors.round_robin import RoundRobinAssignor
from assignors.sticky import StickyAssignor
from assignors.subscriptions import InvalidInputError
from assignors.verify import InvalidPlanError, verify

#: The built-in assignors by the name that is sent in JoinGroup. Register a new assignor here, and nowhere else.
BUILT_IN: _Mapping[str, type[Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor, LoadAssignor)
}

__all__ = [
    "BUILT_IN",
    "Assignor",
    "Cluster",
    "CooperativeStickyAssignor",
    "InvalidInputError",
    "InvalidPlanError",
    "LoadAssignor",
    "Member",
    "Plan",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "verify",
]
