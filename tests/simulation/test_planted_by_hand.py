"""Bugs that programs reveal which assign by hand, in a callback, or commit absent partitions, each in a small history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import pytest

from consumer_coord.confluent.topic_partitions import positions_of
from consumer_coord.confluent.types import OFFSET_STORED
from consumer_coord.consumer import shared_calls
from consumer_coord.consumer.engine import Engine
from consumer_coord.errors import UnknownTopicError
from consumer_coord.group import commits
from consumer_coord.group.commits import CommitLane
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.simulation.scenario import Fault, Scenario
from consumer_coord.topic_partition import TopicPartition
from tests.support.simulation.planting import assert_reveals, former
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch
Positions = Mapping[TopicPartition, OffsetAndMetadata]


def _begin_at_the_commit_instead(patch: Patch) -> None:
    """``assign`` forgets the offsets of its rows."""
    assign = Engine.assign

    async def forgetting(self: Engine, positions: Positions, *, instead: bool = True) -> Any:
        return await assign(self, dict.fromkeys(positions, OffsetAndMetadata(OFFSET_STORED)), instead=instead)

    patch.setattr(Engine, "assign", forgetting)


def _take_a_partition_twice(patch: Patch) -> None:
    """``assign`` takes rows that name a partition twice, or one with a negative number."""
    patch.setattr(shared_calls, "distinct_positions_of", lambda rows, what: positions_of(rows))


def _forget_what_on_assign_chose(patch: Patch) -> None:
    """``assign`` in ``on_assign`` selects the partitions, and forgets their offsets."""
    select = Engine.select

    async def forgetting(self: Engine, positions: Positions, *more: Any) -> None:
        await select(self, dict.fromkeys(positions, OffsetAndMetadata(OFFSET_STORED)), *more)

    patch.setattr(Engine, "select", forgetting)


def _confirm_a_commit_of_an_absent_partition(patch: Patch) -> None:
    """A commit of a partition that does not exist is confirmed."""
    answer = former(CommitLane, "_answer")

    def confirming(self: CommitLane, newest: Any, partition: TopicPartition, error: Any) -> None:
        answer(self, newest, partition, None if isinstance(error, UnknownTopicError) else error)

    patch.setattr(CommitLane, "_answer", confirming)


def _commit_an_absent_partition_until_the_end(patch: Patch) -> None:
    """A commit of a partition that does not exist is sent again until the call's time is over."""
    patch.setattr(commits, "_UNKNOWN_TOPIC_S", 1e9)


def _unsubscribe_late(patch: Patch) -> None:
    """``unsubscribe`` waits although nothing has to be awaited."""
    revoke = Engine.revoke_all

    async def late(self: Engine, ends: float) -> Any:
        await asyncio.sleep(5.0)
        return await revoke(self, ends)

    patch.setattr(Engine, "revoke_all", late)


def _do_not_know_of_the_callback(patch: Patch) -> None:
    """``health()`` says of a callback that runs that it is due in the next poll."""
    patch.setattr(Engine, "called", property(lambda self: frozenset()))


_BY_HAND: Final = attrs.evolve(
    history(*(Fault(1_000 + 900 * number, "by-hand", 0, number, 25_000) for number in range(6))), calm_calls=True
)
_ABSENT: Final = [Fault(3_000 + 1_000 * number, "commit-absent", 0, number) for number in range(6)]
_STOPS: Final = [Fault(4_000 + 3_000 * number, ("restart", "enforce")[number % 2], number, 0, 1_000) for number in range(6)]
_ASSIGNS: Final = history(*_STOPS, assigns=True)
_CALM: Final = attrs.evolve(history(members=6), calm_calls=True)
_IN_CALLBACKS: Final = history(*_STOPS, members=4, callback_ms=3_000)

#: Name -> the bug, the rules that it may break, and the history.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], tuple[str, ...], Scenario]]] = {
    "begin at the commit instead": (_begin_at_the_commit_instead, ("skipped", "again"), _BY_HAND),
    "take a partition twice": (_take_a_partition_twice, ("callbacks",), _BY_HAND),
    "forget what on_assign chose": (_forget_what_on_assign_chose, ("skipped",), _ASSIGNS),
    "confirm a commit of an absent partition": (_confirm_a_commit_of_an_absent_partition, ("answered",), history(*_ABSENT)),
    "commit an absent partition until the end": (_commit_an_absent_partition_until_the_end, ("answered", "late"), _BY_HAND),
    "unsubscribe late": (_unsubscribe_late, ("late",), _CALM),
    "do not know of the callback": (_do_not_know_of_the_callback, ("health",), _IN_CALLBACKS),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, rules, scenario = PLANTED[name]
    assert_reveals(scenario, plant, rules, monkeypatch)
