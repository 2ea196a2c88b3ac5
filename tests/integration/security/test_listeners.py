"""Right and wrong credentials on every kind of listener of a real broker: in, or out at once with the way in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from consumer_coord.errors import AuthenticationError
from tests.support.secrets import made_up
from tests.support.secured import SecuredKafka
from tests.support.security.planes import ask

pytestmark = pytest.mark.kafka

Change = Callable[[SecuredKafka], Mapping[str, Any]]


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("TLS", None),
        ("MTLS", None),
        ("SASL", "PLAIN"),
        ("SASL", "SCRAM-SHA-256"),
        ("SASL", "SCRAM-SHA-512"),
        ("SASL", "OAUTHBEARER"),
        ("SASLTLS", "PLAIN"),
        ("SASLTLS", "SCRAM-SHA-512"),
        ("SASLTLS", "OAUTHBEARER"),
    ],
)
def test_right_credentials(secured: SecuredKafka, listener: str, mechanism: str | None) -> None:
    assert list(ask(secured.settings(listener, mechanism)).brokers) == [1]


def test_a_key_may_be_encrypted(secured: SecuredKafka) -> None:
    settings = secured.settings("MTLS")
    settings["ssl.key.location"] = str(secured.client.encrypted_key)
    settings["ssl.key.password"] = secured.client.key_password
    assert ask(settings).brokers


def test_certificate_key_and_authority_may_be_texts(secured: SecuredKafka) -> None:
    settings = secured.settings("MTLS")
    for name, file in (("certificate", secured.client.certificate), ("key", secured.client.key), ("ca", secured.authority.ca)):
        del settings[f"ssl.{name}.location"]
        settings[f"ssl.{name}.pem"] = file.read_text()
    assert ask(settings).brokers


def test_a_keystore_may_hold_both(secured: SecuredKafka) -> None:
    settings = secured.settings("MTLS")
    del settings["ssl.certificate.location"], settings["ssl.key.location"]
    settings["ssl.keystore.location"] = str(secured.client.pkcs12)
    settings["ssl.keystore.password"] = secured.client.key_password
    assert ask(settings).brokers


def test_a_host_name_that_does_not_match_can_be_allowed(secured: SecuredKafka) -> None:
    settings = {**secured.settings("WRONGHOST"), "ssl.endpoint.identification.algorithm": "none"}
    assert ask(settings).brokers


def test_certificates_can_be_taken_unseen(secured: SecuredKafka) -> None:
    settings = {**secured.settings("EXPIRED"), "enable.ssl.certificate.verification": "false"}
    assert ask(settings).brokers


WRONG: dict[str, tuple[str, str | None, Change, tuple[str, ...]]] = {
    "a broker's certificate has expired": ("EXPIRED", None, lambda _: {}, ("certificate has expired", "ssl.ca.location")),
    "a broker's certificate is for another host": (
        "WRONGHOST",
        None,
        lambda _: {},
        ("not valid for '127.0.0.1'", "ssl.endpoint.identification.algorithm"),
    ),
    "a broker's certificate is of a foreign authority": (
        "TLS",
        None,
        lambda it: {"ssl.ca.location": str(it.foreign.ca)},
        ("not trusted", "ssl.ca.location"),
    ),
    "a client's certificate is missing": (
        "MTLS",
        None,
        lambda _: {"ssl.certificate.location": None, "ssl.key.location": None},
        ("certificate", "ssl.certificate.location", "ssl.key.location"),
    ),
    "a client's certificate has expired": (
        "MTLS",
        None,
        lambda it: {
            "ssl.certificate.location": str(it.expired_client.certificate),
            "ssl.key.location": str(it.expired_client.key),
        },
        ("refused this client's certificate", "ssl.certificate.location"),
    ),
    "a client's certificate is of a foreign authority": (
        "MTLS",
        None,
        lambda it: {
            "ssl.certificate.location": str(it.foreign_client.certificate),
            "ssl.key.location": str(it.foreign_client.key),
        },
        ("refused this client's certificate", "ssl.certificate.location"),
    ),
    "PLAIN with a wrong password": (
        "SASL",
        "PLAIN",
        lambda _: {"sasl.password": made_up("wrong password")},
        ("user 'alice'", "SASL_AUTHENTICATION_FAILED", "sasl.password"),
    ),
    "SCRAM with a wrong password": (
        "SASL",
        "SCRAM-SHA-256",
        lambda _: {"sasl.password": made_up("wrong password")},
        ("user 'alice'", "SASL_AUTHENTICATION_FAILED", "sasl.password"),
    ),
    "SCRAM with an unknown user": (
        "SASLTLS",
        "SCRAM-SHA-512",
        lambda _: {"sasl.username": "nobody"},
        ("user 'nobody'", "SASL_AUTHENTICATION_FAILED", "sasl.username"),
    ),
    "a token that is none": (
        "SASL",
        "OAUTHBEARER",
        lambda _: {"oauth_cb": lambda _config: (made_up("no-token"), time.time() + 600)},
        ("invalid_token", "oauth_cb"),
    ),
    "a mechanism that is not enabled": (
        "SASLTLS",
        "SCRAM-SHA-256",
        lambda _: {},
        ("sasl.mechanism=SCRAM-SHA-256", "OAUTHBEARER, PLAIN, SCRAM-SHA-512"),
    ),
    "plain text to a TLS listener": (
        "TLS",
        None,
        lambda _: {"security.protocol": "PLAINTEXT", "ssl.ca.location": None},
        ("TLS listener", "security.protocol", "SSL"),
    ),
    "TLS to a plain listener": (
        "TLS",
        None,
        lambda it: {"bootstrap.servers": it.kafka.bootstrap_servers},
        ("does not speak TLS", "security.protocol", "PLAINTEXT"),
    ),
    "no SASL to a SASL listener": (
        "SASL",
        "PLAIN",
        lambda _: {
            "security.protocol": "PLAINTEXT",
            "sasl.mechanism": None,
            "sasl.username": None,
            "sasl.password": None,
        },
        ("expects SASL", "security.protocol", "sasl.mechanism", "SCRAM-SHA-512"),
    ),
    "SASL to a plain listener": (
        "SASL",
        "PLAIN",
        lambda it: {"bootstrap.servers": it.kafka.bootstrap_servers},
        ("without SASL", "security.protocol"),
    ),
    "SASL without TLS to a SASL_SSL listener": (
        "SASL",
        "PLAIN",
        lambda it: {"bootstrap.servers": it.kafka.bootstrap("SASLTLS")},
        ("TLS listener", "SASL_SSL"),
    ),
}


@pytest.mark.behaviour(3)
@pytest.mark.parametrize("what", WRONG)
def test_a_refusal_is_raised_at_once_and_says_what_to_do(secured: SecuredKafka, what: str) -> None:
    listener, mechanism, change, told = WRONG[what]
    given = {**secured.settings(listener, mechanism), **change(secured)}
    settings = {key: value for key, value in given.items() if value is not None}
    # Of a kind that is never retried: a deadline that passed would be a RequestTimedOutError.
    with pytest.raises(AuthenticationError) as raised:
        ask(settings)
    message = str(raised.value)
    assert message.startswith("control plane: ")
    assert str(settings["bootstrap.servers"]) in message
    for part in told:
        assert part in message
