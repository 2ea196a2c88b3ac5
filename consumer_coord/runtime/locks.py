"""Locks and waits that a signal handler which raises, Ctrl-C's for one, cannot break.

``with lock`` of CPython 3.14 calls ``__enter__`` as any other call, and may run a signal handler between that call's return and
the beginning of the block (CPython's issue 148874).  Ctrl-C there leaves a lock of `threading` locked for ever, and the thread
that wants it next, here the coordinators' loop, stands still.  Older interpreters begin the block without such a point.

``threading.Event.wait`` is no better in any version: woken up, it wants the lock back that the other thread still holds; a
handler that raises there makes it release a lock that it does not have, and the other thread gets a RuntimeError for it.
"""

from __future__ import annotations

import contextlib
import sys
import threading

if sys.version_info >= (3, 14):
    import _thread

    class Lock(_thread.RLock):  # type: ignore[misc]
        """For ``with lock`` alone.  Leaving the block calls C, which no handler comes before."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:  # the handler of a signal raised behind the acquisition, or while waiting for it
                if self._is_owned():
                    self.release()
                raise

else:
    Lock = threading.Lock


class Bell:
    """An event for one thread that waits: it is over with the wait that it ends."""

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        # Locked while it does not ring.  One call of C waits for it and takes it.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def set(self) -> None:
        """Ring until a wait ends; from any thread."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._quiet.release()

    def clear(self) -> None:
        """Ring no more."""
        self._quiet.acquire(blocking=False)

    def is_set(self) -> bool:
        """Whether it rings."""
        return not self._quiet.locked()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it rings, at most ``timeout_s`` seconds; False when that time is over."""
        if timeout_s is None:
            return self._quiet.acquire()
        return self._quiet.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
