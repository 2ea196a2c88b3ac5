"""Both planes connect with the same settings; the plane that knows the cause reports the error, whichever fails first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from consumer_coord.confluent import KafkaError
from consumer_coord.consumer.librdkafka.security_errors import Refusals
from consumer_coord.errors import AuthenticationError, AuthorizationError

REFUSED = KafkaError(KafkaError._SSL, "SSL handshake failed: certificate verify failed")


class Planes:
    """The relevant part of the control plane, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks: list[float] = []
        self.cluster = SimpleNamespace(refusal=None, reached=False)
        self.application = SimpleNamespace(look_again=lambda: self.looks.append(self.now))
        self.refusals = Refusals({}, lambda: self.now)

    def settle(self, *, joins: bool = True) -> None:
        core: Any = self
        self.refusals.settle(core, joins=joins)


@pytest.fixture
def planes() -> Planes:
    return Planes()


def test_librdkafka_is_first_and_the_control_plane_is_refused_as_well(planes: Planes) -> None:
    planes.refusals.note(REFUSED)
    planes.settle()
    assert planes.looks, "the next poll checks again"
    planes.cluster.refusal = AuthenticationError("control plane: the certificate has expired")
    planes.settle()
    planes.now = 100.0
    planes.settle()


def test_the_control_plane_is_first(planes: Planes) -> None:
    planes.cluster.refusal = AuthenticationError("control plane: the certificate has expired")
    planes.refusals.note(REFUSED)
    planes.settle()


def test_librdkafka_alone_is_refused(planes: Planes) -> None:
    planes.refusals.note(REFUSED)
    planes.cluster.reached = True
    with pytest.raises(AuthenticationError, match="data plane: SSL handshake failed"):
        planes.settle()
    planes.settle()


def test_the_control_plane_says_nothing_for_ten_seconds(planes: Planes) -> None:
    planes.refusals.note(REFUSED)
    planes.now = 9.9
    planes.settle()
    # Errors that librdkafka repeats in this time do not delay the report.
    planes.refusals.note(REFUSED)
    planes.now = 10.0
    with pytest.raises(AuthenticationError, match="data plane"):
        planes.settle()


def test_without_a_group_the_error_of_the_control_plane_replaces_librdkafkas(planes: Planes) -> None:
    planes.cluster.refusal = AuthenticationError("control plane: the certificate has expired")
    planes.refusals.note(REFUSED)
    with pytest.raises(AuthenticationError, match="control plane: the certificate has expired"):
        planes.settle(joins=False)


def test_errors_other_than_of_connections_are_reported_at_once(planes: Planes) -> None:
    with pytest.raises(AuthorizationError, match="data plane"):
        planes.refusals.note(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "Broker: Group authorization failed"))
    planes.refusals.note(KafkaError(KafkaError._TRANSPORT, "gone"))
    planes.settle()
