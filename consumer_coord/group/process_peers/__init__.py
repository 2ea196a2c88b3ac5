"""Cooperation of the members of one group in one process: shared look-ups and wake-ups, joint joins.

Fifty members of a process are fifty members for the coordinator. Each would notice a rebalance by its own heartbeat and join
alone, so that one start of a process would cause several generations. ``peers.py`` shares the notice of a rebalance,
``gathering.py`` joins the members together.
"""
