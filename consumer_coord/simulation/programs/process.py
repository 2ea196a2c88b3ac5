"""A process of a user's program: an event loop with signals, and without threads and sockets."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self, TypeVar, TypeVarTuple, Unpack

import attrs

from consumer_coord.environment import Transport
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.network import SimulatedNetwork
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.programs.where import program_line

#: Methods of an event loop that need the operating system.
_OF_THE_SYSTEM = (
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint"),
    *("connect_accepted_socket", "start_tls", "sendfile", "sock_sendfile", "sock_recv", "sock_recv_into", "sock_recvfrom"),
    *("sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "add_reader", "add_writer"),
    *("getaddrinfo", "getnameinfo", "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec"),
)


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """Discard everything that is logged inside the block, by any logger."""
    level = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(level)


class ForbiddenError(Exception):
    """The program did what is not possible in virtual time; the text names its line, and what to do instead."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{program_line()}: {what} is not possible in virtual time. {remedy}")


@attrs.define
class AnyAddress:
    """The connector of a process: addresses that no simulated broker has lead to the brokers in turn, as with a balancer."""

    _network: SimulatedNetwork
    _process: Process
    _brokers: Sequence[tuple[str, int]]
    _turn: int = 0

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection, like :meth:`consumer_coord.environment.Connector.connect`."""
        if not self._network.has_host(host):
            self._turn += 1
            host, port = self._brokers[self._turn % len(self._brokers)]
        return await self._network.connect(self._process, host, port)


class ProgramProcess(Process):
    """The event loop of one process of the program, or of the test itself.

    ``forbidden`` is called with each :class:`ForbiddenError`, because the program may catch the error. ``unhandled`` is called
    with the text of each exception that no code of the program awaited.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        name: str,
        forbidden: Callable[[ForbiddenError], None],
        unhandled: Callable[[str], None],
    ) -> None:
        super().__init__(loop, name)
        self._forbidden = forbidden
        self._unhandled = unhandled
        self._exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        #: Signal -> what the program calls for it.
        self._signal_handlers: dict[int, Callable[[], object]] = {}

    @classmethod
    def begin(
        cls,
        loop: VirtualTimeLoop,
        name: str,
        forbidden: Callable[[ForbiddenError], None],
        unhandled: Callable[[str], None],
    ) -> Self:
        """Return a new process."""
        return cls(loop, name, forbidden, unhandled)

    def forbid(self, what: str, remedy: str) -> NoReturn:
        """End the run, and raise :class:`ForbiddenError` in the program."""
        error = ForbiddenError(what, remedy)
        self._forbidden(error)
        raise error

    def dispose(self) -> None:
        """Close the remaining tasks after the run; what their ``finally`` blocks do in a process that is gone is no news."""
        hook = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        try:
            with without_logs():
                super().dispose()
        finally:
            sys.unraisablehook = hook

    # -- signals ------------------------------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call ``callback`` when the simulation sends the signal, as asyncio does."""
        self._signal_handlers[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Remove the handler of a signal; return whether there was one."""
        return self._signal_handlers.pop(sig, None) is not None

    def send_signal(self, sig: int) -> bool:
        """Call the handler of a signal soon; return False if there is none, so that the signal ends the process."""
        handler = self._signal_handlers.get(sig)
        if handler is not None:
            self.call_soon(handler)
        return handler is not None

    # -- exceptions that nobody awaits --------------------------------------------------------------------------------

    def set_exception_handler(self, handler: Callable[[Any, dict[str, Any]], object] | None) -> None:
        """Replace what is called for an exception that nobody awaits."""
        self._exception_handler = handler

    def get_exception_handler(self) -> Callable[[Any, dict[str, Any]], object] | None:
        """Return what :meth:`set_exception_handler` set."""
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report the exception in the story of the run."""
        if not self.dead:
            error = context.get("exception")
            self._unhandled(str(context.get("message")) if error is None else f"{context.get('message')}: {error!r}")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Call the program's handler, or report the exception in the story."""
        if self._exception_handler is None:
            self.default_exception_handler(context)
        elif not self.dead:
            self._exception_handler(self, context)

    # -- threads and sockets ------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> NoReturn:
        """Reject a thread; also of ``asyncio.to_thread``."""
        if isinstance(func, functools.partial) and func.args:
            # asyncio.to_thread runs the function in a copy of its context.
            func = func.args[0]
        self.forbid(
            f"a thread for {getattr(func, '__qualname__', func)}",
            "Call the function directly if it only computes; replace a blocking client with world.external(...).",
        )


def _of_the_system(name: str) -> Callable[..., NoReturn]:
    def method(self: ProgramProcess, *args: Any, **kwargs: Any) -> NoReturn:
        self.forbid(f"{name}()", "Replace the service that it connects to with world.external(...).")

    return method


for _name in _OF_THE_SYSTEM:
    setattr(ProgramProcess, _name, _of_the_system(_name))
