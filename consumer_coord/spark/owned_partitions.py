"""A query's share of the group's partitions, as the common hand-over sees it."""

from __future__ import annotations

from typing import Protocol

from consumer_coord.consumer.handover import HoldsNothing, Partitions


class Query(Protocol):
    """The query that holds the share, as the hand-over needs it."""

    def commit_before_revoke(self) -> None:
        """Commit finished offsets, and wait for the response."""

    def give_up(self, partitions: Partitions) -> None:
        """Stop planning these partitions."""

    def resolve_starts(self, added: Partitions) -> bool:
        """Find out where these begin; return False when that is not known yet."""


class Share(HoldsNothing):
    """The calls that the hand-over makes to the holder of partitions."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def finish(self, revoked: Partitions) -> bool:
        """Commit everything that is finished, before another member reads on from there."""
        if revoked:
            self._query.commit_before_revoke()
        return True

    async def stop(self, partitions: Partitions) -> None:
        """Stop planning these partitions."""
        self._query.give_up(partitions)

    async def may_take_up(self, added: Partitions) -> bool:
        """Return whether the start of these partitions is known."""
        return self._query.resolve_starts(added)
