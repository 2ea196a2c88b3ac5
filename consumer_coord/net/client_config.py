"""The settings of the connections to one cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs


@attrs.frozen(kw_only=True)
class ClientConfig:
    """Addresses and security of the connections, equal for all members that may share a connection.

    Times are in milliseconds; names are Kafka's with ``_`` for ``.``.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "consumer-coord"
    #: This client's version in ApiVersions (KIP-511).
    software_version: str = "0"
    request_timeout_ms: int = 30_000
    connection_setup_timeout_ms: int = 30_000
    #: A connection ends when a broker announces a longer response. The first bytes of an HTTP server's response, read as a
    #: length, mean 1.2 GB, so a wrong port is detected.
    receive_message_max_bytes: int = 100_000_000
    reconnect_backoff_ms: int = 100
    #: Shorter than Java's second and librdkafka's ten, so that a consumer reads within a second of a broker's return.
    reconnect_backoff_max_ms: int = 500
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    #: After this time without a Metadata response from a known broker, the client also asks the bootstrap servers (KIP-1102).
    rebootstrap_trigger_ms: int = 300_000
    connections_max_idle_ms: int = 540_000
    allow_auto_create_topics: bool = False
    #: If no broker address has been listening for this time, requests fail before their deadline. With None, requests are
    #: retried until the deadline.
    unreachable_timeout_ms: int | None = None
    #: The given settings security.protocol, ssl.*, sasl.*; net/security.py reads them.
    security: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
