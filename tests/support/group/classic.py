"""The classic protocol of a coordinator, for tests of its internals."""

from __future__ import annotations

from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.coordinator import ConsumerCoordinator


def classic(coordinator: ConsumerCoordinator) -> ClassicProtocol:
    """Return the coordinator's protocol, which must be the classic one."""
    assert isinstance(coordinator.protocol, ClassicProtocol)
    return coordinator.protocol
