"""The classic protocol of a coordinator, for tests that look into it."""

from __future__ import annotations

from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.coordinator import ConsumerCoordinator


def classic(coordinator: ConsumerCoordinator) -> ClassicProtocol:
    """Its protocol, which has to be the classic one."""
    assert isinstance(coordinator.protocol, ClassicProtocol)
    return coordinator.protocol
