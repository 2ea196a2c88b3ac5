"""TLS, SASL and ACLs of a broker for tests: certificates, passwords, and the settings of both sides."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumer_coord.errors import ConfigurationError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_LOGIN: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
}
#: The SASL mechanisms of a broker for tests.
MECHANISMS: Final = tuple(_MODULES)
_TOKENS_ACCEPTED_BY: Final = f"{_LOGIN}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_DEADLINE_S: Final = 90


class Acl(NamedTuple):
    """What a user may do, in Kafka's words: ``Acl("alice", "READ", "TOPIC", "orders")``.

    ``operation`` is one of Kafka's ``AclOperation``, ``resource`` of its ``ResourceType``. A ``name`` that ends with ``*`` is a
    prefix, and ``*`` alone is every name.
    """

    user: str
    operation: str
    resource: str
    name: str


def sasl_properties(listener: str, mechanisms: Iterable[str], passwords: Mapping[str, str]) -> dict[str, str]:
    """Return the broker's settings that let users log in on a listener; SCRAM's passwords are in the storage of the broker."""
    prefix, mechanisms = f"listener.name.{listener.lower()}", list(mechanisms)
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    more = {"PLAIN": f" {users}", "OAUTHBEARER": ' unsecuredLoginStringClaim_sub="broker"'}
    found = {f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms)}
    for one in mechanisms:
        found[f"{prefix}.{one.lower()}.sasl.jaas.config"] = f"{_LOGIN}.{_MODULES[one]} required{more.get(one, '')};"
    if "OAUTHBEARER" in mechanisms:
        found[f"{prefix}.oauthbearer.sasl.server.callback.handler.class"] = _TOKENS_ACCEPTED_BY
    return found


def scram_arguments(mechanisms: Iterable[str], passwords: Mapping[str, str]) -> list[str]:
    """Return the arguments of ``StorageTool format`` that store the passwords of users."""
    return [
        argument
        for mechanism in mechanisms
        for name, password in passwords.items()
        for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]


def unsecured_token(subject: str, *, life_s: float = 3600, scope: str = "kafka") -> tuple[str, float]:
    """Return an unsigned JSON web token for Kafka's development validator, and its expiry in seconds since 1970."""
    now_s = time.time()

    def encoded(what: Mapping[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(what).encode()).decode().rstrip("=")

    claims = {"sub": subject, "iat": now_s - 1, "exp": now_s + life_s, "scope": scope, "jti": secrets.token_hex(12)}
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}.", now_s + life_s


class Security:
    """The security of one listener, with a certificate authority and passwords of its own."""

    def __init__(self, *, tls: bool, sasl: str | None, users: Sequence[str]) -> None:
        self._tls = tls
        self._sasl = sasl
        self._passwords = {user: secrets.token_hex(12) for user in users}
        self._directory: Path | None = None

    @property
    def protocol(self) -> str:
        """The listener's ``security.protocol``."""
        plain = "PLAINTEXT" if self._sasl is None else "SASL_PLAINTEXT"
        return plain.replace("PLAINTEXT", "SSL") if self._tls else plain

    @property
    def format_arguments(self) -> Sequence[str]:
        """Arguments of ``StorageTool format``."""
        return scram_arguments([self._sasl], self._passwords) if (self._sasl or "").startswith("SCRAM") and self._sasl else ()

    def broker_properties(self, listener: str, *, authorizes: bool) -> dict[str, str]:
        """Return the settings of a broker; with ``authorizes``, users may do only what ACLs allow."""
        found: dict[str, str] = {}
        if authorizes:
            found["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            # The other listener is for the brokers, and for whoever prepares the tests.
            found["super.users"] = "User:ANONYMOUS"
        if self._sasl is not None:
            found |= sasl_properties(listener, [self._sasl], self._passwords)
        if self._tls:
            prefix = f"listener.name.{listener.lower()}"
            found[f"{prefix}.ssl.keystore.type"] = "PEM"
            found[f"{prefix}.ssl.keystore.location"] = str(self._certificates() / "broker.pem")
        return found

    def client_settings(self, user: str | None = None) -> dict[str, Any]:
        """Return the settings of a client that logs in as ``user``, by default the first."""
        if self.protocol == "PLAINTEXT":
            return {}
        user = next(iter(self._passwords)) if user is None else user
        if user not in self._passwords:
            raise ConfigurationError(f"{user!r} is not one of users={list(self._passwords)}")
        found: dict[str, Any] = {"security.protocol": self.protocol}
        if self._tls:
            found["ssl.ca.location"] = str(self._certificates() / "ca.pem")
        if self._sasl == "OAUTHBEARER":
            found |= {"sasl.mechanism": self._sasl, "oauth_cb": lambda _: unsecured_token(user)}
        elif self._sasl is not None:
            found |= {"sasl.mechanism": self._sasl, "sasl.username": user, "sasl.password": self._passwords[user]}
        return found

    def _certificates(self) -> Path:
        """Return the directory with ``ca.pem``, and ``broker.pem`` with the broker's key and certificate."""
        if self._directory is None:
            import trustme
            from cryptography.hazmat.primitives import serialization

            directory = Path(tempfile.mkdtemp(prefix="kafka-certificates-"))
            authority = trustme.CA()
            authority.cert_pem.write_to_path(str(directory / "ca.pem"))
            issued = authority.issue_cert("127.0.0.1", "localhost")
            # Kafka reads no other form of a key.
            key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            (directory / "broker.pem").write_bytes(key + b"".join(one.bytes() for one in issued.cert_chain_pems))
            self._directory = directory
        return self._directory

    def close(self) -> None:
        """Remove the certificates."""
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None


def add_acls(admin: AdminClient, acls: Iterable[Acl]) -> None:
    """Let users do what ``acls`` say."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    bindings = []
    for acl in map(Acl._make, acls):
        try:
            operation, resource = AclOperation[acl.operation.upper()], ResourceType[acl.resource.upper()]
        except KeyError as error:
            raise ConfigurationError(f"{acl!r}: Kafka has no operation or resource {error}") from None
        is_prefix = acl.name.endswith("*") and acl.name != "*"
        pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
        name = acl.name.removesuffix("*") if is_prefix else acl.name
        bindings.append(AclBinding(resource, name, pattern, f"User:{acl.user}", "*", operation, AclPermissionType.ALLOW))
    for future in admin.create_acls(bindings).values() if bindings else ():
        future.result(_DEADLINE_S)
