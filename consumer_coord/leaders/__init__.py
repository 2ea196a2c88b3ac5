"""Requests to the leaders of partitions: ListOffsets (``list_offsets.py``) and OffsetForLeaderEpoch (``leader_epochs.py``).

``look_up.py`` has what both share: which leader to ask, when to ask again, and which partitions have no answer.
"""
