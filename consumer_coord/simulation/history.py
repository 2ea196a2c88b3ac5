"""What happened, line by line: the timeline that a failing seed shows, and what two runs of a seed are compared by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class History:
    """Lines ``seconds actor: what``, in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lines: list[str] = []

    def note(self, actor: str, what: str) -> None:
        """Something happened now."""
        self.lines.append(f"{self._clock():10.4f} {actor}: {what}")

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def tail(self, count: int) -> str:
        """The last lines."""
        return "\n".join(self.lines[-count:])
