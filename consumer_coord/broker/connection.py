"""A broker's TCP connections: split the bytes into frames, and serve one request of a connection at a time, in order."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import Final, cast

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.errors import CoordinatorError, DisconnectedError
from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)

_LENGTH = struct.Struct(">i")
#: Maximum number of bytes of one read from the socket while the length of the next frame is unknown.
_CHUNK = 1 << 13
#: Initial buffer size for a longer request, in bytes. The buffer grows only while bytes arrive, because the announced length
#: may be wrong.
_FIRST_BUFFER = 1 << 16
#: While received requests of more than this number of bytes wait, the broker does not read from the connection, as in Kafka.
_MAX_QUEUED_BYTES = 1 << 20
#: Number of loop iterations; more than asyncio needs to create the transport of an accepted socket.
_ACCEPT_STEPS = 5


class RequestMemory:
    """Counts the request bytes of all connections to a cluster (``queued.max.request.bytes``); used on the cluster's loop.

    Long requests may use three quarters of the limit. The last quarter is for short requests of other clients.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: int = 0

    def take(self, count: int, *, long: bool) -> bool:
        """Reserve ``count`` bytes; return False if this would exceed the limit."""
        if self.held + count > (self.limit * 3 // 4 if long else self.limit):
            return False
        self.held += count
        return True

    def give_back(self, count: int) -> None:
        """Release ``count`` reserved bytes."""
        self.held -= count


class Listener:
    """Listens on the address of one broker, and keeps the broker's connections."""

    def __init__(self, node: BrokerNode, config: BrokerConfig, memory: RequestMemory, failures: list[BaseException]) -> None:
        self.node = node
        self.config = config
        self.memory = memory
        #: The errors of the broker, which are bugs.
        self.failures = failures
        self._connections: dict[BrokerProtocol, None] = {}
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen on this address, and make the broker advertise it."""
        self._server = await asyncio.get_running_loop().create_server(lambda: BrokerProtocol(self), host, port)
        self.node.host, self.node.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        server, self._server = self._server, None
        if server is not None:
            # When an asyncio server closes, it drops accepted sockets that have no transport yet, without closing them. So stop
            # accepting sockets, and wait until asyncio has created the transports.
            loop = asyncio.get_running_loop()
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
            for _ in range(_ACCEPT_STEPS):
                await asyncio.sleep(0)
            server.close()
        for connection in tuple(self._connections):
            connection.close()

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def close_idle(self, before: float) -> None:
        """End the connections that were last used before this loop time."""
        for connection in tuple(self._connections):
            if connection.last_used < before:
                connection.close()

    def opened(self, connection: BrokerProtocol) -> bool:
        """Add a connection; return False if the broker refuses the connection."""
        if self._server is None:
            return False  # The broker was stopped just after it accepted this connection.
        if len(self._connections) >= self.config.max_connections:
            logger.warning(
                "broker %d refused a connection, because it has as many connections as max.connections allows",
                self.node.broker_id,
            )
            return False
        self._connections[connection] = None
        return True

    def closed(self, connection: BrokerProtocol) -> None:
        """Remove a connection that ended."""
        self._connections.pop(connection, None)


class BrokerProtocol(asyncio.BufferedProtocol):
    """Reads requests from a connection. A long frame is read directly into a buffer, which grows while bytes arrive."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._memory = listener.memory
        self._apis = KafkaApis(listener.node)
        #: The part of ``_memory`` that this connection has reserved, in bytes.
        self._held = 0
        self._transport: asyncio.Transport | None = None
        self._client = ClientConnection()
        self._small = bytearray(_CHUNK)
        self._filled = 0
        #: The beginning of a long frame of ``_length`` bytes.
        self._frame: bytearray | None = None
        self._length = 0
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._work: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._eof = False
        self.last_used: float = 0.0

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection; abort the connection if the server refuses it."""
        # Other loops (such as uvloop) have transports of another class.
        self._transport = cast(asyncio.Transport, transport)
        self.last_used = asyncio.get_running_loop().time()
        peer = transport.get_extra_info("peername")
        self._client = ClientConnection(host=peer[0] if peer else "unknown")
        if not self._listener.opened(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the connection's requests and release their memory, because the client cannot receive responses any longer."""
        self._transport = None
        self._writable.set()
        if self._work is not None:
            self._work.cancel()
        self._frame = None
        self._queue.clear()
        self._give_back(self._held)
        self._listener.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._small)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that arrived."""
        self._filled += nbytes
        self.last_used = asyncio.get_running_loop().time()
        if self._frame is not None:
            if self._filled == self._length:
                frame, self._frame, self._filled = self._frame, None, 0
                self._give_back(self._length)
                self._enqueue(bytes(frame))
            elif self._filled == len(self._frame):
                self._grow()
            return
        self._split()

    def eof_received(self) -> bool:
        """Keep the connection open until all requests that were received have their responses."""
        self._eof = True
        return self._work is not None

    def pause_writing(self) -> None:
        """Stop sending, because the client does not read fast enough."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume sending."""
        self._writable.set()

    # -- frames

    def _split(self) -> None:
        position = 0
        view = memoryview(self._small)
        while self._filled - position >= 4:
            (length,) = _LENGTH.unpack_from(self._small, position)
            most = self._listener.config.socket_request_max_bytes
            if not 0 < length <= most:
                self._end(f"a request has {length} bytes, but socket.request.max.bytes is {most}")
                return
            end = position + 4 + length
            if end > self._filled:
                if end - position > _CHUNK:
                    rest = view[position + 4 : self._filled]
                    size = min(length, _FIRST_BUFFER)
                    if not self._take(size, long=True):
                        return
                    self._length = length
                    self._frame = bytearray(size)
                    self._frame[: len(rest)] = rest
                    self._filled = len(rest)
                    return
                break
            if not self._enqueue(bytes(view[position + 4 : end])):
                return
            position = end
        remaining = self._filled - position
        if position:
            self._small[:remaining] = self._small[position : self._filled]
        self._filled = remaining

    def _grow(self) -> None:
        assert self._frame is not None
        more = min(self._length - self._filled, self._filled)
        if self._take(more, long=True):
            # Allocate a new buffer. The present buffer cannot be resized, because the transport still has a view of it.
            grown = bytearray(self._filled + more)
            grown[: self._filled] = self._frame
            self._frame = grown

    def _take(self, count: int, *, long: bool) -> bool:
        """Reserve ``count`` bytes. Above the limit, end the connection, because a wait would block other connections."""
        if self._transport is None or self._transport.is_closing():
            return False
        if not self._memory.take(count, long=long):
            held, limit = self._memory.held, self._memory.limit
            self._end(f"requests of {held} bytes are already in memory, and queued.max.request.bytes is {limit}")
            return False
        self._held += count
        return True

    def _give_back(self, count: int) -> None:
        self._memory.give_back(count)
        self._held -= count

    def _enqueue(self, frame: bytes) -> bool:
        """Queue a frame; return False if the connection ends instead."""
        if self._transport is None or not self._take(len(frame), long=False):
            return False
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        if self._queued_bytes > _MAX_QUEUED_BYTES and self._transport is not None:
            self._transport.pause_reading()
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._serve())
            self._work.add_done_callback(self._served)
        return True

    async def _serve(self) -> None:
        """Serve the queued requests one after the other."""
        try:
            while self._queue:
                frame = self._queue.popleft()
                self._queued_bytes -= len(frame)
                answer = await self._apis.handle(frame, self._client)
                if self._transport is None:
                    return
                self._give_back(len(frame))
                if answer is not None:
                    self._transport.write(_LENGTH.pack(len(answer)) + answer)
                    if not self._writable.is_set():
                        await self._writable.wait()
                if self._queued_bytes <= _MAX_QUEUED_BYTES and not self._transport.is_reading():
                    self._transport.resume_reading()
        except DisconnectedError as error:
            self._abort(str(error), logging.DEBUG)
        except CoordinatorError as error:
            self._abort(str(error), logging.WARNING)
        finally:
            self._work = None
        if self._eof and self._transport is not None:
            self._transport.close()

    def _served(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled() and (error := work.exception()) is not None:
            # The exception is a bug of the broker. Report the bug to the server's owner, and end the connection so that the
            # client does not wait forever.
            self._listener.failures.append(error)
            self._abort(f"{type(error).__name__}: {error}", logging.ERROR)

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        self._filled = 0
        self._frame = None
        self._abort(reason, logging.WARNING)

    def _abort(self, reason: str, level: int) -> None:
        logger.log(level, "broker %d closes the connection of %s: %s", self._listener.node.broker_id, self._client.host, reason)
        self.close()
