"""The environment for blocking APIs: one background thread with one loop, for all coordinators of the process.

Fifty members use one thread. The thread does not exist in a forked child process. So every object checks its process, and a
call in the child raises :class:`~consumer_coord.errors.ForkedError` and sends nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from consumer_coord.errors import ClosedError, ConcurrentUseError, ForkedError, RequestTimedOutError
from consumer_coord.group.application_polls import Application
from consumer_coord.log_text import get_logger
from consumer_coord.net.shared_clusters import SharedClusters
from consumer_coord.runtime.locks import Bell, Lock
from consumer_coord.runtime.outcome import Outcome, start_on

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: A function to run at interpreter exit, which leaves a group.
Leave = Callable[[], Coroutine[Any, Any, None]]

#: Time limit at exit, in seconds, for all members to leave over open connections.
EXIT_TIMEOUT_S = 1.0

#: How long a blocking call still waits after the time limit of its coroutine, in seconds.
_GRACE_S = 5.0


class Runtime:
    """The background thread and its loop."""

    _instance: Runtime | None = None
    _instance_lock = Lock()

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.clusters: SharedClusters = SharedClusters()
        #: The applications to notify in a forked child, so that even a poll that only checks for changes notices the fork.
        self.applications: weakref.WeakSet[Application] = weakref.WeakSet()
        self._at_exit: dict[Leave, None] = {}
        started = Bell()
        self.thread: threading.Thread = threading.Thread(target=self._run, args=(started,), name="consumer-coord", daemon=True)
        self.thread.start()
        started.wait()
        atexit.register(self._leave_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @classmethod
    def shared(cls) -> Runtime:
        """Return this process's runtime, which the first call starts; a forked child gets its own runtime."""
        with cls._instance_lock:
            if cls._instance is None or cls._instance.pid != os.getpid() or not cls._instance.thread.is_alive():
                cls._instance = cls()
            return cls._instance

    def _run(self, started: Bell) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        self.loop.run_forever()

    def _forked(self) -> None:
        for application in self.applications:
            application.look_again()

    def check_process(self) -> None:
        """Raise :class:`ForkedError` in another process, and :class:`ClosedError` while the interpreter shuts down.

        The background thread does not run there, so a call would wait for ever. Python ends daemon threads before it destroys
        the modules' objects, whose ``__del__`` may close a consumer.
        """
        if os.getpid() != self.pid:
            raise ForkedError(
                f"this object belongs to process {self.pid}, from which process {os.getpid()} was forked:"
                " create a new consumer in the child"
            )
        if self.loop.is_closed() or sys.is_finalizing():
            raise ClosedError(
                "the background loop has ended, because the Python interpreter is shutting down: close the consumer before the"
                " program ends"
            )

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], *, timeout_ms: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it, from any other thread.

        ``timeout_ms`` is the coroutine's own time limit. A few seconds after this limit, the wait ends in any case.
        """
        if threading.current_thread() is self.thread:
            raise ConcurrentUseError("a blocking call on the loop's thread would wait for itself: await the coroutine")
        future = self.submit(work)
        limit_s = None if timeout_ms is None else timeout_ms / 1000 + _GRACE_S
        try:
            answered = future.wait(limit_s)
        except BaseException:
            # The waiting thread was interrupted, for example by Ctrl-C, so end the coroutine on the loop, too.
            future.cancel()
            raise
        if not answered:
            future.cancel()
            raise RequestTimedOutError(f"the background thread did not respond within {limit_s:.0f} s")
        return future.result()

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Outcome[T]:
        """Start a coroutine on the loop, from any thread."""
        self.check_process()
        return start_on(self.loop, work())

    def on_exit(self, leave: Leave) -> None:
        """Run ``leave`` at interpreter exit, unless :meth:`forget` removes it before the exit."""
        self._at_exit[leave] = None

    def forget(self, leave: Leave) -> None:
        """Do not run ``leave`` at interpreter exit."""
        self._at_exit.pop(leave, None)

    def _leave_at_exit(self) -> None:
        if os.getpid() != self.pid or not self._at_exit or self.loop.is_closed():
            return

        async def leave_all() -> None:
            await asyncio.gather(*(leave() for leave in tuple(self._at_exit)), return_exceptions=True)

        future = start_on(self.loop, leave_all())
        if not future.wait(EXIT_TIMEOUT_S):
            logger.debug("not every member could leave within %.1f s of the exit", EXIT_TIMEOUT_S)
