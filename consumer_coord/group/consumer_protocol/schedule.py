"""The times of heartbeats: at the coordinator's interval, early, or at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from consumer_coord.environment import now
from consumer_coord.group.heartbeat_clock import HeartbeatClock

#: A heartbeat that was sent less than this fraction of an interval too early counts as sent on time. Otherwise the next
#: heartbeat would be due immediately.
_SAME_MOMENT = 1 / 64

#: Heartbeat interval until a response names the coordinator's interval (``group.consumer.heartbeat.interval.ms``), in
#: milliseconds.
DEFAULT_INTERVAL_MS = 5_000

#: Minimum time between two targets that the coordinator computes (``group.consumer.assignment.interval.ms``, KIP-1263), plus a
#: reserve, in milliseconds.
_TARGET_MS = 1_050
#: Times of the first early heartbeats after a response that more partitions may follow, in milliseconds after the response.
#: :func:`early_moments` spaces the later heartbeats evenly.
_SOON_MS = (10, 25, 50, 100)
#: Time between two early heartbeats of a member, in milliseconds: if only this member of the process looks for partitions, and
#: at most if many do. Each time is at least a tenth of the interval.
_LEAST_APART_MS, _MOST_APART_MS = 50, 350
#: Maximum number of pending early heartbeats, in addition to the number that the last call of ``HeartbeatClock.early``
#: scheduled.
_MOST_EARLY = 64


def early_moments(interval_ms: float, crowd: int = 1) -> Sequence[float]:
    """Return the times of early heartbeats that look for more partitions, in milliseconds from now.

    The times cover a heartbeat interval, because other members revoke partitions for this member at their next heartbeats. The
    times also cover the delay until the coordinator computes another target. ``crowd``: number of members in this process that
    look for partitions (at least one); each member notifies the others, so each needs fewer heartbeats.
    """
    tenth = interval_ms / 10
    apart = min(max(_LEAST_APART_MS, tenth) * crowd, max(_MOST_APART_MS, tenth))
    first = _SOON_MS[-1]
    count = math.ceil((interval_ms + _TARGET_MS - first) / apart)
    return (*_SOON_MS, *(first + apart * number for number in range(1, count + 1)))


class Schedule:
    """The times of one member's heartbeats, by the loop's clock, in seconds."""

    def __init__(self, first_beat: float, align_to_slot: Callable[[float, float], float]) -> None:
        """Start the schedule.

        ``first_beat``: the first regular heartbeat is due after this fraction of an interval. ``align_to_slot(due, interval)``
        returns a sending time that several members share.
        """
        self.interval_s: float = DEFAULT_INTERVAL_MS / 1000
        self._first_beat = first_beat
        self._align_to_slot = align_to_slot
        self._clock = HeartbeatClock(_MOST_EARLY)
        #: Until this time, the coordinator may assign more partitions.
        self._expects_until = float("-inf")
        #: The time of one regular heartbeat; the times of all others differ from this time by whole intervals.
        self._regular_at = self._clock.next_at
        #: Earliest time of the next heartbeat after a failure.
        self._not_before = float("-inf")
        #: Number of changes to the schedule. Waiting code compares this number to notice a change.
        self.changes: int = 0

    def joined(self, interval_ms: float) -> None:
        """Begin the regular heartbeats after the first response."""
        self.interval_s = max(0.001, interval_ms / 1000)
        self._spread_from(now())
        self._not_before = float("-inf")

    def answered(self, sent: float, interval_ms: float) -> None:
        """Schedule the next heartbeat after a response to the heartbeat that was sent at ``sent``."""
        before, self.interval_s = self.interval_s, max(0.001, interval_ms / 1000)
        if self.interval_s != before:
            self._spread_from(sent)
        else:
            # Keep the times of regular heartbeats despite early heartbeats. Otherwise, members that once sent an early
            # heartbeat together would send all later heartbeats together.
            intervals = math.floor((sent - self._regular_at) / self.interval_s + _SAME_MOMENT) + 1
            self._clock.regular(self._regular_at + intervals * self.interval_s)
        self._not_before = float("-inf")

    def _spread_from(self, moment: float) -> None:
        self._regular_at = self._align_to_slot(moment + self._first_beat * self.interval_s, self.interval_s)
        self._clock.regular(self._regular_at)

    def failed(self, again_ms: float) -> None:
        """Schedule the next heartbeat ``again_ms`` after a failure; send no earlier heartbeat, even if a change is urgent."""
        self._clock.calm()
        self._not_before = now() + again_ms / 1000
        self._clock.regular(self._not_before)

    def sends(self) -> None:
        """Record that a heartbeat is being sent, which covers heartbeats that are already due."""
        moment = now()
        self._clock.sends(moment)
        self._clock.regular(max(self._clock.next_at, moment + self.interval_s))

    def early(self, after_ms: Sequence[float]) -> None:
        """Schedule additional early heartbeats at the times ``after_ms``, in milliseconds from now."""
        self._clock.early(after_ms)
        self.changes += 1

    def expect_more(self, crowd: int) -> None:
        """Schedule early heartbeats, because more partitions may be assigned; see :func:`early_moments` for ``crowd``."""
        moment, interval_ms = now(), self.interval_s * 1000
        self._expects_until = moment + (interval_ms + _TARGET_MS) / 1000
        self._clock.calm()
        self.early(early_moments(interval_ms, crowd))

    def calm(self) -> None:
        """Cancel the early heartbeats."""
        self._clock.calm()
        self._expects_until = float("-inf")

    @property
    def expecting(self) -> bool:
        """True while more partitions may be assigned."""
        return now() < self._expects_until

    def at(self, *, urgent: bool) -> float:
        """Return when to send the next heartbeat."""
        return max(self._not_before, float("-inf") if urgent else self._clock.due)
