"""Cooperation of the members of one group in one process: shared look-ups, shared wake-ups and joint joins.

The coordinator does not know that members belong to one process. Without cooperation, each member would notice a rebalance by
its own heartbeat and join alone, so the start of a process with fifty members would cause several generations. With
``peers.py``, the first member that notices a rebalance notifies the others. With ``gathering.py``, the members join together.
"""
