"""Poll metrics: ``time-between-poll-avg``, ``-max`` and ``poll-idle-ratio-avg`` (``KafkaConsumerMetrics``).

The application's thread records each poll that looks for messages. A poll that only takes a message that was fetched earlier is
not recorded, but counted, so some hundred messages cost two clock reads. Any thread may read the figures, because complete
seconds are an immutable value that is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from consumer_coord import lazy_attrs as attrs

#: Window of averages and maxima, in seconds, as in ``metrics.py``.
_WINDOW_S = 60.0
_BUCKET_S = 1.0
#: The quiet polls of an idle application are recorded together: at most this number of polls, with at most this time between
#: two polls, in seconds.
_MOST_QUIET = 16
_PAUSE_S = 0.2

NAMES = ("time-between-poll-avg", "time-between-poll-max", "poll-idle-ratio-avg")


@attrs.define
class _Bucket:
    """The polls of about one second."""

    since: float
    polls: int = 0
    between_s: float = 0.0
    longest_s: float = 0.0
    idle_s: float = 0.0


class PollTimes:
    """The last minute of one application's polls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Start of the last poll that looked for messages; None before the first such poll.
        self.last_at: float | None = None
        #: The number of this poll, and how long it waited, in seconds.
        self._last_number = 0
        self._last_waited_s = 0.0
        #: Start and number of the last poll in a bucket, and the waits from that poll until the last poll.
        self._began: float | None = None
        self._number = 0
        self._idle_s = 0.0
        self._bucket = _Bucket(0.0)
        self._past: tuple[_Bucket, ...] = ()

    def record(self, began: float, number: int) -> None:
        """Record that the application's poll ``number`` waited from ``began`` until now; a poll may wait several times.

        For the time between two polls since the last recorded poll, the metrics use the mean.
        """
        self._record(began, number, self._clock() - began)

    def record_quiet(self, began: float, number: int, waited_s: float) -> None:
        """Record a poll that only waited, for ``waited_s``; an idle application makes many such polls."""
        if self.last_at is None or began - self.last_at > _PAUSE_S or number - self._number > _MOST_QUIET:
            self._record(began, number, waited_s)
            return
        self._idle_s += self._last_waited_s
        self.last_at, self._last_number, self._last_waited_s = began, number, waited_s

    def _record(self, began: float, number: int, waited_s: float) -> None:
        if number == self._last_number:
            self._last_waited_s += waited_s
            return
        self._count()
        self._idle_s += self._last_waited_s
        self.last_at, self._last_number, self._last_waited_s = began, number, waited_s
        self._count()

    def _count(self) -> None:
        """Add the time from the last poll in a bucket to the last poll."""
        before, began, polls, idle_s = self._began, self.last_at, self._last_number - self._number, self._idle_s
        if began is None:
            return
        self._began, self._number, self._idle_s = began, self._last_number, 0.0
        if before is None or not polls:
            return
        bucket = self._bucket
        if began - bucket.since > _BUCKET_S:
            self._past = (*self._since(began - _WINDOW_S), bucket) if bucket.polls else self._since(began - _WINDOW_S)
            bucket = self._bucket = _Bucket(began)
        between_s = began - before
        bucket.polls += polls
        bucket.between_s += between_s
        bucket.idle_s += idle_s
        if between_s > bucket.longest_s * polls:
            bucket.longest_s = between_s / polls

    def _since(self, oldest: float) -> tuple[_Bucket, ...]:
        """Return the past buckets that began after ``oldest``, in order of time."""
        past, first = self._past, 0
        while first < len(past) and past[first].since <= oldest:
            first += 1
        return past[first:]

    def figures(self) -> Mapping[str, float]:
        """Return Java's figures, in milliseconds; NaN before the second poll."""
        oldest = self._clock() - _WINDOW_S
        buckets = [one for one in (*self._past, self._bucket) if one.polls and one.since > oldest]
        if not buckets:
            return dict.fromkeys(NAMES, math.nan)
        between_s = sum(one.between_s for one in buckets)
        average_ms = between_s / sum(one.polls for one in buckets) * 1000
        idle = sum(one.idle_s for one in buckets) / between_s if between_s else 0.0
        longest_ms = max(one.longest_s for one in buckets) * 1000
        return dict(zip(NAMES, (average_ms, longest_ms, idle), strict=True))
