"""At which moments of a heartbeat interval the members of one process beat."""

from __future__ import annotations

#: So many times in an interval some of them beat; more often would cost an idle process more than it gains a busy one.
_BEATS_AN_INTERVAL = 16
#: The fractional parts of its multiples are spread evenly, however many there are.
_GOLDEN_RATIO = (5**0.5 - 1) / 2


def spread(number: int) -> float:
    """The part of an interval after which the ``number``-th member of a process beats first; number 0 waits for all of it."""
    return 1.0 - int(number * _GOLDEN_RATIO % 1.0 * _BEATS_AN_INTERVAL) / _BEATS_AN_INTERVAL


def together(due: float, interval_s: float) -> float:
    """A little before ``due``, at a moment at which others beat, so that the loop wakes up once for all."""
    moment_s = interval_s / _BEATS_AN_INTERVAL
    return due // moment_s * moment_s
