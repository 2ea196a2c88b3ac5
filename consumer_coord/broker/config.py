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


def _setting(default: int | bool, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    """Define a numeric attribute with its bounds."""
    field: int = attrs.field(default=default, metadata={"minimum": minimum, "maximum": maximum})
    return field


def _text(default: str, one_of: Sequence[str] = ()) -> str:
    """Define a text setting with its allowed values, which are case-insensitive."""
    field: str = attrs.field(default=default, metadata={"one_of": one_of})
    return field


def _dotted(attribute: attrs.Attribute[Any]) -> str:
    """Return Kafka's name of a setting: ``num_partitions`` -> ``num.partitions``."""
    return attribute.name.replace("_", ".")


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """A broker's settings, with Kafka's defaults unless a comment says otherwise."""

    group_min_session_timeout_ms: int = _setting(6_000, 1, _INT32_MAX)
    group_max_session_timeout_ms: int = _setting(1_800_000, 1, _INT32_MAX)
    group_initial_rebalance_delay_ms: int = _setting(3_000, 0, _INT32_MAX)
    group_max_size: int = _setting(_INT32_MAX, 1, _INT32_MAX)
    group_consumer_session_timeout_ms: int = _setting(45_000, 1, _INT32_MAX)
    group_consumer_heartbeat_interval_ms: int = _setting(5_000, 1, _INT32_MAX)
    group_consumer_max_size: int = _setting(_INT32_MAX, 1, _INT32_MAX)
    #: A list of assignors: ``uniform``, ``range``, names from the package ``assignors``, or ``module:Class``. The first
    #: assignor is the default.
    group_consumer_assignors: str = _text("uniform,range")
    group_consumer_assignment_interval_ms: int = _setting(1_000, 0, _INT32_MAX)
    group_consumer_regex_refresh_interval_ms: int = _setting(600_000, 10_000, _INT32_MAX)
    group_consumer_migration_policy: str = _text("bidirectional", MIGRATION_POLICIES)
    #: Not a setting of Kafka. If False, a commit needs the member's current epoch, as in brokers before 4.3 (without KIP-1251).
    group_consumer_assignment_epochs_enable: int = _setting(True, 0, 1)
    #: Not a setting of Kafka, which takes clients' metrics (KIP-714) if one of its ``metric.reporters`` receives them.
    client_metrics_enable: int = _setting(False, 0, 1)
    offset_metadata_max_bytes: int = _setting(4_096, 0, _INT32_MAX)
    offsets_retention_minutes: int = _setting(7 * 24 * 60, 1, _INT32_MAX)
    offsets_retention_check_interval_ms: int = _setting(600_000, 1)
    offsets_topic_num_partitions: int = _setting(50, 1, 10_000)
    transaction_max_timeout_ms: int = _setting(900_000, 1, _INT32_MAX)
    transactional_id_expiration_ms: int = _setting(7 * 24 * 3_600_000, 1, _INT32_MAX)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _setting(10_000, 1, _INT32_MAX)
    transaction_state_log_num_partitions: int = _setting(50, 1, 10_000)
    auto_create_topics_enable: int = _setting(True, 0, 1)
    num_partitions: int = _setting(1, 1, 100_000)
    #: Kafka's default is 1. Every embedded broker has every log, so this factor only limits which brokers may become leaders of
    #: a partition.
    default_replication_factor: int = _setting(3, 1, 32_767)
    message_max_bytes: int = _setting(1_048_588, 0, _INT32_MAX)
    #: By default, Kafka keeps all records (-1). The logs of the embedded broker are in memory, so their size is limited.
    log_retention_bytes: int = _setting(1 << 30, -1)
    #: Kafka's default is seven days. By default, the embedded broker keeps old records, because tests write such records.
    log_retention_ms: int = _setting(-1, -1)
    log_retention_check_interval_ms: int = _setting(300_000, 1)
    log_segment_bytes: int = _setting(64 << 20, 1 << 14, _INT32_MAX)
    fetch_max_bytes: int = _setting(55 * 1024 * 1024, 1024, _INT32_MAX)
    max_incremental_fetch_session_cache_slots: int = _setting(1_000, 0, _INT32_MAX)
    #: Kafka accepts any class; the embedded broker accepts only an empty name or the name of Kafka's built-in class.
    replica_selector_class: str = _text("", ("", RACK_AWARE_SELECTOR))
    socket_request_max_bytes: int = _setting(100 * 1024 * 1024, 1, _INT32_MAX)
    #: The connections to all brokers share this limit. Kafka has no limit by default, but an embedded broker shares the
    #: memory of its process.
    queued_max_request_bytes: int = _setting(256 << 20, 1)
    #: Kafka has no limit by default, but an embedded broker shares the file descriptors of its process.
    max_connections: int = _setting(10_000, 1, _INT32_MAX)
    connections_max_idle_ms: int = _setting(600_000, 1)

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
        known = {_dotted(field): field for field in attrs.fields(cls)}
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
        return {_dotted(field): _as_text(getattr(self, field.name)) for field in attrs.fields(type(self))}


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
