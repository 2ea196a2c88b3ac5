"""Look up the end offsets of a query on the coordinator's loop, so that planning does not wait for the look-up.

Spark asks an idle query for its latest offset about 90 times a second. These calls read the last result.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ClosedError, CoordinatorError
from consumer_coord.leaders.list_offsets import LATEST, ListedOffset, list_available, list_offsets
from consumer_coord.retry import Deadline
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator
from consumer_coord.runtime.outcome import Outcome
from consumer_coord.spark.identity import TopicIds, topic_ids
from consumer_coord.topic_partition import TopicPartition

#: Time limit of one look-up, and of a wait for a commit, in milliseconds. After this time, planning continues without the
#: response.
REQUEST_TIMEOUT_MS = 10_000

#: Interval between look-ups of topic ids, in seconds. A look-up is also due when end offsets indicate a recreated topic.
IDS_FRESH_S = 1.0


@attrs.frozen
class EndsView:
    """End offsets, and the time (``time.monotonic()``) when their look-up *began*.

    The end offsets include every readable record written before that time. ``ids`` are the topic ids at ``ids_at_s``, which may
    be up to a second earlier.
    """

    found: Mapping[TopicPartition, ListedOffset] = attrs.field(factory=dict)
    #: The offsets of ``found``, which an idle query reads about 90 times a second.
    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    at_s: float = float("-inf")
    ids: TopicIds = attrs.field(factory=dict)
    ids_at_s: float = float("-inf")
    #: Why ``found`` has not all partitions, or None.
    problem: CoordinatorError | None = None

    def went_back(self, before: EndsView) -> bool:
        """Return whether an end offset or leader epoch has decreased: a sign of a recreated topic, because logs only grow."""
        return any(
            listed.offset < old.offset or -1 < listed.leader_epoch < old.leader_epoch
            for partition, listed in self.found.items()
            if (old := before.found.get(partition)) is not None
        )


class EndOffsets:
    """The last known end offsets of one query, and the look-up in progress. Only the planner's thread uses this object."""

    def __init__(self, coordinator: BlockingCoordinator, *, read_committed: bool) -> None:
        self._coordinator = coordinator
        self._read_committed = read_committed
        self._view = EndsView()
        self._looking: Outcome[EndsView] | None = None
        #: Why the last look-up has not found the end offsets of all partitions, or None.
        self.problem: CoordinatorError | None = None
        #: Earliest time of the next look-up after a failure.
        self._retry_at_s = float("-inf")

    def view(self) -> EndsView:
        """Return the last view; raise the error of a crashed look-up."""
        looking = self._looking
        if looking is not None and looking.done():
            self._looking = None
            try:
                self._view = looking.result()
                self.problem = self._view.problem
            except (ClosedError, concurrent.futures.CancelledError):
                pass  # The query leaves, and needs no end offsets.
            except CoordinatorError as error:
                self.problem = error
                self._retry_at_s = time.monotonic() + self._coordinator.config.coordinator.retry_backoff_max_ms / 1000
        return self._view

    def look(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start a look-up of the ends of these partitions, unless one is in progress or has just failed."""
        self.view()
        if self._looking is None and time.monotonic() >= self._retry_at_s:
            before = self._view
            self._looking = self._coordinator.submit(lambda: self._look_up(positions, before))

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> EndsView:
        """Return current end offsets. After ``timeout_s`` seconds or a failed look-up, return the last known end offsets."""
        now_s = time.monotonic()
        while (left_s := now_s + timeout_s - time.monotonic()) > 0 and self.view().at_s < now_s:
            self.look(positions)
            if self._looking is None:
                break
            self._looking.wait(left_s)
        return self.view()

    def forget(self) -> None:
        """Drop the view and the look-up in progress, because a topic was recreated or the assignment changed."""
        if self._looking is not None:
            self._looking.cancel()
        self._looking, self._view = None, EndsView()

    async def _look_up(self, positions: Mapping[TopicPartition, int], before: EndsView) -> EndsView:
        """Look up the next view, on the coordinator's loop."""
        cluster, began_s = self._coordinator.cluster, time.monotonic()
        wanted = dict.fromkeys(positions, LATEST)
        deadline = Deadline.after(REQUEST_TIMEOUT_MS)
        result = await list_available(cluster, wanted, REQUEST_TIMEOUT_MS, read_committed=self._read_committed)
        found = result.found or result.complete()
        ahead = dict.fromkeys((one for one, end in found.items() if end.offset < positions[one]), LATEST)
        if ahead and self._read_committed:
            # A position may be above the last stable offset, because a consumer with read_uncommitted committed the position.
            logs = (await list_offsets(cluster, ahead, deadline)).complete()
            found = {**found, **{one: attrs.evolve(end, offset=min(end.offset, positions[one])) for one, end in logs.items()}}
        ends = {partition: listed.offset for partition, listed in found.items()}
        problem = next(iter(result.failed.values()), None)
        view = EndsView(found, ends, began_s, before.ids, before.ids_at_s, problem)
        if began_s - view.ids_at_s > IDS_FRESH_S or view.went_back(before):
            asked_s = time.monotonic()
            ids = await topic_ids(cluster, {partition.topic for partition in positions}, REQUEST_TIMEOUT_MS)
            view = attrs.evolve(view, ids=ids, ids_at_s=asked_s)
        return view
