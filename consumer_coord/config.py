"""Settings: one dictionary with Kafka's dotted names for the coordinator and librdkafka.

The control plane checks and keeps the settings of :data:`consumer_coord.settings.SETTINGS`. All other settings go to librdkafka
unchanged; a setting that librdkafka does not know is an error that names the setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.log_text import get_logger
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.setting_names import INSTEAD, of_other_clients
from consumer_coord.settings import ALIASES, CLASSIC, CLASSIC_ONLY, CONSUMER, CONTROL, DAY_MS, KNOWN, SETTINGS, Integer

logger: Final = get_logger(__name__)

#: Java's default (``ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG``): a member can join existing groups of Java and
#: librdkafka members, and is eager. ``cooperative-sticky`` alone gives better rebalances.
DEFAULT_STRATEGY = ("range", "cooperative-sticky")


@attrs.frozen(kw_only=True)
class CoordinatorConfig:
    """The settings of the control plane, with times in milliseconds.

    Created by :func:`parse` from Kafka's names; the defaults are those of the Java client for settings that both clients have.
    """

    group_id: str
    #: ``classic`` or ``consumer`` (KIP-848).
    group_protocol: str = "classic"
    #: The broker's assignor, one of ``group.consumer.assignors``; None leaves the choice to the broker.
    group_remote_assignor: str | None = None
    group_instance_id: str | None = None
    client_rack: str | None = None
    #: ``earliest``, ``latest``, ``error``, or ``by_duration:`` and an ISO 8601 duration.
    auto_offset_reset: str = "latest"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    #: How long the group waits for this member in a rebalance; by default ``max.poll.interval.ms``.
    rebalance_timeout_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    exclude_internal_topics: bool = True
    #: Maximum wait before the second round of a rebalance. After the application has revoked partitions, the member waits for
    #: other members of the process that must still revoke partitions.
    release_linger_ms: int = 1_000
    #: Time limit of an assignor, after which the leader leaves the group.
    assignor_timeout_ms: int = 30_000
    #: Whether to deliver records only while the member's session at the coordinator cannot have expired; see lease.py.
    group_lease_enable: bool = True


@attrs.frozen(kw_only=True)
class Config:
    """A parsed dictionary: the values for the control plane, and the settings for librdkafka."""

    client: ClientConfig
    coordinator: CoordinatorConfig
    #: The names in ``partition.assignment.strategy``; empty in the consumer protocol, in which the broker assigns partitions.
    strategy: tuple[str, ...] = DEFAULT_STRATEGY
    isolation_level: str = "read_committed"
    #: Settings of Fetch requests; sizes are in bytes unless the name has another unit.
    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 500
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    queued_max_messages_kbytes: int = 64 << 10
    queued_min_messages: int = 100_000
    check_crcs: bool = True
    #: Whether librdkafka fetches messages; None: the default.
    librdkafka_enable: bool | None = None
    #: Whether to push metrics to brokers that subscribe to them (KIP-714). As in Java and librdkafka, the operator of the
    #: cluster decides, because clients that the operator cannot change are those whose metrics are missing.
    enable_metrics_push: bool = True
    #: Settings for ``confluent_kafka.Consumer``, which gets manual assignments and commits nothing.
    librdkafka: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    #: Whether ``GroupConsumer.poll`` raises background errors instead of returning them as messages.
    poll_raises_errors: bool = False

    @property
    def auto_offset_reset(self) -> str:
        """The value of ``auto.offset.reset``, in librdkafka's spelling."""
        return self.coordinator.auto_offset_reset

    @property
    def read_committed(self) -> bool:
        """True if the consumer reads no records of open and aborted transactions (``isolation.level``)."""
        return self.isolation_level == "read_committed"


def parse(settings: Mapping[str, Any], *, needs_group: bool = True, needs_brokers: bool = True) -> Config:
    """Check a dictionary of settings and return the configuration.

    Without ``needs_brokers`` a missing ``bootstrap.servers`` is only a warning. Raise
    :class:`~consumer_coord.errors.ConfigurationError`, which names the setting and its valid values.
    """
    refuse_other_spellings(settings)
    given = _normalise(settings)
    required = {"bootstrap.servers"} if needs_brokers or given.get("bootstrap.servers") is not None else set()
    values: dict[str, Any] = {"bootstrap_servers": (), "group_id": ""}
    for name, row in SETTINGS.items():
        if name in required or (name in given and name != "bootstrap.servers"):
            values[row.field] = row.kind(name, given.get(name))
    if not required:
        logger.warning("no bootstrap.servers: this consumer cannot reach any Kafka cluster")
    # librdkafka strips the name, and confluent-kafka aborts the process if no name remains.
    if needs_group and not values["group_id"].strip():
        raise ConfigurationError(
            f"group.id={values['group_id']!r}: set it to the name of the consumer group, a non-empty string"
        )
    _check_protocol(given, values.get("group_protocol", CLASSIC))
    _derive(values, given)
    security = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")
    values["security"] = {key: value for key, value in given.items() if key.startswith(security) or key == "oauth_cb"}
    coordinator = CoordinatorConfig(**_of(CoordinatorConfig, values))
    _check(coordinator)
    if coordinator.group_protocol == CONSUMER:
        values["strategy"] = ()
    return Config(
        **_of(Config, values),
        client=ClientConfig(**_of(ClientConfig, values)),
        coordinator=coordinator,
        librdkafka=_for_librdkafka(given, coordinator.group_id),
    )


def _of(kind: type[attrs.AttrsInstance], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the attributes of the class ``kind``."""
    return {field.name: values[field.name] for field in attrs.fields(kind) if field.name in values}


def _derive(values: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Add the values that depend on other settings."""
    if "max_poll_interval_ms" in values:
        values.setdefault("rebalance_timeout_ms", values["max_poll_interval_ms"])
    if "session_timeout_ms" in values:
        values.setdefault("heartbeat_interval_ms", max(1, min(3_000, values["session_timeout_ms"] // 3)))
    # librdkafka's setting for how soon a new topic of a pattern is noticed; -1 keeps metadata.max.age.ms.
    refresh = "topic.metadata.refresh.interval.ms"
    interval_ms = Integer(-1, 3_600_000)(refresh, given[refresh]) if refresh in given else -1
    if interval_ms > 0:
        values["metadata_max_age_ms"] = min(interval_ms, values.get("metadata_max_age_ms", interval_ms))


def _check(config: CoordinatorConfig) -> None:
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigurationError(
            f"heartbeat.interval.ms={config.heartbeat_interval_ms} must be below"
            f" session.timeout.ms={config.session_timeout_ms}; a third of session.timeout.ms is usual"
        )
    if config.retry_backoff_max_ms < config.retry_backoff_ms:
        raise ConfigurationError(
            f"retry.backoff.max.ms={config.retry_backoff_max_ms} is below retry.backoff.ms={config.retry_backoff_ms}"
        )


def _check_protocol(given: Mapping[str, Any], protocol: str) -> None:
    """Raise ConfigurationError for settings without an effect in ``group.protocol``, like Java's ``ConsumerConfig``."""
    if protocol == CLASSIC and given.get("group.remote.assignor") is not None:
        raise ConfigurationError(
            "group.remote.assignor cannot be set with group.protocol=classic, in which a member assigns the partitions:"
            " set partition.assignment.strategy, or group.protocol=consumer"
        )
    for name, instead in CLASSIC_ONLY.items():
        if protocol == CONSUMER and given.get(name) is not None:
            raise ConfigurationError(f"{name} cannot be set with group.protocol=consumer: {instead}")


def refuse_other_spellings(names: Iterable[object]) -> None:
    """Raise :class:`~consumer_coord.errors.ConfigurationError` for settings of kafka-python, with their replacements."""
    names = tuple(names)
    for name in names:
        if isinstance(name, str) and name in INSTEAD:
            raise ConfigurationError(f"no setting is called {name!r}: {INSTEAD[name]}")
    unknown = [name for name in names if isinstance(name, str) and "_" in name and name not in KNOWN]
    if meant := {name: here for name in unknown if (here := of_other_clients(name, KNOWN)) is not None}:
        raise ConfigurationError(
            f"no setting is called {', '.join(map(repr, meant))}; did you mean {', '.join(map(repr, meant.values()))}?"
            " Settings have Kafka's dotted names, in one dictionary"
        )


def _normalise(settings: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    flat = dict(settings)
    # ``default.topic.config`` is librdkafka's older form of topic settings.
    flat.update(flat.pop("default.topic.config", {}) or {})
    for key, value in flat.items():
        if not isinstance(key, str):
            raise ConfigurationError(f"settings have names like 'group.id', not {key!r}")
        name = ALIASES.get(key, key)
        if name in given and given[name] != value:
            raise ConfigurationError(f"{spelled[name]} and {key} are two names of one setting, with different values: keep one")
        given[name] = value
        spelled[name] = key
    return given


def _for_librdkafka(given: Mapping[str, Any], group_id: str) -> dict[str, Any]:
    passed = {name: value for name, value in given.items() if name not in SETTINGS or SETTINGS[name].plane is not CONTROL}
    # librdkafka reports an offset out of range, and the consumer looks up the new position. A look-up by librdkafka would
    # survive a seek and another assignment, so librdkafka would then read from the wrong offset.
    passed["auto.offset.reset"] = "error"
    # librdkafka requires a group.id even for manual assignment. Its own commits are off: they would have no generation.
    passed["group.id"] = group_id or "consumer-coord"
    passed["enable.auto.commit"] = False
    passed["enable.auto.offset.store"] = False
    passed.setdefault("client.id", "consumer-coord")
    # TCP keepalive is on for the control plane, too, so both planes detect that a firewall dropped a connection.
    passed.setdefault("socket.keepalive.enable", True)
    # librdkafka's default is 100 ms. With 105 ms, the coordinator and librdkafka together connect as often as librdkafka alone
    # with its default: 19 times a second, without a broker and with one address.
    passed.setdefault("reconnect.backoff.ms", 105)
    passed["max.poll.interval.ms"] = DAY_MS
    return passed
