"""A broker that refuses the credentials gets no tight loop of attempts, and closing makes no further attempt."""

from __future__ import annotations

import random

from consumer_coord.environment import Environment
from consumer_coord.errors import AuthenticationError
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Connection
from consumer_coord.simulation.consumer import Inline
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause


class Refusing:
    """An authenticator with a wrong password, until ``right`` is set."""

    def __init__(self) -> None:
        self.attempts: list[float] = []
        self.right = False

    async def authenticate(self, connection: Connection) -> int:
        """See :class:`consumer_coord.net.connection.Authenticator`."""
        self.attempts.append(now_ms())
        if not self.right:
            raise AuthenticationError("the broker refused the password")
        return 0

    def forget(self) -> None:
        """See :class:`consumer_coord.net.connection.Authenticator`."""


@in_virtual_time
async def test_a_wrong_password_is_tried_ever_more_rarely_and_not_at_close() -> None:
    brokers, authenticator = FakeBrokers(), Refusing()
    config = ClientConfig(bootstrap_servers=brokers.bootstrap, client_id="test", software_version="0")
    environment = Environment(brokers, random.Random(7), lambda: 1_700_000_000_000, Inline())
    one = new_member(brokers, cluster=ClusterClient(config, environment, authenticator))
    one.coordinator.subscribe(["t"])
    one.start()
    await pause(12_000)
    assert 2 <= len(authenticator.attempts) <= 8
    assert any(isinstance(error, AuthenticationError) for error in one.errors)
    before = len(authenticator.attempts)
    # The application continues when the password is corrected.
    authenticator.right = True
    await pause(15_000)
    assert one.stable
    assert len(authenticator.attempts) <= before + 3
    await one.close(5_000)


@in_virtual_time
async def test_closing_after_a_wrong_password_raises_nothing_and_sends_nothing() -> None:
    brokers, authenticator = FakeBrokers(), Refusing()
    config = ClientConfig(bootstrap_servers=brokers.bootstrap, client_id="test", software_version="0")
    environment = Environment(brokers, random.Random(7), lambda: 1_700_000_000_000, Inline())
    one = new_member(brokers, cluster=ClusterClient(config, environment, authenticator))
    one.coordinator.subscribe(["t"])
    one.start()
    await pause(3_000)
    await one.stop()
    before, began = len(authenticator.attempts), now_ms()
    await one.close(5_000)
    assert len(authenticator.attempts) == before
    assert now_ms() - began < 1_000
