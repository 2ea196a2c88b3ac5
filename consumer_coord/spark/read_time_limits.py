"""The time limits of a task that waits for records."""

from __future__ import annotations

import time

#: Time without records, in seconds, after which the reader compares the cluster's topics with the planned topics.
LOOK_AFTER_S = 1.0


class ReadTimeLimits:
    """Timers since the last record: when to compare the topics with the plan, and when the task fails."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self.restart()

    def restart(self) -> None:
        """Restart the timers, because records arrived."""
        moment = time.monotonic()
        self._ends_at, self._look_at = moment + self._timeout_s, moment + LOOK_AFTER_S

    @property
    def ended(self) -> bool:
        """True if no record arrived within the timeout."""
        return time.monotonic() > self._ends_at

    def compares_now(self) -> bool:
        """Return whether to compare the topics now. The next comparison is due after :data:`LOOK_AFTER_S`."""
        moment = time.monotonic()
        if moment <= self._look_at:
            return False
        self._look_at = moment + LOOK_AFTER_S
        return True
