"""Look up where the logs of a query's partitions end, and the ids of its topics, on the query's loop.

``batch_ends.py`` decides where a batch ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, RetriableError
from consumer_coord.leaders.list_offsets import LATEST, list_available, list_offsets
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.topic_ids import TopicIds, topic_ids
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

#: Time limit of one look-up, and of a wait for a commit, in milliseconds.
REQUEST_TIMEOUT_MS = 10_000

#: Interval between look-ups of topic ids, in seconds.
IDS_FRESH_S = 1.0


@attrs.frozen
class EndsView:
    """End offsets, and the time (of the loop) when their look-up *began*.

    The end offsets include every readable record written before that time. ``ids`` are the topic ids at ``ids_at_s``, which may
    be up to a second earlier.
    """

    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    at_s: float = float("-inf")
    ids: TopicIds = attrs.field(factory=dict)
    ids_at_s: float = float("-inf")
    #: Why ``ends`` has not all partitions, or None.
    problem: CoordinatorError | None = None


class EndOffsets:
    """The last known end offsets of one query, and the look-up in progress."""

    def __init__(self, cluster: ClusterClient, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._read_committed = read_committed
        self.view: EndsView = EndsView()
        self._looking: tuple[float, asyncio.Task[EndsView]] | None = None

    async def look(self, positions: Mapping[TopicPartition, int], topics: Iterable[str], since_s: float, wait_s: float) -> bool:
        """Update :attr:`view` with a look-up that began at ``since_s`` or later; wait for it for ``wait_s`` seconds.

        Return False after this time; the look-up continues, and the next call waits for it. Raise the error of the look-up.
        """
        if self._looking is None or self._looking[0] < since_s:
            self.forget_look_up()
            work = self._look_up(dict(positions), frozenset(topics), self.view)
            task = asyncio.get_running_loop().create_task(work, name="end offsets")
            # Nobody reads the error of a look-up that is too old when it ends.
            task.add_done_callback(lambda one: one.cancelled() or one.exception())
            self._looking = now(), task
        task = self._looking[1]
        await asyncio.wait({task}, timeout=wait_s)
        if not task.done():
            return False
        self._looking = None
        self.view = task.result()
        return True

    def forget_look_up(self) -> None:
        """End the look-up in progress."""
        if self._looking is not None:
            self._looking[1].cancel()
            self._looking = None

    def forget(self) -> None:
        """Drop the view and the look-up in progress, because a topic was recreated or the assignment changed."""
        self.forget_look_up()
        self.view = EndsView()

    async def _look_up(self, positions: Mapping[TopicPartition, int], topics: frozenset[str], before: EndsView) -> EndsView:
        cluster, began_s = self._cluster, now()
        wanted = dict.fromkeys(positions, LATEST)
        deadline = Deadline.after(REQUEST_TIMEOUT_MS)
        result = await list_available(cluster, wanted, REQUEST_TIMEOUT_MS, read_committed=self._read_committed)
        problem = _worst(result.failed.values())
        if problem is not None and not (result.found and isinstance(problem, RetriableError)):
            raise problem
        found = result.found
        ahead = dict.fromkeys((one for one, end in found.items() if end.offset < positions[one]), LATEST)
        if ahead and self._read_committed:
            # A position may be above the last stable offset, because a consumer with read_uncommitted committed the position.
            logs = (await list_offsets(cluster, ahead, deadline)).complete()
            found = {**found, **{one: attrs.evolve(end, offset=min(end.offset, positions[one])) for one, end in logs.items()}}
        ends = {partition: listed.offset for partition, listed in found.items()}
        ids, ids_at_s = before.ids, before.ids_at_s
        if began_s - ids_at_s > IDS_FRESH_S or any(end < before.ends.get(one, end) for one, end in ends.items()):
            # An end offset that has decreased is a sign of a recreated topic, because logs only grow.
            ids_at_s = now()
            ids = await topic_ids(cluster, topics, REQUEST_TIMEOUT_MS)
        return EndsView(ends, began_s, ids, ids_at_s, problem)


def _worst(errors: Iterable[CoordinatorError]) -> CoordinatorError | None:
    """Return an error that no retry can help, or else any error, or None."""
    return min(errors, key=lambda error: isinstance(error, RetriableError), default=None)
