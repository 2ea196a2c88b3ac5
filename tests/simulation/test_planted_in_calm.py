"""Bugs that show only when nothing else happens: after a change that happens alone, and in an idle group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import pytest

from consumer_coord.environment import now
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.consumer_protocol import session
from consumer_coord.group.consumer_protocol.schedule import Schedule
from consumer_coord.group.heartbeat_clock import HeartbeatClock
from consumer_coord.group.lease import Lease
from consumer_coord.group.metadata_watch import MetadataWatch
from consumer_coord.simulation.scenario import Fault, Scenario
from tests.support.simulation.planting import assert_reveals, former
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch


def _ignore_that_a_topic_has_grown(patch: Patch) -> None:
    """The leader looks at its metadata only when it makes a plan."""
    patch.setattr(ClassicProtocol, "metadata_changed", lambda self: None)


def _ignore_a_new_topic(patch: Patch) -> None:
    """A pattern matches the topics that were there when the member subscribed."""
    topics = MetadataWatch.topics
    first: dict[int, tuple[str, ...]] = {}
    patch.setattr(MetadataWatch, "topics", lambda self: first.setdefault(id(self), topics(self)))


def _send_heartbeats_too_often(patch: Patch) -> None:
    """A regular heartbeat follows after a third of the interval."""
    regular = former(HeartbeatClock, "regular")
    patch.setattr(HeartbeatClock, "regular", lambda self, moment: regular(self, now() + (moment - now()) / 3))


def _never_calm_down(patch: Patch) -> None:
    """After every answer, a member expects more partitions."""
    answered = former(Schedule, "answered")

    def expecting(self: Schedule, sent: float, interval_ms: float) -> None:
        answered(self, sent, interval_ms)
        self.expect_more(1)

    patch.setattr(Schedule, "answered", expecting)


def _assume_the_session_timeout(patch: Patch) -> None:
    """A member of the consumer protocol does not learn the session timeout of its coordinator."""
    patch.setattr(session, "configured_ms", lambda answer: None)


def _begin_a_session_with_its_answer(patch: Patch) -> None:
    """The lease counts from a second after the answer to a heartbeat, in place of its sending."""
    beat = former(Lease, "heartbeat_answered")
    patch.setattr(
        Lease, "heartbeat_answered", lambda self, sent, *, rebalancing: beat(self, now() + 1, rebalancing=rebalancing)
    )


def _alone(*kinds: str, **spec: Any) -> Scenario:
    return attrs.evolve(history(**spec), alone=tuple(Fault(0, kind, number, 3) for number, kind in enumerate(kinds)))


_CLASSIC: Final[Mapping[str, Any]] = {"protocol": "classic", "members": 3}
_IDLE: Final = attrs.evolve(history(members=3), idle=True)

#: Name -> the bug, the rules that it may break, and the history.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], tuple[str, ...], Scenario]]] = {
    "ignore that a topic has grown": (_ignore_that_a_topic_has_grown, ("liveness",), _alone("grow", **_CLASSIC)),
    "ignore a new topic": (_ignore_a_new_topic, ("liveness",), _alone("enforce", "create", pattern="topic-.*", **_CLASSIC)),
    "send heartbeats too often": (_send_heartbeats_too_often, ("idle",), attrs.evolve(history(**_CLASSIC), idle=True)),
    "never calm down": (_never_calm_down, ("idle",), _IDLE),
    "assume the session timeout": (_assume_the_session_timeout, ("lease",), _alone("hang", members=3)),
    "begin a session with its answer": (_begin_a_session_with_its_answer, ("lease",), _alone("hang", **_CLASSIC)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, rules, scenario = PLANTED[name]
    assert_reveals(scenario, plant, rules, monkeypatch)
