"""Security settings for the control plane: ``security.protocol``, ``ssl.*``, ``sasl.*`` and ``oauth_cb``, as in librdkafka.

librdkafka gets the same dictionary for the data plane. A setting that one plane does not support raises an error here, because
the coordinator and librdkafka must trust the same brokers. Every error names the setting and the remedy. No error contains a
secret.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Environment
from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import get_logger
from consumer_coord.setting_names import LIBRDKAFKA

if TYPE_CHECKING:
    from consumer_coord.net.sasl import OAuthCallback, SaslAuthenticator

logger: Final = get_logger(__name__)

#: Excludes the ciphers of TLS before version 1.2, by OpenSSL's names, so that no older version can be negotiated.
_NO_OLD_CIPHERS = "!SSLv3:!TLSv1.0"
#: The default ciphers of Python's ssl module, without the ciphers excluded above.
_CIPHERS = f"@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!AESCCM:{_NO_OLD_CIPHERS}"

_warned: set[str] = set()

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *_SCRAM, "OAUTHBEARER", "GSSAPI")

_SSL_SETTINGS = frozenset(name for name in LIBRDKAFKA if name.removeprefix("enable.").startswith("ssl."))
_SASL_SETTINGS = frozenset(name for name in LIBRDKAFKA if name.startswith("sasl.") or name == "oauth_cb")
#: Settings that restrict librdkafka's TLS, but do not exist in Python's ssl module, which uses OpenSSL's defaults.
_DATA_PLANE_ONLY = ("ssl.sigalgs.list", "ssl.providers")
#: OpenSSL's names of curves -> Python's names.
_CURVES = {"P-256": "prime256v1", "P-384": "secp384r1", "P-521": "secp521r1"}
#: Settings that the control plane does not support -> the alternative.
_REFUSED = {
    "ssl.engine.location": "OpenSSL engines are not supported; set the key in ssl.key.location or ssl.key.pem",
    "ssl.engine.id": "OpenSSL engines are not supported; set the key in ssl.key.location or ssl.key.pem",
    "ssl.ca.certificate.stores": "Windows certificate stores are not supported; set ssl.ca.location",
    "ssl.truststore.location": "only Java has this setting; set ssl.ca.location to the CA's certificates in PEM format",
    "ssl.truststore.password": "only Java has this setting; set ssl.ca.location to the CA's certificates in PEM format",
    "sasl.jaas.config": "only Java has this setting; set sasl.username and sasl.password",
    "sasl.kerberos.kinit.cmd": "no kinit is run; set sasl.kerberos.keytab, with which tickets are requested and renewed, or"
    " keep the credential cache current yourself",
    "sasl.kerberos.min.time.before.relogin": "tickets of sasl.kerberos.keytab are renewed by the Kerberos library: remove it",
}
_REFUSED_FAMILIES = {
    "sasl.oauthbearer.": "librdkafka has no such setting; set an oauth_cb that requests the token from the identity provider",
}


@attrs.frozen
class Security:
    """The checked security settings; :class:`~consumer_coord.net.tcp.TcpConnector` uses ``ssl_context``."""

    #: ``security.protocol`` in lower case, as in librdkafka.
    protocol: str
    ssl_context: ssl.SSLContext | None = attrs.field(repr=False)
    #: The SASL mechanism; empty without SASL.
    mechanism: str
    _settings: Mapping[str, Any] = attrs.field(repr=False)

    def authenticator(self, environment: Environment) -> SaslAuthenticator | None:
        """Return a new authenticator for the connections of one cluster client; None without SASL."""
        return _authenticator(self.mechanism, self._settings, environment) if self.mechanism else None


def load(settings: Mapping[str, Any]) -> Security:
    """Check the security settings, and read the files they name.

    Raise :class:`ConfigurationError`, which names the setting and its valid values.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    protocol = str(given.pop("security.protocol", "plaintext")).lower()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(f"security.protocol={protocol!r} must be one of {', '.join(PROTOCOLS)}")
    for key in (key for key in list(given) if key.startswith("https.")):
        # Only the module that sends requests to the token endpoint uses these settings.
        del given[key]
    for key in _DATA_PLANE_ONLY:
        if given.pop(key, None) and protocol.endswith("ssl"):
            _warn_once(f"{key} applies only to the data plane: the control plane uses Python's TLS, which has no such setting")
    _check_known(given)
    sasl = {key: value for key, value in given.items() if key in _SASL_SETTINGS}
    tls = {key: value for key, value in given.items() if key in _SSL_SETTINGS}
    if sasl and not protocol.startswith("sasl_"):
        # Only warn, as librdkafka does, because an application may use one dictionary for several listeners.
        logger.warning("%s without SASL have no effect: set security.protocol to sasl_ssl or sasl_plaintext", _names(sasl))
    if tls and not protocol.endswith("ssl"):
        logger.warning("%s without TLS have no effect: set security.protocol to %s", _names(tls), "sasl_ssl" if sasl else "ssl")
    mechanism = _check_sasl(sasl) if protocol.startswith("sasl_") else ""
    if mechanism == "PLAIN" and protocol == "sasl_plaintext":
        _warn_once(
            "sasl.mechanism=PLAIN with security.protocol=SASL_PLAINTEXT sends the password unencrypted: any machine on the"
            " network path can read it; use SASL_SSL, or SCRAM-SHA-512"
        )
    return Security(protocol, _ssl_context(tls) if protocol.endswith("ssl") else None, mechanism, sasl)


def cipher_suites(settings: Mapping[str, Any]) -> str:
    """Return OpenSSL's list of ciphers: the given ciphers or Python's default, but no ciphers from before TLS 1.2.

    Both planes use this list. For librdkafka, the list sets the oldest version of TLS, because there is no setting for that.
    """
    given = settings.get("ssl.cipher.suites")
    return _CIPHERS if not given else f"{str(given).replace(',', ':')}:{_NO_OLD_CIPHERS}"


def _warn_once(warning: str) -> None:
    """Warn once in a process, because fifty members have the same settings."""
    if warning not in _warned:
        _warned.add(warning)
        logger.warning("%s", warning)


def _names(settings: Mapping[str, Any]) -> str:
    return ", ".join(sorted(settings))


def _check_known(given: dict[str, Any]) -> None:
    for key in given:
        if key in _SSL_SETTINGS or key in _SASL_SETTINGS:
            continue
        if key in _REFUSED:
            raise ConfigurationError(f"{key}: {_REFUSED[key]}")
        for family, remedy in _REFUSED_FAMILIES.items():
            if key.startswith(family):
                raise ConfigurationError(f"{key}: {remedy}")
        import difflib

        close = difflib.get_close_matches(key, _SSL_SETTINGS | _SASL_SETTINGS, 1)
        raise ConfigurationError(f"{key} is not a setting of Kafka" + (f"; did you mean {close[0]}?" if close else ""))


# -- SASL -----------------------------------------------------------------------------------------------------------


#: The settings that mechanisms with a password need, and the settings that must not be set with these mechanisms.
_CREDENTIALS = ("sasl.username", "sasl.password"), ("oauth_cb", "sasl.oauthbearer.config")
#: The same for the mechanisms without passwords.
_NEEDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "OAUTHBEARER": (("oauth_cb",), ("sasl.username", "sasl.password")),
    "GSSAPI": ((), ("sasl.username", "sasl.password", "oauth_cb", "sasl.oauthbearer.config")),
}


def _check_sasl(sasl: Mapping[str, Any]) -> str:
    """Return the mechanism's name; raise an error if one of its settings is missing, or a setting has no effect with it."""
    mechanism = _mechanism_name(sasl)
    needed, useless = _NEEDS.get(mechanism, _CREDENTIALS)
    for key in needed:
        if not sasl.get(key):
            raise ConfigurationError(f"sasl.mechanism={mechanism} needs {key}, which is not set")
    for key in useless:
        if key in sasl:
            raise ConfigurationError(f"{key} has no effect with sasl.mechanism={mechanism}; omit it, or change the mechanism")
    if mechanism == "OAUTHBEARER":
        if not callable(sasl["oauth_cb"]):
            raise ConfigurationError("oauth_cb must be a function: oauth_cb(config) -> (token, expiry in seconds since 1970)")
        return mechanism
    if mechanism == "GSSAPI":
        _check_kerberos(sasl)
    for key in needed:
        if not isinstance(sasl[key], str) or "\0" in sasl[key]:
            raise ConfigurationError(f"{key} must be a string without NUL characters")
    return mechanism


def _check_kerberos(sasl: Mapping[str, Any]) -> None:
    from consumer_coord.net.kerberos import library

    library()
    if sasl.get("sasl.kerberos.keytab"):
        _path("sasl.kerberos.keytab", sasl["sasl.kerberos.keytab"])


def _mechanism_name(sasl: Mapping[str, Any]) -> str:
    names = {str(sasl[key]).upper() for key in ("sasl.mechanism", "sasl.mechanisms") if key in sasl}
    if len(names) > 1:
        raise ConfigurationError("sasl.mechanism and sasl.mechanisms are two names of one setting, but have different values")
    if not names:
        raise ConfigurationError(f"sasl.mechanism is missing; set it to one of {', '.join(MECHANISMS)}")
    name = names.pop()
    if name not in MECHANISMS:
        raise ConfigurationError(f"sasl.mechanism={name!r} is not supported; set it to one of {', '.join(MECHANISMS)}")
    return name


def _authenticator(name: str, sasl: Mapping[str, Any], environment: Environment) -> SaslAuthenticator:
    # Import SASL only here, because most processes that import this module do not use SASL.
    from consumer_coord.net.sasl import OAuthBearer, Plain, SaslAuthenticator, Scram, TokenSource

    if name == "PLAIN":
        return SaslAuthenticator(Plain(sasl["sasl.username"], sasl["sasl.password"]))
    if name in _SCRAM:
        return SaslAuthenticator(Scram(sasl["sasl.username"], sasl["sasl.password"], name, environment))
    if name == "GSSAPI":
        from consumer_coord.net.kerberos import Kerberos

        return SaslAuthenticator(Kerberos.of(sasl, environment))
    callback: OAuthCallback = sasl["oauth_cb"]
    return SaslAuthenticator(OAuthBearer(TokenSource(callback, sasl.get("sasl.oauthbearer.config"), environment)))


# -- TLS ------------------------------------------------------------------------------------------------------------


def _ssl_context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    for what in ("key", "certificate", "ca"):
        if f"ssl.{what}.location" in tls and f"ssl.{what}.pem" in tls:
            raise ConfigurationError(f"ssl.{what}.location and ssl.{what}.pem cannot be combined; set only one of them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _verification(context, tls)
    _trust(context, tls)
    _identity(context, tls)
    if "ssl.cipher.suites" in tls:
        try:
            context.set_ciphers(cipher_suites(tls))
        except ssl.SSLError:
            raise ConfigurationError(
                "ssl.cipher.suites names no cipher that OpenSSL knows; use OpenSSL's names of ciphers for TLS 1.2"
            ) from None
    if "ssl.curves.list" in tls:
        _curves(context, str(tls["ssl.curves.list"]))
    return context


def _curves(context: ssl.SSLContext, listed: str) -> None:
    if ":" in listed:
        _warn_once("ssl.curves.list with several curves applies only to the data plane: Python's TLS allows one curve or all")
        return
    try:
        context.set_ecdh_curve(_CURVES.get(listed, listed))
    except ValueError:
        raise ConfigurationError(f"ssl.curves.list={listed!r} names no curve that Python's OpenSSL knows") from None


def _verification(context: ssl.SSLContext, tls: Mapping[str, Any]) -> None:
    algorithm = str(tls.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigurationError(f"ssl.endpoint.identification.algorithm={algorithm!r} must be https or none")
    verify = str(tls.get("enable.ssl.certificate.verification", "true")).lower()
    if verify not in ("true", "false", "1", "0", "t", "f"):
        raise ConfigurationError(f"enable.ssl.certificate.verification={verify!r} must be true or false")
    context.check_hostname = algorithm == "https" and verify in ("true", "1", "t")
    if verify in ("false", "0", "f"):
        context.verify_mode = ssl.CERT_NONE
        _warn_once("enable.ssl.certificate.verification is off: any host on the network path can pose as the broker")
    elif not context.check_hostname:
        _warn_once(
            "ssl.endpoint.identification.algorithm=none: the owner of any certificate that the authority signed can pose as"
            " the broker"
        )


def _trust(context: ssl.SSLContext, tls: Mapping[str, Any]) -> None:
    location = tls.get("ssl.ca.location")
    if "ssl.ca.pem" in tls:
        with _because("ssl.ca.pem contains no certificate in PEM format"):
            context.load_verify_locations(cadata=str(tls["ssl.ca.pem"]))
    elif location in (None, "", "probe"):
        context.load_default_certs()
    else:
        path = _path("ssl.ca.location", location, directory=True)
        with _because(f"ssl.ca.location={path} contains no certificate in PEM format"):
            if os.path.isdir(path):
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
    if "ssl.crl.location" in tls:
        path = _path("ssl.crl.location", tls["ssl.crl.location"])
        with _because(f"ssl.crl.location={path} contains no revocation list in PEM format"):
            context.load_verify_locations(cafile=path)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _identity(context: ssl.SSLContext, tls: Mapping[str, Any]) -> None:
    """Load the client's certificate and key (mutual TLS)."""
    has_key = "ssl.key.location" in tls or "ssl.key.pem" in tls
    has_certificate = "ssl.certificate.location" in tls or "ssl.certificate.pem" in tls
    if "ssl.keystore.location" in tls:
        if has_key or has_certificate:
            raise ConfigurationError(
                "ssl.keystore.location cannot be combined with ssl.key.* and ssl.certificate.*; set the first or the others"
            )
        _keystore(context, tls)
        return
    if "ssl.keystore.password" in tls:
        raise ConfigurationError("ssl.keystore.password has no effect without ssl.keystore.location")
    if has_key != has_certificate:
        absent = "key" if has_certificate else "certificate"
        missing = f"ssl.{absent}.location (or ssl.{absent}.pem)"
        raise ConfigurationError(f"{missing} is missing: set a certificate together with its key")
    if not has_key:
        if "ssl.key.password" in tls:
            raise ConfigurationError("ssl.key.password has no effect without ssl.key.location or ssl.key.pem")
        return
    with contextlib.ExitStack() as stack:
        certificate = _given_file(stack, "ssl.certificate", tls)
        key = _given_file(stack, "ssl.key", tls)
        _load_pair(context, certificate, key, tls.get("ssl.key.password"))


def _given_file(stack: contextlib.ExitStack, stem: str, tls: Mapping[str, Any]) -> str:
    """Return the path in the setting ``<stem>.location``, or a temporary path to the PEM text in ``<stem>.pem``."""
    if f"{stem}.pem" in tls:
        return stack.enter_context(_in_memory(str(tls[f"{stem}.pem"]).encode()))
    return _path(f"{stem}.location", tls[f"{stem}.location"])


def _load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str | None) -> None:
    asked = False

    def return_password() -> str:
        nonlocal asked
        asked = True
        return password or ""

    try:
        # Always pass a function, because without one OpenSSL would prompt on the terminal.
        context.load_cert_chain(certificate, key, return_password)
    except (ssl.SSLError, ValueError) as error:
        if asked and password is None:
            raise ConfigurationError("ssl.key.password is missing: the key is encrypted") from None
        if asked:
            raise ConfigurationError("ssl.key.password does not decrypt the key") from None
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError("ssl.key.* is not the key of the certificate in ssl.certificate.*") from None
        raise ConfigurationError(
            "ssl.certificate.* and ssl.key.* must contain a certificate (chain) and its key, both in PEM format"
        ) from None


def _keystore(context: ssl.SSLContext, tls: Mapping[str, Any]) -> None:
    """Load a PKCS#12 file. Python's ssl module accepts only PEM, so the cryptography package converts the file."""
    path = _path("ssl.keystore.location", tls["ssl.keystore.location"])
    try:
        pkcs12: Any = importlib.import_module("cryptography.hazmat.primitives.serialization.pkcs12")
        serialization: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    except ImportError:
        raise ConfigurationError(
            "ssl.keystore.location needs the cryptography package (pip install cryptography); or convert the file with"
            " `openssl pkcs12 -nodes` and set ssl.certificate.location and ssl.key.location"
        ) from None
    password = tls.get("ssl.keystore.password")
    with open(path, "rb") as file:
        content = file.read()
    try:
        key, certificate, chain = pkcs12.load_key_and_certificates(
            content, None if password is None else str(password).encode()
        )
    except (ValueError, TypeError):
        raise ConfigurationError(
            f"ssl.keystore.location={path} is not a PKCS#12 file that ssl.keystore.password opens;"
            " convert a JKS file first: keytool -importkeystore -deststoretype PKCS12"
        ) from None
    if key is None or certificate is None:
        raise ConfigurationError(f"ssl.keystore.location={path} must contain a key and its certificate")
    encoding = serialization.Encoding.PEM
    pair = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pair += b"".join(one.public_bytes(encoding) for one in (certificate, *chain))
    with _in_memory(pair) as both:
        _load_pair(context, both, both, None)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a temporary path to ``content``, which is kept in memory if the operating system supports that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "pem")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(content)
            yield path


def _path(key: str, value: Any, *, directory: bool = False) -> str:
    path = str(value)
    if not os.path.exists(path):
        raise ConfigurationError(f"{key}={path}: no such file")
    if os.path.isdir(path) and not directory:
        raise ConfigurationError(f"{key}={path} is a directory; set a file")
    if not os.access(path, os.R_OK):
        raise ConfigurationError(f"{key}={path}: this user may not read the file")
    return path


@contextlib.contextmanager
def _because(message: str) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(message) from error
