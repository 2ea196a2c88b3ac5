"""When the next heartbeat is due: at the interval that the coordinator tells, early, or at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from consumer_coord.environment import now

#: So much of an interval is no time: a heartbeat is not due again at the moment at which it went out.
_SAME_MOMENT = 1 / 64

#: Until the coordinator has told its interval (``group.consumer.heartbeat.interval.ms``).
DEFAULT_INTERVAL_MS = 5_000

#: The coordinator computes a target at most so often (``group.consumer.assignment.interval.ms``, KIP-1263), and a little more.
_TARGET_MS = 1_050
#: How soon to ask after an answer that leads to expect more; after these at even distances, see :func:`early_moments`.
_SOON_MS = (10, 25, 50, 100)
#: The least distance, and the largest one that a crowd of members leads to, unless a tenth of the interval is more.
_LEAST_APART_MS, _MOST_APART_MS = 50, 350
#: Early heartbeats that a member may have ahead of it.
_MOST_EARLY = 64


def early_moments(interval_ms: float, crowd: int = 1) -> Sequence[float]:
    """When to ask whether there is more, in milliseconds from now, with the heartbeat interval that the coordinator tells.

    The group's other members give up what this one is to have, and hear of it at their own heartbeats, so within an interval;
    and there may be no target yet.  ``crowd``: how many members of this process ask (one or more), each waking the others.
    """
    tenth = interval_ms / 10
    apart = min(max(_LEAST_APART_MS, tenth) * crowd, max(_MOST_APART_MS, tenth))
    first = _SOON_MS[-1]
    count = math.ceil((interval_ms + _TARGET_MS - first) / apart)
    return (*_SOON_MS, *(first + apart * number for number in range(1, count + 1)))


class Schedule:
    """The heartbeats of one member; times are the loop's, in seconds."""

    def __init__(self, first_beat: float, align_to_slot: Callable[[float, float], float]) -> None:
        """``first_beat``: the part of an interval after which the first regular one is due.

        ``align_to_slot``: when a beat that is due at a time is to be sent, given the interval, so that several go out together.
        """
        self.interval_s = DEFAULT_INTERVAL_MS / 1000
        self._first_beat = first_beat
        self._align_to_slot = align_to_slot
        self._early: list[float] = []
        #: Until when more may come.
        self._expects_until = float("-inf")
        self._next_at = now()
        #: One of the moments of its regular heartbeats, which are whole intervals apart.
        self._regular_at = self._next_at
        #: After a failure nothing is sent before this.
        self._not_before = float("-inf")
        #: Counts changes, for those who wait for one.
        self.changes = 0

    def joined(self, interval_ms: float) -> None:
        """The first answer: the regular heartbeats begin."""
        self.interval_s = max(0.001, interval_ms / 1000)
        self._spread_from(now())
        self._not_before = float("-inf")

    def answered(self, sent: float, interval_ms: float) -> None:
        """A heartbeat sent at ``sent`` was answered."""
        before, self.interval_s = self.interval_s, max(0.001, interval_ms / 1000)
        if self.interval_s != before:
            self._spread_from(sent)
        else:
            # Whatever went out early: members that all heard something at one moment would all beat at one moment ever after.
            intervals = math.floor((sent - self._regular_at) / self.interval_s + _SAME_MOMENT) + 1
            self._next_at = self._regular_at + intervals * self.interval_s
        self._not_before = float("-inf")

    def _spread_from(self, moment: float) -> None:
        self._regular_at = self._next_at = self._align_to_slot(moment + self._first_beat * self.interval_s, self.interval_s)

    def failed(self, again_ms: float) -> None:
        """It was not: the next one goes out in ``again_ms``, however urgent it is."""
        self._early.clear()
        self._next_at = self._not_before = now() + again_ms / 1000

    def sends(self) -> None:
        """One is being sent: what was due is done by it."""
        moment = now()
        self._early = [at for at in self._early if at > moment]
        self._next_at = max(self._next_at, moment + self.interval_s)

    def early(self, after_ms: Sequence[float]) -> None:
        """Beat early, ``after_ms`` from now."""
        moment = now()
        self._early = sorted({*self._early, *(moment + ms / 1000 for ms in after_ms)})[:_MOST_EARLY]
        self.changes += 1

    def expect_more(self, crowd: int) -> None:
        """Beat early as long as more may come; ``crowd`` as for :func:`early_moments`."""
        moment, interval_ms = now(), self.interval_s * 1000
        self._expects_until = moment + (interval_ms + _TARGET_MS) / 1000
        self._early.clear()
        self.early(early_moments(interval_ms, crowd))

    def calm(self) -> None:
        """Nothing is to be heard early any more."""
        self._early.clear()
        self._expects_until = float("-inf")

    @property
    def expecting(self) -> bool:
        """True while more may come."""
        return now() < self._expects_until

    def at(self, *, urgent: bool) -> float:
        """When the next one is to be sent."""
        due = min([self._next_at, *self._early[:1]])
        return max(self._not_before, float("-inf") if urgent else due)
