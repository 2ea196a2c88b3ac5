"""Traces that a test must not leave: threads that keep the interpreter alive, child processes, changed logging."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Set

import attrs

from consumer_coord.testing.processes import lasting
from tests.support.processes import children

#: Time for threads and processes that are ending, in seconds.
_GRACE_S = 5.0


def left_behind(threads_before: set[threading.Thread], processes_before: Set[int]) -> list[str]:
    """Return the new non-daemon threads and the new child processes of this process, one line each."""
    end_s = time.monotonic() + _GRACE_S
    while True:
        found = list(_new(threads_before, processes_before))
        if not found or time.monotonic() > end_s:
            return found
        time.sleep(0.05)


def _new(threads_before: set[threading.Thread], processes_before: Set[int]) -> Iterator[str]:
    for thread in threading.enumerate():
        if thread not in threads_before and not thread.daemon:
            yield f"thread {thread.name}"
    for pid, command in children(processes_before).items():
        if pid not in lasting:
            yield f"process {pid}: {command[:200]}"


@attrs.frozen
class LoggingSetUp:
    """The settings that decide which log lines of the package are shown: a test that changes them would silence later tests."""

    disabled_up_to: int
    loggers: dict[str, tuple[int, bool, bool]]
    handlers: list[logging.Handler]

    @classmethod
    def now(cls) -> LoggingSetUp:
        """Return the present settings."""
        return cls(logging.root.manager.disable, _ours(), _handlers())

    def changes(self) -> list[str]:
        """Return the changes since then, one line each, and undo them."""
        return list(self._put_back())

    def _put_back(self) -> Iterator[str]:
        if logging.root.manager.disable != self.disabled_up_to:
            yield f"logging.disable({logging.root.manager.disable})"
            logging.disable(self.disabled_up_to)
        for name, now in _ours().items():
            before = self.loggers.get(name, (logging.NOTSET, True, False))
            if now != before:
                yield f"logger {name or 'root'}: (level, propagate, disabled) {before} -> {now}"
                logger = logging.getLogger(name)
                logger.setLevel(before[0])
                logger.propagate, logger.disabled = before[1:]
        for handler in _handlers():
            if handler not in self.handlers:
                yield f"{handler} of the root logger"
                logging.root.removeHandler(handler)


def _ours() -> dict[str, tuple[int, bool, bool]]:
    names = ["", *(name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == "consumer_coord")]
    return {name: (one.level, one.propagate, one.disabled) for name in names for one in [logging.getLogger(name)]}


def _handlers() -> list[logging.Handler]:
    return [one for one in logging.root.handlers if not type(one).__module__.startswith("_pytest.")]
