"""Work until a signal, and serve an ASGI application; what needs the extra ``web`` is imported when something is served."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from consumer_coord.admin.commands import warn
from consumer_coord.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

T = TypeVar("T")


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``127.0.0.1:8098``, ``[::1]:0``, ``:8098`` into host and port; raise :class:`ConfigurationError`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigurationError(f"--listen {text!r} is not HOST:PORT, such as 127.0.0.1:8098")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host or "127.0.0.1", int(port)


async def serve(
    listen: str,
    application: Callable[[bool], ASGIApp],
    stop: asyncio.Event,
    *,
    shows: str,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Print the address, and serve ``application(loopback)`` at it until ``stop`` is set; then call ``ending``, and close.

    ``shows`` is what other machines could see, for a warning if the address is not loopback.
    """
    from consumer_coord.admin.http_server import LoopServer, is_loopback

    host, port = parse_listen(listen)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(f"--listen {listen}: {error.strerror}") from None
    with listening:
        loopback = is_loopback(host)
        if not loopback:
            warn(f"Warning: other machines may reach {host}, and {shows}")
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{listening.getsockname()[1]}/", flush=True)
        await LoopServer(application(loopback)).run_until(stop, listening, ending)


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``work``; if ``stop`` is set first, cancel the work and return None."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.wait({working, waiting})


@contextlib.contextmanager
def until_stopped(duration_ms: float | None) -> Iterator[asyncio.Event]:
    """Yield an event that is set by SIGINT, by SIGTERM, or at the end of the duration."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    timer = None if duration_ms is None else loop.call_later(duration_ms / 1000, stop.set)
    try:
        yield stop
    finally:
        if timer is not None:
            timer.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
