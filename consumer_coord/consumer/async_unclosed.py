"""Make the member of an asyncio consumer leave its group if the consumer was not closed."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final

from consumer_coord.errors import CoordinatorError, IllegalStateError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)

#: Time limit for the last commits and the LeaveGroup of a member that was not closed, in milliseconds.
_LEAVE_MS = 5_000


class LoopMember:
    """Makes a member leave its group if its loop ends, or the consumer is dropped, without ``close()``.

    ``asyncio.run`` cancels and awaits every task before it closes the loop. So a task of this object makes the member leave the
    group when the task is cancelled. The object has no reference to the consumer, so that a dropped consumer can be collected.
    ``release`` closes the connections and the data plane.
    """

    def __init__(self, consumer: object, core: ConsumerCoordinator, release: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(_leave_unless(self._closed, core, release), name=f"watch {core.config.group_id}")
        self._dropped = weakref.finalize(consumer, _dropped, self._loop, self._task, core.config.group_id)
        self._dropped.atexit = False

    @property
    def orphaned(self) -> bool:
        """True when the loop has ended."""
        return self._loop.is_closed()

    def check_loop(self) -> None:
        """Raise :class:`~consumer_coord.errors.IllegalStateError` if called on a loop that is not the member's."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            # No loop is running: a method that is not a coroutine was called outside a loop.
            return
        if running is not self._loop:
            ended = ", which has ended" if self.orphaned else ""
            raise IllegalStateError(
                f"this consumer belongs to another event loop{ended}: create one consumer in each loop, and close it there"
            )

    def close(self) -> None:
        """End the task that waits for a dropped consumer; called by the consumer's ``close()``."""
        self._dropped.detach()
        if not self._closed.done():
            self._closed.set_result(None)


async def _leave_unless(
    closed: asyncio.Future[None], core: ConsumerCoordinator, release: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    try:
        await closed
    except asyncio.CancelledError:
        logger.warning(
            "an AsyncGroupConsumer of group %r was not closed: its event loop ended, or the consumer was dropped. The member"
            " leaves the group now. Use `async with`, or await close()",
            core.config.group_id,
        )
        try:
            await core.close(_LEAVE_MS)
        except CoordinatorError as error:
            logger.warning("group %r: the member could not leave: %s", core.config.group_id, error)
        finally:
            await release()
        raise


def _dropped(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], group_id: str) -> None:
    """End the member of a consumer that was garbage-collected; may run on any thread, as garbage collection may."""
    if task.done():
        return
    if loop.is_closed():
        logger.warning(
            "an AsyncGroupConsumer of group %r was not closed before its event loop: the member stays in the group until"
            " session.timeout.ms has passed. Use `async with`, or await close()",
            group_id,
        )
    else:
        loop.call_soon_threadsafe(task.cancel)
