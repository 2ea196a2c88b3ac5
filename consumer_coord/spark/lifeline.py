"""The ends of a planner process, and leaving the group on each: signals, and a parent that is gone.

One thread looks after both.  A signal reaches it through :func:`signal.set_wakeup_fd`, written by C code at once, so it
does not matter what the main thread does then: it may hang in a C call, hold a lock, or leave the group itself because
its input ended, which Spark's own runner makes it do (``stop()``).  Leaving is one operation for all of them.

The process ends even if leaving hangs, or Python's own end does (it waits for threads that look up a host name, say): this
thread gives both :data:`END_WITHIN_S`.
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

from consumer_coord.printable import get_logger

logger: Final = get_logger(__name__)

_LOOK_EVERY_S = 0.25

#: Seconds until the process is gone after a signal to end, or after it left because its input ended.
END_WITHIN_S = 5.0

#: Spark sends SIGTERM.  The others come from terminals: one that closes, Ctrl-C for its whole process group.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

_leaving: list[Callable[[], None]] = []
_watching: int | None = None
#: Deadline for the end of the process after it left on its own; ``time.monotonic()``.
_gone_by_s: float | None = None


def leave_with_process(leave: Callable[[], None]) -> None:
    """Call ``leave`` when this process gets a signal to end or loses its parent, and end it then; from the main thread."""
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
    watch = threading.Thread(target=_watch, args=(reading, writing, os.getppid()), name="kafka-group-end", daemon=True)
    watch.start()


def forget(leave: Callable[[], None]) -> None:
    """Note that a member left because Spark's runner ends; after the last one the process has :data:`END_WITHIN_S` to end."""
    global _gone_by_s
    if leave in _leaving:
        _leaving.remove(leave)
        if not _leaving:
            _gone_by_s = time.monotonic() + END_WITHIN_S


def _go_on(number: int, frame: FrameType | None) -> None:
    """Ignore the signal in the main thread, which continues until the process ends."""


def _watch(reading: socket.socket, writing: socket.socket, parent: int) -> None:
    # ``writing`` is held here, because the descriptor is closed with its last holder.
    code = None
    while code is None:
        ready, _, _ = select.select([reading], [], [], _LOOK_EVERY_S)
        if ready:
            code = next((128 + number for number in reading.recv(64) if number in _SIGNALS), None)
        elif os.getppid() != parent or (_gone_by_s is not None and time.monotonic() > _gone_by_s):
            code = 1
    leaving = threading.Thread(target=_leave_all, name="kafka-group-leave", daemon=True)
    leaving.start()
    leaving.join(END_WITHIN_S)
    # Not sys.exit: the main thread may hang, and an interpreter that ends waits for it.
    os._exit(code)


def _leave_all() -> None:
    for leave in tuple(_leaving):
        try:
            leave()
        except Exception:
            logger.exception("leaving the group failed")
