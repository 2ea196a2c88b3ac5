"""Assertions for the JWT bearer grant (RFC 7523), which are read from a file, or created and signed here."""

from __future__ import annotations

import importlib
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import AuthenticationError, ConfigurationError

_KEY_KINDS = {"RS256": "RSAKey", "ES256": "ECKey"}
ALGORITHMS = tuple(_KEY_KINDS)


@attrs.frozen
class AssertionFile:
    """An assertion from ``sasl.oauthbearer.assertion.file``. Another program renews the file, so read it at each use."""

    path: str

    def __call__(self) -> str:
        """Return the assertion."""
        return _read("sasl.oauthbearer.assertion.file", self.path).strip()


@attrs.frozen
class SignedAssertion:
    """An assertion signed with the application's private key."""

    algorithm: str
    #: The claims ``sub``, ``iss`` and ``aud``, if the settings have them.
    claims: Mapping[str, str]
    key_file: str | None = None
    key_pem: str | None = attrs.field(default=None, repr=False)
    passphrase: str | None = attrs.field(default=None, repr=False)
    #: A JSON file with a ``header`` and a ``payload`` to which the settings are added.
    template_file: str | None = None
    lives_s: int = 300
    #: The assertion is valid from this number of seconds in the past, because clocks differ.
    backdated_s: int = 60
    with_id: bool = False

    def __call__(self) -> str:
        """Return a new assertion; raise :class:`AuthenticationError` if key or template cannot be used."""
        header, payload = self._template()
        now_s = int(time.time())
        header.update(alg=self.algorithm, typ="JWT")
        payload.update(iat=now_s, exp=now_s + self.lives_s, nbf=now_s - self.backdated_s, **self.claims)
        if self.with_id:
            payload["jti"] = str(uuid.uuid4())
        return self._signed(header, payload)

    def _template(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.template_file is None:
            return {}, {}
        setting = "sasl.oauthbearer.assertion.jwt.template.file"
        try:
            found = json.loads(_read(setting, self.template_file))
            header, payload = found["header"], found["payload"]
        except (ValueError, KeyError, TypeError):
            header = payload = None
        if not isinstance(header, dict) or not isinstance(payload, dict):
            raise AuthenticationError(f"{setting}={self.template_file} must contain a JSON object with 'header' and 'payload'")
        return header, payload

    def _signed(self, header: dict[str, Any], payload: dict[str, Any]) -> str:
        jwt, jwk, errors = signing_library()
        pem = self.key_pem if self.key_file is None else _read("sasl.oauthbearer.assertion.private.key.file", self.key_file)
        kind = getattr(jwk, _KEY_KINDS[self.algorithm])
        try:
            key = kind.import_key(pem, password=self.passphrase)
            signed: str = jwt.encode(header, payload, key, algorithms=[self.algorithm])
        except (ValueError, TypeError, errors.JoseError) as error:
            # The error's text may quote the key, so report only the error's type.
            raise AuthenticationError(
                f"sasl.oauthbearer.assertion.private.key.* must be a private key for {self.algorithm} in PEM format,"
                f" and sasl.oauthbearer.assertion.private.key.passphrase must decrypt it ({type(error).__name__})"
            ) from None
        return signed


def signing_library() -> tuple[Any, Any, Any]:
    """Return joserfc's modules; raise :class:`ConfigurationError` if joserfc is not installed."""
    try:
        jwt, jwk, errors = (importlib.import_module(f"joserfc.{name}") for name in ("jwt", "jwk", "errors"))
    except ImportError:
        raise ConfigurationError(
            "sasl.oauthbearer.assertion.private.key.* needs the joserfc package (pip install joserfc); or let another"
            " program write the assertion to a file, and set sasl.oauthbearer.assertion.file"
        ) from None
    return jwt, jwk, errors


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthenticationError(f"{setting}={path} cannot be read: {error}") from error
