"""A proxy on loopback between clients and a broker that can cut connections, or hold back all data."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType


class Proxy:
    """Forwards every connection to ``target``, a port of this machine; a context manager.

    The broker must advertise :attr:`port` instead of its real port, because clients would otherwise bypass the proxy.
    """

    def __init__(self) -> None:
        self.target: int | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def cut(self) -> None:
        """Cut every connection; the proxy accepts new connections."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(60)

    def swallow(self, swallowing: bool) -> None:
        """Hold back all data in both directions, with open connections, until the next call with False forwards the data."""
        self._loop.call_soon_threadsafe(self._open.clear if swallowing else self._open.set)

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in tuple(self._connections):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.target is not None
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        both = (writer, far_writer)
        self._connections.update(both)
        pumps = [
            self._loop.create_task(self._pump(source, sink)) for source, sink in ((reader, far_writer), (far_reader, writer))
        ]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in both:
            end.transport.abort()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._tasks.difference_update(pumps)
        self._connections.difference_update(both)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
