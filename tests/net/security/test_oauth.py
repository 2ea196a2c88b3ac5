"""librdkafka's built-in methods to get a token, for both planes: an identity provider (OIDC), and unsecured tokens."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import logging
import pickle
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jwk, jwt

from consumer_coord.consumer.librdkafka.security_errors import with_tokens
from consumer_coord.errors import AuthenticationError, ConfigurationError
from consumer_coord.net.oauth import endpoint
from consumer_coord.net.oauth.cached import CachedTokens
from consumer_coord.net.oauth.settings import with_oauth_callback
from consumer_coord.net.sasl import TokenSource
from consumer_coord.net.shared_clusters import real_environment
from consumer_coord.net.tcp import TcpConnector
from tests.support.secrets import found_in, made_up
from tests.support.secured import Authority
from tests.support.security.token_endpoint import Provider, token

SECRET = made_up("client-secret")
NO_CLIENT = json.dumps({"error": "invalid_client", "error_description": f"no {SECRET}"})
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PAUSE_S", 0.0)


def oidc(url: str, **more: Any) -> dict[str, Any]:
    """Return settings of the client credentials grant; ``more`` uses ``_`` for ``.`` after ``sasl.oauthbearer.``."""
    return {
        **SASL,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": "billing",
        "sasl.oauthbearer.client.secret": SECRET,
        **{f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in more.items()},
    }


def bearer(url: str, **more: Any) -> dict[str, Any]:
    """Return settings of the JWT bearer grant."""
    kept = {key: value for key, value in oidc(url, grant_type=BEARER, **more).items() if ".client." not in key}
    return kept


def callback(settings: Mapping[str, Any]) -> CachedTokens:
    found = with_oauth_callback(settings)
    assert not found.keys() & settings.keys() - {*SASL, "sasl.oauthbearer.config", "https.ca.location", "https.ca.pem"}
    made = found["oauth_cb"]
    assert isinstance(made, CachedTokens)
    return made


def claims(encoded: str) -> dict[str, Any]:
    part = encoded.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def test_client_credentials_are_asked_for_as_librdkafka_asks() -> None:
    given = token("alice")
    provider = Provider({"access_token": given, "token_type": "Bearer"})
    with provider.running() as url:
        returned = callback(oidc(url, scope="kafka read", extensions="logicalCluster=lkc-1, pool=p-2"))(None)
    (asked,) = provider.asked
    assert asked.method == "POST"
    assert asked.form == {"grant_type": "client_credentials", "scope": "kafka read"}
    assert asked.headers["Authorization"] == "Basic " + base64.b64encode(f"billing:{SECRET}".encode()).decode()
    assert asked.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert returned == (given, claims(given)["exp"], "alice", {"logicalCluster": "lkc-1", "pool": "p-2"})


def test_both_planes_of_a_process_share_one_token() -> None:
    provider = Provider({"access_token": token("alice")})
    with provider.running() as url:
        settings = {**oidc(url), "group.id": "billing", "bootstrap.servers": "127.0.0.1:1"}
        handed_over = with_tokens(settings)
        data_plane = handed_over["oauth_cb"](None)
        made = callback(oidc(url))

        async def control_plane() -> str:
            return (await TokenSource(made, None, real_environment(TcpConnector(None, 1000))).token()).value

        assert asyncio.run(control_plane()) == data_plane[0]
        # In a Spark process, unpickling returns the object of this process.
        assert pickle.loads(pickle.dumps(made)) is made
    assert len(provider.asked) == 1


def test_a_token_is_renewed_when_it_is_old_or_was_refused() -> None:
    first, second, third = token("alice"), token("alice", life_s=-1), token("alice")
    provider = Provider(*({"access_token": each} for each in (first, second, third)))
    with provider.running() as url:
        made = callback(oidc(url))
        assert made(None)[0] == made(None)[0] == first
        made.forget("another one")
        assert made(None)[0] == first
        made.forget(first)
        # The token has expired already: the next call gets another one.
        assert [made(None)[0], made(None)[0], made(None)[0]] == [second, third, third]


def test_a_provider_that_is_busy_is_asked_again() -> None:
    given = token("alice")
    provider = Provider((503, ""), (429, "slow down"), {"access_token": given})
    with provider.running() as url:
        assert callback(oidc(url))(None)[0] == given
    assert len(provider.asked) == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, NO_CLIENT), r"401 \(invalid_client: no \*\*\*\)"),
        ((404, "<html>"), "answered 404"),
        ((503, ""), "answered 503"),
        ((200, "<html>"), "did not answer with a JSON object"),
        ((200, "[]"), "did not answer with a JSON object"),
        ({"token": "x"}, "without 'access_token'"),
        ({"access_token": "a.b"}, "not a JSON web token"),
        ({"access_token": "a.####.c"}, "not a JSON web token"),
        ({"access_token": token("")}, "without the claim 'sub'; check sasl.oauthbearer.sub.claim.name"),
        ({"access_token": token("alice", life_s=-9e9)}, "without a valid 'exp'"),
    ],
)  # fmt: skip
def test_what_a_provider_refuses_or_answers_wrongly(answer: Any, told: str) -> None:
    provider = Provider(answer)
    with provider.running() as url, pytest.raises(AuthenticationError, match=f"the token endpoint {url} .*{told}") as raised:
        callback(oidc(url))(None)
    assert not found_in(str(raised.value))


def test_a_provider_that_is_away_ends_the_constructor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(AuthenticationError, match=rf"data plane: the token endpoint http://127.0.0.1:{port}/ did not answer"):
        with_tokens(oidc(f"http://127.0.0.1:{port}/"))


def test_the_claim_with_the_principal_has_a_name() -> None:
    provider = Provider({"access_token": token("alice", claim="azp")})
    with provider.running() as url:
        assert callback(oidc(url, sub_claim_name="azp"))(None)[2] == "alice"


def test_an_endpoint_with_tls_is_trusted_by_https_ca(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    foreign = Authority(tmp_path / "foreign")
    identity = authority.issue("provider", host="127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(identity.certificate, identity.key)
    given = token("alice")
    with Provider({"access_token": given}).running(tls) as url:
        assert callback({**oidc(url), "https.ca.location": str(authority.ca)})(None)[0] == given
        assert callback({**oidc(url), "https.ca.pem": authority.ca.read_text()})(None)[0] == given
        with pytest.raises(AuthenticationError, match=r"not trusted: .*; check https.ca.location"):
            callback({**oidc(url), "https.ca.location": str(foreign.ca)})(None)


@pytest.mark.parametrize(("algorithm", "as_file"), [("RS256", True), ("ES256", False)])
def test_a_signed_assertion(algorithm: str, as_file: bool, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048) if algorithm == "RS256" else ec.generate_private_key(ec.SECP256R1())
    passphrase = made_up("passphrase")
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase.encode()),
    ).decode()
    file = tmp_path / "key.pem"
    file.write_text(pem)
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"header": {"kid": "k-1", "alg": "none"}, "payload": {"sub": "template", "team": "red"}}))
    # Some providers return only an id token.
    provider = Provider({"id_token": token("alice")})
    with provider.running() as url:
        settings = bearer(url, scope="kafka", assertion_algorithm=algorithm, assertion_private_key_passphrase=passphrase)
        settings.update(
            {
                f"sasl.oauthbearer.assertion.private.key.{'file' if as_file else 'pem'}": str(file) if as_file else pem,
                "sasl.oauthbearer.assertion.jwt.template.file": str(template),
                "sasl.oauthbearer.assertion.claim.sub": "billing",
                "sasl.oauthbearer.assertion.claim.iss": "us",
                "sasl.oauthbearer.assertion.claim.aud": "them",
                "sasl.oauthbearer.assertion.claim.exp.seconds": 120,
                "sasl.oauthbearer.assertion.claim.nbf.seconds": "10",
                "sasl.oauthbearer.assertion.claim.jti.include": True,
            }
        )
        before_s = int(time.time())
        assert callback(settings)(None)[2] == "alice"
    form = provider.asked[0].form
    assert form.keys() == {"grant_type", "assertion", "scope"}
    assert form["grant_type"] == BEARER
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    kind = jwk.RSAKey if algorithm == "RS256" else jwk.ECKey
    signed = jwt.decode(form["assertion"], kind.import_key(public), algorithms=[algorithm])
    assert signed.header == {"kid": "k-1", "alg": algorithm, "typ": "JWT"}
    payload = dict(signed.claims)
    issued_s = payload.pop("iat")
    assert before_s <= issued_s <= time.time()
    assert len(payload.pop("jti")) == 36
    assert payload == {
        "sub": "billing", "team": "red", "iss": "us", "aud": "them", "exp": issued_s + 120, "nbf": issued_s - 10,
    }  # fmt: skip


def test_an_assertion_that_another_program_renews(tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    provider = Provider({"access_token": token("alice", life_s=-1)})
    with provider.running() as url:
        made = callback(bearer(url, assertion_file=str(file)))
        with pytest.raises(AuthenticationError, match=r"assertion.file=.* cannot be read"):
            made(None)
        for text in ("one", "two"):
            file.write_text(text + "\n")
            made(None)
    assert [asked.form["assertion"] for asked in provider.asked] == ["one", "two"]


def test_the_identity_of_a_virtual_machine_of_azure() -> None:
    given = token("alice")
    provider = Provider({"access_token": given})
    with provider.running() as url:
        settings = {
            **SASL,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.config": "query=api-version=2025-04-07&resource=kafka",
        }
        assert callback(settings)(None)[0] == given
    (asked,) = provider.asked
    assert (asked.method, asked.path) == ("GET", "/token?api-version=2025-04-07&resource=kafka")
    assert asked.headers["Metadata"] == "true"


UNSECURED = {**SASL, "enable.sasl.oauthbearer.unsecure.jwt": True}


def test_an_unsecured_token_holds_what_the_settings_say() -> None:
    said = "principalClaimName=azp principal=admin scopeClaimName=roles scope=a,b,,a lifeSeconds=60 extension_traceId=12=3"
    value, expires_at_s, principal, extensions = callback({**UNSECURED, "sasl.oauthbearer.config": said})(said)
    header, _, signature = value.split(".")
    assert (header, signature) == ("eyJhbGciOiAibm9uZSJ9", "")
    found = claims(value)
    assert (found["azp"], found["roles"], found["exp"]) == ("admin", ["a", "b"], expires_at_s)
    assert expires_at_s == pytest.approx(found["iat"] + 60)
    assert (principal, extensions) == ("admin", {"traceId": "12=3"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (UNSECURED, "needs principal=<name>"),
        ({**UNSECURED, "sasl.oauthbearer.config": "principal="}, "principal must not be empty"),
        ({**UNSECURED, "sasl.oauthbearer.config": "principal=a principal=b"}, "principal twice"),
        ({**UNSECURED, "sasl.oauthbearer.config": "principal=a lifeSeconds=0"}, "lifeSeconds"),
        ({**UNSECURED, "sasl.oauthbearer.config": "principal=a who=b"}, "'who' must be one of principalClaimName"),
        ({**oidc("http://x/"), "enable.sasl.oauthbearer.unsecure.jwt": "true"}, "cannot be combined"),
        ({**SASL, "sasl.oauthbearer.method": "OpenID"}, "must be default or oidc"),
        ({**SASL, "sasl.oauthbearer.method": "oidc"}, "needs .*token.endpoint.url"),
        (oidc("ftp://x/"), "begins with https:// or http://"),
        (oidc("http://x/", client_secret=None), "needs .*client.secret"),
        (oidc("http://x/", grant_type="password"), "grant.type='password'"),
        (oidc("http://x/", extensions="a"), "key=value"),
        (oidc("http://x/", sub_claim_name=" "), "sub.claim.name"),
        (oidc("http://x/", metadata_authentication_type="aws_iam"), "must be none or azure_imds"),
        (oidc("", metadata_authentication_type="azure_imds"), "query=<parameters>"),
        (bearer("http://x/"), "set exactly one of sasl.oauthbearer.assertion.file"),
        (bearer("http://x/", assertion_file="a", assertion_claim_sub="b"), "claim.sub cannot be combined"),
        (bearer("http://x/", assertion_private_key_file="a", assertion_algorithm="HS256"), "algorithm='HS256'"),
        ({**oidc("https://x/"), "https.ca.location": "/nowhere/ca.pem"}, "no such file"),
        ({**oidc("https://x/"), "https.ca.location": __file__}, "no certificate in PEM"),
        ({**oidc("https://x/"), "https.ca.location": "a", "https.ca.pem": "b"}, "cannot be combined"),
    ],
)  # fmt: skip
def test_refused_by_name(settings: Mapping[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as raised:
        with_oauth_callback(settings)
    assert not found_in(str(raised.value))


def test_the_applications_own_oauth_cb_goes_before(caplog: pytest.LogCaptureFixture) -> None:
    def own(_config: str | None) -> tuple[str, float]:
        raise AssertionError

    assert with_oauth_callback({**oidc("http://x/"), "oauth_cb": own}) == {**SASL, "oauth_cb": own}
    assert (
        "sasl.mechanism=OAUTHBEARER and sasl.oauthbearer.method=oidc, and give no oauth_cb; otherwise remove them"
        in caplog.text
    )


def test_settings_without_effect_are_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert with_oauth_callback({**oidc("http://x/"), "sasl.mechanism": "PLAIN"}) == {**SASL, "sasl.mechanism": "PLAIN"}
    assert "sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret" in caplog.text
    assert not found_in(caplog.text)


def test_a_missing_library_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match="pip install joserfc"):
        with_oauth_callback(bearer("http://x/", assertion_private_key_pem="x"))
