"""What the members of one group that live in one process do for each other: shared look-ups and wake-ups, joining as one.

Fifty members of a process are fifty members for the coordinator, and each would notice a rebalance by its own heartbeat and
join by itself, so that one start of a process becomes several generations.  ``peers.py`` lets them hear together,
``gathering.py`` lets them join together.
"""
