"""Sessions that end (KIP-368): the open connection is authenticated again, without an effect on the application."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer_coord.config import parse
from consumer_coord.errors import AuthenticationError
from consumer_coord.net import security
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Connection
from consumer_coord.net.sasl import SaslAuthenticator
from consumer_coord.net.shared_clusters import real_environment
from consumer_coord.net.tcp import TcpConnector
from consumer_coord.retry import Deadline
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataResponse
from tests.support.secrets import made_up
from tests.support.secured import SESSION_MS, SecuredKafka, unsecured_token
from tests.support.security.planes import DEADLINE_MS, with_cluster

pytestmark = pytest.mark.kafka


class Counted:
    """An authenticator that counts, and whose credentials a test can change."""

    def __init__(self, authenticator: SaslAuthenticator) -> None:
        self.authenticator = authenticator
        self.times = 0

    async def authenticate(self, connection: Connection) -> int:
        """Pass on, and count."""
        self.times += 1
        return await self.authenticator.authenticate(connection)

    def forget(self) -> None:
        """Pass on."""
        self.authenticator.forget()


async def connect(settings: dict[str, Any]) -> tuple[Connection, Counted]:
    """A connection, with an authenticator that counts."""
    parsed = parse(settings, needs_group=False).client
    environment = real_environment(TcpConnector())
    made = security.load(parsed.security).authenticator(environment)
    assert made is not None
    counted = Counted(made)
    ((host, port),) = parsed.bootstrap_servers
    opened = await Connection.open(
        environment,
        host,
        port,
        client_id="session",
        software_version="1",
        timeout_ms=DEADLINE_MS,
        authenticator=counted,
    )
    return opened, counted


async def metadata(connection: Connection) -> MetadataResponse:
    answer: MetadataResponse = await connection.request(MetadataRequest(topics=[]), timeout_ms=DEADLINE_MS)
    return answer


def test_open_connections_outlive_their_sessions(secured: SecuredKafka) -> None:
    """A broker closes a connection on which a request comes after the session's end; these are never closed."""

    async def outlive(mechanism: str) -> None:
        connection, counted = await connect(secured.settings("REAUTH", mechanism))
        for _ in range(2):
            before = counted.times
            # Ten at once, of which the first finds the session due: none overtakes, none fails.
            while counted.times == before:
                answers = await asyncio.gather(*(metadata(connection) for _ in range(10)))
                assert all(answer.brokers for answer in answers)
                await asyncio.sleep(SESSION_MS / 10_000)
        assert counted.times == 3
        assert not connection.closed
        connection.close()
        await connection.wait_closed()

    async def run() -> None:
        await asyncio.gather(*(outlive(mechanism) for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")))

    asyncio.run(run())


def test_a_session_that_has_ended_is_renewed_by_the_next_request(secured: SecuredKafka) -> None:
    async def run() -> None:
        connection, counted = await connect(secured.settings("REAUTH", "PLAIN"))
        assert (await metadata(connection)).brokers
        await asyncio.sleep(SESSION_MS * 1.2 / 1000)
        assert (await metadata(connection)).brokers
        assert counted.times == 2
        connection.close()
        await connection.wait_closed()

    asyncio.run(run())


def test_credentials_that_were_withdrawn_end_the_connection_with_the_reason(secured: SecuredKafka) -> None:
    async def run() -> None:
        connection, counted = await connect(secured.settings("REAUTH", "PLAIN"))
        wrong = security.load(
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": made_up("withdrawn password"),
            }
        ).authenticator(real_environment(TcpConnector()))
        assert wrong is not None
        counted.authenticator = wrong
        await asyncio.sleep(SESSION_MS / 1000)
        with pytest.raises(AuthenticationError, match=r"check sasl.username and sasl.password"):
            await metadata(connection)
        assert connection.closed
        await connection.wait_closed()

    asyncio.run(run())


def test_tokens_are_renewed_before_they_expire(secured: SecuredKafka) -> None:
    """The broker ends a session with its token, too; a short token makes for a short session."""
    asked: list[float] = []

    def provider(_config: str | None) -> tuple[str, float]:
        token, expiry_s = unsecured_token("alice", life_s=2.5)
        asked.append(expiry_s)
        return token, expiry_s

    async def work(cluster: ClusterClient) -> None:
        broker = None
        while len(asked) < 3:
            found = await cluster.refresh(Deadline.after(DEADLINE_MS))
            broker = broker or next(iter(found.brokers.values()))
            await asyncio.sleep(0.1)

    with_cluster({**secured.settings("SASL", "OAUTHBEARER"), "oauth_cb": provider}, work)
    assert asked == sorted(asked)
