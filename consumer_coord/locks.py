"""A lock that a signal handler cannot leave locked.

``with lock`` of CPython 3.14 calls ``__enter__`` as any other call, and may run a signal handler between that call's return and
the beginning of the block (CPython's issue 148874).  Ctrl-C there leaves a lock of `threading` locked for ever, and the thread
that wants it next, here the coordinators' loop, stands still.  Older interpreters begin the block without such a point.
"""

from __future__ import annotations

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
