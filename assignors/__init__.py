"""Partition assignors for Kafka consumer groups: pure functions from subscriptions to a plan."""

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol

__all__ = ["Assignor", "Cluster", "Member", "Plan", "RebalanceProtocol"]
