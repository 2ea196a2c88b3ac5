"""Processes on one virtual clock: each can be stopped, continued and killed, as SIGSTOP, SIGCONT and SIGKILL do.

A :class:`Process` is an event loop to the code that runs in it, and a name for a share of a
:class:`~consumer_coord.simulation.loop.VirtualTimeLoop` to the simulation.  While it stands still none of its callbacks
run: timers that came up and data that arrived wait, and all of it happens at once when it goes on, which is what a member
meets that was hung past its session.  A killed one runs no ``finally`` and sends no farewell.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack

from consumer_coord.simulation.loop import Handle, SharesClock, SimulationError, Timer, VirtualTimeLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Process(SharesClock):
    """One process of the simulation, made by :meth:`on`; start its program with :meth:`create_task`."""

    #: As the loop's own.
    get_debug = bool

    def __init__(self, loop: VirtualTimeLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        # Asked most often, so without a frame of this class's own.
        self.time = loop.time  # type: ignore[method-assign]
        self._timer_handle_cancelled = loop._timer_handle_cancelled
        self.frozen = False
        self.dead = False
        #: Read by the loop: none of this process's callbacks run.
        self.halted = False
        #: Seconds that it stood still in all, the present time of standing still left out.
        self.stood_still_s = 0.0
        self._frozen_at = 0.0
        self._queue = loop.queue
        self._put_off: list[asyncio.Handle] = []
        #: The tasks of a killed process stay referenced, or collecting them would run their ``finally``.
        self._remains: list[asyncio.Task[Any]] = []
        loop.processes.append(self)

    @classmethod
    def on(cls, loop: VirtualTimeLoop, name: str) -> Process:
        """A process on ``loop``.  What an event loop does with sockets and signals stays unimplemented."""
        return cls(loop, name)

    # -- stopped, continued, killed ---------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stand still (SIGSTOP, a long garbage collection, a suspended machine)."""
        if not self.frozen:
            self._frozen_at = self.loop.time()
        self.frozen = self.halted = True

    def thaw(self) -> None:
        """Go on: everything that came up meanwhile happens now, in its order."""
        if self.frozen and not self.dead:
            self.frozen = self.halted = False
            self.stood_still_s += self.loop.time() - self._frozen_at
            self.loop.requeue(self._put_off)
            self._put_off = []

    def kill(self) -> None:
        """End at once (SIGKILL)."""
        if self.dead:
            return
        self.dead = self.halted = True
        self._remains = self.loop.tasks_of(self)
        # After that: a task that has not begun lives by its first step alone.
        self._put_off = []
        for task in self._remains:
            # asyncio would warn that they were destroyed while pending; a killed process does just that.
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def dispose(self) -> None:
        """After the run: end what a killed process left, rather than when they are collected."""
        events._set_running_loop(self)
        try:
            for task in self._remains:
                with contextlib.suppress(Exception):
                    task.get_coro().close()
        finally:
            events._set_running_loop(None)
        self._remains = []

    def put_off(self, handle: asyncio.Handle) -> None:
        """Called by the loop for a callback that came up while this process stood still."""
        if not self.dead:
            self._put_off.append(handle)

    # -- an event loop ----------------------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        handle = Handle(callback, args, self, context)
        self._queue.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's; there is one thread."""
        return self.loop.soon(self, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        return Timer(self.loop, when, callback, args, self, context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        loop = self.loop
        return Timer(loop, loop.moment + delay, callback, args, self, context)

    def create_future(self) -> asyncio.Future[Any]:
        """As asyncio's."""
        return self.loop.future_of(self)

    def create_task(self, coro: Any, *, name: object = None, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """As asyncio's; also from outside the process, to start its program."""
        return self.loop.task_of(self, coro, name, context)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Run ``func`` inline: it takes no virtual time."""
        return self.loop.inline(self, func, args)

    def is_running(self) -> bool:
        """True until it is killed."""
        return not self.dead

    def is_closed(self) -> bool:
        """True once it is killed."""
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Kept by the loop, with the name of the process; a killed process has nothing to say."""
        if not self.dead:
            self.loop.errors.append({**context, "message": f"{self.name}: {context.get('message')}"})

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: there is no network here but the simulated one."""
        raise SimulationError("a simulated process has no sockets: hand a simulated connector in")
