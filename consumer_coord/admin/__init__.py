"""Operators' commands for groups (list, describe, reset, delete), which ``consumer-coord`` runs.

All commands work on groups of any client. Functions take a :class:`~consumer_coord.net.cluster.ClusterClient` and a deadline,
raise the package's errors, and print nothing.
"""
