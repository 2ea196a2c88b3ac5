"""A network in virtual time that fails as TCP does.

Within a connection frames arrive complete and in order, or not at all; frames of different connections may arrive in any order.
No frame is lost silently in the middle of a connection. A blocked link delays frames, as retransmission does. A connection ends
if its frames are delayed for too long, or if a fault breaks the connection. When a connection breaks, its frames in flight
either still arrive or are lost. So a server may have executed a request although the client received no response.

The exception is a *dead* connection (:meth:`SimulatedNetwork.swallow`). Frames of a dead connection are lost in one direction
or in both directions. Neither end is notified, as if a firewall had dropped the connection.

A link is one direction between two hosts. Each link can be slow, or blocked (a one-way partition).
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import Protocol

import attrs

from consumer_coord.broker.kafka_apis import ClientConnection
from consumer_coord.environment import Receiver, Transport
from consumer_coord.errors import CoordinatorError, DisconnectedError
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.process import Process


class Server(Protocol):
    """Serves frames, like :class:`consumer_coord.broker.kafka_apis.KafkaApis`."""

    @property
    def up(self) -> bool: ...

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None: ...


@attrs.frozen(kw_only=True)
class NetworkConfig:
    """The delays of frames, in milliseconds.

    The delay of a frame is ``latency_ms``, or ten times ``latency_ms`` for a share ``tail`` of the frames, multiplied by a
    random number between 0.5 and 1.5. A connection ends after a blocked link has delayed its frames for ``break_after_ms``.
    """

    latency_ms: float = 1.0
    tail: float = 0.01
    break_after_ms: float = 20_000


@attrs.define(eq=False)
class _Link:
    blocked: int = 0
    extra_ms: float = 0.0
    #: Callbacks to run when the link is unblocked.
    held: list[Callable[[], None]] = attrs.field(factory=list)


class SimulatedNetwork:
    """Hosts, links and connections. ``random`` is the only source of randomness."""

    def __init__(self, loop: VirtualTimeLoop, random: Random, config: NetworkConfig | None = None) -> None:
        self.loop = loop
        self.config: NetworkConfig = config or NetworkConfig()
        self.frames = 0
        #: The client whose request a server began to serve last. Until the server first waits, the server works for this
        #: client.
        self.serving = ""
        #: Called with the client's host when the client sends a request.
        self.on_request: Callable[[str, bytes], None] | None = None
        #: Called with (client host, server host, request, response) after a server has responded.
        self.on_answer: Callable[[str, str, bytes, bytes], None] | None = None
        self._random = random
        self._links: defaultdict[tuple[str, str], _Link] = defaultdict(_Link)
        self._servers: dict[tuple[str, int], tuple[Server, Process]] = {}
        self._connections: dict[_Connection, None] = {}

    # -- hosts ------------------------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, server: Server, process: Process) -> None:
        """Make ``server`` listen at an address; the server's code runs in ``process``."""
        self._servers[host, port] = (server, process)

    def move(self, host: str, port: int, to: int) -> None:
        """Let the server at an address listen at the port ``to`` of its host instead; connections stay open."""
        self._servers[host, to] = self._servers.pop((host, port))

    def has_host(self, host: str) -> bool:
        """Return whether a server listens at this host, or did before it stopped."""
        return any(host == one for one, _ in self._servers)

    def connector(self, process: Process) -> SimulatedConnector:
        """Return the connector of a client that runs in ``process``, on the host with this name."""
        return SimulatedConnector(self, process)

    @property
    def connections(self) -> int:
        """The number of connections that are open on either side."""
        return len(self._connections)

    # -- faults -----------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Block frames from ``source`` to ``target``. Each call needs one :meth:`unblock`."""
        self._links[source, target].blocked += 1

    def unblock(self, source: str, target: str) -> None:
        """Undo one :meth:`block`. When no block remains, send the delayed frames."""
        link = self._links[source, target]
        if link.blocked:
            link.blocked -= 1
        if not link.blocked:
            held, link.held = link.held, []
            for resend in held:
                resend()

    def slow(self, source: str, target: str, extra_ms: float) -> None:
        """Delay frames by ``extra_ms`` from now on; 0 removes the additional delay."""
        self._links[source, target].extra_ms = extra_ms

    def disconnect(self, host: str) -> int:
        """Break all connections of a host; return their number."""
        hit = [connection for connection in self._connections if host in connection.hosts]
        for connection in hit:
            connection.break_off(f"the connection between {connection.client.name} and {connection.server_host} was reset")
        return len(hit)

    def swallow(self, client: str, pick: int, *, there: bool, back: bool) -> str | None:
        """Make one of a client's connections (``pick`` modulo their number) lose all frames; return the host of its server."""
        open_ones = [connection for connection in self._connections if connection.client.name == client]
        if not open_ones:
            return None
        connection = open_ones[pick % len(open_ones)]
        connection.swallow(there=there, back=back)
        return connection.server_host

    def vanish(self, process: Process) -> None:
        """Close the connections of a killed process, as its kernel does."""
        for connection in [connection for connection in self._connections if connection.client is process]:
            connection.close_client()

    # -- links and connections --------------------------------------------------------------------------------------

    def delay_s(self, link: _Link) -> float:
        """Draw the delay of the next frame on a link, in seconds."""
        draw = self._random.random
        latency_ms = self.config.latency_ms * (0.5 + draw())
        if draw() < self.config.tail:
            latency_ms *= 10
        if link.extra_ms:
            latency_ms += link.extra_ms * (0.5 + draw())
        return latency_ms / 1000

    def ended(self, connection: _Connection) -> None:
        """Remove a connection after both sides were notified of its end."""
        self._connections.pop(connection, None)

    async def connect(self, client: Process, host: str, port: int) -> Transport:
        """Open a connection. Wait while a link is blocked, like a client whose SYN gets no response."""
        there, back = self._links[client.name, host], self._links[host, client.name]
        await self._pass(there, client)
        await self._pass(back, client)
        server, process = self._servers.get((host, port), (None, None))
        if server is None or process is None or not server.up:
            raise DisconnectedError(f"{host}:{port} refused the connection")
        connection = _Connection(self, client, process, server, host, there, back)
        self._connections[connection] = None
        connection.start()
        return connection.transport

    async def _pass(self, link: _Link, client: Process) -> None:
        while link.blocked:
            opened: asyncio.Future[None] = client.create_future()
            link.held.append(functools.partial(_open, opened))
            await opened
        await asyncio.sleep(self.delay_s(link))

    def coin(self) -> bool:
        """Return True or False at random."""
        return self._random.random() < 0.5


def _open(opened: asyncio.Future[None]) -> None:
    if not opened.done():
        opened.set_result(None)


@attrs.frozen
class SimulatedConnector:
    """The connector of one client process."""

    network: SimulatedNetwork
    process: Process

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection, like :meth:`consumer_coord.environment.Connector.connect`."""
        return await self.network.connect(self.process, host, port)


class _Stream:
    """A direction of a connection: delivers frames in order and with delays, and finally the end of the connection."""

    def __init__(self, network: SimulatedNetwork, link: _Link, home: Process, deliver: Callable[[bytes | None], None]) -> None:
        self._network = network
        self._link = link
        self._home = home
        self._deliver = deliver
        self._last = 0.0
        self._waiting: deque[bytes | None] = deque()
        self._held_since: float | None = None
        self.cut = False
        #: True if frames, and the end of the connection, are lost.
        self.dead = False

    def send(self, frame: bytes | None, on_stall: Callable[[], None] | None = None) -> None:
        """Send a frame, or the end (None). Call ``on_stall`` if a blocked link delays the frame for too long."""
        if self.dead:
            return
        if self._link.blocked:
            if not self._waiting:
                self._held_since = self._network.loop.time()
                self._link.held.append(self._resend)
            self._waiting.append(frame)
            if on_stall is not None:
                since = self._held_since
                self._network.loop.call_later(self._network.config.break_after_ms / 1000, self._stalled, since, on_stall)
            return
        self._launch(frame)

    def _launch(self, frame: bytes | None) -> None:
        network = self._network
        self._last = max(self._last, network.loop.time() + network.delay_s(self._link))
        self._home.call_at_moment(self._last, self._arrive, frame)

    def _arrive(self, frame: bytes | None) -> None:
        # A dead or broken connection loses the frames in flight, but an end of the connection (None) in flight still arrives.
        if frame is None or not (self.dead or self.cut):
            self._deliver(frame)

    def _resend(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._held_since = None
        for frame in waiting:
            self._launch(frame)

    def _stalled(self, since: float | None, on_stall: Callable[[], None]) -> None:
        if since is not None and self._held_since == since:
            on_stall()

    def lose_waiting(self) -> None:
        """Drop the frames that a blocked link delays, because the sender ended the connection; send only the end."""
        if self._waiting:
            self._waiting = deque([None])


class _Connection:
    """A connection with its two ends, and with its two directions."""

    def __init__(
        self,
        network: SimulatedNetwork,
        client: Process,
        server_process: Process,
        server: Server,
        server_host: str,
        there: _Link,
        back: _Link,
    ) -> None:
        self.client = client
        self.server_host = server_host
        self.hosts = (client.name, server_host)
        self._network = network
        self._server = server
        self._server_process = server_process
        self._there = _Stream(network, there, server_process, self._arrives)
        self._back = _Stream(network, back, client, self._answered)
        self.transport = _ClientSide(self, client)
        self._requests: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._client_open = True
        self._server_open = True

    def start(self) -> None:
        """Start the server's end."""
        self._server_process.create_task(self._serve(), name=f"serve {self.client.name}")

    # -- the client's end -------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a request from the client."""
        if not self._client_open:
            raise DisconnectedError(f"the connection to {self.server_host} is closed")
        if self._network.on_request is not None:
            self._network.on_request(self.client.name, frame)
        self._there.send(frame, self._gave_up)

    def close_client(self) -> None:
        """Close the client's end, because the client or the client's kernel closes the connection."""
        if self._client_open:
            self._client_open = False
            # The client resets the connection. Frames in the client's kernel are lost, but frames in the network still arrive.
            self._there.lose_waiting()
            self._end_there()
            self._maybe_ended()

    def _end_there(self) -> None:
        """Notify the server of the end. On a dead connection the server notices the end only after ``break_after_ms``."""
        if self._there.dead:
            self._server_process.call_later(self._network.config.break_after_ms / 1000, self._arrives, None)
        else:
            self._there.send(None)

    def _gave_up(self) -> None:
        """Break the client's end after a request was delayed for too long. The server is notified when the link works again."""
        if self._client_open:
            self._client_open = False
            self._there.lose_waiting()
            self.transport.deliver(None)
            self._maybe_ended()

    def _answered(self, frame: bytes | None) -> None:
        if self._client_open:
            if frame is None:
                self._client_open = False
                self._end_there()
                self._maybe_ended()
            self.transport.deliver(frame)

    # -- the server's end -------------------------------------------------------------------------------------------

    def _arrives(self, frame: bytes | None) -> None:
        if frame is None:
            self._server_open = False
            self._maybe_ended()
        elif self._server_open:
            self._requests.append(frame)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _serve(self) -> None:
        """Serve one request at a time, so that responses are in the order of the requests, like Kafka's ``SocketServer``."""
        client = ClientConnection(self.client.name)
        network = self._network
        while True:
            while not self._requests:
                if not self._server_open:
                    return
                self._wake = self._server_process.create_future()
                await self._wake
            frame = self._requests.popleft()
            network.frames += 1
            network.serving = self.client.name
            try:
                answer = await self._server.handle(frame, client)
            except CoordinatorError:
                self._requests.clear()
                if self._server_open:
                    self._server_open = False
                    self._back.send(None)
                    self._maybe_ended()
                return
            if answer is not None:
                if network.on_answer is not None:
                    network.on_answer(self.client.name, self.server_host, frame, answer)
                if self._server_open:
                    self._back.send(answer)

    # -- both -------------------------------------------------------------------------------------------------------

    def break_off(self, why: str) -> None:
        """Reset the connection; both ends notice the reset. Frames on the way to the server may arrive or may be lost."""
        self._there.cut = self._network.coin()
        self._back.cut = True
        if self._client_open:
            self._client_open = False
            self._there.lose_waiting()
            self.client.call_soon(self.transport.deliver, None)
        self._end_there()
        self._maybe_ended()

    def swallow(self, *, there: bool, back: bool) -> None:
        """Lose all frames from now on: those to the server (``there``), those to the client (``back``), or both."""
        self._there.dead |= there
        self._back.dead |= back

    def _maybe_ended(self) -> None:
        if not self._client_open and not self._server_open:
            self._network.ended(self)


class _ClientSide:
    """The transport of the production client."""

    def __init__(self, connection: _Connection, process: Process) -> None:
        self._connection = connection
        self._process = process
        self._arrived: deque[bytes] = deque()
        self._over = False
        self._receiver: Receiver | None = None
        self._soon = False

    def deliver(self, frame: bytes | None) -> None:
        """Deliver a frame, or the end (None)."""
        if frame is None:
            self._over = True
        else:
            self._arrived.append(frame)
        if not self._soon:
            self._soon = True
            self._process.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._soon = False
        while self._arrived and self._receiver is not None:
            self._receiver.frame_received(self._arrived.popleft())
        if self._over and self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            receiver.connection_lost(DisconnectedError(f"{self._connection.server_host} closed the connection"))

    def send(self, frame: bytes) -> None:
        """Send a frame, like :meth:`consumer_coord.environment.Transport.send`."""
        self._connection.send(frame)

    def listen(self, receiver: Receiver) -> None:
        """Set the receiver, like :meth:`consumer_coord.environment.Transport.listen`."""
        self._receiver = receiver
        if self._arrived or self._over:
            self._process.call_soon(self._hand_over)

    def close(self) -> None:
        """Close the connection, like :meth:`consumer_coord.environment.Transport.close`."""
        self._receiver = None
        self._connection.close_client()
        self._over = True
