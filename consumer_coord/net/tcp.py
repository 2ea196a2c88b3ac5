"""The real transport: Kafka frames over TCP or TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct

import attrs

from consumer_coord.environment import Transport
from consumer_coord.errors import AuthenticationError, DisconnectedError, MalformedMessageError

_LENGTH = struct.Struct(">i")

#: A frame longer than this is no Kafka answer to us (an HTTP answer read as a length is 1.2 GB).
MAX_FRAME_BYTES = 100_000_000


class TcpTransport:
    """One TCP or TLS connection that carries frames."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, max_frame_bytes: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._max_frame_bytes = max_frame_bytes

    def send(self, frame: bytes) -> None:
        """Send one frame; what the peer does not take is kept up to a bound."""
        if self._writer.is_closing():
            raise DisconnectedError(f"the connection to {self._address} is closed")
        if self._writer.transport.get_write_buffer_size() > self._max_frame_bytes:
            raise DisconnectedError(f"{self._address} does not take what it is sent")
        self._writer.write(_LENGTH.pack(len(frame)) + frame)

    async def receive(self) -> bytes:
        """The next frame; a length beyond the bound is a :class:`MalformedMessageError`."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(4))
            if not 0 < length <= self._max_frame_bytes:
                raise MalformedMessageError(
                    f"{self._address} announced a frame of {length} bytes (at most {self._max_frame_bytes} are read):"
                    " is this the address of a Kafka listener, and is security.protocol the one of that listener?"
                )
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError, ssl.SSLError) as error:
            raise DisconnectedError(f"{self._address} closed the connection") from error

    def close(self) -> None:
        """Close without waiting for the peer."""
        self._writer.close()


@attrs.frozen
class TcpConnector:
    """Opens TCP connections, or TLS ones with ``ssl_context``.

    ``connect_timeout_ms`` bounds look-up, connection and TLS handshake together (``socket.connection.setup.timeout.ms``).
    """

    ssl_context: ssl.SSLContext | None = None
    connect_timeout_ms: int = 30_000
    max_frame_bytes: int = MAX_FRAME_BYTES

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection; see :class:`~consumer_coord.environment.Connector`."""
        address = f"{host}:{port}"
        try:
            async with asyncio.timeout(self.connect_timeout_ms / 1000):
                reader, writer = await asyncio.open_connection(host, port, ssl=self.ssl_context, limit=1 << 20)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(
                f"the certificate of {address} is not trusted: {error.verify_message or error}."
                " Check ssl.ca.location, and that the address is one the certificate names"
                " (ssl.endpoint.identification.algorithm)."
            ) from error
        except ssl.SSLError as error:
            raise AuthenticationError(
                f"no TLS with {address}: {error.reason or error}. Check security.protocol, ssl.certificate.location"
                " and ssl.key.location."
            ) from error
        except TimeoutError as error:
            raise DisconnectedError(f"{address} did not answer within {self.connect_timeout_ms} ms") from error
        except OSError as error:
            raise DisconnectedError(f"cannot connect to {address}: {error}") from error
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return TcpTransport(reader, writer, address, self.max_frame_bytes)
