"""Messages of SASL authentication."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.wire.schema import BYTES, INT16, INT64, STRING, Struct, array, field


class SaslHandshakeRequest(Struct, versions="0-1"):
    """Request that names the SASL mechanism that the client will use."""

    mechanism: str = field(STRING)


class SaslHandshakeResponse(Struct, versions="0-1"):
    """Response with the enabled mechanisms, and an error code if the requested mechanism is not enabled."""

    error_code: int = field(INT16)
    mechanisms: Sequence[str] = field(array(STRING))


class SaslAuthenticateRequest(Struct, versions="0-2", flexible="2+"):
    """The client's next token of the SASL exchange (KIP-152)."""

    auth_bytes: bytes = field(BYTES)

    def __repr__(self) -> str:
        # With PLAIN, these bytes contain the password, so do not show them.
        return f"SaslAuthenticateRequest(auth_bytes=<{len(self.auth_bytes)} bytes>)"


class SaslAuthenticateResponse(Struct, versions="0-2", flexible="2+"):
    """Response with the broker's next token of the SASL exchange."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    auth_bytes: bytes = field(BYTES)
    session_lifetime_ms: int = field(INT64, "1+", ignorable=True)
