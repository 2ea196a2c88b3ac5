"""The epochs of one member: the current epoch, the last lost epoch, and whether the current epoch is in doubt."""

from __future__ import annotations

from consumer_coord.group.generation import NO_GENERATION, Generation


class Epochs:
    """The epochs of one member; changed on its loop."""

    def __init__(self) -> None:
        #: The member id, and the member epoch as its generation; replaced as a whole, so any thread may read it.
        self.present: Generation = NO_GENERATION
        #: The last lost epoch.
        self.lost: Generation = NO_GENERATION
        #: Number of the membership; a heartbeat response for an earlier membership does not apply.
        self.era: int = 0
        #: The epoch with which a commit was rejected, until a heartbeat response contains the current epoch.
        self.doubted: Generation | None = None

    def received(self, present: Generation) -> None:
        """Adopt the epoch of a heartbeat response."""
        self.doubted = None
        if present != self.present:
            self.present = present

    def lose(self) -> None:
        """End the membership."""
        if self.present.generation_id >= 0:
            self.lost = self.present
        self.era += 1
        self.present = NO_GENERATION
        self.doubted = None
