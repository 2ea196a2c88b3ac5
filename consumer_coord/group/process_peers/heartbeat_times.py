"""The times within a heartbeat interval (*moments*) at which the members of one process send heartbeats."""

from __future__ import annotations

from collections.abc import Callable

from consumer_coord import lazy_attrs as attrs

#: Number of moments in an interval. With a larger number, an idle process would use more CPU time, but notice a rebalance
#: sooner.
_BEATS_AN_INTERVAL = 12
#: The fractional parts of this number's multiples are spread evenly, for any number of members.
_GOLDEN_RATIO = (5**0.5 - 1) / 2


def spread(number: int, moments: int = _BEATS_AN_INTERVAL) -> float:
    """Return the fraction of an interval before the first heartbeat of a process's member ``number``; 1.0 for number 0."""
    return 1.0 - int(number * _GOLDEN_RATIO % 1.0 * moments) / moments


def together(due: float, interval_s: float) -> float:
    """Return the last shared moment before ``due``, so that the loop wakes up once for several members."""
    moment_s = interval_s / _BEATS_AN_INTERVAL
    return due // moment_s * moment_s


def _alone() -> int:
    return 1


@attrs.frozen
class Rhythm:
    """The heartbeat times of one member, among the members of a group in a process; each member has a different ``number``.

    A heartbeat keeps the session of its member alive, and reports a rebalance to all members of the process. For the second
    purpose one heartbeat at each moment of an interval is enough. So with ``n`` times twelve members in the process, each
    member sends a heartbeat only every ``n`` intervals, and the process still notices a rebalance equally soon.
    """

    number: int = 0
    #: Number of current members of the group in this process.
    count: Callable[[], int] = _alone
    #: Maximum number of intervals between two heartbeats, which depends on the session timeout.
    most_intervals: int = 1

    @property
    def intervals(self) -> int:
        """The number of intervals between two heartbeats of this member."""
        return max(1, min(self.count() // _BEATS_AN_INTERVAL, self.most_intervals))

    def first(self, now: float, interval_s: float) -> float:
        """Return the time of the first heartbeat in a session that begins now."""
        intervals = self.intervals
        part = spread(self.number, intervals * _BEATS_AN_INTERVAL)
        return self._with_others(now + part * intervals * interval_s, interval_s)

    def next(self, sent: float, interval_s: float, *, alone: bool = False) -> float:
        """Return the time of the next heartbeat after ``sent``; with ``alone``, as if the process had no other members."""
        return self._with_others(sent + interval_s * (1 if alone else self.intervals), interval_s)

    def _with_others(self, due: float, interval_s: float) -> float:
        return due if self.count() < 2 else together(due, interval_s)
