"""Assignors whose members send their last assignment as user data, because they own nothing when they join (eager protocol)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assignors.balancing import sticky_user_data
from assignors.base import Assignor


class SendsLastAssignment(Assignor):
    """The part of an assignor that runs in every member and stores the member's last assignment (KIP-54, KIP-341)."""

    def __init__(self) -> None:
        self._assignment: dict[str, Sequence[int]] | None = None
        self._generation = sticky_user_data.NO_GENERATION

    def user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return this member's last assignment with its generation, in Java's format; None before the first assignment."""
        if self._assignment is None:
            return None
        return sticky_user_data.encode(self._assignment, self._generation)

    def on_assignment(self, assignment: Mapping[str, Sequence[int]], generation: int) -> None:
        """Store this member's assignment."""
        self._assignment = dict(assignment)
        self._generation = generation
