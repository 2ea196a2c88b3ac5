"""Checks of ``sasl.oauthbearer.*`` as in librdkafka, and the ``oauth_cb`` made from these settings."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import get_logger
from consumer_coord.net.oauth import unsecured
from consumer_coord.net.oauth.assertion import ALGORITHMS, AssertionFile, SignedAssertion, signing_library
from consumer_coord.net.oauth.cached import CachedTokens, shared
from consumer_coord.net.oauth.endpoint import Ask, TokenEndpoint, azure_instance, client_credentials, jwt_bearer
from consumer_coord.settings import as_boolean, as_integer

logger: Final = get_logger(__name__)

UNSECURED = "enable.sasl.oauthbearer.unsecure.jwt"
_METHOD = "sasl.oauthbearer.method"
_CONFIG = "sasl.oauthbearer.config"
_URL = "sasl.oauthbearer.token.endpoint.url"
_METADATA = "sasl.oauthbearer.metadata.authentication.type"
_ASSERTION = "sasl.oauthbearer.assertion."
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AZURE_URL = "http://169.254.169.254/metadata/identity/oauth2/token"
_MAX_INT = 2**31 - 1

ALIASES = {
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
#: Settings for assertions that are created here; an assertion from a file needs none of these settings.
_MAKING = (
    "private.key.file private.key.pem private.key.passphrase jwt.template.file claim.sub claim.aud claim.iss"
    " claim.jti.include claim.exp.seconds claim.nbf.seconds"
)
#: librdkafka's settings that become an ``oauth_cb`` here, so that they never reach librdkafka.
TOKEN_SETTINGS = frozenset(
    {
        UNSECURED,
        _METHOD,
        _URL,
        _METADATA,
        *ALIASES,
        *ALIASES.values(),
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.grant.type",
        *(f"{_ASSERTION}{name}" for name in ("algorithm file " + _MAKING).split()),
    }
)
_ALSO_READ = (_CONFIG, "https.ca.location", "https.ca.pem")


def with_oauth_callback(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with an ``oauth_cb`` that replaces librdkafka's token settings, for the coordinator and librdkafka.

    An ``oauth_cb`` of the application takes precedence, as in librdkafka. Raise :class:`ConfigurationError` for invalid
    settings. No request is sent yet.
    """
    ours = {key: value for key, value in given.items() if key in TOKEN_SETTINGS and value is not None}
    rest = {key: value for key, value in given.items() if key not in TOKEN_SETTINGS}
    if not ours:
        return rest
    method = str(ours.get(_METHOD, "default")).lower()
    if method not in ("default", "oidc"):
        raise ConfigurationError(f"{_METHOD}={method!r} must be default or oidc")
    without_signature = as_boolean(UNSECURED, ours.get(UNSECURED, False))
    if method == "oidc" and without_signature:
        raise ConfigurationError(f"{UNSECURED} and {_METHOD}=oidc cannot be combined; set only one of them")
    mechanism = str(given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").upper()
    by_token = mechanism == "OAUTHBEARER" and str(given.get("security.protocol", "")).lower().startswith("sasl_")
    if rest.get("oauth_cb") is not None or not by_token or (method == "default" and not without_signature):
        useless = sorted(ours.keys() - {_METHOD, UNSECURED})
        if useless:
            logger.warning(
                "without effect: %s. To get tokens with them, set security.protocol to sasl_ssl or sasl_plaintext,"
                " sasl.mechanism=OAUTHBEARER and %s=oidc, and give no oauth_cb; otherwise remove them",
                ", ".join(useless),
                _METHOD,
            )
        return rest
    read = {key: rest[key] for key in _ALSO_READ if rest.get(key) is not None}
    settings = {ALIASES.get(key, key): value for key, value in (ours | read).items()}
    return {**rest, "oauth_cb": token_source(tuple(sorted((key, str(value)) for key, value in settings.items())))}


def token_source(settings: tuple[tuple[str, str], ...]) -> CachedTokens:
    """Return this process's ``oauth_cb`` for these settings; raise :class:`ConfigurationError` for invalid settings."""

    def make() -> CachedTokens:
        given = dict(settings)
        if given.get(_METHOD, "").lower() == "oidc":
            return CachedTokens(settings, _endpoint(given).fetch, "sasl.oauthbearer.*", token_source)
        return CachedTokens(settings, unsecured.parse(given.get(_CONFIG)).fetch, _CONFIG, token_source)

    return shared(settings, make)


def _endpoint(given: Mapping[str, str]) -> TokenEndpoint:
    metadata = given.get(_METADATA, "none").lower()
    if metadata not in ("none", "azure_imds"):
        raise ConfigurationError(
            f"{_METADATA}={metadata!r} must be none or azure_imds; for any other provider set an oauth_cb that requests the"
            " token"
        )
    sub_claim = given.get("sasl.oauthbearer.sub.claim.name", "sub")
    if not sub_claim.strip():
        raise ConfigurationError("sasl.oauthbearer.sub.claim.name must be the name of a claim")
    url = given.get(_URL, "")
    if metadata == "azure_imds":
        query = _pairs(_CONFIG, given.get(_CONFIG, "")).get("query", "")
        if not url and not query:
            raise ConfigurationError(f"set {_URL}, or query=<parameters> in {_CONFIG}")
        url = url or _AZURE_URL
        if query:
            url += ("&" if urlsplit(url).query else "?") + query
        ask = azure_instance
    else:
        ask = _ask(given)
    if urlsplit(url).scheme.lower() not in ("http", "https") or not urlsplit(url).hostname:
        raise ConfigurationError(f"{_URL} must be an address that begins with https:// or http://")
    extensions = _pairs("sasl.oauthbearer.extensions", given.get("sasl.oauthbearer.extensions", ""))
    return TokenEndpoint(url, ask, sub_claim, extensions, _trust(given) if url.lower().startswith("https") else None)


def _ask(given: Mapping[str, str]) -> Callable[[], Ask]:
    if not given.get(_URL):
        raise ConfigurationError(f"{_METHOD}=oidc needs {_URL}, which is not set")
    kind = given.get("sasl.oauthbearer.grant.type", "client_credentials")
    scope = given.get("sasl.oauthbearer.scope", "")
    if kind == "client_credentials":
        for key in ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"):
            if not given.get(key):
                raise ConfigurationError(f"{_METHOD}=oidc needs {key}, which is not set")
        client_id, secret = given["sasl.oauthbearer.client.id"], given["sasl.oauthbearer.client.secret"]
        return functools.partial(client_credentials, client_id, secret, scope)
    if kind == _JWT_BEARER:
        return functools.partial(jwt_bearer, _assertion(given), scope)
    raise ConfigurationError(f"sasl.oauthbearer.grant.type={kind!r} must be client_credentials or {_JWT_BEARER}")


def _assertion(given: Mapping[str, str]) -> AssertionFile | SignedAssertion:
    file = given.get(f"{_ASSERTION}file")
    if file:
        for name in _MAKING.split():
            if f"{_ASSERTION}{name}" in given:
                raise ConfigurationError(f"{_ASSERTION}file and {_ASSERTION}{name} cannot be combined; set only one of them")
        return AssertionFile(file)
    key_file, key_pem = given.get(f"{_ASSERTION}private.key.file"), given.get(f"{_ASSERTION}private.key.pem")
    if bool(key_file) == bool(key_pem):
        key = f"{_ASSERTION}private.key"
        raise ConfigurationError(f"set exactly one of {_ASSERTION}file, {key}.file and {key}.pem")
    algorithm = given.get(f"{_ASSERTION}algorithm", "RS256")
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"{_ASSERTION}algorithm={algorithm!r} must be one of {', '.join(ALGORITHMS)}")
    signing_library()

    def seconds(name: str, default: int, low: int) -> int:
        key = f"{_ASSERTION}{name}"
        return as_integer(key, given.get(key, default), low, _MAX_INT)

    claims = {name: given.get(f"{_ASSERTION}claim.{name}", "") for name in ("sub", "iss", "aud")}
    with_id = f"{_ASSERTION}claim.jti.include"
    return SignedAssertion(
        algorithm,
        {name: claim for name, claim in claims.items() if claim},
        key_file,
        key_pem,
        given.get(f"{_ASSERTION}private.key.passphrase"),
        given.get(f"{_ASSERTION}jwt.template.file"),
        lives_s=seconds("claim.exp.seconds", 300, 1),
        backdated_s=seconds("claim.nbf.seconds", 60, 0),
        with_id=as_boolean(with_id, given.get(with_id, "false")),
    )


def _pairs(setting: str, text: str) -> dict[str, str]:
    """Return a text such as ``key=value,key=value`` as a dictionary."""
    found = {}
    for pair in (part.strip() for part in text.split(",")):
        key, equals, value = pair.partition("=")
        if pair and (not key or not equals):
            raise ConfigurationError(f"{setting} must be key=value pairs separated by commas")
        if pair:
            found[key] = value
    return found


def _trust(given: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for the token endpoint, with the certificate authorities to trust."""
    location, pem = given.get("https.ca.location"), given.get("https.ca.pem")
    if location and pem:
        raise ConfigurationError("https.ca.location and https.ca.pem cannot be combined; set only one of them")
    if not location or location == "probe":
        return ssl.create_default_context(cadata=pem or None)
    path = Path(location)
    if not path.exists():
        raise ConfigurationError(f"https.ca.location={path}: no such file")
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise ConfigurationError(f"https.ca.location={path} contains no certificate in PEM format") from None
