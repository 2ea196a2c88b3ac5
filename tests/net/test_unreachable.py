"""Wrong addresses: the log soon names the addresses and their errors, and a command does not wait in silence."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from consumer_coord.admin.commands import ExitCode
from consumer_coord.cli import main
from consumer_coord.errors import UnreachableError
from consumer_coord.net.tcp import TcpConnector
from consumer_coord.retry import Deadline
from consumer_coord.testing.real_kafka import free_ports
from consumer_coord.wire.messages.cluster import MetadataRequest
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import member, new_cluster
from tests.support.group.virtual import in_virtual_time, pause

REACH = "consumer_coord.net.unreachable"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about brokers that cannot be reached."""
    return [record.getMessage() for record in caplog.records if record.name == REACH]


@in_virtual_time
async def test_an_unavailable_cluster_is_logged_after_two_seconds_and_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers(brokers=2)
    brokers.down = {0, 1}
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        one.start()
        await pause(1_900)
        assert told(caplog) == []
        await pause(200)
        (line,) = told(caplog)
        assert "no broker could be reached for 2 s" in line
        assert "broker-0:9092: refused the connection" in line
        assert "broker-1:9092: refused the connection" in line
        await pause(50_000)
        assert len(told(caplog)) == 1
        await pause(20_000)
        assert len(told(caplog)) == 2
        brokers.down = set()
        await one.join()
        await pause(200_000)
        assert len(told(caplog)) == 2, "a broker answers"


@in_virtual_time
async def test_an_address_that_does_not_answer_is_logged_during_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(FakeBrokers):
        async def connect(self, host: str, port: int):  # type: ignore[no-untyped-def]
            await asyncio.sleep(3_600)

    cluster = new_cluster(Silent())
    asked = asyncio.ensure_future(cluster.request_any(MetadataRequest(), Deadline.after(4_000)))
    await pause(2_500)
    (line,) = told(caplog)
    assert "broker-0:9092: no answer yet" in line
    with contextlib.suppress(Exception):
        await asked
    await cluster.close()


@in_virtual_time
async def test_a_member_that_is_reached_at_once_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with member(FakeBrokers()) as one:
        await one.join()
        await pause(100_000)
    assert told(caplog) == []


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_a_command_ends_soon_when_nothing_listens(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"{host}:{free_ports(1)[0]}"
    # The command would wait for an hour.
    arguments = ["list", "--bootstrap-server", address, "--timeout", "3600000"]
    outcome: list[int] = []
    thread = threading.Thread(target=lambda: outcome.append(main(arguments)), daemon=True)
    thread.start()
    thread.join(180)
    assert outcome == [ExitCode.TIMED_OUT]
    assert address in capsys.readouterr().err


@pytest.fixture
def web_server() -> Iterator[str]:
    """Start a server that answers every request as a web server does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = listener.accept()
                with one:
                    one.recv(1000)
                    one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)


@pytest.mark.thorough
def test_another_kind_of_server_is_asked_about_in_the_log(web_server: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, REACH)
    assert main(["list", "--bootstrap-server", web_server, "--timeout", "4000"]) == ExitCode.TIMED_OUT
    (line,) = told(caplog)
    assert f"{web_server}: announced a frame of 1213486160 bytes" in line
    assert "is this the address of a Kafka listener" in line


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("a\0b", 9), ("x" * 64, 9), ("\ud800", 9), ("", 0)]
)
def test_an_address_that_cannot_be_is_unreachable(host: str, port: int) -> None:
    """A broker may advertise any address."""
    with pytest.raises(UnreachableError):
        asyncio.run(TcpConnector().connect(host, port))
