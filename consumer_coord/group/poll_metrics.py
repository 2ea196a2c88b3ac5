"""Poll metrics: ``time-between-poll-avg``, ``-max`` and ``poll-idle-ratio-avg`` (``KafkaConsumerMetrics``).

The application's thread records each fetch from the data plane, not each prefetched message, so up to a hundred messages cost
two clock reads. Any thread may read the figures, because complete seconds are an immutable value that is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs

#: Window of averages and maxima, in seconds, as in ``metrics.py``.
_WINDOW_S = 60.0
_BUCKET_S = 1.0
#: Polls without messages are recorded together: at most this number of polls, with at most this time between two polls, in
#: seconds.
_MOST_IN_VAIN = 16
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
        #: Number of polls that returned no message and are in no bucket yet, and the sum of their waits, in seconds.
        self._in_vain = 0
        self._in_vain_s = 0.0
        #: Start of the last poll in a bucket.
        self._began: float | None = None
        self._left = 0
        self._idle_s = 0.0
        self._bucket = _Bucket(0.0)
        self._past: tuple[_Bucket, ...] = ()

    def record_fetch(self, began: float, left: int) -> None:
        """Record a poll that began at ``began``, fetched messages until now, and left ``left`` messages.

        The next ``left`` polls only take messages that are already fetched, and are not recorded. For the time between two of
        these polls, the metrics use the mean since the previous fetch.
        """
        self._close_in_vain()
        self._count(began, self._left + 1, self._idle_s)
        self._left, self._idle_s = left, self._clock() - began

    def record_in_vain(self, began: float, waited_s: float) -> None:
        """Record a poll that began at ``began``, waited for ``waited_s``, and returned no message.

        An idle application makes many such polls. If they follow each other without a pause, they are recorded together.
        """
        if self.last_at is None or began - self.last_at > _PAUSE_S or self._in_vain == _MOST_IN_VAIN:
            self.record_fetch(began, 0)
            return
        self.last_at = began
        self._in_vain += 1
        self._in_vain_s += waited_s

    def _close_in_vain(self) -> None:
        polls, waited_s = self._in_vain, self._in_vain_s
        if polls:
            assert self.last_at is not None
            self._in_vain, self._in_vain_s = 0, 0.0
            self._count(self.last_at, self._left + polls, self._idle_s + waited_s * (polls - 1) / polls)
            self._left, self._idle_s = 0, waited_s / polls

    def _count(self, began: float, polls: int, idle_s: float) -> None:
        """Count the time from the last recorded poll to the poll that began at ``began``."""
        before, self._began, self.last_at = self._began, began, began
        if before is None:
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
