"""Settings that contradict each other, or that one of the planes does not support, are refused by name."""

from __future__ import annotations

import importlib
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.config import parse
from consumer_coord.errors import ConfigurationError
from consumer_coord.net import security
from tests.support.secrets import found_in, made_up
from tests.support.secured import Authority

PASSWORD = made_up("password in settings")
PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
SASL = {"security.protocol": "SASL_PLAINTEXT"}
TLS = {"security.protocol": "SSL"}


def token(_config: str | None) -> tuple[str, float]:
    """Fail: no test here requests a token."""
    raise AssertionError


#: Settings that have no effect without a matching protocol: one dictionary may serve several listeners.
WITHOUT_EFFECT: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [
    (PLAIN, ("sasl.mechanism, sasl.password, sasl.username", "security.protocol", "sasl_ssl")),
    ({"security.protocol": "ssl", **PLAIN}, ("sasl.username", "security.protocol")),
    ({"oauth_cb": token}, ("oauth_cb", "security.protocol")),
    ({"ssl.ca.location": "ca.pem"}, ("ssl.ca.location", "security.protocol", "ssl")),
    ({**SASL, **PLAIN, "ssl.ca.location": "ca.pem"}, ("ssl.ca.location", "sasl_ssl")),
]

REFUSED: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [
    ({"security.protocol": "TLS"}, ("security.protocol='tls'", "sasl_ssl")),
    (SASL, ("sasl.mechanism is missing", "SCRAM-SHA-512")),
    ({**SASL, **PLAIN, "sasl.mechanism": "GSSAPI"}, ("sasl.username", "GSSAPI")),
    ({**SASL, "sasl.kerberos.kinit.cmd": "kinit"}, ("sasl.kerberos.kinit.cmd", "sasl.kerberos.keytab")),
    ({**SASL, "sasl.mechanism": "SCRAM-SHA-1"}, ("sasl.mechanism='SCRAM-SHA-1'", "SCRAM-SHA-256")),
    ({**SASL, "sasl.mechanism": "PLAIN", "sasl.mechanisms": "OAUTHBEARER"}, ("sasl.mechanism and sasl.mechanisms",)),
    ({**SASL, "sasl.mechanism": "PLAIN", "sasl.password": PASSWORD}, ("needs sasl.username", "PLAIN")),
    ({**SASL, "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice"}, ("needs sasl.password",)),
    ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, ("needs oauth_cb", "OAUTHBEARER")),
    ({**SASL, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": PASSWORD}, ("oauth_cb must be a function",)),
    ({**SASL, **PLAIN, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}, ("sasl.username", "OAUTHBEARER")),
    ({**SASL, **PLAIN, "oauth_cb": token}, ("oauth_cb", "PLAIN")),
    ({**SASL, **PLAIN, "sasl.username": "a\0b"}, ("sasl.username", "NUL")),
    ({**SASL, "sasl.kerberos.service.name": "kafka"}, ("sasl.mechanism is missing", "GSSAPI")),
    ({**SASL, "sasl.oauthbearer.secret": PASSWORD}, ("sasl.oauthbearer.secret", "oauth_cb")),
    ({**SASL, "sasl.jaas.config": PASSWORD}, ("sasl.jaas.config", "sasl.username")),
    ({**SASL, **PLAIN, "sasl.user": "alice"}, ("sasl.user ", "did you mean sasl.username")),
    ({**TLS, "ssl.ca.locations": "x"}, ("ssl.ca.locations", "did you mean ssl.ca.location")),
    ({**TLS, "ssl.truststore.location": "x.jks"}, ("ssl.truststore.location", "ssl.ca.location")),
    ({**TLS, "ssl.engine.location": "x"}, ("ssl.engine.location", "ssl.key.location")),
    ({**TLS, "ssl.ca.location": "/nowhere/ca.pem"}, ("ssl.ca.location=/nowhere/ca.pem", "no such file")),
    ({**TLS, "ssl.ca.location": __file__}, ("ssl.ca.location", "PEM")),
    ({**TLS, "ssl.ca.pem": PASSWORD}, ("ssl.ca.pem", "PEM")),
    ({**TLS, "ssl.ca.pem": "x", "ssl.ca.location": "y"}, ("ssl.ca.location and ssl.ca.pem",)),
    ({**TLS, "ssl.crl.location": __file__}, ("ssl.crl.location", "revocation list")),
    ({**TLS, "ssl.certificate.location": __file__}, ("ssl.key.location", "missing")),
    ({**TLS, "ssl.key.location": __file__}, ("ssl.certificate.location", "missing")),
    ({**TLS, "ssl.key.password": PASSWORD}, ("ssl.key.password", "ssl.key.location")),
    ({**TLS, "ssl.keystore.password": PASSWORD}, ("ssl.keystore.password", "ssl.keystore.location")),
    ({**TLS, "ssl.keystore.location": __file__}, ("ssl.keystore.location", "PKCS#12")),
    ({**TLS, "ssl.keystore.location": __file__, "ssl.key.location": __file__}, ("ssl.keystore.location cannot be combined",)),
    ({**TLS, "ssl.certificate.location": __file__, "ssl.key.location": __file__}, ("ssl.key.*", "PEM")),
    ({**TLS, "ssl.key.location": str(Path(__file__).parent), "ssl.certificate.location": __file__}, ("a directory",)),
    ({**TLS, "ssl.cipher.suites": "NONE-SUCH"}, ("ssl.cipher.suites",)),
    ({**TLS, "ssl.curves.list": "none-such"}, ("ssl.curves.list",)),
    ({**TLS, "ssl.endpoint.identification.algorithm": "HTTP"}, ("ssl.endpoint.identification.algorithm", "https or none")),
    ({**TLS, "enable.ssl.certificate.verification": "perhaps"}, ("enable.ssl.certificate.verification", "true or false")),
]


@pytest.mark.parametrize(("settings", "told"), REFUSED, ids=[told[0] for _, told in REFUSED])
def test_refused_by_name(settings: Mapping[str, Any], told: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        security.load(settings)
    for part in told:
        assert part in str(raised.value)
    assert not found_in(str(raised.value) + repr(raised.value))


@pytest.mark.parametrize(("settings", "told"), WITHOUT_EFFECT, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_settings_without_effect_are_logged(
    settings: Mapping[str, Any], told: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    if settings.get("security.protocol") == "ssl":
        settings = {**settings, "ssl.endpoint.identification.algorithm": "none"}
    with caplog.at_level(logging.WARNING):
        security.load(settings)
    for part in told:
        assert part in caplog.text
    assert not found_in(caplog.text)


def test_nothing_given_is_plain_text() -> None:
    loaded = security.load({})
    assert (loaded.protocol, loaded.ssl_context, loaded.mechanism) == ("plaintext", None, "")


def test_host_names_are_verified_unless_said_otherwise() -> None:
    context = security.load(TLS).ssl_context
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    lenient = security.load({**TLS, "ssl.endpoint.identification.algorithm": "none"}).ssl_context
    assert lenient is not None
    assert (lenient.check_hostname, lenient.verify_mode) == (False, ssl.CERT_REQUIRED)


def test_a_key_that_does_not_open_or_belong(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    one, other = authority.issue("one"), authority.issue("other")
    locked = {**TLS, "ssl.certificate.location": str(one.certificate), "ssl.key.location": str(one.encrypted_key)}
    with pytest.raises(ConfigurationError, match=r"ssl.key.password is missing"):
        security.load(locked)
    with pytest.raises(ConfigurationError, match=r"ssl.key.password does not decrypt"):
        security.load({**locked, "ssl.key.password": other.key_password})
    with pytest.raises(ConfigurationError, match="is not the key of the certificate"):
        security.load({**locked, "ssl.key.location": str(other.key)})
    with pytest.raises(ConfigurationError, match=r"not a PKCS#12 file that ssl.keystore.password opens"):
        security.load({**TLS, "ssl.keystore.location": str(one.pkcs12), "ssl.keystore.password": other.key_password})


def test_a_missing_library_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match="pip install cryptography"):
        security.load({**TLS, "ssl.keystore.location": __file__})


def test_no_secret_shows_in_a_repr() -> None:
    parsed = parse({"bootstrap.servers": "localhost:9092", "security.protocol": "SASL_SSL", **PLAIN}, needs_group=False)
    loaded = security.load(parsed.client.security)
    shown = repr(parsed) + repr(parsed.client) + repr(loaded) + str(loaded)
    assert not found_in(shown)
    assert "sasl_ssl" in shown
