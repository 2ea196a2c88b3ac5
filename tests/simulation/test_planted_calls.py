"""Bugs that only calls of several tasks, or calls in an exception handler, reveal, each in a small history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from consumer_coord.consumer.async_consumer import AsyncGroupConsumer
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.simulation.application import BESIDE
from consumer_coord.simulation.play import play
from consumer_coord.simulation.scenario import Fault, Scenario
from tests.support.simulation.small_history import history

Patch = pytest.MonkeyPatch


def _finish_what_any_task_has_in_hand(patch: Patch) -> None:
    """``unsubscribe`` finishes the records that another task is processing."""
    finish = AsyncGroupConsumer._finish_in_order

    def finish_all(self: AsyncGroupConsumer) -> None:
        finish(self)
        for task in tuple(self._deliveries.last):
            self._deliveries.finish(task)

    patch.setattr(AsyncGroupConsumer, "_finish_in_order", finish_all)


def _finish_in_the_handler_of_an_exception(patch: Patch) -> None:
    """``unsubscribe`` finishes the records whose processing has just raised an exception."""

    def finish(self: AsyncGroupConsumer) -> None:
        self._deliveries.finish(asyncio.current_task())

    patch.setattr(AsyncGroupConsumer, "_finish_in_order", finish)


def _take_each_request_for_one_of_the_reading_task(patch: Patch) -> None:
    """Any call of any task finishes what was delivered last, whoever received it."""
    finish = Deliveries.finish

    def finish_all(self: Deliveries[Any], receiver: Any) -> None:
        for one in (receiver, *self.last):
            finish(self, one)

    patch.setattr(Deliveries, "finish", finish_all)


def _faults(kind: str, value: int) -> list[Fault]:
    return [Fault(at_ms=3_000 + 2_437 * number, kind=kind, target=number, value=value) for number in range(12)]


#: Records that take so long that calls meet them: a slow application with automatic commits.
_SLOW: Final = Fault(at_ms=2_500, kind="slow", value=300, for_ms=30_000)
_BESIDE = history(_SLOW, *_faults("beside", BESIDE.index("unsubscribe")), members=1, commit="auto", commit_every_ms=60_000)
_QUIT = history(*_faults("quit", 3), members=1, commit="auto", commit_every_ms=60_000)

#: Name -> the bug, and the history in which a commit covers a record that was not processed.
PLANTED: Final[Mapping[str, tuple[Callable[[Patch], None], Scenario]]] = {
    "finish what any task has in hand": (_finish_what_any_task_has_in_hand, _BESIDE),
    "take each request for one of the reading task": (_take_each_request_for_one_of_the_reading_task, _BESIDE),
    "finish in the handler of an exception": (_finish_in_the_handler_of_an_exception, _QUIT),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, scenario = PLANTED[name]
    assert play(scenario).violation is None
    plant(monkeypatch)
    found = play(scenario).violation
    assert found is not None
    assert found.rule == "skipped", found


@pytest.mark.parametrize("what", BESIDE)
def test_another_task_calls_while_records_are_processed(what: str) -> None:
    outcome = play(history(_SLOW, *_faults("beside", BESIDE.index(what)), commit="auto"))
    assert outcome.violation is None, outcome.history.tail(40)
