"""The Apache Kafka releases from which brokers support APIs and settings, for error texts."""

from __future__ import annotations

#: The oldest version in which groups work; `docs/brokers.md` lists the tested versions.
OLDEST = "1.1"

#: API -> the first release that supports the API, if the release is newer than :data:`OLDEST`.
_SINCE = {
    "OffsetDelete": "2.4",
    "DescribeCluster": "2.8",
    "ConsumerGroupHeartbeat": "4.0",
    "ConsumerGroupDescribe": "4.0",
    "GetTelemetrySubscriptions": "3.7",
    "PushTelemetry": "3.7",
}

#: Field -> the setting that fills it, and the first release whose requests have it.
_SETTINGS = {
    "group_instance_id": ("group.instance.id", "2.3"),
}


def release_with(api: str) -> str:
    """Return the oldest Apache Kafka release that supports an API."""
    return _SINCE.get(api, OLDEST)


def setting_too_new(address: str, error: str) -> str:
    """Return the error text for a request field that the broker's version does not have; ``error`` names the field."""
    for field, (setting, release) in _SETTINGS.items():
        if f".{field}" in error:
            return f"{setting} needs Apache Kafka {release} or newer, but {address} is older: remove the setting, or upgrade"
    return f"{address} is too old for one of this client's settings: {error}"
