"""One member of one group: its membership, rebalances, heartbeats, commits and assignment.

Begin with ``coordinator.py``, the face, and ``protocol.py``, what both group protocols offer it. ``classic_protocol/`` and
``consumer_protocol/`` are the two members. Both share ``assignment.py`` (target, owned partitions, ownership), ``commits.py``
and ``committed_offsets.py``, ``lease.py``, ``heartbeat_clock.py`` with ``max_poll_interval.py``, and ``link.py``, the way to
the coordinator. ``process_peers/`` lets the members of one process share wake-ups and look-ups.

This package knows no application, thread or fetcher: it receives the time and the connections (``environment.py``), and may
import ``net``, ``wire``, ``leaders``, ``lag`` and the assignors.
"""
