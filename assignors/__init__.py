"""Partition assignors for Kafka consumer groups: pure functions from subscriptions to a plan."""

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.range import RangeAssignor
from assignors.round_robin import RoundRobinAssignor
from assignors.subscriptions import InvalidInputError
from assignors.verify import InvalidPlanError, verify

__all__ = [
    "Assignor",
    "Cluster",
    "InvalidInputError",
    "InvalidPlanError",
    "Member",
    "Plan",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "verify",
]
