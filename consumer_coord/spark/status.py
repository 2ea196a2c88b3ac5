"""Report the status of a query's membership: the JSON of ``reportLatestOffset``, which Spark puts into its progress."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from consumer_coord.log_text import get_logger
from consumer_coord.spark.ledger import Holding
from consumer_coord.topic_partition import TopicPartition, by_topic

logger: Final = get_logger(__name__)

#: Maximum number of recent changes in a report. Each change has a number, so that a listener reports a change only once.
MOST_EVENTS = 32
#: How long the progress shows a problem that has ended, in seconds.
_SHOWN_S = 15.0


class Status:
    """Figures and events of one membership. Only the planner's main thread uses this object."""

    def __init__(self, group: str = "") -> None:
        self._group = group
        self.rebalances = 0
        self.commits = 0
        self.commit_failures: int = 0
        #: The last problem of each source, and the time until which the progress shows it: without end while it lasts. Spark
        #: publishes the progress of an idle query every ten seconds, so a query that recovers at once still reports it.
        self._problems: dict[str, tuple[str, float]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._count = 0
        self._held: Mapping[TopicPartition, Holding] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._generation = -1
        self._member_id = ""

    def record(self, event: str, partitions: Iterable[TopicPartition], generation: int) -> None:
        """Record that partitions were ``owned`` (added), ``revoked`` (after their last commit) or ``lost``.

        Other members may already own lost partitions. One possible cause of a loss is an expired session.
        """
        self._count += 1
        self._events.append(
            {
                "number": self._count,
                "event": event,
                "partitions": {topic: list(numbers) for topic, numbers in by_topic(partitions).items()},
                "generation": generation,
                "at_ms": int(time.time() * 1000),
            }
        )

    @property
    def problem(self) -> str | None:
        """Return every current problem, or None."""
        return self._shown(since=math.inf)

    def report(self, source: str, problem: object | None) -> None:
        """Report a problem that ``source`` found, in the log and in the progress; None clears the problem."""
        text, until_s = self._problems.get(source, ("", 0.0))
        if problem is not None:
            if (text, until_s) != (str(problem), math.inf):
                logger.warning("group %r: %s", self._group, problem)
            self._problems[source] = str(problem), math.inf
        elif until_s == math.inf:
            self._problems[source] = text, time.monotonic() + _SHOWN_S

    def _shown(self, since: float) -> str | None:
        """Return the problems that are shown at the time ``since`` or longer."""
        return "; ".join(text for text, until_s in self._problems.values() if until_s >= since) or None

    def commit_failed(self, partition: TopicPartition, offset: int, error: Exception) -> None:
        """Record that a commit was rejected or failed."""
        self.commit_failures += 1
        self.report("commits", f"offset {offset} of {partition} was not committed: {error}")

    def update(
        self, held: Mapping[TopicPartition, Holding], ends: Mapping[TopicPartition, int], generation: int, member_id: str
    ) -> None:
        """Record the figures after planning."""
        self._held, self._ends, self._generation, self._member_id = dict(held), ends, generation, member_id

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for Spark's progress.

        ``partitions``: topic -> partition -> [position, end, committed]; ``lag`` counts the offsets after the planned
        positions. ``problem`` also has the problems that ended less than :data:`_SHOWN_S` ago.
        """
        partitions: dict[str, dict[str, list[int]]] = {}
        lag = 0
        for partition, holding in sorted(self._held.items()):
            end = max(self._ends.get(partition, holding.position), holding.position)
            lag += end - holding.position
            partitions.setdefault(partition.topic, {})[str(partition.partition)] = [holding.position, end, holding.committed]
        return {
            "lag": lag,
            "generation": self._generation,
            "memberId": self._member_id,
            "partitions": partitions,
            "rebalances": self.rebalances,
            "commits": self.commits,
            "commitFailures": self.commit_failures,
            "problem": self._shown(since=time.monotonic()),
            "events": list(self._events),
        }
