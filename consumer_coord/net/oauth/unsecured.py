"""Unsecured tokens (``enable.sasl.oauthbearer.unsecure.jwt``): an unsigned JSON web token, for tests only.

``sasl.oauthbearer.config`` defines the token's content, as in ``rdkafka_sasl_oauthbearer.c``: ``principal=admin
scope=role1,role2 lifeSeconds=600 extension_traceId=123``.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.net.oauth.cached import Issued

_NAMES = ("principalClaimName", "principal", "scopeClaimName", "scope", "lifeSeconds")
_EXTENSION = "extension_"
_LARGEST_LIFE_S = 2**31 - 1


@attrs.frozen
class UnsecuredTokens:
    """Creates tokens for one principal."""

    principal: str
    principal_claim: str = "sub"
    scope: tuple[str, ...] = ()
    scope_claim: str = "scope"
    life_s: int = 3600
    extensions: Mapping[str, str] = attrs.field(factory=dict)

    def fetch(self) -> Issued:
        """Return a token that is valid from now."""
        now_s = time.time()
        claims: dict[str, Any] = {self.principal_claim: self.principal, "iat": round(now_s, 3)}
        claims["exp"] = round(now_s + self.life_s, 3)
        if self.scope:
            claims[self.scope_claim] = list(self.scope)
        token = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
        return Issued(token, claims["exp"], self.principal, self.extensions)


def parse(config: str | None) -> UnsecuredTokens:
    """Read ``sasl.oauthbearer.config``; raise :class:`ConfigurationError` in the same cases as librdkafka."""
    found: dict[str, str] = {}
    extensions: dict[str, str] = {}
    for entry in (config or "").split(" "):
        if not entry:
            continue
        name, equals, value = entry.partition("=")
        if name.startswith(_EXTENSION) and equals:
            extensions[name.removeprefix(_EXTENSION)] = value
        elif name not in _NAMES or not equals:
            raise ConfigurationError(f"sasl.oauthbearer.config: {name!r} must be one of {', '.join(_NAMES)}, extension_NAME")
        elif name in found:
            raise ConfigurationError(f"sasl.oauthbearer.config sets {name} twice")
        elif not value or '"' in value:
            raise ConfigurationError(f"sasl.oauthbearer.config: {name} must not be empty or contain a quotation mark")
        else:
            found[name] = value
    if "principal" not in found:
        raise ConfigurationError("an unsecured token needs principal=<name> in sasl.oauthbearer.config")
    life = found.get("lifeSeconds", "3600")
    if not life.isdecimal() or not 0 < int(life) <= _LARGEST_LIFE_S:
        raise ConfigurationError("sasl.oauthbearer.config: lifeSeconds must be a whole number of seconds above 0")
    return UnsecuredTokens(
        principal=found["principal"],
        principal_claim=found.get("principalClaimName", "sub"),
        scope=tuple(dict.fromkeys(part for part in found.get("scope", "").split(",") if part)),
        scope_claim=found.get("scopeClaimName", "scope"),
        life_s=int(life),
        extensions=extensions,
    )


def _encoded(what: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(what).encode()).decode().rstrip("=")
