"""The operators' commands of ``consumer-coord`` for groups: list, describe, reset, delete.

All commands work on groups of any client. Functions take a :class:`~consumer_coord.net.cluster.ClusterClient` and a deadline,
raise the package's errors, and print nothing.
"""
