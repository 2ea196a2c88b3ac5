"""A signal handler that raises breaks neither locks nor waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from consumer_coord.runtime.locks import Bell, Lock
from consumer_coord.runtime.outcome import start_on
from tests.support.consumer.interrupts import Interrupt, keep_quiet_in_destructors

INTERRUPTS = 40


@pytest.fixture(autouse=True)
def _interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    # For example the destructor of an entry in asyncio's set of all tasks.
    keep_quiet_in_destructors(monkeypatch)
    before = signal.signal(signal.SIGVTALRM, interrupt)
    yield
    _disarm()
    signal.signal(signal.SIGVTALRM, before)


def _disarm() -> None:
    """Disarm the signal that may still arrive, so that it cannot disturb pytest after a failed test."""
    signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _use(lock: Any) -> None:
    """Use the lock until the signal arrives.

    The timer counts the CPU time of this process, so that it fires inside the loop even on a busy machine.
    """
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


def test_a_bell_rings_until_a_wait_ends() -> None:
    bell = Bell()
    assert not bell.wait(0)
    bell.set()
    bell.set()
    assert bell.is_set()
    assert bell.wait()
    assert not bell.wait(-1.0)
    bell.set()
    bell.clear()
    bell.clear()
    assert not bell.is_set()
    assert not bell.wait(0.001)


def _interrupt_often(wait: Callable[[], object], work: Callable[[], object]) -> None:
    """Interrupt a thread that waits repeatedly for another thread that works repeatedly; neither breaks."""
    ending, broken = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not ending.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - the test checks it
            broken.append(error)

    #: Filled by the signal handler. Python only prints an exception that a handler raises inside a destructor, so the loop
    #: below might not see it.
    raised: list[bool] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        raised.append(True)
        raise Interrupt

    signal.signal(signal.SIGVTALRM, interrupt)
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    try:
        for _ in range(INTERRUPTS):
            raised.clear()
            with contextlib.suppress(Interrupt):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)
                while worker.is_alive() and not raised:
                    wait()
    finally:
        _disarm()
    ending.set()
    worker.join(180)
    assert not worker.is_alive()
    assert not broken


def test_an_interrupt_breaks_no_bell() -> None:
    bell = Bell()
    _interrupt_often(lambda: bell.wait(180), bell.set)


# An interrupt before the coroutine is handed to its loop discards it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_breaks_neither_an_outcome_nor_its_loop() -> None:
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever, daemon=True)
    serving.start()

    async def nothing() -> int:
        return 1

    def wait() -> None:
        outcome = start_on(loop, nothing())
        assert outcome.wait(180)
        assert outcome.result() == 1

    _interrupt_often(wait, lambda: None)
    assert start_on(loop, nothing()).result(180) == 1
    loop.call_soon_threadsafe(loop.stop)
    serving.join(180)
    loop.close()
