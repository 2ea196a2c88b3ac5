"""A broker's settings, by Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from consumer_coord.errors import ConfigurationError

_INT32_MAX = 2**31 - 1
#: The policies for changing the protocol of a group with members (``ConsumerGroupMigrationPolicy``).
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")

#: With this selector, brokers direct the Fetch requests of a consumer with a rack to a replica in the rack (KIP-392).
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _setting(name: str, default: int | bool, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    """Define a numeric attribute with its dotted name and its bounds."""
    metadata = {"name": name, "minimum": minimum, "maximum": maximum}
    field: int = attrs.field(default=default, metadata=metadata)
    return field


def _text(name: str, default: str, one_of: Sequence[str] = ()) -> str:
    """Define a text setting with its dotted name and its allowed values, which are case-insensitive."""
    field: str = attrs.field(default=default, metadata={"name": name, "one_of": one_of})
    return field


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """A broker's settings, with Kafka's defaults unless a comment says otherwise."""

    group_min_session_timeout_ms: int = _setting("group.min.session.timeout.ms", 6_000, 1, _INT32_MAX)
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms", 1_800_000, 1, _INT32_MAX)
    group_initial_rebalance_delay_ms: int = _setting("group.initial.rebalance.delay.ms", 3_000, 0, _INT32_MAX)
    group_max_size: int = _setting("group.max.size", _INT32_MAX, 1, _INT32_MAX)
    group_consumer_session_timeout_ms: int = _setting("group.consumer.session.timeout.ms", 45_000, 1, _INT32_MAX)
    group_consumer_heartbeat_interval_ms: int = _setting("group.consumer.heartbeat.interval.ms", 5_000, 1, _INT32_MAX)
    group_consumer_max_size: int = _setting("group.consumer.max.size", _INT32_MAX, 1, _INT32_MAX)
    #: A list of assignors: ``uniform``, ``range``, names from the package ``assignors``, or ``module:Class``. The first
    #: assignor is the default.
    group_consumer_assignors: str = _text("group.consumer.assignors", "uniform,range")
    group_consumer_assignment_interval_ms: int = _setting("group.consumer.assignment.interval.ms", 1_000, 0, _INT32_MAX)
    group_consumer_regex_refresh_interval_ms: int = _setting(
        "group.consumer.regex.refresh.interval.ms", 600_000, 10_000, _INT32_MAX
    )
    group_consumer_migration_policy: str = _text("group.consumer.migration.policy", "bidirectional", MIGRATION_POLICIES)
    #: Not a setting of Kafka. If False, a commit needs the member's current epoch, as in brokers before 4.3 (without KIP-1251).
    group_consumer_assignment_epochs_enable: int = _setting("group.consumer.assignment.epochs.enable", True, 0, 1)
    offset_metadata_max_bytes: int = _setting("offset.metadata.max.bytes", 4_096, 0, _INT32_MAX)
    offsets_retention_minutes: int = _setting("offsets.retention.minutes", 7 * 24 * 60, 1, _INT32_MAX)
    offsets_retention_check_interval_ms: int = _setting("offsets.retention.check.interval.ms", 600_000, 1)
    offsets_topic_num_partitions: int = _setting("offsets.topic.num.partitions", 50, 1, 10_000)
    auto_create_topics_enable: int = _setting("auto.create.topics.enable", True, 0, 1)
    num_partitions: int = _setting("num.partitions", 1, 1, 100_000)
    #: Kafka's default is 1. Every embedded broker has every log, so this factor only limits which brokers may become leaders of
    #: a partition.
    default_replication_factor: int = _setting("default.replication.factor", 3, 1, 32_767)
    message_max_bytes: int = _setting("message.max.bytes", 1_048_588, 0, _INT32_MAX)
    #: By default, Kafka keeps all records (-1). The logs of the embedded broker are in memory, so their size is limited.
    log_retention_bytes: int = _setting("log.retention.bytes", 1 << 30, -1)
    log_segment_bytes: int = _setting("log.segment.bytes", 64 << 20, 1 << 14, _INT32_MAX)
    fetch_max_bytes: int = _setting("fetch.max.bytes", 55 * 1024 * 1024, 1024, _INT32_MAX)
    max_incremental_fetch_session_cache_slots: int = _setting("max.incremental.fetch.session.cache.slots", 1_000, 0, _INT32_MAX)
    #: Kafka accepts any class; the embedded broker accepts only an empty name or the name of Kafka's built-in class.
    replica_selector_class: str = _text("replica.selector.class", "", ("", RACK_AWARE_SELECTOR))
    socket_request_max_bytes: int = _setting("socket.request.max.bytes", 100 * 1024 * 1024, 1, _INT32_MAX)
    #: The connections to all brokers share this limit. Kafka has no limit by default, but an embedded broker shares the
    #: memory of its process.
    queued_max_request_bytes: int = _setting("queued.max.request.bytes", 256 << 20, 1)
    #: Kafka has no limit by default, but an embedded broker shares the file descriptors of its process.
    max_connections: int = _setting("max.connections", 10_000, 1, _INT32_MAX)
    connections_max_idle_ms: int = _setting("connections.max.idle.ms", 600_000, 1)

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """The names in ``group.consumer.assignors``."""
        return tuple(name for part in self.group_consumer_assignors.split(",") if (name := part.strip()))

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> BrokerConfig:
        """Return a configuration from dotted names -> values (numbers, booleans or text); other settings have their defaults.

        Raise :class:`~consumer_coord.errors.ConfigurationError`, with the name of the setting, for an unknown name or an
        invalid value.
        """
        known = {field.metadata["name"]: field for field in attrs.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in settings.items():
            field = known.get(name)
            if field is None:
                raise ConfigurationError(f"{name} is not a setting of the embedded broker; the settings are {', '.join(known)}")
            values[field.name] = _parse(name, value, type(field.default), field.metadata)
        config = cls(**values)
        if config.group_consumer_heartbeat_interval_ms >= config.group_consumer_session_timeout_ms:
            raise ConfigurationError("group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms")
        if config.queued_max_request_bytes < 2 * config.socket_request_max_bytes:
            raise ConfigurationError("queued.max.request.bytes must be at least twice socket.request.max.bytes")
        return config

    def to_mapping(self) -> dict[str, str]:
        """Return dotted name -> value of all settings, with the values as in DescribeConfigs responses."""
        return {field.metadata["name"]: _as_text(getattr(self, field.name)) for field in attrs.fields(type(self))}


def _parse(name: str, value: object, kind: type, bounds: Mapping[str, Any]) -> int | str:
    if kind is str:
        return _parse_text(name, value, bounds["one_of"])
    text = str(value).strip().lower()
    if kind is bool:
        if text not in ("true", "false"):
            raise ConfigurationError(f"{name} must be true or false, not {value!r}")
        return text == "true"
    try:
        number = int(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}") from None
    if not bounds["minimum"] <= number <= bounds["maximum"]:
        raise ConfigurationError(f"{name} must be between {bounds['minimum']} and {bounds['maximum']}, not {number}")
    return number


def _parse_text(name: str, value: object, one_of: Sequence[str]) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value).strip()
    if not one_of:
        return text
    found = next((one for one in one_of if one.lower() == text.lower()), None)
    if found is None:
        raise ConfigurationError(f"{name} must be one of {', '.join(one_of)}, not {value!r}")
    return found


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
