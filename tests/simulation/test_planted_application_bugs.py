"""Bugs that occur only if an application pauses, raises an exception, cancels its calls, or closes during a rebalance.

A small history finds each bug, by violating the named rule. Without the bug, the same history violates no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from consumer_coord.consumer import async_consumer, commit_before_revoke, reducer
from consumer_coord.consumer.async_consumer import AsyncGroupConsumer
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import TRANSITIONS, PartitionEvent, Phase, Table, applied, in_phase
from consumer_coord.consumer.reducer import Group, Request, Steps
from consumer_coord.errors import RequestTimedOutError
from consumer_coord.group.classic_protocol.status import MemberStatus
from consumer_coord.retry import Deadline
from consumer_coord.simulation.application import CUTS, TRIPS
from consumer_coord.simulation.drawing import draw_scenario
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario
from consumer_coord.topic_partition import TopicPartition
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch


def _deliver_under_a_new_lease(patch: Patch) -> None:
    """A buffered record of an ownership that has ended is delivered, because the member has joined again since."""

    def may_deliver(self: Engine, leased_until: float) -> bool:
        return self.reader.applied is self.plan and not self.suspended

    patch.setattr(Engine, "_may_deliver", may_deliver)


def _stop_the_others_as_the_application_does(patch: Patch) -> None:
    """getmany(partition) pauses the other partitions by the application's pause; cancelled, it leaves them paused."""

    async def gather(engine: Engine, wanted: frozenset[TopicPartition], timeout_s: float) -> bool:
        others = frozenset(engine.table) - wanted - engine.paused if wanted else frozenset[TopicPartition]()
        engine.pause(others)
        found = await engine.gather(1, 500, min(timeout_s, 0.1))
        engine.resume(others)
        return found

    patch.setattr(async_consumer, "_gather_of", gather)


def _keep_what_was_reported_revoked(patch: Patch) -> None:
    """A partition whose on_revoke was called continues from its position in memory, because the group wants it again."""
    look = Engine._look

    def looking(self: Engine, leaving: bool) -> Any:
        back = in_phase(self.table, Phase.REVOKED) & self.core.assignment.held - self.core.assignment.change().revoked
        for partition in frozenset() if leaving else back:
            at = self.reader.positions({partition: self.table[partition]}).get(partition, self.table[partition].start)
            self._put(PartitionEvent.KEEP, [partition], start=at)
        return look(self, leaving)

    patch.setitem(TRANSITIONS[PartitionEvent.KEEP], Phase.REVOKED, Phase.LOCATING)
    patch.setattr(Engine, "_look", looking)


def _wait_for_a_join_that_never_comes(patch: Patch) -> None:
    """A commit of a member that is about to leave waits for a sync, although its join has ended without one."""

    async def wait_for_sync(self: MemberStatus, deadline: Deadline) -> None:
        failures = self._context.application.failures

        def over() -> bool:
            now = self.membership
            return now.joined or not now.heartbeats_wanted or failures.final or now.ending

        if not await self._context.signal.until(over, deadline):
            raise RequestTimedOutError("the rebalance did not complete in time")

    patch.setattr(MemberStatus, "wait_for_sync", wait_for_sync)


def _finish_what_was_delivered(patch: Patch) -> None:
    """Automatic commits cover every delivered record, also one whose processing raised or was cancelled."""

    def finish(self: Deliveries[object], receiver: object) -> None:
        self.last.clear()

    async def leave(self: AsyncGroupConsumer, *_: object) -> None:
        await self._shut(None, finished=True)

    patch.setattr(Deliveries, "finish", finish)
    patch.setattr(AsyncGroupConsumer, "__aexit__", leave)
    patch.setattr(AsyncGroupConsumer, "_in_order", True)


def _forget_what_the_application_committed(patch: Patch) -> None:
    """An automatic commit goes back to the first record in progress, although the application has committed a later offset."""
    patch.setattr(Engine, "submit", lambda self, ticket: self.core.commits.submit(ticket))


def _commit_nothing_after_on_revoke(patch: Patch) -> None:
    """Offsets that on_revoke stores are accepted and never committed, because the last commit began before it."""
    finished_in = commit_before_revoke.finished_in

    def finished(table: Any, finished: Any, partitions: Any, called: bool) -> Any:
        return {} if called else finished_in(table, finished, partitions, called)

    patch.setattr(commit_before_revoke, "finished_in", finished)


def _revoke_twice(patch: Patch) -> None:
    """A partition whose last commit is in flight is revoked once more."""
    look = reducer._look_at_group

    def looking(table: Table, group: Group, steps: Steps) -> tuple[Table, Request | None]:
        revoked = group.held if group.leaving else group.change.revoked
        return look(applied(table, PartitionEvent.REVOKE, revoked & in_phase(table, Phase.COMMITTING)), group, steps)

    patch.setattr(reducer, "_look_at_group", looking)


def _cut(at_ms: int, call: str, step: int) -> Fault:
    return Fault(at_ms, "cut", 0, CUTS.index(call) + len(CUTS) * step)


def _trip(then: str, number: int = 0) -> Fault:
    return Fault(4_000, "trip", 0, TRIPS.index(then) + len(TRIPS) * number, 2_000)


def _auto(*faults: Fault, **spec: Any) -> Scenario:
    return history(*faults, **{"members": 1, "commit": "auto", "commit_every_ms": 1_000, "poll_every_ms": 100, **spec})


#: Two members close after JoinGroup was answered and before SyncGroup is; the leader is one of them.
_LEAVING_WITH_THE_LEADER = attrs.evolve(
    _auto(Fault(6_805, "farewell", 776, 453, 2_000), members=3, protocol="classic", batch=1), seed=6, latency_ms=10.0
)

#: The first member is frozen inside on_commit, which then runs for two more seconds, while the member joins its group again.
_STALLED = attrs.evolve(
    _auto(
        Fault(4_993, "enforce", 1),
        Fault(5_007, "stall", 0, 15, 10_000),
        Fault(19_007, "commit"),
        members=2,
        protocol="classic",
        session_timeout_ms=6_000,
        heartbeat_interval_ms=100,
        batch=1,
        poll_every_ms=700,
    ),
    seed=2,
)

#: name -> the bug, the history that finds it, the rule.
PLANTED: dict[str, tuple[Callable[[Patch], None], Scenario, str]] = {
    "deliver under a new lease": (_deliver_under_a_new_lease, _STALLED, "lease"),
    "stop the others as the application does": (
        _stop_the_others_as_the_application_does,
        _auto(_cut(4_000, "getmany", 6), batch=3),
        "stranded",
    ),
    "keep what was reported revoked": (
        _keep_what_was_reported_revoked,
        _auto(_cut(6_000, "unsubscribe", 1), batch=1, callback_ms=300, protocol="classic"),
        "callbacks",
    ),
    "wait for a join that never comes": (_wait_for_a_join_that_never_comes, _LEAVING_WITH_THE_LEADER, "late"),
    "finish what raised": (_finish_what_was_delivered, _auto(_trip("leave")), "skipped"),
    "finish what raised, and was closed in finally": (_finish_what_was_delivered, _auto(_trip("close")), "skipped"),
    "finish what was cancelled": (_finish_what_was_delivered, _auto(_trip("cancel")), "skipped"),
    "forget what the application committed": (
        _forget_what_the_application_committed,
        _auto(_trip("leave", number=3), commits_too=True, commit_every_ms=60_000),
        "rewind",
    ),
    "commit nothing after on_revoke": (
        _commit_nothing_after_on_revoke,
        _auto(Fault(6_000, "stop"), commit="store", commit_every_ms=60_000, members=2),
        "farewell",
    ),
    "revoke twice": (_revoke_twice, _auto(Fault(6_000, "start"), protocol="classic"), "transitions"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, scenario, rule = PLANTED[name]
    assert play(scenario).violation is None, "the same history keeps every rule without the bug"
    plant(monkeypatch)
    found = play(scenario)
    assert found.violation is not None, f"{name} went unnoticed\n{found.history.tail(60)}"
    assert found.violation.rule == rule, f"{found.violation}\n{found.history.tail(40)}"


#: name -> a seed whose drawn history finds the bug, the rule.
DRAWN = {
    "deliver under a new lease": (1_720_000_181, "lease"),
    "wait for a join that never comes": (1_720_000_037, "late"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_planted_bug_is_found_by_a_drawn_history(name: str, monkeypatch: Patch) -> None:
    seed, rule = DRAWN[name]
    assert play(draw_scenario(seed)).violation is None, "the same history keeps every rule without the bug"
    PLANTED[name][0](monkeypatch)
    found = play(draw_scenario(seed))
    assert found.violation is not None, f"{name} went unnoticed\n{found.history.tail(60)}"
    assert found.violation.rule == rule, f"{found.violation}\n{found.history.tail(40)}"
