"""The token endpoint of an identity provider: the request, its response, and its errors (RFC 6749, RFC 7523)."""

from __future__ import annotations

import base64
import http.client
import json
import math
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import tenacity

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import AuthenticationError
from consumer_coord.net.oauth.cached import Issued

#: Time limit of one request, in seconds.
TIMEOUT_S = 10.0
ATTEMPTS = 3
PAUSE_S = 1.0
#: Maximum size of a response, in bytes; a usual response has some kilobytes.
_LARGEST_ANSWER = 1 << 20
#: HTTP statuses after which a request is retried (librdkafka's ``rd_http_is_failure_temporary``).
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)


@attrs.frozen(repr=False)
class Ask:
    """The headers and the form of a request to the endpoint; a request without a form is a GET."""

    headers: Mapping[str, str]
    form: Mapping[str, str] | None = None
    #: Secrets, which no error text may contain.
    secrets: tuple[str, ...] = ()
    #: The names of the response's fields that may contain the token.
    fields: tuple[str, ...] = ("access_token",)


def client_credentials(client_id: str, client_secret: str, scope: str) -> Ask:
    """Return the request with ``grant_type=client_credentials`` (RFC 6749, section 4.4) and HTTP basic authentication."""
    pair = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
    form = {"grant_type": "client_credentials", **_given(scope)}
    return Ask({"Authorization": f"Basic {pair}"}, form, (client_secret, pair))


def jwt_bearer(assertion: Callable[[], str], scope: str) -> Ask:
    """Return the request with ``grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer`` (RFC 7523) and a new assertion."""
    value = assertion()
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": value, **_given(scope)}
    # Some providers return an id token instead of an access token.
    return Ask({}, form, (value,), ("access_token", "id_token"))


def azure_instance() -> Ask:
    """Return the request with the identity of the virtual machine (``azure_imds``).

    Azure requires the header, which forwarded requests do not have.
    """
    return Ask({"Metadata": "true"})


def _given(scope: str) -> Mapping[str, str]:
    return {"scope": scope} if scope else {}


class _TryAgain(Exception):
    """Raised if the provider is unavailable or busy."""


@attrs.frozen
class TokenEndpoint:
    """Fetches tokens from one endpoint."""

    url: str
    #: Returns the request, with the credentials that the provider exchanges for a token.
    ask: Callable[[], Ask] = attrs.field(repr=False)
    sub_claim: str = "sub"
    extensions: Mapping[str, str] = attrs.field(factory=dict)
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)

    def fetch(self) -> Issued:
        """Return a new token; block for at most half a minute. Raise :class:`AuthenticationError`, whose text has no secret."""
        ask = self.ask()
        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_fixed(PAUSE_S),
            retry=tenacity.retry_if_exception_type(_TryAgain),
            reraise=True,
        )
        try:
            answer = attempts(self._request, ask)
            return self._issued(answer, ask.fields)
        except (_TryAgain, AuthenticationError) as error:
            reason = str(error)
            for secret in ask.secrets:
                reason = reason.replace(secret, "***")
            raise AuthenticationError(f"the token endpoint {self.url} {reason}") from None

    def _request(self, ask: Ask) -> Mapping[str, Any]:
        body = None if ask.form is None else urlencode(ask.form).encode()
        headers = {"Accept": "application/json", **ask.headers}
        # The URL begins with http or https, because the settings were checked.
        request = urllib.request.Request(self.url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.tls) as response:
                content = response.read(_LARGEST_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                reason = f"answered {error.code}{_reason(error.read(_LARGEST_ANSWER))}"
            if error.code in _TEMPORARY:
                raise _TryAgain(reason) from None
            raise AuthenticationError(reason) from None
        except (OSError, http.client.HTTPException) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(why, ssl.SSLCertVerificationError):
                raise AuthenticationError(
                    f"has a certificate that is not trusted: {why.verify_message}; check https.ca.location"
                ) from None
            raise _TryAgain(f"did not answer: {why}") from None
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise AuthenticationError("did not answer with a JSON object")
        return answer

    def _issued(self, answer: Mapping[str, Any], fields: Iterable[str]) -> Issued:
        failures = []
        for field in fields:
            try:
                return self._read(answer, field)
            except AuthenticationError as error:
                failures.append(str(error))
        raise AuthenticationError("; ".join(failures))

    def _read(self, answer: Mapping[str, Any], field: str) -> Issued:
        token = answer.get(field)
        if not isinstance(token, str):
            raise AuthenticationError(f"answered without {field!r}")
        claims = _claims(token)
        if claims is None:
            raise AuthenticationError(f"answered with an {field!r} that is not a JSON web token")
        expires_at_s, principal = claims.get("exp"), claims.get(self.sub_claim)
        if isinstance(expires_at_s, bool) or not isinstance(expires_at_s, (int, float)) or not _is_a_time(expires_at_s):
            raise AuthenticationError(f"answered with an {field!r} without a valid 'exp'")
        if not isinstance(principal, str) or not principal:
            raise AuthenticationError(
                f"answered with an {field!r} without the claim {self.sub_claim!r}; check sasl.oauthbearer.sub.claim.name"
            )
        return Issued(token, expires_at_s, principal, self.extensions)


def _is_a_time(moment_s: float) -> bool:
    return math.isfinite(moment_s) and moment_s > 0


def _reason(content: bytes) -> str:
    """Return ``error`` and ``error_description`` (RFC 6749, section 5.2) of a refusal."""
    try:
        refusal = json.loads(content)
    except ValueError:
        return ""
    if not isinstance(refusal, dict):
        return ""
    parts = [refusal[key] for key in ("error", "error_description") if isinstance(refusal.get(key), str)]
    return f" ({': '.join(parts)})" if parts else ""


def _claims(token: str) -> Mapping[str, Any] | None:
    """Return the payload of a JSON web token, whose signature the broker checks."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    return claims if isinstance(claims, dict) else None
