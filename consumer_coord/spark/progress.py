"""A query's membership as an object on the driver, and a listener for the partitions that it owns, revokes and loses.

The object and the listener read the report of the source in each progress event of the query (``sources[].latestOffset``).
Spark's UI and other listeners show the same data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from consumer_coord import lazy_attrs as attrs

_MARKS = frozenset({"lag", "generation", "memberId", "partitions", "events"})


@attrs.frozen
class OwnershipEvent:
    """A change of a query's partitions: ``kind`` is assigned, revoked or lost; ``partitions`` is topic -> partition numbers."""

    number: int
    kind: str
    partitions: Mapping[str, Sequence[int]]
    generation: int
    at_ms: int


@attrs.frozen
class PartitionProgress:
    """A partition: the next offset to plan, the last known end of the log, and the group's commit (-1: none)."""

    position: int
    end: int
    committed: int


@attrs.frozen
class GroupProgress:
    """The membership of a query at the time of its last progress event.

    ``lag``: number of existing records that are not planned yet. ``partitions``: topic -> partition -> position of the
    partition.
    """

    lag: int
    generation: int
    member_id: str
    partitions: Mapping[str, Mapping[int, PartitionProgress]]
    rebalances: int
    commits: int
    commit_failures: int
    problem: str | None
    events: Sequence[OwnershipEvent]

    @property
    def owned(self) -> Mapping[str, Sequence[int]]:
        """Return topic -> numbers of the owned partitions."""
        return {topic: sorted(numbers) for topic, numbers in self.partitions.items()}


def progress(query: Any) -> GroupProgress | None:
    """Return the membership of ``query`` (a ``StreamingQuery``), or None before the first progress event.

    For a query with several ``kafka_group`` sources, return the first membership; :func:`all_progress` returns all.
    """
    last = query.lastProgress
    return next(iter(all_progress(last)), None) if last is not None else None


def all_progress(last: Any) -> Sequence[GroupProgress]:
    """Return the membership of each ``kafka_group`` source in ``last``, a ``StreamingQueryProgress`` or dictionary."""
    return [_parse(read) for read in _reports(last)]


def _reports(last: Any) -> Iterator[Mapping[str, Any]]:
    for source in last["sources"] if isinstance(last, Mapping) else last.sources:
        text = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
        read = json.loads(text) if isinstance(text, str) and text.startswith("{") else text
        if isinstance(read, Mapping) and read.keys() >= _MARKS:
            yield read


def _parse(read: Mapping[str, Any]) -> GroupProgress:
    return GroupProgress(
        lag=read["lag"],
        generation=read["generation"],
        member_id=read["memberId"],
        partitions={
            topic: {int(number): PartitionProgress(*triple) for number, triple in numbers.items()}
            for topic, numbers in read["partitions"].items()
        },
        rebalances=read["rebalances"],
        commits=read["commits"],
        commit_failures=read["commitFailures"],
        problem=read["problem"],
        events=[
            OwnershipEvent(one["number"], one["event"], one["partitions"], one["generation"], one["at_ms"])
            for one in read["events"]
        ],
    )


class GroupListener(StreamingQueryListener):  # type: ignore[misc]  # PySpark is typed Any here
    """A listener for ``spark.streams.addListener``. Override the methods that you need.

    Each change is reported once, in order, with the progress of the next batch. A change always causes a batch, which is empty
    if there is no data.
    """

    def on_assigned(self, query: str, event: OwnershipEvent) -> None:
        """Receive the partitions that ``query`` (its name, or its id) now owns."""

    def on_revoked(self, query: str, event: OwnershipEvent) -> None:
        """Receive the partitions that ``query`` revoked, after it committed the finished records."""

    def on_lost(self, query: str, event: OwnershipEvent) -> None:
        """Receive the partitions that ``query`` lost because its membership ended. Other members may already own them."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Forget which changes of this query were reported."""
        self._reported().pop(str(event.runId), None)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Call the method for each change in this progress event that was not reported before."""
        last = event.progress
        name = last.name or str(last.id)
        reported = self._reported().setdefault(str(last.runId), {})
        calls = {"assigned": self.on_assigned, "revoked": self.on_revoked, "lost": self.on_lost}
        for index, found in enumerate(all_progress(last)):
            for one in found.events:
                if one.number > reported.get(index, 0):
                    reported[index] = one.number
                    calls[one.kind](name, one)

    def _reported(self) -> dict[str, dict[int, int]]:
        # A subclass may have an __init__ that does not call the __init__ of this class.
        found: dict[str, dict[int, int]] = self.__dict__.setdefault("_reported_events", {})
        return found
