"""The background tasks of one member; if a task crashes, the application's next poll raises the error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from consumer_coord.errors import CoordinatorError
from consumer_coord.group.member_log import MemberLog


class BackgroundTasks:
    """The tasks of one member, which are cancelled when the member ends; all methods run on the member's loop."""

    def __init__(self, group_id: str, log: MemberLog, on_crash: Callable[[CoordinatorError], None]) -> None:
        """Start without tasks. If a task ends with an exception, ``on_crash`` receives the error for the application."""
        self._group_id = group_id
        self._log = log
        self._on_crash = on_crash
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""
        task = self._loop.create_task(work, name=f"{name} of {self._group_id}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

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
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
