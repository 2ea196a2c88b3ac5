"""SASL authentication on a fresh connection, and again before its session ends (KIP-152, KIP-368).

A *mechanism* produces this client's tokens and processes the broker's tokens. :class:`SaslAuthenticator` sends the tokens of
any mechanism. Error messages name the address, the setting and the remedy, and never contain a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Environment
from consumer_coord.errors import AuthenticationError, ConfigurationError, CoordinatorError, RetriableError
from consumer_coord.log_text import get_logger
from consumer_coord.net.connection import Connection
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

logger: Final = get_logger(__name__)

#: Fraction of a token's lifetime after which the token is renewed (Java's ``sasl.login.refresh.window.factor``; librdkafka also
#: uses 80 %).
REFRESH_AFTER = 0.8

#: ``oauth_cb`` of confluent-kafka: ``oauth_cb(config) -> (token, expiry_s[, principal[, extensions]])``.
OAuthCallback = Callable[[str | None], tuple[Any, ...]]


@runtime_checkable
class KeptTokens(Protocol):
    """An ``oauth_cb`` of this package, which caches one token for the coordinator and librdkafka."""

    @property
    def described_as(self) -> str:
        """The settings of the token source, for error texts."""

    def forget(self, value: str) -> None:
        """Drop a token that a broker refused, so that the next call fetches another token."""


def described_as(callback: Any) -> str:
    """Return the name of a token source for error texts."""
    return callback.described_as if isinstance(callback, KeptTokens) else "oauth_cb"


#: Sends this client's token, and returns the broker's token.
Send = Callable[[bytes], Awaitable[bytes]]


class Mechanism(Protocol):
    """A SASL mechanism with its credentials."""

    @property
    def name(self) -> str:
        """The name of the mechanism, as in the setting ``sasl.mechanism``."""

    @property
    def who(self) -> str:
        """The identity that is authenticated, for error texts."""

    @property
    def remedy(self) -> str:
        """Advice for error texts: the settings to check if the broker refuses."""

    async def exchange(self, send: Send, host: str) -> None:
        """Send all tokens of one authentication with the broker at ``host``, and check the broker's tokens."""

    def forget(self) -> None:
        """Drop a cached token."""

    def scrub(self, text: str) -> str:
        """Return ``text``, which came from the broker or a callback, without the secrets of this mechanism."""


def _without(text: str, secret: str) -> str:
    return text.replace(secret, "***") if secret else text


# -- PLAIN ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class _WithPassword:
    """The user of a mechanism with passwords."""

    username: str
    password: str = attrs.field(repr=False)

    @property
    def who(self) -> str:
        """The user."""
        return f"user {self.username!r}"

    def forget(self) -> None:
        """Keep the password, because there is no other."""

    def scrub(self, text: str) -> str:
        """Return ``text`` without the password."""
        return _without(text, self.password)


@attrs.frozen
class Plain(_WithPassword):
    """PLAIN (RFC 4616): name and password are sent in plain text, so use PLAIN only with TLS."""

    name = "PLAIN"
    remedy = "check sasl.username and sasl.password"

    async def exchange(self, send: Send, host: str) -> None:
        """Send the name and the password; the broker's token is empty."""
        await send(b"\0" + self.username.encode() + b"\0" + self.password.encode())


# -- SCRAM ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Scram(_WithPassword):
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677); the password is never sent."""

    name: str
    environment: Environment = attrs.field(repr=False)
    remedy = "check sasl.username and sasl.password, and that the broker has a SCRAM credential of this mechanism for the user"

    async def exchange(self, send: Send, host: str) -> None:
        """Prove that this client knows the password, and check that the broker knows it, too."""
        from consumer_coord.net.scram import ScramClient

        client = ScramClient(self.name, self.username, self.password)
        challenge = await send(client.first().encode())
        with _wrong_part():
            # Run the thousands of hash rounds in a thread, because on the loop they would delay heartbeats.
            final = await self.environment.run_blocking(functools.partial(client.final, challenge.decode()))
        signature = await send(final.encode())
        with _wrong_part():
            client.check(signature.decode())


@contextlib.contextmanager
def _wrong_part() -> Iterator[None]:
    """Raise :class:`AuthenticationError` for a wrong token of the broker."""
    try:
        yield
    except ValueError as error:
        from consumer_coord.net.scram import ScramError

        # A UnicodeDecodeError would quote the broker's message, so report only the type of such an error.
        why = str(error) if isinstance(error, ScramError) else type(error).__name__
        raise AuthenticationError(f"the broker's part of the SCRAM exchange is wrong ({why})") from None


# -- OAUTHBEARER ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Token:
    """A token that ``oauth_cb`` returned, and the time of the call; times are in milliseconds since 1970."""

    value: str = attrs.field(repr=False)
    fetched_at_ms: float
    expires_at_ms: float
    extensions: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    def ageing(self, wall_clock_ms: float) -> bool:
        """Return whether a token that is still valid should be renewed."""
        return wall_clock_ms >= self.fetched_at_ms + REFRESH_AFTER * (self.expires_at_ms - self.fetched_at_ms)


# The characters that RFC 6750 (section 2.1) and RFC 7628 (section 3.1) allow, so that no value contains a separator.
_TOKEN = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_EXTENSION_KEY = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7E \t\r\n]+")


class TokenSource:
    """Tokens from ``oauth_cb``. Each token is cached for most of its lifetime, and fetched once for all waiting callers."""

    def __init__(self, callback: OAuthCallback, config: str | None, environment: Environment) -> None:
        self._callback = callback
        self._config = config
        self._environment = environment
        self._token: Token | None = None
        self._lock = asyncio.Lock()
        #: Name of the callback in error texts.
        self.described_as: str = described_as(callback)

    async def token(self) -> Token:
        """Return a token that has not expired.

        If ``oauth_cb`` fails, raise :class:`AuthenticationError` if it has never returned a token, otherwise
        :class:`RetriableError`, because a temporary failure of an identity provider must not end a consumer.
        """
        async with self._lock:
            held = self._token
            if held is not None and not held.ageing(self._environment.wall_clock_ms()):
                return held
            try:
                fresh = await self._fetch()
            except CoordinatorError as error:
                if held is None:
                    raise
                if self._environment.wall_clock_ms() < held.expires_at_ms:
                    logger.warning("the token could not be renewed; still using the current one: %s", error)
                    return held
                raise RetriableError(f"the token has expired and could not be renewed: {error}") from error
            self._token = fresh
            return fresh

    def scrub(self, text: str) -> str:
        """Return ``text`` without the token."""
        return text if self._token is None else _without(text, self._token.value)

    def forget(self) -> None:
        """Drop a token that the broker refused, so that the next call fetches another token."""
        callback: object = self._callback
        if self._token is not None and isinstance(callback, KeptTokens):
            callback.forget(self._token.value)
        self._token = None

    async def _fetch(self) -> Token:
        asked_at_ms = self._environment.wall_clock_ms()
        pending: Awaitable[tuple[Any, ...]] = self._environment.run_blocking(lambda: self._callback(self._config))
        try:
            returned = await pending
        except CoordinatorError as error:
            raise AuthenticationError(str(error)) from error
        except Exception as error:
            raise AuthenticationError(f"oauth_cb raised {type(error).__name__}: {error}") from error
        token = parse_token(returned, asked_at_ms)
        late_ms = self._environment.wall_clock_ms() - token.expires_at_ms
        if late_ms >= 0:
            raise AuthenticationError(f"{self.described_as} returned a token that expired {late_ms / 1000:.0f} s ago")
        return token


def parse_token(returned: Any, asked_at_ms: float) -> Token:
    """Return the result of ``oauth_cb`` as a token; raise :class:`ConfigurationError` for an invalid result."""
    shape = "oauth_cb must return (token, expiry in seconds since 1970[, principal[, extensions]])"
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 4:
        raise ConfigurationError(f"{shape}, not {type(returned).__name__}")
    value, expiry_s = returned[:2]
    if not isinstance(value, str) or isinstance(expiry_s, bool) or not isinstance(expiry_s, (int, float)):
        raise ConfigurationError(f"{shape}, not ({type(value).__name__}, {type(expiry_s).__name__}, …)")
    if not _TOKEN.fullmatch(value):
        raise ConfigurationError("oauth_cb returned a token with characters that RFC 6750 does not allow")
    extensions = returned[3] if len(returned) == 4 and returned[3] is not None else {}
    if not isinstance(extensions, Mapping):
        raise ConfigurationError(f"{shape}; the extensions must be a dictionary of strings, not {type(extensions).__name__}")
    for key, text in extensions.items():
        if not isinstance(key, str) or key == "auth" or not _EXTENSION_KEY.fullmatch(key):
            raise ConfigurationError(
                f"oauth_cb returned an extension with the key {key!r}: a key has only letters, and is not 'auth'"
            )
        if not isinstance(text, str) or not _EXTENSION_VALUE.fullmatch(text):
            raise ConfigurationError(f"oauth_cb returned an extension {key!r} whose value is not printable text")
    return Token(value, asked_at_ms, expiry_s * 1000, dict(extensions))


@attrs.frozen
class OAuthBearer:
    """OAUTHBEARER (RFC 7628, KIP-255, extensions of KIP-342)."""

    source: TokenSource = attrs.field(repr=False)
    name = "OAUTHBEARER"

    @property
    def who(self) -> str:
        """The source of the token."""
        return f"the token of {self.source.described_as}"

    @property
    def remedy(self) -> str:
        """Advice for error texts: the properties of a token that the listener checks."""
        source = self.source.described_as
        what = "what oauth_cb returns: the token's" if source == "oauth_cb" else f"{source}: the token's"
        return f"check {what} audience, scope and expiry must match what the listener accepts"

    async def exchange(self, send: Send, host: str) -> None:
        """Send the token."""
        token = await self.source.token()
        fields = {"auth": f"Bearer {token.value}", **token.extensions}
        challenge = await send(("n,,\x01" + "".join(f"{key}={value}\x01" for key, value in fields.items()) + "\x01").encode())
        if challenge:
            # A broker that refuses a token responds with the reason in JSON (RFC 7628, section 3.2.2). The broker would send a
            # final error only after another message of this client, and the final error would contain no further information.
            why = self.source.scrub(_why_refused(challenge))
            self.source.forget()
            raise AuthenticationError(f"the broker refused the token ({why})")

    def forget(self) -> None:
        """Drop the token, so that the next exchange obtains another one."""
        self.source.forget()

    def scrub(self, text: str) -> str:
        """Return ``text`` without the token."""
        return self.source.scrub(text)


def _why_refused(challenge: bytes) -> str:
    try:
        detail = json.loads(challenge)
    except ValueError:
        return "without a reason"
    if not isinstance(detail, dict):
        return "without a reason"
    return ", ".join(f"{key}={value}" for key, value in detail.items() if isinstance(value, str)) or "without a reason"


# -- the authenticator ----------------------------------------------------------------------------------------------


@attrs.frozen
class SaslAuthenticator:
    """Authenticates connections by one mechanism (:class:`~consumer_coord.net.connection.Authenticator`)."""

    mechanism: Mechanism

    def with_credentials(self, username: str, password: str) -> SaslAuthenticator:
        """Return an authenticator for another user; return this authenticator if the mechanism has no passwords."""
        if not isinstance(self.mechanism, _WithPassword):
            return self
        return SaslAuthenticator(attrs.evolve(self.mechanism, username=username, password=password))

    def forget(self) -> None:
        """Drop a cached token, so that the next authentication obtains another one."""
        self.mechanism.forget()

    async def authenticate(self, connection: Connection) -> int:
        """Run the handshake and the exchange; return the session's lifetime in milliseconds, 0 if it does not end (KIP-368).

        If the broker refuses, raise :class:`AuthenticationError`, which names the remedy.
        """
        mechanism = self.mechanism
        await self._handshake(connection)
        lifetime_ms = 0

        async def send(token: bytes) -> bytes:
            nonlocal lifetime_ms
            answer = await connection.exchange(SaslAuthenticateRequest(auth_bytes=token))
            if answer.error_code != error_codes.NONE:
                detail = f": {answer.error_message}" if answer.error_message else ""
                raise AuthenticationError(error_codes.error_name(answer.error_code) + detail, code=answer.error_code)
            lifetime_ms = answer.session_lifetime_ms
            challenge: bytes = answer.auth_bytes
            return challenge

        try:
            await mechanism.exchange(send, connection.address.rpartition(":")[0].strip("[]"))
        except AuthenticationError as error:
            raise AuthenticationError(
                f"control plane: {connection.address} and SASL {mechanism.name} for {mechanism.who}:"
                f" {mechanism.scrub(str(error))}; {mechanism.remedy}",
                code=error.code,
            ) from error.__cause__
        return lifetime_ms

    async def _handshake(self, connection: Connection) -> None:
        answer = await connection.exchange(SaslHandshakeRequest(mechanism=self.mechanism.name))
        if answer.error_code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(sorted(answer.mechanisms)) or "none"
            raise AuthenticationError(
                f"control plane: {connection.address} does not accept sasl.mechanism={self.mechanism.name}; set it to one"
                f" that this listener has enabled: {offered}",
                code=answer.error_code,
            )
        if answer.error_code == error_codes.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"control plane: {connection.address} is a listener without SASL; set security.protocol to PLAINTEXT or"
                " SSL, or use the address of the SASL listener",
                code=answer.error_code,
            )
        if answer.error_code != error_codes.NONE:
            raise AuthenticationError(
                f"control plane: {connection.address} refused the SASL handshake with"
                f" {error_codes.error_name(answer.error_code)}",
                code=answer.error_code,
            )


async def require_no_sasl(connection: Connection) -> None:
    """Raise :class:`AuthenticationError` if this listener expects SASL, which this client does not use.

    A listener that expects SASL responds to ApiVersions, but closes the connection at the first other request. To recognise
    such a listener, send a SASL handshake without a mechanism: a listener without SASL responds with ILLEGAL_SASL_STATE, or
    does not support handshakes.
    """
    if api_for(SaslHandshakeRequest).key not in connection.versions:
        return
    answer = await connection.exchange(SaslHandshakeRequest(mechanism=""))
    if answer.error_code == error_codes.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(sorted(answer.mechanisms))
        raise AuthenticationError(
            f"control plane: the listener {connection.address} expects SASL; set security.protocol to SASL_PLAINTEXT or"
            f" SASL_SSL, and sasl.mechanism to one of {offered}",
            code=answer.error_code,
        )
