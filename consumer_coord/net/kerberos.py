"""SASL GSSAPI: Kerberos 5 (RFC 4752), with the system's Kerberos library through the package gssapi.

Tickets come from a keytab (``sasl.kerberos.keytab``), with which the library requests and renews them itself, or from the
user's credential cache, which somebody else keeps current (``kinit``, ``k5start``, a sidecar).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Environment
from consumer_coord.errors import AuthenticationError, ConfigurationError, RetriableError
from consumer_coord.extras import missing
from consumer_coord.net.sasl import Send

_SERVICE: Final = "kafka"
#: The broker's offer: one byte with the security layers, and three with the largest message; bit 0 is "no security layer".
_OFFER_BYTES: Final = 4
_NO_LAYER: Final = 1
#: What this client answers: no security layer, which TLS may provide, and no identity apart from the ticket's.
_CHOICE: Final = b"\x01\x00\x00\x00"
#: Minor codes of MIT Kerberos that may go away: no KDC answers, or its address is not found now.
_TEMPORARY: Final = frozenset({-1765328228 & 0xFFFFFFFF, -1765328228, -1765328164 & 0xFFFFFFFF, -1765328164})


def library() -> Any:
    """Return the package gssapi; raise :class:`ConfigurationError`, which names the extra, without it."""
    try:
        return importlib.import_module("gssapi")
    except ImportError as error:
        raise ConfigurationError(f"sasl.mechanism=GSSAPI: {missing('gssapi', error)}") from error
    except OSError as error:
        raise ConfigurationError(
            f"sasl.mechanism=GSSAPI: the package gssapi finds no Kerberos library ({error}); install libgssapi-krb5-2"
        ) from error


@attrs.frozen
class Kerberos:
    """The settings of GSSAPI. Without a keytab, the tickets of the credential cache are used."""

    environment: Environment = attrs.field(repr=False)
    service: str = _SERVICE
    #: The user, such as ``alice@EXAMPLE.COM``; None for the first of the keytab or the cache.
    principal: str | None = None
    keytab: str | None = None
    name = "GSSAPI"

    @classmethod
    def of(cls, settings: Mapping[str, Any], environment: Environment) -> Kerberos:
        """Return the mechanism for checked settings."""
        return cls(
            environment,
            settings.get("sasl.kerberos.service.name") or _SERVICE,
            settings.get("sasl.kerberos.principal") or None,
            settings.get("sasl.kerberos.keytab") or None,
        )

    @property
    def who(self) -> str:
        """The user, and where the tickets come from."""
        user = "the first principal" if self.principal is None else f"principal {self.principal!r}"
        return f"{user} of {'the credential cache' if self.keytab is None else f'keytab {self.keytab}'}"

    @property
    def remedy(self) -> str:
        """Advice for error texts."""
        tickets = "run kinit, or set sasl.kerberos.keytab" if self.keytab is None else "check the keytab with klist -k"
        return (
            f"{tickets}; a broker's principal must be {self.service}/HOST (sasl.kerberos.service.name), as it advertises HOST"
        )

    async def exchange(self, send: Send, host: str) -> None:
        """Prove the identity with a ticket for the broker, check the broker's, and choose no security layer."""
        gssapi = library()
        blocking = self.environment.run_blocking
        try:
            # In a thread, because the library asks the KDC for tickets.
            context: Any = await blocking(functools.partial(self._context, gssapi, host))
            answer: bytes | None = None
            while not context.complete:
                token: bytes | None = await blocking(functools.partial(context.step, answer))
                answer = await send(token or b"")
            offer = bytes(context.unwrap(answer).message)
            if len(offer) != _OFFER_BYTES or not offer[0] & _NO_LAYER:
                raise AuthenticationError("the broker requires a security layer of SASL, which Kafka does not use")
            await send(bytes(context.wrap(_CHOICE, False).message))
        except gssapi.exceptions.GSSError as error:
            why = " ".join(str(error).split())
            if getattr(error, "min_code", 0) in _TEMPORARY:
                raise RetriableError(f"control plane: no Kerberos ticket for {self.service}/{host} now: {why}") from error
            raise AuthenticationError(why) from error

    def _context(self, gssapi: Any, host: str) -> Any:
        """Return a security context with the tickets of this client, for the service at ``host``."""
        name = None
        if self.principal is not None:
            name = gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
        store = None
        if self.keytab is not None:
            # The library requests and renews the tickets of a client keytab itself; a cache in memory leaves the user's alone.
            store = {"client_keytab": f"FILE:{self.keytab}", "ccache": f"MEMORY:consumer-coord-{self.principal}-{self.keytab}"}
        credentials = gssapi.Credentials(name=name, usage="initiate", store=store)
        service = gssapi.Name(f"{self.service}@{host}", gssapi.NameType.hostbased_service)
        flags = gssapi.RequirementFlag
        return gssapi.SecurityContext(
            name=service,
            creds=credentials,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=flags.mutual_authentication | flags.integrity | flags.out_of_sequence_detection,
        )

    def forget(self) -> None:
        """Keep the tickets, which the Kerberos library manages."""

    def scrub(self, text: str) -> str:
        """Return ``text``: errors of Kerberos contain no secret."""
        return text
