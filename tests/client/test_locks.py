"""A signal handler that raises anywhere around ``with lock`` leaves no lock locked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from consumer_coord.locks import Lock

INTERRUPTS = 40


class Interrupt(BaseException):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def _interrupting() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def _use(lock: Any) -> None:
    """Until the signal comes.  It counts this process's own time: on a busy machine too it comes inside the loop."""
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)
    while True:
        with lock:
            pass


def test_an_interrupt_leaves_no_lock_locked() -> None:
    lock = Lock()
    for _ in range(INTERRUPTS):
        with pytest.raises(Interrupt):
            _use(lock)
        assert not lock.locked()
