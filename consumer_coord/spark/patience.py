"""The patience of a task that waits for records."""

from __future__ import annotations

import time

#: When nothing came for this time, in seconds, the topics are compared with the plan.
LOOK_AFTER_S = 1.0


class Patience:
    """Times since records came: when to compare the topics with the plan, and when to stop waiting."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self.restart()

    def restart(self) -> None:
        """Begin again: records came."""
        moment = time.monotonic()
        self._ends_at, self._look_at = moment + self._timeout_s, moment + LOOK_AFTER_S

    @property
    def ended(self) -> bool:
        """True when nothing came within the timeout."""
        return time.monotonic() > self._ends_at

    def looks(self) -> bool:
        """Return whether to compare the topics now; then not again before :data:`LOOK_AFTER_S` has passed."""
        moment = time.monotonic()
        if moment <= self._look_at:
            return False
        self._look_at = moment + LOOK_AFTER_S
        return True
