"""Neither plane accepts a TLS version before 1.2, whatever ciphers are allowed; warnings are logged once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer

from consumer_coord.consumer.librdkafka.security_errors import with_tokens
from consumer_coord.errors import CoordinatorError
from consumer_coord.net import security
from consumer_coord.net.tcp import TcpConnector
from tests.support.secrets import made_up

DEADLINE_S = 90


class TlsServer:
    """A server that records handshakes of one TLS version; RSA, because old versions need no digest for its key exchange."""

    def __init__(self, newest: ssl.TLSVersion, directory: Path) -> None:
        authority = trustme.CA(key_type=trustme.KeyType.RSA)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA).configure_cert(context)
        self.ca = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        with warnings.catch_warnings():
            # The test needs the deprecated versions.
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = newest
        context.set_ciphers("ALL:@SECLEVEL=0")
        self.outcomes: list[str] = []
        self._context = context
        self._heard = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                raw.settimeout(DEADLINE_S)
                try:
                    with self._context.wrap_socket(raw, server_side=True) as one:
                        outcome = str(one.version())
                except OSError:
                    outcome = "refused"
                with self._heard:
                    self.outcomes.append(outcome)
                    self._heard.notify_all()

    def next_outcome(self, seen: int) -> str:
        """Return the first outcome after ``seen`` others."""
        with self._heard:
            assert self._heard.wait_for(lambda: len(self.outcomes) > seen, DEADLINE_S)
            return self.outcomes[seen]

    def close(self) -> None:
        """Stop accepting handshakes."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(DEADLINE_S)


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2], ids=["TLS 1.1", "TLS 1.2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TlsServer]:
    """Start a server whose newest version is the parameter."""
    made = TlsServer(request.param, tmp_path)
    made.expected = "refused" if request.param is ssl.TLSVersion.TLSv1_1 else "TLSv1.2"  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.mark.parametrize("ciphers", [None, "ALL:@SECLEVEL=0"])
def test_both_planes_have_one_floor(server: TlsServer, ciphers: str | None) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{server.port}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(server.ca),
    }
    if ciphers is not None:
        settings["ssl.cipher.suites"] = ciphers
    expected = server.expected  # type: ignore[attr-defined]

    async def control_plane() -> None:
        loaded = security.load({key: value for key, value in settings.items() if key != "bootstrap.servers"})
        with contextlib.suppress(CoordinatorError):
            (await TcpConnector(loaded.ssl_context).connect("127.0.0.1", server.port)).close()

    asyncio.run(control_plane())
    assert server.next_outcome(0) == expected
    consumer = Consumer({**with_tokens(settings), "group.id": "g", "log_level": 0, "error_cb": lambda error: None})
    try:
        assert server.next_outcome(1) == expected
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sends the password unencrypted"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}, "algorithm=none: the owner of any"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}, "verification is off"),
    ],
)
def test_unsafe_settings_are_logged_once(
    settings: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "_warned", set())
    if "sasl.mechanism" in settings:
        settings = {**settings, "sasl.username": "ann", "sasl.password": made_up("password")}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            security.load(settings)
    assert [told in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_safe_settings_cause_no_warning(
    protocol: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "_warned", set())
    mechanism = "PLAIN" if protocol == "SASL_SSL" else "SCRAM-SHA-256"
    secret = made_up("password")
    security.load({"security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.username": "ann", "sasl.password": secret})
    assert caplog.records == []
