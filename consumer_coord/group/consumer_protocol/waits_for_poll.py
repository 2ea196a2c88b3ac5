"""Waits of a member of the consumer protocol for the application's next poll."""

from __future__ import annotations


class PollMarks:
    """The numbers of polls at which the member began to wait for the application's next poll; None if it does not wait."""

    def __init__(self) -> None:
        #: Number of the poll after which the member left, because the application did not poll again in time.
        self.parked_at: int | None = None
        #: Number of the poll after which the application began to leave.
        self.leaving_at: int | None = None
        #: Number of the poll after which a transaction began to keep the epoch. The epoch is kept until ``held_until`` at the
        #: latest (in seconds, on the loop's clock).
        self.held_at: int | None = None
        self.held_until: float = 0.0

    @property
    def leaving(self) -> bool:
        """True while the application revokes everything to leave."""
        return self.leaving_at is not None

    def hold(self, polls: int, until: float) -> None:
        """Keep the epoch until the application has polled more than ``polls`` times, but at most until the time ``until``."""
        self.held_at, self.held_until = polls, until

    def polled(self, polls: int) -> bool:
        """End the waits that began before poll number ``polls``; return True if there was such a wait. Thread-safe."""
        ended = False
        if self.parked_at is not None and self.parked_at != polls:
            self.parked_at, ended = None, True
        if self.held_at is not None and self.held_at != polls:
            self.held_at, ended = None, True
        if self.leaving_at is not None and self.leaving_at != polls:
            self.leaving_at, ended = None, True
        return ended

    @property
    def waiting(self) -> bool:
        """True while the member waits for a later poll, so that the next poll must not be skipped."""
        return self.parked_at is not None or self.held_at is not None
