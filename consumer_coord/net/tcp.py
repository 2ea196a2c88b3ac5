"""The real transport: Kafka frames over TCP or TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import ssl
import struct
import sys
from typing import cast

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Receiver, Transport
from consumer_coord.errors import (
    AuthenticationError,
    CoordinatorError,
    DisconnectedError,
    MalformedMessageError,
    ResponseTooLargeError,
    UnreachableError,
)
from consumer_coord.net import receiving
from consumer_coord.net.buffers import Buffers

_LENGTH = struct.Struct(">i")
#: The value of SO_LINGER (on, 0 seconds) with which close() resets the connection.
_NO_LINGER = struct.pack("ii", 1, 0)

#: Idle seconds before the first keepalive probe, seconds between probes, number of probes, and milliseconds for which sent data
#: may remain unacknowledged.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}

#: The first bytes of a TLS alert, with which a TLS listener responds to plain text. This client reads them as the length of a
#: frame.
_TLS_ALERT = b"\x15\x03"

#: ApiVersions v0 as a frame: key 18, version 0, correlation id 7, an empty client id.
_API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 7, 0)
_PROBE_S = 5.0
_ERRNO = r"\[Errno (\d+)\]"

#: Maximum number of bytes in one read from the socket, except for reads into a large frame.
_READ_BYTES = 64 * 1024
#: Upper limit of SO_RCVLOWAT: the socket wakes the loop when this many bytes have arrived, even if the frame is incomplete. If
#: the limit were near the size of the receive window, the sender would fill the window, and stop until the loop reads.
_MOST_AWAITED_BYTES = 256 * 1024
#: Frames of at least this size, in bytes, are received directly into their buffer, and passed on as a memoryview.
_IN_PLACE_BYTES = 128 * 1024

#: If at least this many bytes of a frame are missing, a thread receives them (see ``receiving.py``).
_IN_THREAD_BYTES = 512 * 1024

#: Buffers for reads, and buffers for large frames. Buffers are reused, because allocating memory takes longer than filling it.
_reads = Buffers(_READ_BYTES)
_frames = Buffers(16 * 1024 * 1024)


class TcpTransport(asyncio.BufferedProtocol):
    """A TCP or TLS connection that carries frames; created by :class:`TcpConnector`.

    Received bytes are cut into frames and passed on in the same iteration of the loop.
    """

    def __init__(self, address: str, max_frame_bytes: int) -> None:
        self._address = address
        self._max_frame_bytes = max_frame_bytes
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        #: The received bytes of an incomplete frame, including its length.
        self._begun = bytearray()
        #: The buffer that asyncio requested for the current read.
        self._read: memoryview | None = None
        #: The buffer of a large frame (without its length), and the number of bytes received so far.
        self._large: memoryview | None = None
        self._filled = 0
        #: Whether a thread receives into :attr:`_large`, and asyncio does not.
        self._in_thread = False
        #: The socket (None with TLS), and the number of received bytes at which the socket wakes the loop.
        self._socket: socket.socket | None = None
        self._wakes_from = 1
        #: Error that ended the connection.
        self._ended: CoordinatorError | None = None

    def send(self, frame: bytes) -> None:
        """Send one frame; data that the peer does not read is buffered up to a limit."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise DisconnectedError(f"the connection to {self._address} is closed")
        if transport.get_write_buffer_size() > self._max_frame_bytes:
            raise DisconnectedError(f"{self._address} does not read the data that is sent to it")
        transport.write(_LENGTH.pack(len(frame)) + frame)

    def listen(self, receiver: Receiver) -> None:
        """Set the receiver; see :meth:`consumer_coord.environment.Transport.listen`.

        In the next iteration of the loop, the receiver gets the frames that have already arrived, and the end of the connection
        if the connection has already ended.
        """
        self._receiver = receiver
        if self._begun or self._ended is not None:
            asyncio.get_running_loop().call_soon(self._hand_over)

    def close(self) -> None:
        """Close without waiting for the peer, and discard unsent data.

        The connection is reset, because an abandoned request must not arrive later. Otherwise, for example: the client abandons
        a commit; a newer commit succeeds on another connection; the kernel sends the old commit again, and the committed offset
        moves back.
        """
        self._receiver = self._large = None
        self._begun.clear()
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            if self._in_thread:
                # End the thread's wait. The connection is reset when the thread has closed its descriptor.
                with contextlib.suppress(OSError):  # the peer has ended the connection
                    raw.shutdown(socket.SHUT_RD)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    # -- asyncio's side -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; with TLS, asyncio calls this after the handshake."""
        # The class of the transport depends on the loop (uvloop has its own class).
        self._transport = cast(asyncio.Transport, transport)
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes: the rest of a large frame, or a buffer for one read."""
        if self._large is not None:
            return self._large[self._filled :]
        self._read = _reads.take(_READ_BYTES)
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        """Process the ``nbytes`` bytes that were read into the last buffer that :meth:`get_buffer` returned."""
        if self._large is not None:
            self._add(nbytes)
            return
        assert self._read is not None
        data = bytes(self._read[:nbytes])
        self._read = None
        receiver = self._receiver
        if receiver is not None and not self._begun and nbytes >= 4:
            (length,) = _LENGTH.unpack_from(data)
            if nbytes == length + 4 and 0 < length <= self._max_frame_bytes:
                # The usual case is that the bytes are one whole frame.
                receiver.frame_received(data[4:])
                return
        self._begun += data
        self._hand_over()

    def _add(self, nbytes: int, in_thread: bool = True) -> None:
        """Count bytes of a large frame, and pass the frame on when it is complete; otherwise receive the rest."""
        assert self._large is not None
        self._filled += nbytes
        missing = len(self._large) - self._filled
        if not missing:
            self._wake_from(1)
            frame, self._large = self._large, None
            if self._receiver is not None:
                self._receiver.frame_received(frame)
        elif not (in_thread and self._receive_in_thread(missing)):
            self._wake_from(missing)

    def _receive_in_thread(self, missing: int) -> bool:
        """Let a thread receive the missing bytes of a large frame, if they are many and the platform allows it."""
        transport, raw, large = self._transport, self._socket, self._large
        if missing < _IN_THREAD_BYTES or transport is None or raw is None or large is None:
            return False
        receive = receiving.find_receive()
        if receive is None or transport.is_closing():
            return False
        try:
            # The thread's own descriptor stays valid if the connection is closed meanwhile.
            fd = os.dup(raw.fileno())
        except OSError:
            # The process has too many descriptors.
            return False
        loop, rest = asyncio.get_running_loop(), large[self._filled :]
        self._wake_from(1)
        self._in_thread = True
        transport.pause_reading()

        def work() -> None:
            try:
                received = receive(fd, rest, _MOST_AWAITED_BYTES, receiving.PATIENCE_MS)
            finally:
                os.close(fd)
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._received, large, received)

        receiving.threads.run(work)
        return True

    def _received(self, large: memoryview, nbytes: int) -> None:
        """Continue after a thread has received bytes of a large frame.

        If the frame is not complete, asyncio notices the next bytes, or the end of the connection.
        """
        self._in_thread = False
        if self._large is large and self._transport is not None:
            self._transport.resume_reading()
            self._add(nbytes, in_thread=False)

    def _wake_from(self, missing: int) -> None:
        """Wake the loop only when the ``missing`` bytes of a large frame have arrived, or the kernel's buffer is full."""
        wakes_from = max(1, min(missing, _MOST_AWAITED_BYTES))
        # This sets SO_RCVLOWAT. Linux enlarges the receive buffer to this size, and wakes the loop earlier if the buffer is
        # full.
        if wakes_from != self._wakes_from and self._socket is not None and sys.platform == "linux":
            self._wakes_from = wakes_from
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_from)

    def eof_received(self) -> None:
        """Let asyncio close the connection, because the peer sends no further data."""

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection, by either side or by an error."""
        if self._ended is None:
            if isinstance(error, ssl.SSLError):
                # With TLS 1.3 the broker checks the client's certificate only after the client has finished its handshake.
                self._ended = _refused_tls(self._address, error)
            else:
                self._ended = DisconnectedError(f"{self._address} closed the connection")
            self._ended.__cause__ = error
        self._read = self._large = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Pass every complete frame to the receiver, then the error that ended the connection, if there is one."""
        begun = self._begun
        position = 0
        while self._receiver is not None and len(begun) - position >= 4:
            (length,) = _LENGTH.unpack_from(begun, position)
            if not 0 < length <= self._max_frame_bytes:
                self._ended = self._no_frame(bytes(begun[position : position + 2]), length)
                break
            start, end = position + 4, position + 4 + length
            if end <= len(begun):
                with memoryview(begun) as whole:
                    # A slice of the bytearray itself would create an additional copy.
                    frame = bytes(whole[start:end])
                position = end
                self._receiver.frame_received(frame)
            elif length >= _IN_PLACE_BYTES:
                self._filled = len(begun) - start
                self._large = _frames.take(length)
                self._large[: self._filled] = begun[start:]
                self._add(0)
                position = len(begun)
            else:
                break
        del begun[:position]
        if self._ended is not None and self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            receiver.connection_lost(self._ended)

    def _no_frame(self, prefix: bytes, length: int) -> CoordinatorError:
        if prefix == _TLS_ALERT:
            return AuthenticationError(
                f"control plane: {self._address} is a TLS listener; set security.protocol to SSL or SASL_SSL"
            )
        text = (
            f"{self._address} announced a frame of {length} bytes (receive.message.max.bytes={self._max_frame_bytes}):"
            " is this the address of a Kafka listener, and does security.protocol match the listener?"
        )
        if length <= 0:
            return MalformedMessageError(text)
        return ResponseTooLargeError(text, size=length, limit=self._max_frame_bytes)


@attrs.frozen
class TcpConnector:
    """Opens TCP connections, or TLS connections with ``ssl_context``.

    ``connect_timeout_ms`` limits look-up, connection and TLS handshake together (``socket.connection.setup.timeout.ms``).
    """

    ssl_context: ssl.SSLContext | None = None
    connect_timeout_ms: int = 30_000
    max_frame_bytes: int = 100_000_000

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection; see :class:`~consumer_coord.environment.Connector`."""
        address = f"{host}:{port}"
        try:
            async with asyncio.timeout(self.connect_timeout_ms / 1000):
                transport, protocol = await asyncio.get_running_loop().create_connection(
                    lambda: TcpTransport(address, self.max_frame_bytes), host, port, ssl=self.ssl_context
                )
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationError(
                f"control plane: the certificate of {address} is not trusted: {error.verify_message or error};"
                " check ssl.ca.location, and that the address is one the certificate names"
                " (ssl.endpoint.identification.algorithm)"
            ) from error
        except ssl.SSLError as error:
            raise _refused_tls(address, error) from error
        except TimeoutError as error:
            raise DisconnectedError(f"{address} did not answer within {self.connect_timeout_ms} ms") from error
        except OSError as error:
            if self.ssl_context is not None and isinstance(error, ConnectionResetError):
                await self._refuse_plain_text(host, port)
            kind = UnreachableError if _is_final(error) else DisconnectedError
            raise kind(f"cannot connect to {address}: {error or 'connection reset'}") from error
        except (ValueError, OverflowError) as error:
            # The host name or port is invalid, which may happen because brokers can advertise anything.
            raise UnreachableError(f"cannot connect to {address}: {error}") from error
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_death(raw)
        return protocol

    async def _refuse_plain_text(self, host: str, port: int) -> None:
        """Raise an error if a broker that closed the connection in the TLS handshake responds to a plain-text request.

        Both a plain-text listener and a broker that is shutting down close the connection in the handshake. To distinguish
        these cases, send ApiVersions v0, which contains no data of this client.
        """
        try:
            async with asyncio.timeout(_PROBE_S):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(_API_VERSIONS_V0)
                    answer = await reader.readexactly(8)
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return
        if answer[4:] == _API_VERSIONS_V0[8:12]:
            raise AuthenticationError(f"control plane: {_no_tls(f'{host}:{port}')}")


def _is_final(error: OSError) -> bool:
    """Return whether the host has no address, or no address that listens, so that an early retry would fail as well."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    # If the host has several addresses, asyncio joins the texts of all errors, so look for the error numbers in the text.
    numbers: set[int | None] = {int(number) for number in re.findall(_ERRNO, str(error))} or {error.errno}
    return numbers == {errno.ECONNREFUSED}


def _notice_death(raw: socket.socket) -> None:
    """Let the kernel end a connection whose peer acknowledges neither data nor keepalive probes."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        # Some systems do not have all of these options.
        if hasattr(socket, option):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _refused_tls(address: str, error: ssl.SSLError) -> AuthenticationError:
    """Return the error for a TLS failure; its text explains the failure and names the settings to check."""
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        what = _no_tls(address)
    elif "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE_FAILURE" in reason:
        what = (
            f"{address} refused this client's certificate ({reason}); set ssl.certificate.location and ssl.key.location"
            " to a certificate that the broker trusts and that has not expired"
        )
    else:
        what = f"TLS failed with {address} ({reason}); check security.protocol, ssl.certificate.location and ssl.key.location"
    return AuthenticationError(f"control plane: {what}")


def _no_tls(address: str) -> str:
    return f"{address} does not speak TLS; set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or use its TLS listener"
