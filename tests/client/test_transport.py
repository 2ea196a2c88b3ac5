"""TcpTransport: bytes to frames, and why there are no more; without a network."""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import Any

import pytest

from consumer_coord.errors import AuthenticationError, CoordinatorError, DisconnectedError, MalformedMessageError
from consumer_coord.net.tcp import TcpTransport

FRAMES = [b"one", b"x", b"three" * 100]
WIRE = b"".join(struct.pack(">i", len(frame)) + frame for frame in FRAMES)


class Receiver:
    def __init__(self, transport: TcpTransport) -> None:
        self.frames: list[bytes] = []
        self.lost: list[CoordinatorError] = []
        self.close_after = -1
        self._transport = transport

    def frame_received(self, frame: bytes) -> None:
        assert not self.lost
        self.frames.append(frame)
        if len(self.frames) == self.close_after:
            self._transport.close()

    def connection_lost(self, reason: CoordinatorError) -> None:
        self.lost.append(reason)


class Far(asyncio.Transport):
    """asyncio's transport below."""

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


def _made(*, listens: bool = True) -> tuple[TcpTransport, Receiver, Far]:
    transport, far = TcpTransport("broker:9092", 1_000), Far()
    transport.connection_made(far)
    receiver = Receiver(transport)
    if listens:
        transport.listen(receiver)
    return transport, receiver, far


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, len(WIRE)])
def test_frames_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    transport, receiver, _ = _made()
    for start in range(0, len(WIRE), size):
        transport.data_received(WIRE[start : start + size])
    assert receiver.frames == FRAMES
    assert not receiver.lost


def test_what_came_before_somebody_listens_is_handed_over() -> None:
    async def story() -> None:
        transport, receiver, _ = _made(listens=False)
        transport.data_received(WIRE)
        transport.connection_lost(None)
        transport.listen(receiver)
        await asyncio.sleep(0)
        assert receiver.frames == FRAMES
        assert [type(one) for one in receiver.lost] == [DisconnectedError]

    asyncio.run(story())


@pytest.mark.parametrize("length", [0, -1, 1_001, 0x48545450])
def test_a_length_that_cannot_be_ends_the_connection_after_the_frames_before(length: int) -> None:
    transport, receiver, _ = _made()
    transport.data_received(WIRE + struct.pack(">i", length) + b"HTTP")
    transport.data_received(WIRE)
    transport.connection_lost(None)
    assert receiver.frames == FRAMES
    assert [type(one) for one in receiver.lost] == [MalformedMessageError]
    assert f"a frame of {length} bytes" in str(receiver.lost[0])


def test_a_tls_alert_in_plain_text_is_named() -> None:
    transport, receiver, _ = _made()
    transport.data_received(b"\x15\x03\x03\x00\x02\x02\x16")
    assert [type(one) for one in receiver.lost] == [AuthenticationError]
    assert "TLS listener" in str(receiver.lost[0])


def test_half_a_frame_at_the_end_is_no_frame_and_a_tls_error_is_about_the_certificate() -> None:
    transport, receiver, _ = _made()
    transport.data_received(WIRE[:-1])
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
    transport.data_received(WIRE)
    transport.connection_lost(None)
    assert receiver.frames == FRAMES[:1]
    assert far.aborted
    assert not receiver.lost
    with pytest.raises(DisconnectedError, match="closed"):
        transport.send(b"late")


def test_frames_go_out_with_their_length_until_the_peer_takes_no_more() -> None:
    transport, _, far = _made()
    for frame in FRAMES:
        transport.send(frame)
    assert far.written == WIRE
    far.buffered = 1_001
    with pytest.raises(DisconnectedError, match="does not take"):
        transport.send(b"more")
