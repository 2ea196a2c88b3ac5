"""At which moments of a heartbeat interval the members of one process beat."""

from __future__ import annotations

from collections.abc import Callable

import attrs

#: So many times in an interval some of them beat; more often would cost an idle process more than it gains a busy one.
_BEATS_AN_INTERVAL = 16
#: The fractional parts of its multiples are spread evenly, however many there are.
_GOLDEN_RATIO = (5**0.5 - 1) / 2


def spread(number: int, moments: int = _BEATS_AN_INTERVAL) -> float:
    """The part of an interval after which the ``number``-th member of a process beats first; number 0 waits for all of it."""
    return 1.0 - int(number * _GOLDEN_RATIO % 1.0 * moments) / moments


def together(due: float, interval_s: float) -> float:
    """A little before ``due``, at a moment at which others beat, so that the loop wakes up once for all."""
    moment_s = interval_s / _BEATS_AN_INTERVAL
    return due // moment_s * moment_s


def _alone() -> int:
    return 1


@attrs.frozen
class Rhythm:
    """When one of the members of a group in one process beats; ``number`` tells them apart.

    A heartbeat keeps its own member's session alive, and hears of a rebalance for all members of the process.  The second needs
    no more than one heartbeat at each moment of an interval.  So in a process with ``n`` times sixteen members each one beats
    every ``n`` intervals, and the process hears of a rebalance as soon as before.
    """

    number: int = 0
    #: How many members the group has in this process just now.
    count: Callable[[], int] = _alone
    #: The most intervals between two beats: as many as its session allows.
    most_intervals: int = 1

    @property
    def intervals(self) -> int:
        """How many intervals there are between two beats of this member."""
        return max(1, min(self.count() // _BEATS_AN_INTERVAL, self.most_intervals))

    def first(self, now: float, interval_s: float) -> float:
        """When to beat first in a session that begins now."""
        intervals = self.intervals
        part = spread(self.number, intervals * _BEATS_AN_INTERVAL)
        return self._with_others(now + part * intervals * interval_s, interval_s)

    def next(self, sent: float, interval_s: float, *, alone: bool = False) -> float:
        """When to beat after a beat that was ``sent``; ``alone`` without regard to what others hear."""
        return self._with_others(sent + interval_s * (1 if alone else self.intervals), interval_s)

    def _with_others(self, due: float, interval_s: float) -> float:
        return due if self.count() < 2 else together(due, interval_s)
