"""The client's side of SCRAM (RFC 5802, RFC 7677): SCRAM-SHA-256 and SCRAM-SHA-512 with the standard library.

User name and password are used unchanged, in UTF-8, without SASLprep, as in Kafka's broker and client
(``ScramFormatter.normalize``) and librdkafka. Client and broker must derive the same key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from consumer_coord import lazy_attrs as attrs

#: Mechanism -> the name of its hash.
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Smallest number of iterations (Kafka's ``ScramMechanism.minIterations``). A peer that requests fewer is not Kafka, and may
#: try to learn the password.
LEAST_ITERATIONS = 4_096
#: Largest number of iterations (librdkafka's limit). A larger number would waste this client's CPU time.
MOST_ITERATIONS = 1_000_000
#: The header of the first message: no channel binding, and no identity other than the user name.
_GS2_HEADER = "n,,"


class ScramError(ValueError):
    """Raised if a message of the broker is invalid; the error's text quotes no part of the exchange."""


def new_nonce() -> str:
    """Return 24 random bytes, unique to one exchange, as characters that need no escaping."""
    return secrets.token_urlsafe(24)


@attrs.define
class ScramClient:
    """An exchange: :meth:`first`, then :meth:`final` with the broker's first message, then :meth:`check`."""

    mechanism: str
    username: str
    password: str = attrs.field(repr=False)
    nonce: str = attrs.field(factory=new_nonce, repr=False)
    _broker_signature: bytes | None = attrs.field(default=None, init=False, repr=False)

    def first(self) -> str:
        """Return ``client-first-message``."""
        return _GS2_HEADER + self._first_bare()

    def final(self, server_first: str) -> str:
        """Return ``client-final-message``, which proves that this client knows the password.

        The call takes milliseconds, because the key is derived with as many hash rounds as the broker requests, at least 4,096.
        Raise :class:`ScramError` if ``server_first`` is invalid.
        """
        given = _attributes(server_first)
        nonce = given.get("r", "")
        if "m" in given or not nonce.startswith(self.nonce) or nonce == self.nonce:
            raise ScramError("not a response to this exchange")
        salt, iterations = _decoded(given.get("s", "")), given.get("i", "")
        if not salt or not (iterations.isascii() and iterations.isdecimal() and len(iterations) <= 7):
            raise ScramError("no salt, or no number of iterations")
        if not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
            raise ScramError(f"iterations not between {LEAST_ITERATIONS} and {MOST_ITERATIONS}")
        hash_name = HASHES[self.mechanism]
        salted = hashlib.pbkdf2_hmac(hash_name, self.password.encode(), salt, int(iterations))
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        conversation = f"{self._first_bare()},{server_first},{without_proof}".encode()
        stored_key = hashlib.new(hash_name, client_key).digest()
        signature = hmac.digest(stored_key, conversation, hash_name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._broker_signature = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), conversation, hash_name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}"

    def check(self, server_final: str) -> None:
        """Raise :class:`ScramError` unless ``server-final-message`` proves that the broker knows the password, too."""
        signature = _decoded(_attributes(server_final).get("v", ""))
        if self._broker_signature is None or not hmac.compare_digest(signature, self._broker_signature):
            raise ScramError("server signature mismatch: the broker does not have this password")

    def _first_bare(self) -> str:
        escaped = self.username.replace("=", "=3D").replace(",", "=2C")
        return f"n={escaped},r={self.nonce}"


def _attributes(message: str) -> dict[str, str]:
    """Return a message such as ``r=abc,s=QUJD`` as a mapping."""
    given = [part.partition("=") for part in message.split(",")]
    if any(len(name) != 1 or not equals for name, equals, _ in given):
        raise ScramError("not a list of name=value")
    return {name: value for name, _, value in given}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ScramError("not Base64") from None
