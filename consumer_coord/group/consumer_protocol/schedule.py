"""When the next heartbeat is due: at the interval that the coordinator tells, early, or at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consumer_coord.environment import now

#: Until the coordinator has told its interval (``group.consumer.heartbeat.interval.ms``).
DEFAULT_INTERVAL_MS = 5_000

#: After an answer that leads to expect more, in milliseconds: the group's other members give up what this one is to have,
#: and the coordinator computes a target at most once a second (KIP-1263).
EARLY_MS: tuple[int, ...] = (10, 25, 50, 100, 200, 400, 700, 1_050)


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
        self._next_at = now()
        #: After a failure nothing is sent before this.
        self._not_before = float("-inf")
        #: Counts changes, for those who wait for one.
        self.changes = 0

    def joined(self, interval_ms: float) -> None:
        """The first answer: the regular heartbeats begin."""
        self.interval_s = max(0.001, interval_ms / 1000)
        self._next_at = self._align_to_slot(now() + self._first_beat * self.interval_s, self.interval_s)
        self._not_before = float("-inf")

    def answered(self, sent: float, interval_ms: float) -> None:
        """A heartbeat sent at ``sent`` was answered."""
        self.interval_s = max(0.001, interval_ms / 1000)
        self._next_at = self._align_to_slot(sent + self.interval_s, self.interval_s)
        self._not_before = float("-inf")

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
        self._early = sorted({*self._early, *(moment + ms / 1000 for ms in after_ms)})[: len(EARLY_MS)]
        self.changes += 1

    def calm(self) -> None:
        """Nothing is to be heard early any more."""
        self._early.clear()

    @property
    def expecting(self) -> bool:
        """True while early heartbeats are still to come."""
        return bool(self._early)

    def at(self, *, urgent: bool) -> float:
        """When the next one is to be sent."""
        due = min([self._next_at, *self._early[:1]])
        return max(self._not_before, float("-inf") if urgent else due)
