"""The client settings of a command: from flags, and from a properties file with librdkafka's or Java's names of settings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import printable
from consumer_coord.setting_names import did_you_mean
from consumer_coord.settings import KNOWN

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);\s*", re.DOTALL | re.IGNORECASE)
_JAAS_OPTION = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")
_PASSWORD_MODULES = ("PlainLoginModule", "ScramLoginModule")

#: Java's settings whose values are PEM texts -> librdkafka's settings.
_PEM_TEXTS = {
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
#: Java's settings that have no meaning here and are ignored.
_WITHOUT_USE = ("key.deserializer", "value.deserializer", "client.dns.lookup", "ssl.protocol", "ssl.enabled.protocols")

_FROM_JAVA = frozenset({"sasl.jaas.config", "ssl.keystore.type", "ssl.truststore.type", *_PEM_TEXTS, *_WITHOUT_USE})


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the settings of the client, except ``--bootstrap-server``."""
    parser.add_argument("--command-config", metavar="FILE", help="properties file with security and other settings")
    parser.add_argument(
        "-X", dest="setting", action="append", metavar="KEY=VALUE", help="one setting of the client; may be repeated"
    )
    parser.add_argument(
        "--timeout", type=positive, default=30_000, metavar="MS", help="time limit in milliseconds (default: 30000)"
    )


def positive(text: str) -> float:
    """Parse a number above 0, for argparse."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return number


def not_negative(text: str) -> float:
    """Parse a number that is at least 0, for argparse."""
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def count(text: str) -> int:
    """Parse a whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return number


def utf8(text: str) -> str:
    """Return the name of a group or topic, for argparse; refuse bytes that are not UTF-8, because Kafka's names are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{printable(text)} is not UTF-8") from None
    return text


def client_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the client. As in Kafka's tool, ``--bootstrap-server`` overrides the properties file."""
    settings: dict[str, Any] = load_properties(arguments.command_config) if arguments.command_config else {}
    settings.update(from_java(dict(map(parse_setting, arguments.setting or ()))))
    settings["bootstrap.servers"] = arguments.bootstrap_server
    settings.pop("metadata.broker.list", None)
    return settings


def load_properties(path: str) -> dict[str, Any]:
    """Read a file, and translate Java's settings to librdkafka's.

    Raise :class:`ConfigurationError` for an invalid file; the error never contains the value of a setting.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--command-config {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    return from_java(dict(parse_properties(text)))


def parse_setting(text: str) -> tuple[str, str]:
    """Parse ``-X key=value``; for an unknown name, raise :class:`ConfigurationError` without the value in its text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigurationError(f"-X {key}: write -X key=value")
    if key not in KNOWN and key not in _FROM_JAVA and not key.startswith(("ssl.", "sasl.")):
        raise ConfigurationError(f"-X {key}: unknown setting{did_you_mean(key, KNOWN | _FROM_JAVA)}")
    return key, value.strip()


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Parse the lines of ``java.util.Properties``: ``key=value``, comments, continued lines, escapes."""
    lines = iter(text.splitlines())
    for line in lines:
        logical = line.lstrip()
        if not logical or logical[0] in "#!":
            continue
        while len(logical) - len(logical.rstrip("\\")) & 1:
            logical = logical[:-1] + next(lines, "").lstrip()
        match = re.match(r"((?:\\.|[^\s:=\\])*)\s*[:=]?\s*(.*)", logical, re.DOTALL)
        assert match is not None
        yield _unescape(match.group(1)), _unescape(match.group(2)).strip()


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escaped = match.group(1)
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPES.get(escaped, escaped)

    return _ESCAPE.sub(one, text)


def from_java(given: Mapping[str, str]) -> dict[str, Any]:
    """Return settings under librdkafka's names, from settings under librdkafka's or Java's names."""
    found: dict[str, Any] = {key: value for key, value in given.items() if key not in _WITHOUT_USE}
    jaas = found.pop("sasl.jaas.config", None)
    if jaas is not None:
        found.update(_credentials(jaas))
    for java, ours in _PEM_TEXTS.items():
        if java in found:
            found[ours] = found.pop(java)
    _stores(found)
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def _credentials(jaas: str) -> dict[str, str]:
    match = _JAAS.fullmatch(jaas)
    if match is None or not match.group(1).endswith(_PASSWORD_MODULES):
        raise ConfigurationError(
            "sasl.jaas.config: only PlainLoginModule and ScramLoginModule are supported, in the form"
            ' … required username="…" password="…"; as an alternative, set sasl.username and sasl.password'
        )
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single) or bare
        for name, double, single, bare in _JAAS_OPTION.findall(match.group(2))
    }
    try:
        return {"sasl.username": options["username"], "sasl.password": options["password"]}
    except KeyError as missing:
        raise ConfigurationError(f"sasl.jaas.config has no {missing.args[0]}") from None


def _stores(found: dict[str, Any]) -> None:
    """Translate Java's settings of key stores and trust stores, for the types that can be read without Java."""
    key_type = found.pop("ssl.keystore.type", None)
    trust_type = found.pop("ssl.truststore.type", None)
    found.pop("ssl.truststore.password", None)
    trust = found.pop("ssl.truststore.location", None)
    if trust is not None:
        if (trust_type or "JKS").upper() != "PEM":
            raise ConfigurationError(
                "ssl.truststore.location: only ssl.truststore.type=PEM can be read. Write the certificates to a PEM file"
                " with keytool -exportcert -rfc, and set ssl.ca.location to this file"
            )
        found["ssl.ca.location"] = trust
    kind = (key_type or ("PKCS12" if str(found.get("ssl.keystore.location", "")).endswith((".p12", ".pfx")) else "JKS")).upper()
    if "ssl.keystore.location" in found and kind == "PEM":
        store = found.pop("ssl.keystore.location")
        found["ssl.certificate.location"] = found["ssl.key.location"] = store
    elif "ssl.keystore.location" in found and kind != "PKCS12":
        raise ConfigurationError(
            "ssl.keystore.location: only ssl.keystore.type=PEM and PKCS12 can be read. Convert a JKS file with"
            " keytool -importkeystore -deststoretype PKCS12"
        )
