"""Leave the group whenever a planner process ends: by a signal, or when the parent process ends.

One thread watches for both cases, and another one leaves. C code delivers a signal to the first one at once
(:func:`signal.set_wakeup_fd`). So the main thread may block in a C call, hold a lock, or be leaving the group because the
standard input ended (``stop()``). In all cases the process leaves the group in one common operation.

The process ends even if leaving the group blocks, or if Python's shutdown blocks (for instance, because a thread looks up a
host name): the first thread limits the time for each to :data:`END_WITHIN_S`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)

_LOOK_EVERY_S = 0.25

#: Time limit for the end of the process, in seconds: after a signal, and after the process left the group without a signal.
END_WITHIN_S = 5.0

#: Spark sends SIGTERM. A terminal sends SIGHUP when it is closed, and SIGINT for Ctrl-C.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_leaving: list[Callable[[], None]] = []
_watching: int | None = None
#: Deadline (``time.monotonic()``) for the end of the process, set after the last member left without a signal.
_gone_by_s: float | None = None


def leave_with_process(leave: Callable[[], None]) -> None:
    """Call ``leave`` and end this process when a signal arrives or the parent process ends.

    Call this function from the main thread.
    """
    global _watching
    _leaving.append(leave)
    if _watching == os.getpid():
        return
    _watching = os.getpid()
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _go_on)
    # Both threads start here, because Python 3.12 starts no thread after its shutdown has begun.
    begin, left = threading.Event(), threading.Event()
    threading.Thread(target=_leave_all, args=(begin, left), name="kafka-group-leave", daemon=True).start()
    watch = threading.Thread(
        target=_watch, args=(reading, writing, os.getppid(), begin, left), name="kafka-group-end", daemon=True
    )
    watch.start()


def forget(leave: Callable[[], None]) -> None:
    """Record that a member left because Spark's runner ends.

    After the last member has left, the process has :data:`END_WITHIN_S` to end.
    """
    global _gone_by_s
    if leave in _leaving:
        _leaving.remove(leave)
        if not _leaving:
            _gone_by_s = time.monotonic() + END_WITHIN_S


def _go_on(number: int, frame: FrameType | None) -> None:
    """Ignore the signal in the main thread, which continues until the process ends."""


def _watch(reading: socket.socket, writing: socket.socket, parent: int, begin: threading.Event, left: threading.Event) -> None:
    # ``writing`` is a parameter only to keep the socket open, because the last reference closes the descriptor.
    code = None
    while code is None:
        ready, _, _ = select.select([reading], [], [], _LOOK_EVERY_S)
        if ready:
            code = next((128 + number for number in reading.recv(64) if number in _SIGNALS), None)
        elif os.getppid() != parent or (_gone_by_s is not None and time.monotonic() > _gone_by_s):
            code = 1
    begin.set()
    left.wait(END_WITHIN_S)
    # Not sys.exit, because the main thread may block, and a Python interpreter that ends waits for the main thread.
    os._exit(code)


def _leave_all(begin: threading.Event, left: threading.Event) -> None:
    begin.wait()
    for leave in tuple(_leaving):
        try:
            leave()
        except Exception:
            logger.exception("leaving the group failed")
    left.set()
