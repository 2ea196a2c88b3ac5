"""Processes on one virtual clock: each process can be paused, resumed and killed, as if by SIGSTOP, SIGCONT and SIGKILL.

The program in a :class:`Process` uses the process as the event loop. For the simulation, a process is a named part of a
:class:`~consumer_coord.simulation.loop.VirtualTimeLoop`. While a process is paused, none of its callbacks run. Expired timers
and received data wait until the process resumes, as in a member that hangs for longer than the session timeout. A killed
process runs no ``finally`` and does not leave its group.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from asyncio import events
from collections import deque
from collections.abc import Callable
from typing import Any

from consumer_coord.environment import Environment
from consumer_coord.simulation.loop import SharesClock, Timer, VirtualTimeLoop


class _Arrival(Timer):
    """A timer on the clock of the loop, whatever the clock of its process shows."""

    __slots__ = ()


#: Maximum number of awaits in the ``finally`` blocks of one task.
_MOST_AWAITS = 100


def _close(coroutine: Any) -> None:
    """Close a coroutine whose ``finally`` blocks await: each of these awaits "ignores" the end, and needs another."""
    for _ in range(_MOST_AWAITS):
        try:
            coroutine.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" in str(error):
                continue
        except Exception:  # noqa: BLE001 - a killed process reports nothing
            return
        return


class Process(SharesClock):
    """A process of the simulation. Create it with :meth:`on`, and start its program with :meth:`create_task`."""

    def __init__(self, loop: VirtualTimeLoop, name: str) -> None:
        self.loop: VirtualTimeLoop = loop
        self.name = name
        # An attribute instead of a method, because ``time()`` is the most frequent call, and a method would add a Python frame.
        self.time: Callable[[], float] = loop.time
        self._timer_handle_cancelled = loop._timer_handle_cancelled
        self.frozen: bool = False
        self.dead: bool = False
        #: True while the process is frozen or dead, so that the loop runs none of its callbacks; the loop reads this attribute.
        self.halted: bool = False
        #: Total time for which the process was paused, in seconds; does not include a current pause.
        self.frozen_s: float = 0.0
        self._frozen_at = 0.0
        #: How fast the clock of this process runs, and the moments of the loop and of the process at the last change.
        self._rate = 1.0
        self._changed_at = self._changed_to = 0.0
        #: What the consumers of this process connect to; see :func:`consumer_coord.environment.of_running_loop`.
        self.consumer_coord_environment: Environment | None = None
        self.queue: deque[Any] = loop.queue
        self._put_off: list[asyncio.Handle] = []
        #: References to the tasks of a killed process. If Python collected these tasks, it would run their ``finally`` blocks.
        self._remains: list[asyncio.Task[Any]] = []
        loop.processes.append(self)

    @classmethod
    def on(cls, loop: VirtualTimeLoop, name: str) -> Process:
        """Create a process on ``loop``. The sockets and signals of an event loop are not implemented."""
        return cls(loop, name)

    # -- the clock --------------------------------------------------------------------------------------------------

    @property
    def is_steady(self) -> bool:
        """Whether the clock of this process has always shown the loop's time."""
        return self._rate == 1.0 and self._changed_at == self._changed_to

    def set_clock(self, rate: float, jump_s: float = 0.0) -> None:
        """Let the clock of this process run ``rate`` times as fast as the loop's, after a jump ahead.

        A jump counts as a pause: a monotonic clock jumps when it also counts the time in which its machine is suspended.
        """
        timers = self.loop.timers
        own = [entry for entry in timers if entry[2]._loop is self and not isinstance(entry[2], _Arrival)]
        self._changed_at, self._changed_to, self._rate = self.loop.moment, self._own_time() + jump_s, rate
        if not self.frozen:
            self.frozen_s += jump_s
        timers[:] = [entry for entry in timers if entry[2]._loop is not self or isinstance(entry[2], _Arrival)]
        timers += [(max(self.loop.moment, self._of_loop(timer._when)), number, timer) for _, number, timer in own]
        heapq.heapify(timers)
        # Attributes instead of methods, so that processes with steady clocks pay nothing.
        self.time = self._own_time
        vars(self).update(call_at=self._call_at, call_later=self._call_later)

    def _moment_of(self, moment: float) -> float:
        """Return what this process's clock shows at a moment of the loop's clock."""
        return self._changed_to + (moment - self._changed_at) * self._rate

    def _of_loop(self, moment: float) -> float:
        """Return the first moment of the loop's clock at which this process's clock shows at least ``moment``.

        If a timer fired before its time, its program would set another timer, for a time that rounds to nothing. If it fired
        after other moments that the clock shows alike, its program would wait for it without time passing.
        """
        found = self._changed_at + (moment - self._changed_to) / self._rate
        while self._moment_of(found) < moment:
            found = math.nextafter(found, math.inf)
        while self._moment_of(earlier := math.nextafter(found, -math.inf)) >= moment:
            found = earlier
        return found

    def _own_time(self) -> float:
        return self._moment_of(self.loop.time())

    def _call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return Timer(self.loop, when, callback, args, self, context, self._of_loop(when))

    def _call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        moment = self._moment_of(self.loop.moment)
        # A delay that rounds to nothing must pass, too, or a program that waits for the rest of a time waits for ever.
        when = max(moment + delay, math.nextafter(moment, math.inf)) if delay > 0 else moment
        return Timer(self.loop, when, callback, args, self, context, self._of_loop(when))

    def call_at_moment(self, moment: float, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in this process at a moment of the loop's clock, as when a frame arrives."""
        _Arrival(self.loop, moment, callback, args, self, None)

    # -- pause, resume, kill ----------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Pause the process, as after SIGSTOP, in a long garbage collection, or on a suspended machine."""
        if not self.frozen:
            self._frozen_at = self.time()
        self.frozen = self.halted = True

    def thaw(self) -> None:
        """Resume the process: run the callbacks that became ready during the pause, in order."""
        if self.frozen and not self.dead:
            self.frozen = self.halted = False
            self.frozen_s += self.time() - self._frozen_at
            self.queue.extend(self._put_off)
            self._put_off = []

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        if self.dead:
            return
        self.dead = self.halted = True
        self._remains = self.loop.tasks_of(self)
        # Clear the callbacks after tasks_of(), because the only reference to a task that has not begun is in the task's first
        # callback.
        self._put_off = []
        for task in self._remains:
            # Prevent asyncio's warning about pending tasks, because a killed process leaves such tasks.
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def dispose(self) -> None:
        """Close a killed process's tasks after the run, and before the garbage collector would close them."""
        events._set_running_loop(self)
        closed: set[asyncio.Task[Any]] = set()
        try:
            while left := [task for task in (*self._remains, *self.loop.tasks_of(self)) if task not in closed]:
                for task in left:
                    # A `finally` may start another task, which no step of the process will begin.
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
                closed.update(left)
        finally:
            events._set_running_loop(None)
        self._remains = []

    def put_off(self, handle: asyncio.Handle) -> None:
        """Keep a callback that became ready while this process was paused."""
        if not self.dead:
            self._put_off.append(handle)

    # -- methods of an event loop -----------------------------------------------------------------------------------

    def is_running(self) -> bool:
        """Return True until the process is killed."""
        return not self.dead

    def is_closed(self) -> bool:
        """Return True after the process was killed."""
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error in the loop's list of errors, with the name of the process, unless the process was killed."""
        if not self.dead:
            self.loop.errors.append({**context, "message": f"{self.name}: {context.get('message')}"})
