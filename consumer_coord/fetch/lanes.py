"""The Fetches in flight to one broker: each lane has a fetch session and, while it waits for a response, a connection.

A Fetch whose partitions are all at the ends of their logs waits at the broker; any other Fetch is answered at once. The first
Fetch that waits is *long* and has every idle partition. If a partition reaches the end of its log while the long Fetch waits, a
*brief* Fetch on another lane has the partition, until the long one ends and takes over the partitions of brief ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.fetch.partition_state import FetchState
from consumer_coord.fetch.sessions import FetchSession, Wanted
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen(eq=False)
class Ask:
    """The partitions of a Fetch, with their offsets."""

    states: Mapping[TopicPartition, FetchState]
    wanted: Mapping[TopicPartition, Wanted]
    max_bytes: int
    #: How long the broker waits for new records, in milliseconds; 0 if some of the partitions may have records now.
    max_wait_ms: int
    #: Whether the long Fetch takes over partitions of this one when it ends.
    brief: bool = False
    #: Whether another Fetch must read a partition, because this one reads the same partition for another fetcher.
    partial: bool = False

    @property
    def waits(self) -> bool:
        """Whether the broker delays its response until there are new records."""
        return self.max_wait_ms > 0

    def covers(self, state: FetchState) -> bool:
        """Return whether this Fetch reads a partition from the present position."""
        return self.states.get(state.partition) is state and self.wanted[state.partition].offset == state.offset


class Lane:
    """Sends one Fetch at a time."""

    def __init__(self) -> None:
        """Wait for the first Fetch."""
        self.session: FetchSession = FetchSession()
        #: The Fetch in flight.
        self.asked: Ask | None = None
        #: True while the lane waits until there is something to fetch.
        self.free: bool = True
        #: How many responses in a row had no partition although the broker was to wait for records.
        self.hollow: int = 0
        self._wake = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Whether the broker delays the response to the Fetch in flight until there are new records."""
        return self.asked is not None and self.asked.waits

    def wake(self) -> None:
        """End :meth:`rest`."""
        self._wake.set()

    async def rest(self, until: float | None) -> None:
        """Wait for a call of :meth:`wake`, or until the loop's time ``until`` in seconds."""
        self.free = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._wake.wait()
        finally:
            self.free = False
            self._wake.clear()
