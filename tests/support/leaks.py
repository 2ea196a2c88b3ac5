"""What a test must not leave behind: threads that would keep the interpreter alive, and child processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from tests.support.processes import children, lasting

#: What is on its way out gets so long to be gone.
_GRACE_S = 5.0


def left_behind(threads_before: set[threading.Thread], children_before: set[int]) -> list[str]:
    """Non-daemon threads and child processes that were not there before, one line each."""
    end_s = time.monotonic() + _GRACE_S
    while True:
        found = list(_new(threads_before, children_before))
        if not found or time.monotonic() > end_s:
            return found
        time.sleep(0.05)


def _new(threads_before: set[threading.Thread], children_before: set[int]) -> Iterator[str]:
    for thread in threading.enumerate():
        if thread not in threads_before and not thread.daemon:
            yield f"thread {thread.name}"
    for pid, command in children().items():
        if pid not in children_before and pid not in lasting:
            yield f"process {pid}: {command[:200]}"
