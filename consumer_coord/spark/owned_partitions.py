"""A query's share of the group's partitions, as the common hand-over sees it."""

from __future__ import annotations

from typing import Protocol

from consumer_coord.consumer.handover import HoldsNothing, Partitions


class Query(Protocol):
    """The query that holds the share."""

    def commit_before_revoke(self) -> None:
        """Commit what is finished, and wait for the answer."""

    def give_up(self, partitions: Partitions) -> None:
        """Nothing of these is planned any more."""

    def resolve_starts(self, added: Partitions) -> bool:
        """Find out where these begin; False when that is not known yet."""


class Share(HoldsNothing):
    """What the hand-over asks of the one that holds partitions."""

    def __init__(self, query: Query) -> None:
        self._query = query

    async def finish(self, revoked: Partitions) -> bool:
        """Everything that is finished is committed before another member reads on from there."""
        if revoked:
            self._query.commit_before_revoke()
        return True

    async def stop(self, partitions: Partitions) -> None:
        """Nothing more of these is planned."""
        self._query.give_up(partitions)

    async def may_take_up(self, added: Partitions) -> bool:
        """When it is known where they begin."""
        return self._query.resolve_starts(added)
