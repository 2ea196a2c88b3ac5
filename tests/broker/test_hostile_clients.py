"""Clients of the embedded Kafka that announce more than they send, or send more than there is room for."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from tests.support.waiting import eventually

MIB = 1 << 20
DEADLINE_S = 90


def connected(kafka: EmbeddedKafka) -> socket.socket:
    """A plain connection."""
    host, _, port = kafka.bootstrap_servers.partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def answers(kafka: EmbeddedKafka) -> bool:
    """Whether the broker serves a client that behaves."""
    with connected(kafka) as one:
        frame = encode_request(ApiVersionsRequest(), 0, 5, None)
        one.sendall(struct.pack(">i", len(frame)) + frame)
        length = struct.unpack(">i", one.recv(4, socket.MSG_WAITALL))[0]
        return decode_response(ApiVersionsResponse, 0, one.recv(length, socket.MSG_WAITALL))[0] == 5


def held(kafka: EmbeddedKafka) -> int:
    """The bytes of requests that the cluster holds."""
    return kafka._call(lambda: kafka._memory.held)


def reset_after_requests(kafka: EmbeddedKafka, count: int) -> None:
    """Send ``count`` requests on one connection, and reset the connection without reading the answers."""
    frame = encode_request(ApiVersionsRequest(), 0, 5, None)
    with connected(kafka) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.sendall((struct.pack(">i", len(frame)) + frame) * count)


@contextlib.contextmanager
def announcing(kafka: EmbeddedKafka, count: int, length: int, sent: int) -> Iterator[list[socket.socket]]:
    """Connections that announce a frame of ``length`` bytes and send some of them."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connected(kafka)) for _ in range(count)]
        for one in opened:
            with contextlib.suppress(ConnectionError):
                one.sendall(struct.pack(">i", length) + bytes(sent))
        yield opened


def test_an_announced_length_takes_no_memory_before_the_bytes_come() -> None:
    with EmbeddedKafka() as kafka, announcing(kafka, 200, 100 * MIB, 20_000) as opened:
        assert answers(kafka)
        wait_for(kafka, at_least=200 * 20_000)
        assert held(kafka) <= 200 * 65_536
        assert len(opened) == 200
    assert kafka._memory.held == 0, "what a connection held is given back with it"


def test_the_broker_serves_the_connections_after_connections_that_were_reset() -> None:
    """Fails with ``writelines`` on Python 3.12, and on 3.13 before 3.13.8; see ``tests/test_structure.py``."""
    with EmbeddedKafka() as kafka:
        for round_ in range(150):
            for one in range(4):
                reset_after_requests(kafka, 1 + (round_ + one) % 12)
            assert answers(kafka)


def test_a_connection_ends_that_needs_more_than_all_may_hold(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"socket.request.max.bytes": 4 * MIB, "queued.max.request.bytes": 8 * MIB}
    with EmbeddedKafka(config=settings) as kafka:
        with announcing(kafka, 3, 4 * MIB, 3 * MIB) as opened:
            ended = [one for one in opened if _ended(one)]
            assert ended, "three of them would take more than eight MiB"
            assert held(kafka) <= 8 * MIB
            assert answers(kafka)
        assert "queued.max.request.bytes is 8388608" in caplog.text
        # Connections that have ended no longer count.
        wait_for(kafka, at_most=0)
        with announcing(kafka, 1, 4 * MIB, 3 * MIB):
            wait_for(kafka, at_least=3 * MIB)


def _ended(one: socket.socket) -> bool:
    """Whether the broker has closed it; it is asked with a time limit, as an open one says nothing."""
    one.settimeout(1)
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def wait_for(kafka: EmbeddedKafka, *, at_least: int = 0, at_most: int = 1 << 62) -> None:
    """Wait until the cluster holds from ``at_least`` to ``at_most`` bytes of requests."""
    eventually(lambda: at_least <= held(kafka) <= at_most, "bytes of requests", shows=lambda: held(kafka))


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_the_command_warns_of_an_address_that_other_machines_reach(host: str, warned: bool) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "consumer_coord", "embedded-kafka", "--host", host],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("bootstrap.servers=")
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=DEADLINE_S)
    assert ("without a password" in err) is warned
