"""TcpTransport without a network: frames from bytes, and the reasons why a connection ended."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
from typing import Any

import pytest

from consumer_coord.errors import (
    AuthenticationError,
    CoordinatorError,
    DisconnectedError,
    MalformedMessageError,
    ResponseTooLargeError,
)
from consumer_coord.net.buffers import Buffers
from consumer_coord.net.tcp import TcpConnector, TcpTransport
from tests.support.waiting import eventually_async

FRAMES = [b"one", b"x", b"three" * 100]
WIRE = b"".join(struct.pack(">i", len(frame)) + frame for frame in FRAMES)


class Receiver:
    def __init__(self, transport: TcpTransport) -> None:
        self.frames: list[bytes] = []
        self.lost: list[CoordinatorError] = []
        self.views = 0
        self.close_after = -1
        self._transport = transport

    def frame_received(self, frame: bytes | memoryview) -> None:
        assert not self.lost
        self.views += isinstance(frame, memoryview)
        self.frames.append(bytes(frame))
        if len(self.frames) == self.close_after:
            self._transport.close()

    def connection_lost(self, reason: CoordinatorError) -> None:
        self.lost.append(reason)


class Far(asyncio.Transport):
    """asyncio's transport below the transport under test."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.written = b""
        self.buffered = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.buffered


def _arrive(transport: TcpTransport, data: bytes) -> None:
    """Pass ``data`` to the transport, in as many reads as its buffers need."""
    while data:
        buffer = transport.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        transport.buffer_updated(size)
        data = data[size:]


def _made(*, listens: bool = True, max_frame_bytes: int = 1_000) -> tuple[TcpTransport, Receiver, Far]:
    transport, far = TcpTransport("broker:9092", max_frame_bytes), Far()
    transport.connection_made(far)
    receiver = Receiver(transport)
    if listens:
        transport.listen(receiver)
    return transport, receiver, far


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, len(WIRE)])
def test_frames_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    transport, receiver, _ = _made()
    for start in range(0, len(WIRE), size):
        _arrive(transport, WIRE[start : start + size])
    assert receiver.frames == FRAMES
    assert not receiver.lost


def test_frames_received_before_a_receiver_listens_are_delivered() -> None:
    async def story() -> None:
        transport, receiver, _ = _made(listens=False)
        _arrive(transport, WIRE)
        transport.connection_lost(None)
        transport.listen(receiver)
        await asyncio.sleep(0)
        assert receiver.frames == FRAMES
        assert [type(one) for one in receiver.lost] == [DisconnectedError]

    asyncio.run(story())


@pytest.mark.parametrize("length", [0, -1, 1_001, 0x48545450])
def test_a_length_that_cannot_be_ends_the_connection_after_the_frames_before(length: int) -> None:
    transport, receiver, _ = _made()
    _arrive(transport, WIRE + struct.pack(">i", length) + b"HTTP")
    _arrive(transport, WIRE)
    transport.connection_lost(None)
    assert receiver.frames == FRAMES
    assert [type(one) for one in receiver.lost] == [ResponseTooLargeError if length > 0 else MalformedMessageError]
    assert f"a frame of {length} bytes" in str(receiver.lost[0])


def test_a_tls_alert_in_plain_text_is_named() -> None:
    transport, receiver, _ = _made()
    _arrive(transport, b"\x15\x03\x03\x00\x02\x02\x16")
    assert [type(one) for one in receiver.lost] == [AuthenticationError]
    assert "TLS listener" in str(receiver.lost[0])


def test_half_a_frame_at_the_end_is_no_frame_and_a_tls_error_is_about_the_certificate() -> None:
    transport, receiver, _ = _made()
    _arrive(transport, WIRE[:-1])
    transport.connection_lost(ConnectionResetError())
    assert receiver.frames == FRAMES[:-1]
    assert [type(one) for one in receiver.lost] == [DisconnectedError]
    transport, receiver, _ = _made()
    refused = ssl.SSLError(1, "alert")
    refused.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    transport.connection_lost(refused)
    assert [type(one) for one in receiver.lost] == [AuthenticationError]
    assert "certificate" in str(receiver.lost[0])


def test_nothing_comes_after_a_close_not_even_of_the_same_bytes() -> None:
    transport, receiver, far = _made()
    receiver.close_after = 1
    _arrive(transport, WIRE)
    transport.connection_lost(None)
    assert receiver.frames == FRAMES[:1]
    assert far.aborted
    assert not receiver.lost
    with pytest.raises(DisconnectedError, match="closed"):
        transport.send(b"late")


def test_frames_are_written_with_their_length_until_the_peer_stops_reading() -> None:
    transport, _, far = _made()
    for frame in FRAMES:
        transport.send(frame)
    assert far.written == WIRE
    far.buffered = 1_001
    with pytest.raises(DisconnectedError, match="does not read"):
        transport.send(b"more")


@pytest.mark.parametrize("step", [3, 65_536, 100_000, 1_000_000])
def test_a_large_frame_is_received_in_place_and_the_frames_around_it_are_too(step: int) -> None:
    transport, receiver, _ = _made(max_frame_bytes=1_000_000)
    large = bytes(range(256)) * 1_000
    frames = [b"one", large, b"two", large[::-1], b"three"]
    wire = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    for start in range(0, len(wire), step):
        _arrive(transport, wire[start : start + step])
    assert receiver.frames == frames
    assert receiver.views == 2


def test_a_connection_that_ends_inside_a_large_frame_drops_it() -> None:
    transport, receiver, _ = _made(max_frame_bytes=1_000_000)
    _arrive(transport, struct.pack(">i", 500_000) + bytes(300_000))
    transport.connection_lost(None)
    assert receiver.frames == []
    assert [type(one) for one in receiver.lost] == [DisconnectedError]


def test_a_buffer_is_used_again_when_no_view_of_it_is_left() -> None:
    buffers = Buffers(1_000_000)
    first = buffers.take(100_000)
    part = first[10:20]
    first[:] = b"1" * 100_000
    second = buffers.take(100_000)
    second[:] = b"2" * 100_000
    assert part.obj is not second.obj
    kept = first.obj
    del first
    assert buffers.take(90_000).obj is not kept
    del part
    assert buffers.take(90_000).obj is kept
    assert bytes(second[:3]) == b"222"


def test_unused_buffers_beyond_the_limit_are_dropped() -> None:
    buffers = Buffers(300_000)
    views = [buffers.take(100_000) for _ in range(4)]
    owners = [view.obj for view in views]
    views.clear()
    large = buffers.take(1_000_000)
    again = [buffers.take(100_000) for _ in range(4)]
    assert sum(any(view.obj is owner for owner in owners) for view in again) == 2
    assert len(large) == 1_000_000


def test_the_loop_reads_a_large_frame_long_before_the_receive_window_is_full() -> None:
    """A sender that filled the window stops until the loop wakes, so it must wake while there is room for more."""

    class Socket:
        def __init__(self) -> None:
            self.options: list[tuple[int, int, int]] = []

        def setsockopt(self, *option: int) -> None:
            self.options.append(option)  # type: ignore[arg-type]

    class Near(Far):
        def __init__(self, raw: Socket) -> None:
            super().__init__()
            self._raw = raw

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return self._raw if name == "socket" else default

    raw = Socket()
    transport = TcpTransport("kafka:9092", 100_000_000)
    transport.connection_made(Near(raw))
    transport.listen(Receiver(transport))
    wire = struct.pack(">i", 400_000) + b"x" * 10
    transport.get_buffer(-1)[: len(wire)] = wire
    transport.buffer_updated(len(wire))
    levels = [level for _, name, level in raw.options if name == socket.SO_RCVLOWAT]
    assert all(1 < level <= 256 * 1024 for level in levels)
    assert len(levels) == (sys.platform == "linux")


@pytest.mark.parametrize("size", [200_000, 10_000_000])
def test_small_frames_arrive_at_once_after_a_large_one_that_came_in_pieces(size: int) -> None:
    asyncio.run(_pieces(size))


async def _pieces(size: int) -> None:
    large = bytes(range(256)) * (size // 256)
    frames = [b"one", large, b"two", b"three"]
    left = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        for start in range(0, len(wire), 50_000):
            writer.write(wire[start : start + 50_000])
            await writer.drain()
        await left.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server, asyncio.timeout(20):
        transport = await TcpConnector(max_frame_bytes=size).connect(*server.sockets[0].getsockname())
        assert isinstance(transport, TcpTransport)
        receiver = Receiver(transport)
        transport.listen(receiver)
        await eventually_async(lambda: len(receiver.frames) == len(frames))
        assert receiver.frames == frames
        left.set()
        await eventually_async(lambda: receiver.lost)
        transport.close()
