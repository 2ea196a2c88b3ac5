"""The epochs of one member: the current one, the last lost one, and one that the broker may have replaced meanwhile."""

from __future__ import annotations

from consumer_coord.group.generation import NO_GENERATION, Generation


class Epochs:
    """The epochs of one member; all changes are made on the member's loop."""

    def __init__(self) -> None:
        #: The member id, and the member epoch as its generation; replaced as a whole, so any thread may read it.
        self.present: Generation = NO_GENERATION
        #: The epoch that the member lost last.
        self.lost: Generation = NO_GENERATION
        #: Number of the membership; a heartbeat response for an earlier membership is ignored.
        self.era: int = 0
        #: The epoch of a commit that the broker rejected as stale; None after a heartbeat response with the current epoch.
        self.doubted: Generation | None = None

    def received(self, present: Generation) -> None:
        """Use the epoch in a heartbeat response from now on."""
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
