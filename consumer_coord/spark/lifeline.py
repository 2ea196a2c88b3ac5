"""The ends of a planner process, and leaving the group on each: SIGTERM, SIGHUP, a parent that is gone.

The end of the planner's input is the fourth; Spark's own runner calls ``stop()`` for that one.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.25

_leaving: list[Callable[[], None]] = []
_watching: int | None = None


def leave_with_process(leave: Callable[[], None]) -> None:
    """Call ``leave`` when this process is told to end or loses its parent; from the main thread."""
    global _watching
    _leaving.append(leave)
    if _watching == os.getpid():
        return
    _watching = os.getpid()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _on_signal)
    parent = os.getppid()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_LOOK_EVERY_S):
            if os.getppid() != parent:
                _leave_all()
                os._exit(1)

    threading.Thread(target=watch, name="kafka-group-parent", daemon=True).start()


def forget(leave: Callable[[], None]) -> None:
    """It has left."""
    if leave in _leaving:
        _leaving.remove(leave)


def _leave_all() -> None:
    for leave in tuple(_leaving):
        try:
            leave()
        except Exception:
            logger.exception("leaving the group failed")


def _on_signal(number: int, frame: FrameType | None) -> None:
    _leave_all()
    # Not sys.exit: that would go through whatever the main thread is doing, and it may hang there.
    os._exit(128 + number)
