"""A request over the control plane, to check whether a connection with given settings succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from consumer_coord.config import parse
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Metadata
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.retry import Deadline

T = TypeVar("T")

#: A healthy broker responds much faster; an endless retry takes all of this time. In milliseconds.
DEADLINE_MS = 30_000


def with_cluster(settings: Mapping[str, Any], work: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Run ``work`` with a cluster client of these settings."""

    async def run() -> T:
        cluster = cluster_client(parse(settings, needs_group=False).client)
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    return asyncio.run(run())


def ask(settings: Mapping[str, Any]) -> Metadata:
    """Connect, authenticate, and request the metadata of the brokers."""
    return with_cluster(settings, lambda cluster: cluster.refresh(Deadline.after(DEADLINE_MS)))
