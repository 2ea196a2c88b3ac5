"""The background tasks of one member; if a task crashes, the application's next poll raises the error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from consumer_coord.errors import CoordinatorError
from consumer_coord.group.member_log import MemberLog

T = TypeVar("T")


class BackgroundTasks:
    """The tasks of one member, which are cancelled when the member ends; all methods run on the member's loop."""

    def __init__(self, group_id: str, log: MemberLog, on_crash: Callable[[CoordinatorError], None]) -> None:
        """Start without tasks. If a task ends with an exception, ``on_crash`` receives the error for the application."""
        self._group_id = group_id
        self._log = log
        self._on_crash = on_crash
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._look_ups: set[asyncio.Task[Any]] = set()
        self._ended = False

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""
        task = self._loop.create_task(work, name=f"{name} of {self._group_id}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def look_up(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a look-up, whose result and error its caller reads; :meth:`end_look_ups` cancels it."""
        task = self._loop.create_task(work, name=f"look-up of {self._group_id}")
        self._look_ups.add(task)
        task.add_done_callback(self._look_ups.discard)
        # Mark the exception as retrieved, because no code awaits this task after the consumer was closed.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def end_look_ups(self) -> None:
        """Cancel every look-up, and wait until all have ended."""
        await _cancelled(self._look_ups)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._ended:
            return
        error = task.exception()
        if error is None:
            return
        self._log.error("a background task crashed", exc_info=error)
        crash = CoordinatorError(f"the coordinator's task {task.get_name()!r} crashed: {error!r}; please report this")
        crash.__cause__ = error
        self._on_crash(crash)

    async def end(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._ended = True
        await _cancelled(self._tasks)


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
