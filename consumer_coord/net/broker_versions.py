"""Which Apache Kafka serves what: for messages that say which version a setting or a command needs."""

from __future__ import annotations

#: Groups work from this version on; `docs/brokers.md` says what was tried.
OLDEST = "1.1"

#: API -> the first release that serves it, where that is younger than :data:`OLDEST`.
_SINCE = {
    "OffsetDelete": "2.4",
    "DescribeCluster": "2.8",
    "ConsumerGroupHeartbeat": "4.0",
    "ConsumerGroupDescribe": "4.0",
}

#: Field -> the setting that fills it, and the first release whose requests have it.
_SETTINGS = {
    "group_instance_id": ("group.instance.id", "2.3"),
}


def release_with(api: str) -> str:
    """The oldest Apache Kafka that serves an API."""
    return _SINCE.get(api, OLDEST)


def setting_too_new(address: str, error: str) -> str:
    """What to say when the version that a broker speaks has no place for a field that is set; ``error`` names the field."""
    for field, (setting, release) in _SETTINGS.items():
        if f".{field}" in error:
            return f"{setting} needs Apache Kafka {release} or newer, and {address} is older: leave the setting out, or upgrade"
    return f"{address} is too old for a setting in use: {error}"
