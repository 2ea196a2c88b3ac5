"""The memberships of one member: the present epoch, the one that was lost last, and whether it is in doubt."""

from __future__ import annotations

from consumer_coord.group.generation import NO_GENERATION, Generation


class Epochs:
    """Of one member; changed on its loop."""

    def __init__(self) -> None:
        #: Member epoch, as generation, and member id; replaced, never changed, so any thread may read it.
        self.present = NO_GENERATION
        #: The last one that was lost.
        self.lost = NO_GENERATION
        #: Counts memberships: an answer to a heartbeat of a former one is nothing to this one.
        self.era = 0
        #: The epoch that a commit was refused with, until a heartbeat tells the present one.
        self.doubted: Generation | None = None

    def told(self, present: Generation) -> None:
        """A heartbeat was answered with this epoch."""
        self.doubted = None
        if present != self.present:
            self.present = present

    def lose(self) -> None:
        """The membership is over."""
        if self.present.generation_id >= 0:
            self.lost = self.present
        self.era += 1
        self.present = NO_GENERATION
        self.doubted = None
