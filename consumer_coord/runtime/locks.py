"""Locks and waits that a raising signal handler, such as Ctrl-C's, cannot break.

In CPython 3.14, ``with lock`` may run a signal handler between the return of ``__enter__`` and the beginning of the block
(CPython's issue 148874). Ctrl-C there leaves a lock of `threading` locked forever, and blocks the next thread that acquires it,
here the coordinators' loop. Older interpreters begin the block without such a point.

``threading.Event.wait`` has a similar problem in any version. After its wake-up it reacquires a lock that the other thread
still holds; a handler that raises there makes it release a lock that it does not own, and the other thread gets a RuntimeError.
"""

from __future__ import annotations

import contextlib
import sys
import threading

if sys.version_info >= (3, 14):
    import _thread

    class Lock(_thread.RLock):  # type: ignore[misc]
        """A lock for ``with lock`` only; the end of the block is a C call, and no handler runs before it."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:  # A signal handler raised after the acquisition, or during the wait for it.
                if self._is_owned():
                    self.release()
                raise

else:
    Lock = threading.Lock


class Bell:
    """An event for one waiting thread; the end of a wait clears the event."""

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        # Locked unless the bell rings. One C call both waits and acquires.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def set(self) -> None:
        """Ring until a wait ends; from any thread."""
        with contextlib.suppress(RuntimeError):  # The bell rings already.
            self._quiet.release()

    def clear(self) -> None:
        """Stop ringing."""
        self._quiet.acquire(blocking=False)

    def is_set(self) -> bool:
        """Return whether the bell rings."""
        return not self._quiet.locked()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the bell rings, at most ``timeout_s`` seconds; return False at the timeout."""
        if timeout_s is None:
            return self._quiet.acquire()
        return self._quiet.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
