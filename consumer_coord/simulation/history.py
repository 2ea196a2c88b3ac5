"""The timeline of a simulation run, line by line: printed for a failed seed, and compared between two runs of a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class History:
    """The lines of the timeline, in order, with the time in seconds, the actor and the event."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lines: list[str] = []

    def note(self, actor: str, what: str) -> None:
        """Add a line at the current time."""
        self.lines.append(f"{self._clock():10.4f} {actor}: {what}")

    @property
    def digest(self) -> str:
        """A hash of the lines; two runs with equal timelines have equal hashes."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def tail(self, count: int) -> str:
        """Return the last lines."""
        return "\n".join(self.lines[-count:])
