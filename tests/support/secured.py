"""A real broker with every kind of secured listener, a certificate authority, and ACLs."""

from __future__ import annotations

import datetime
from pathlib import Path

import attrs
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from consumer_coord.testing import security
from consumer_coord.testing.real_kafka import Listener, RealKafka
from consumer_coord.testing.security import MECHANISMS, sasl_properties, scram_arguments
from tests.support.secrets import keep_secret, made_up

#: listener -> protocol.  The names say which feature each listener is for.
LISTENERS = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "WRONGHOST": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "REAUTH": "SASL_PLAINTEXT",
}
#: Lifetime of a session on REAUTH, in milliseconds.
SESSION_MS = 1_500
_DEADLINE_S = 90


@attrs.frozen
class Identity:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path
    encrypted_key: Path
    key_password: str = attrs.field(repr=False)
    pkcs12: Path


class Authority:
    """A certificate authority and its certificates, in PEM files below a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        self._ca = trustme.CA()
        self.ca = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str, *, host: str | None = None, expired: bool = False) -> Identity:
        """Issue a certificate with the common name ``name``, for ``host`` if it belongs to a server."""
        moment = datetime.datetime.now(datetime.UTC)
        issued = self._ca.issue_cert(
            host if host is not None else f"{name}.example",
            common_name=name,
            not_before=moment - datetime.timedelta(days=2),
            not_after=moment + datetime.timedelta(days=-1 if expired else 1),
        )
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        certificates = [load_pem_x509_certificate(blob.bytes()) for blob in issued.cert_chain_pems]
        password = made_up(f"key password of {name}".replace(" ", "-"))
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        plain = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
        locked = serialization.BestAvailableEncryption(password.encode())
        keep_secret(plain.decode().splitlines()[1], f"private key of {name}")
        base = self._directory / name
        identity = Identity(
            base.with_suffix(".pem"), base.with_suffix(".key"), base.with_suffix(".enc"), password, base.with_suffix(".p12")
        )
        identity.certificate.write_bytes(b"".join(one.public_bytes(pem) for one in certificates))
        identity.key.write_bytes(plain)
        identity.encrypted_key.write_bytes(key.private_bytes(pem, pkcs8, locked))
        identity.pkcs12.write_bytes(
            pkcs12.serialize_key_and_certificates(name.encode(), key, certificates[0], certificates[1:], locked)  # type: ignore[arg-type]  # a key of any kind
        )
        return identity


def unsecured_token(subject: str, *, life_s: float = 3600, scope: str = "kafka") -> tuple[str, float]:
    """Return an unsigned JSON web token for ``subject``, as Kafka's development validator accepts it, and its expiry."""
    token, expires = security.unsecured_token(subject, life_s=life_s, scope=scope)
    keep_secret(token, f"token of {subject}")
    return token, expires


class SecuredKafka:
    """The broker, the passwords and the certificates; ``settings`` returns a client's dictionary for a listener."""

    def __init__(self, libs: Path, directory: Path) -> None:
        self.authority = Authority(directory / "authority")
        self.foreign = Authority(directory / "foreign")
        self.server = self.authority.issue("broker", host="127.0.0.1")
        self.client = self.authority.issue("carol")
        self.expired_client = self.authority.issue("expired-client", expired=True)
        self.foreign_client = self.foreign.issue("mallory")
        self.passwords = {name: made_up(f"password-of-{name}") for name in ("alice", "bob")}
        self.kafka = RealKafka(
            libs,
            listeners=[Listener(name, protocol) for name, protocol in LISTENERS.items()],
            properties=self._properties(),
            format_arguments=scram_arguments(("SCRAM-SHA-256", "SCRAM-SHA-512"), self.passwords),
            outlives_test=True,
        )

    def settings(self, listener: str, mechanism: str | None = None, user: str = "alice") -> dict[str, object]:
        """Return the settings of a client with the right credentials for a listener."""
        protocol = LISTENERS[listener]
        found: dict[str, object] = {
            "bootstrap.servers": self.kafka.bootstrap(listener),
            "security.protocol": protocol,
        }
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.authority.ca)
        if listener == "MTLS":
            found["ssl.certificate.location"] = str(self.client.certificate)
            found["ssl.key.location"] = str(self.client.key)
        if protocol.startswith("SASL"):
            found["sasl.mechanism"] = mechanism or "PLAIN"
            if mechanism == "OAUTHBEARER":
                found["oauth_cb"] = lambda _config: unsecured_token(user)
            else:
                found["sasl.username"] = user
                found["sasl.password"] = self.passwords[user]
        return found

    def allow(self, user: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        """Add ACLs that allow one principal these operations; without ACLs, a principal may do nothing."""
        self._change_acls(user, kind, name, operations, AclPermissionType.ALLOW)

    def _change_acls(
        self, user: str, kind: ResourceType, name: str, operations: tuple[AclOperation, ...], permission: AclPermissionType
    ) -> None:
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)
            for operation in operations
        ]
        for future in self.kafka.admin.create_acls(bindings).values():
            future.result(_DEADLINE_S)

    def _properties(self) -> dict[str, str]:
        found = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The tests and the brokers themselves use the plain listener.
            "super.users": "User:ANONYMOUS",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([a-zA-Z0-9-]*).*$/$1/,DEFAULT",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "connection.failed.authentication.delay.ms": "50",
        }
        identities = {
            "TLS": self.server,
            "MTLS": self.server,
            "SASLTLS": self.server,
            "EXPIRED": self.authority.issue("expired-broker", host="127.0.0.1", expired=True),
            "WRONGHOST": self.authority.issue("other-broker", host="other.example"),
        }
        for listener, identity in identities.items():
            store = identity.certificate.with_suffix(".store.pem")
            store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
            prefix = f"listener.name.{listener.lower()}"
            found[f"{prefix}.ssl.keystore.type"] = "PEM"
            found[f"{prefix}.ssl.keystore.location"] = str(store)
            found[f"{prefix}.ssl.client.auth"] = "required" if listener == "MTLS" else "none"
        for listener, protocol in LISTENERS.items():
            if not protocol.startswith("SASL"):
                continue
            # SASLTLS does not enable SCRAM-SHA-256, so that a test can use a mechanism that is missing.
            enabled = [name for name in MECHANISMS if listener != "SASLTLS" or name != "SCRAM-SHA-256"]
            found |= sasl_properties(listener, enabled, self.passwords)
            if listener == "REAUTH":
                for mechanism in enabled:
                    found[f"listener.name.reauth.{mechanism.lower()}.connections.max.reauth.ms"] = str(SESSION_MS)
        return found
