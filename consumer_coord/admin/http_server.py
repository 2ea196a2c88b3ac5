"""The HTTP server of the commands; the module needs the extra ``web`` (starlette and uvicorn)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server

#: Headers of every response.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def host_of(address: str) -> str:
    """Return the host of an address: ``[::1]:80`` -> ``::1``, ``localhost:80`` -> ``localhost``."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if ":" in address else address


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine; no name except ``localhost`` is trusted."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_hosts_only(app: ASGIApp) -> ASGIApp:
    """Return the application, but it refuses other host names, so that no site can read it by DNS rebinding."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not is_loopback(host_of(host)):
                await PlainTextResponse("open the page as localhost", 421, headers=HEADERS)(scope, receive, send)
                return
        await app(scope, receive, send)

    return checked


class LoopServer(Server):
    """uvicorn's server, which runs in the command's loop; the command handles the signals."""

    def __init__(self, application: ASGIApp) -> None:
        config: dict[str, Any] = {
            "http": "h11",
            "ws": "none",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "timeout_graceful_shutdown": 2,
        }
        super().__init__(Config(application, **config))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers unchanged."""
        yield

    async def run_until(self, stop: asyncio.Event, listening: socket.socket, ending: Callable[[], None]) -> None:
        """Serve until ``stop`` is set, then call ``ending``, and close."""
        serving = asyncio.ensure_future(self.serve([listening]))
        waiting = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            ending()
            self.should_exit = True
            await serving
