"""The members of one group that share a cluster client."""

from __future__ import annotations

import weakref

from consumer_coord.group.find_coordinator import CoordinatorLookup
from consumer_coord.group.process_peers.peers import Peers
from consumer_coord.net.cluster import ClusterClient

#: Cluster client -> group id -> the group's members that use it. This module keeps the mapping, because the connection layer
#: does not know groups. Keys and values are weak references, so that members that were never closed (for example, members of a
#: killed process in a simulation) are garbage-collected.
_groups: weakref.WeakKeyDictionary[ClusterClient, weakref.WeakValueDictionary[str, Peers]] = weakref.WeakKeyDictionary()


def peers_of(cluster: ClusterClient, group_id: str, attempt_ms: float) -> Peers:
    """Return the members of ``group_id`` that use ``cluster``.

    ``attempt_ms``: how long one broker may take to respond to a look-up of the coordinator. The first member's value applies to
    all members.
    """
    groups = _groups.setdefault(cluster, weakref.WeakValueDictionary())
    peers = groups.get(group_id)
    if peers is None:
        peers = groups[group_id] = Peers(CoordinatorLookup(group_id, cluster, attempt_ms))
    return peers


def forget_peers(cluster: ClusterClient, group_id: str, peers: Peers) -> None:
    """Forget ``peers`` after the last member of a group has ended; a later member starts a new set."""
    if _groups[cluster].get(group_id) is peers:
        del _groups[cluster][group_id]


def groups_of(cluster: ClusterClient) -> frozenset[str]:
    """Return the groups whose members use ``cluster``."""
    return frozenset(_groups.get(cluster, ()))
