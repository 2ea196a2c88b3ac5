"""Raise librdkafka's final errors about security at once; librdkafka itself only logs them and retries for ever.

librdkafka passes such an error to ``error_cb``, so this package detects a refusal without checking every message.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from consumer_coord.confluent.kafka_exceptions import to_kafka_exception
from consumer_coord.confluent.types import KafkaError, KafkaException, Message
from consumer_coord.errors import AuthenticationError, AuthorizationError, CoordinatorError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.group.failures import copy_of
from consumer_coord.log_text import get_logger
from consumer_coord.net.oauth import with_oauth_callback
from consumer_coord.net.security import cipher_suites
from consumer_coord.wire import error_codes

logger: Final = get_logger(__name__)

#: Errors that the broker itself reports. Other errors with these codes, such as a broken handshake, are temporary.
_REFUSED_SASL = r"SASL authentication error: (?!.*\bLocal: )|mechanism handshake failed: Broker: "
_REFUSED_TLS = r"(?i)certificate|wrong version number|\balert\b|unsupported protocol|no shared cipher"

#: How long an error of librdkafka waits for the outcome of the group connection's authentication, in seconds.
_PATIENCE_S = 10.0

_ACLS = {
    error_codes.TOPIC_AUTHORIZATION_FAILED: "the principal needs READ on the topic",
    error_codes.GROUP_AUTHORIZATION_FAILED: "the principal needs READ on the group (group.id)",
    error_codes.CLUSTER_AUTHORIZATION_FAILED: "the principal lacks a permission on the cluster",
}


def refusal(error: KafkaError, settings: Mapping[str, Any]) -> CoordinatorError | None:
    """Return this package's error for a final error of librdkafka about security; None for any other error."""
    code, text = error.code(), _without_secrets(error.str(), settings)
    if code == KafkaError._AUTHENTICATION and re.search(_REFUSED_SASL, text):
        from consumer_coord.net.sasl import KeptTokens

        callback = with_oauth_callback(settings).get("oauth_cb")
        if isinstance(callback, KeptTokens):
            remedy = callback.described_as
        else:
            by_token = callback is not None
            remedy = "what oauth_cb returns" if by_token else "sasl.mechanism, sasl.username and sasl.password"
        return AuthenticationError(f"data plane: {text}; check {remedy}")
    if code == KafkaError._SSL and re.search(_REFUSED_TLS, text):
        return AuthenticationError(
            f"data plane: {text}; check security.protocol, ssl.ca.location, ssl.certificate.location and ssl.key.location"
        )
    if code in _ACLS:
        # If this package's own Fetch reported the error, the text already has the explanation: do not add it twice.
        return AuthorizationError(f"data plane: {text if _ACLS[code] in text else f'{text}: {_ACLS[code]}'}", code=code)
    return None


def _without_secrets(text: str, settings: Mapping[str, Any]) -> str:
    for key in ("sasl.password", "ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret"):
        secret = settings.get(key)
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return text


def message_failure(message: Message, settings: Mapping[str, Any]) -> Exception:
    """Return the exception for a message that carries an error instead of a record."""
    refused = refusal(message.error(), settings)
    return KafkaException(message.error()) if refused is None else to_kafka_exception(refused)


class Refusals:
    """Keeps a rejection of credentials or TLS by librdkafka until the consumer knows which connection's error to raise.

    The group connection and librdkafka connect with the same settings, and the broker can reject either first. The group
    connection's error says which setting is wrong, so librdkafka's error waits. The consumer raises librdkafka's error if the
    group connection was authenticated, or if its authentication has neither succeeded nor failed after ten seconds.
    """

    def __init__(self, settings: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._held: AuthenticationError | None = None
        self._until = 0.0

    def note(self, error: KafkaError) -> None:
        """Record an error that librdkafka passed to ``error_cb`` if it is a rejection; raise an authorization error at once."""
        refused = refusal(error, self._settings)
        if isinstance(refused, AuthenticationError):
            if self._held is None:
                self._held, self._until = refused, self._clock() + _PATIENCE_S
        elif refused is not None:
            raise to_kafka_exception(refused)
        else:
            logger.info("data plane: %s", error)

    def settle(self, core: ConsumerCoordinator, *, joins: bool) -> None:
        """Raise the recorded error of librdkafka, unless the brokers refused the group connection, too.

        Then the error of the group connection is the better one: raise it, unless ``joins`` says that the member is about to
        join, because the join reports it.
        """
        held = self._held
        if held is None:
            return
        cluster = core.cluster
        if cluster.refusal is None and not cluster.reached and self._clock() < self._until:
            core.application.look_again()
            return
        self._held = None
        if cluster.refusal is None:
            raise to_kafka_exception(held)
        logger.debug("the broker also rejected the group's connection, whose error is reported; librdkafka's error: %s", held)
        if not joins:
            raise to_kafka_exception(copy_of(cluster.refusal))


def with_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` for ``confluent_kafka.Consumer``: exclude TLS before version 1.2, and wrap the ``oauth_cb``.

    Raise :class:`AuthenticationError` at once if the callback returns no token, because librdkafka's constructor would wait ten
    seconds for a token.
    """
    made = dict(with_oauth_callback(settings))
    if str(made.get("security.protocol", "")).lower().endswith("ssl"):
        made["ssl.cipher.suites"] = cipher_suites(made)
    if callable(made.get("oauth_cb")):
        made["oauth_cb"] = _Tokens(made["oauth_cb"], made.get("sasl.oauthbearer.config"))
    return made


class _Tokens:
    """An ``oauth_cb`` for librdkafka that obtains its first token when it is created."""

    def __init__(self, callback: Callable[[Any], tuple[Any, ...]], config: str | None) -> None:
        from consumer_coord.net.sasl import described_as, parse_token

        self._callback = callback
        try:
            first = callback(config)
        except CoordinatorError as error:
            raise AuthenticationError(f"data plane: {error}") from error
        except Exception as error:
            raise AuthenticationError(f"data plane: oauth_cb raised {type(error).__name__}: {error}") from error
        token = parse_token(first, time.time() * 1000)
        if token.expires_at_ms <= time.time() * 1000:
            raise AuthenticationError(f"data plane: {described_as(callback)} returned a token that has expired")
        self._first: tuple[Any, ...] | None = first

    def __call__(self, config: str | None) -> tuple[Any, ...]:
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            return self._callback(config)
        except Exception as error:
            # librdkafka receives the exception and retries after ten seconds; the current token works until it expires.
            raised = "" if isinstance(error, CoordinatorError) else f"oauth_cb raised {type(error).__name__}: "
            logger.warning("data plane: %s%s; librdkafka will retry", raised, error)
            raise
