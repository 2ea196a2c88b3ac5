"""Threads receive large frames: every way in which such a frame, its connection, or its thread can end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable

import pytest

from consumer_coord.errors import CoordinatorError, DisconnectedError
from consumer_coord.net import receiving, tcp
from consumer_coord.net.receiving import Threads, find_receive
from consumer_coord.net.tcp import TcpTransport

pytestmark = pytest.mark.skipif(find_receive() is None, reason="the kernel was not compiled, or is not for Linux")

LARGE = bytes(range(256)) * 8_000
WAIT_S = 30


def _receive(one: socket.socket, buffer: bytearray, patience_ms: int = 10_000) -> int:
    receive = find_receive()
    assert receive is not None
    return receive(one.fileno(), memoryview(buffer), 256 * 1024, patience_ms)


def test_bytes_are_received_until_the_buffer_is_full_and_further_bytes_stay() -> None:
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=there.sendall, args=[LARGE + b"next"])
        sender.start()
        buffer = bytearray(len(LARGE))
        assert _receive(here, buffer) == len(LARGE)
        sender.join(WAIT_S)
        assert buffer == LARGE
        assert here.recv(10) == b"next"
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


@pytest.mark.parametrize("ending", ["patience", "end", "reset", "shutdown"])
def test_less_is_received_if_no_more_arrives(ending: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"begun")
        if ending == "end":
            there.close()
        elif ending == "shutdown":
            here.shutdown(socket.SHUT_RD)
        elif ending == "reset":
            here.sendall(b"x")
            there.close()  # with an unread byte
        buffer = bytearray(10)
        assert _receive(here, buffer, 1 if ending == "patience" else 10_000) in ((5, 0) if ending == "reset" else (5,))


def test_a_closed_descriptor_receives_nothing_and_a_read_only_buffer_is_refused() -> None:
    receive = find_receive()
    assert receive is not None
    assert receive(-1, memoryview(bytearray(10)), 10, 10_000) == 0
    with pytest.raises(TypeError, match="read-write"):
        receive(-1, memoryview(b"constant"), 10, 10_000)


def test_as_many_threads_as_jobs_run_and_they_are_used_again() -> None:
    threads, together = Threads("receives"), threading.Barrier(4)
    names: list[threading.Thread] = []

    def job() -> None:
        names.append(threading.current_thread())
        together.wait(WAIT_S)

    for _ in range(3):
        threads.run(job)
    together.wait(WAIT_S)
    assert len(set(names)) == 3
    assert all(one.daemon and one.name == "receives" for one in names)


def test_an_idle_thread_ends_and_a_job_that_comes_just_then_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_IDLE_S", 0.0)
    threads, turn = Threads("receives"), threading.Semaphore(0)
    seen: list[threading.Thread] = []

    def job() -> None:
        seen.append(threading.current_thread())
        turn.release()

    for _ in range(200):
        threads.run(job)
        assert turn.acquire(timeout=WAIT_S)
    for one in seen:
        one.join(WAIT_S)
        assert not one.is_alive()


def test_a_child_process_starts_threads_of_its_own() -> None:
    threads = Threads("receives")
    threads.run(lambda: None)
    threads.forget()
    done = threading.Event()
    threads.run(done.set)
    assert done.wait(WAIT_S)


class Taker:
    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.lost: asyncio.Future[CoordinatorError] = asyncio.get_running_loop().create_future()

    def frame_received(self, frame: bytes | memoryview) -> None:
        self.frames.put_nowait(bytes(frame))

    def connection_lost(self, reason: CoordinatorError) -> None:
        self.lost.set_result(reason)


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _with(peer: Peer, story: Callable[[TcpTransport, Taker], Awaitable[None]]) -> None:
    """Play a story with a connection to a peer, and wait until both have ended."""
    ended: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        problem: BaseException | None = None
        try:
            await peer(reader, writer)
        except BaseException as error:  # noqa: BLE001 - raised below
            problem = error
        writer.close()
        ended.put_nowait(problem)

    async with asyncio.timeout(WAIT_S), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = await tcp.TcpConnector(None, 10_000, 100_000_000).connect("127.0.0.1", port)
        assert isinstance(transport, TcpTransport)
        taker = Taker()
        transport.listen(taker)
        await story(transport, taker)
        transport.close()
        problem = await ended.get()
        if problem is not None:
            raise problem


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes that each call of a thread received."""
    seen: list[int] = []
    receive = find_receive()
    assert receive is not None

    def counted(*arguments: object) -> int:
        found = receive(*arguments)  # type: ignore[arg-type]
        seen.append(found)
        return found

    monkeypatch.setattr(receiving, "find_receive", lambda: counted)
    return seen


def test_a_thread_receives_a_large_frame_with_one_call(calls: list[int]) -> None:
    async def peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for frame in (b"one", LARGE, b"two", LARGE[::-1]):
            writer.write(_framed(frame))
            await writer.drain()

    async def story(_: TcpTransport, taker: Taker) -> None:
        assert [await taker.frames.get() for _ in range(4)] == [b"one", LARGE, b"two", LARGE[::-1]]

    asyncio.run(_with(peer, story))
    assert len(calls) == 2
    assert sum(calls) > len(LARGE)


def test_the_loop_receives_the_rest_of_a_frame_whose_peer_pauses(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "PATIENCE_MS", 1)
    gone_on = asyncio.Event()

    async def peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = _framed(LARGE)
        writer.write(wire[:1_000_000])
        await gone_on.wait()
        writer.write(wire[1_000_000:])

    async def story(transport: TcpTransport, taker: Taker) -> None:
        while not calls:
            await asyncio.sleep(0)
        gone_on.set()
        assert await taker.frames.get() == LARGE
        assert not taker.lost.done()

    asyncio.run(_with(peer, story))


def test_a_connection_that_ends_while_a_thread_receives_is_lost(calls: list[int]) -> None:
    async def peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_framed(LARGE)[:1_000_000])

    async def story(_: TcpTransport, taker: Taker) -> None:
        assert isinstance(await taker.lost, DisconnectedError)
        assert taker.frames.empty()

    asyncio.run(_with(peer, story))
    assert calls


def test_a_close_while_a_thread_receives_ends_the_thread_and_resets_the_connection(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "PATIENCE_MS", 600_000)
    begun = threading.Event()
    counted = receiving.find_receive()
    assert counted is not None

    def told(*arguments: object) -> int:
        begun.set()
        return counted(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(receiving, "find_receive", lambda: told)

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_framed(LARGE)[:1_000_000])
        with pytest.raises(ConnectionResetError):
            await reader.read()

    async def story(transport: TcpTransport, taker: Taker) -> None:
        await asyncio.to_thread(begun.wait, WAIT_S)
        transport.close()
        while not calls:
            await asyncio.sleep(0)
        assert taker.frames.empty()
        assert not taker.lost.done()

    asyncio.run(_with(peer, story))


def test_without_a_free_descriptor_the_loop_receives_the_frame(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    async def peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_framed(LARGE))
        await writer.drain()

    async def story(_: TcpTransport, taker: Taker) -> None:
        monkeypatch.setattr(os, "dup", refuse)
        assert await taker.frames.get() == LARGE
        monkeypatch.undo()

    asyncio.run(_with(peer, story))
    assert not calls
