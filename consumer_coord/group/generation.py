"""A member's identity in its group: generation, member id and agreed assignor, as one immutable value."""

from __future__ import annotations

from consumer_coord import lazy_attrs as attrs

UNKNOWN_MEMBER_ID = ""
NO_GENERATION_ID = -1


@attrs.frozen
class Generation:
    """Generation id, member id and the name of the assignor that the group agreed on (``AbstractCoordinator.Generation``).

    A value is replaced, never changed, so code can compare the values from before and after a wait. In the consumer protocol
    ``generation_id`` is the member epoch (KIP-848).
    """

    generation_id: int = NO_GENERATION_ID
    member_id: str = UNKNOWN_MEMBER_ID
    protocol_name: str | None = None

    @property
    def has_member_id(self) -> bool:
        """True after the coordinator assigned a member id."""
        return self.member_id != UNKNOWN_MEMBER_ID


NO_GENERATION = Generation()
