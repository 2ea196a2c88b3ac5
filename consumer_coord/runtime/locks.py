"""Locks and waits that a raising signal handler, such as Ctrl-C's, cannot break.

In CPython 3.14, ``with lock`` may run a signal handler between the return of ``__enter__`` and the beginning of the block
(CPython's issue 148874). If Ctrl-C raises at this point, a lock of `threading` stays locked forever, and the next thread that
acquires the lock blocks; here this would be the coordinators' loop. Older interpreters run no handler at this point.

``threading.Event.wait`` has a similar problem in any version. After it wakes up, it acquires a lock that the other thread still
has. If a handler raises at this point, ``wait`` releases the lock that it does not have, and the other thread gets a
RuntimeError.
"""

from __future__ import annotations

import contextlib
import sys
import threading

if sys.version_info >= (3, 14):
    import _thread

    class Lock(_thread.RLock):  # type: ignore[misc]
        """A lock only for ``with lock``. At the end of the block a C function releases the lock, before any handler runs."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:  # A signal handler raised, during the wait for the lock or after the lock was acquired.
                if self._is_owned():
                    self.release()
                raise

else:
    Lock = threading.Lock


class Bell:
    """An event for one waiting thread. The event is cleared when the wait ends."""

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        # The lock is locked unless the bell rings, so that a single C call both waits for the bell and stops its ringing.
        self._quiet = threading.Lock()
        self._quiet.acquire()

    def set(self) -> None:
        """Ring the bell until a wait ends, or until :meth:`clear`; any thread may call this."""
        with contextlib.suppress(RuntimeError):  # The bell is already ringing.
            self._quiet.release()

    def clear(self) -> None:
        """Stop ringing."""
        self._quiet.acquire(blocking=False)

    def is_set(self) -> bool:
        """Return whether the bell rings."""
        return not self._quiet.locked()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the bell rings, but at most ``timeout_s`` seconds; return False at the timeout."""
        if timeout_s is None:
            return self._quiet.acquire()
        return self._quiet.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
