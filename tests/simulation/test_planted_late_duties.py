"""Members that do in time what delivers records, but too late what they owe to their group, each in a small history.

The group becomes stable all the same, and each record is delivered, so that no other rule notices these bugs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from consumer_coord.group.classic_protocol.heartbeat import Heartbeat
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.consumer_protocol.heartbeats import ConsumerMember
from consumer_coord.group.consumer_protocol.schedule import Schedule
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.group.lease import Lease
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario
from tests.support.simulation.planting import former
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch

#: How much later the planted bugs do what they must do, in seconds; less than the timeouts of session and rebalance.
_LATER_S: Final = 6.0


def _wait_before(patch: Patch, owner: type, name: str) -> None:
    done = former(owner, name)

    async def later(self: Any, *given: Any, **named: Any) -> Any:
        await asyncio.sleep(_LATER_S)
        return await done(self, *given, **named)

    patch.setattr(owner, name, later)


def _send_heartbeats_twice_as_rarely(patch: Patch) -> None:
    """A classic member sends a heartbeat in each second interval, still within its session."""
    init = former(Heartbeat, "__init__")

    def slow(self: Heartbeat, *given: Any) -> None:
        init(self, *given)
        self._interval_s *= 2

    patch.setattr(Heartbeat, "__init__", slow)


def _believe_in_a_longer_interval(patch: Patch) -> None:
    """A member of the consumer protocol doubles the interval that its coordinator names."""
    joined, answered = Schedule.joined, Schedule.answered
    patch.setattr(Schedule, "joined", lambda self, interval_ms: joined(self, 2 * interval_ms))
    patch.setattr(Schedule, "answered", lambda self, sent, interval_ms: answered(self, sent, 2 * interval_ms))


def _join_late(patch: Patch) -> None:
    """A member that hears of a rebalance waits before it joins."""
    _wait_before(patch, ClassicProtocol, "_ensure_coordinator_ready")


def _sync_late(patch: Patch) -> None:
    """A member waits between the answer to JoinGroup and its SyncGroup."""
    _wait_before(patch, ClassicProtocol, "_sync_group")


def _enforce_nothing(patch: Patch) -> None:
    """A rebalance that the application enforces does not begin."""
    patch.setattr(ConsumerCoordinator, "enforce_rebalance", lambda self, reason="": None)


def _acknowledge_late(patch: Patch) -> None:
    """A member of the consumer protocol has revoked partitions, and waits before it says so."""
    _wait_before(patch, ConsumerMember, "_acknowledge")


def _hold_a_lease_that_ends_before_the_next_heartbeat(patch: Patch) -> None:
    """The lease ends after a fifth of the session, so that records wait for a heartbeat."""

    def until(self: Lease) -> float:
        return min(self._session_from + self._session_s / 5, self._stable_from + self._rebalance_s)

    patch.setattr(Lease, "_proven_until", property(until))


def _take_each_heartbeat_for_one_of_a_rebalance(patch: Patch) -> None:
    """A heartbeat does not prove that no rebalance has begun, so that the lease ends after the time for a rebalance."""
    answered = Lease.heartbeat_answered
    patch.setattr(Lease, "heartbeat_answered", lambda self, sent, rebalancing: answered(self, sent, rebalancing=True))


_ANOTHER = (Fault(at_ms=5_000, kind="start"),)
#: Lets the history last longer.
_LATER = (Fault(at_ms=20_000, kind="commit"),)

#: Name -> the bug, the rule that it breaks, and the history that reveals it.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], str, Scenario]]] = {
    "heartbeats in each second interval": (_send_heartbeats_twice_as_rarely, "overdue", history(*_LATER, protocol="classic")),
    "a longer interval": (_believe_in_a_longer_interval, "overdue", history(*_LATER)),
    "a late join": (_join_late, "overdue", history(*_ANOTHER, protocol="classic")),
    "a late sync": (_sync_late, "overdue", history(*_ANOTHER, protocol="classic")),
    "an enforced rebalance that does not begin": (
        _enforce_nothing,
        "overdue",
        history(Fault(at_ms=10_000, kind="enforce"), *_LATER, protocol="classic"),
    ),
    "a late acknowledgement": (_acknowledge_late, "overdue", history(*_ANOTHER)),
    "a short lease": (_hold_a_lease_that_ends_before_the_next_heartbeat, "lease", history(*_LATER, protocol="classic")),
    "a lease until the end of a rebalance": (
        _take_each_heartbeat_for_one_of_a_rebalance,
        "lease",
        history(*_LATER, protocol="classic"),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, rule, scenario = PLANTED[name]
    assert play(scenario).violation is None
    plant(monkeypatch)
    found = play(scenario).violation
    assert found is not None
    assert found.rule == rule, found
