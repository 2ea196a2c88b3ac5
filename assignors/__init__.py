"""Partition assignors for Kafka consumer groups: pure functions from subscriptions to a plan."""

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.cooperative_sticky import CooperativeStickyAssignor
from assignors.load import LoadAssignor
from assignors.range import RangeAssignor
from assignors.round_robin import RoundRobinAssignor
from assignors.sticky import StickyAssignor
from assignors.subscriptions import InvalidInputError
from assignors.verify import InvalidPlanError, verify

__all__ = [
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
