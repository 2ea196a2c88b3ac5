"""A member of the consumer protocol (KIP-848), in which the broker assigns and every member reconciles separately.

``heartbeats.py`` has the theory of operation. ``states.py``: the member's states as a table; ``target_assignment.py``: the
comparison of the assignment (by topic ids) with the owned partitions (by names); ``requests.py``: the content of a heartbeat;
``error_steps.py``: the step for each error code; ``patterns.py``: the patterns that the broker can resolve. None of these
modules uses I/O.
"""
