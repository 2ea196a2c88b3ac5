"""Threads that receive the rest of large frames without the GIL.

While the application computes, the loop waits up to 5 ms for the GIL after every read, and a response of 8 MB takes twenty
reads. So another thread receives such a response with one call of the kernel, and takes the GIL once.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

#: Seconds after which a thread without work ends.
_IDLE_S: Final = 5.0
#: How long a thread waits for further bytes of a frame, in milliseconds. Afterwards the loop receives the rest.
PATIENCE_MS: Final = 100

#: ``receive(fd, buffer, wake_from, patience_ms)`` returns the number of bytes received: fewer than the buffer has room for, if
#: the connection ended, or if no byte arrived for ``patience_ms`` milliseconds.
Receive = Callable[[int, memoryview, int, int], int]


@functools.cache
def find_receive() -> Receive | None:
    """Return the kernel's function; None if the kernel was not compiled, or cannot receive on this platform.

    Only a large frame loads the kernel, because most programs that use this package's connections never decode a record.
    """
    found: Receive | None = getattr(importlib.import_module("consumer_coord.columns.kernel").kernel, "receive", None)
    return found


class Threads:
    """Daemon threads that run short jobs, as many threads as there are jobs at a time."""

    def __init__(self, name: str) -> None:
        """Start no thread yet."""
        self._name = name
        self.forget()

    def forget(self) -> None:
        """Start without threads in a child process, which has none of them."""
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        #: Threads that wait for a job, less the jobs that wait for a thread.
        self._idle = 0

    def run(self, job: Callable[[], object]) -> None:
        """Run a job, which must not raise, in a thread."""
        with self._lock:
            self._idle -= 1
            fresh = self._idle < 0
            if fresh:
                self._idle += 1
        if fresh:
            threading.Thread(target=self._work, args=[job], name=self._name, daemon=True).start()
        else:
            self._jobs.put(job)

    def _work(self, job: Callable[[], object]) -> None:
        while True:
            job()
            del job
            with self._lock:
                self._idle += 1
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return
                # A job was promised to this thread just now.
                job = self._jobs.get()


#: The threads of this process.
threads: Final = Threads("consumer-coord-receive")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.forget)
