"""Cooperation of the members of one group in one process: shared look-ups and wake-ups, joint joins.

Fifty members of a process are fifty members for the coordinator. Without cooperation, each member would notice a rebalance by
its own heartbeat and join alone, and the start of one process would cause several generations. ``peers.py`` shares the notice
of a rebalance, ``gathering.py`` joins the members together.
"""
