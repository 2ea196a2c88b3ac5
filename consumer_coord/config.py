"""Settings: one dictionary with Kafka's dotted names feeds both planes.

What the coordinator knows it checks and keeps (:class:`CoordinatorConfig`); everything else goes to librdkafka as it is,
and what librdkafka does not know either is an error that names the key.
"""

from __future__ import annotations

import importlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from assignors import BUILT_IN
from assignors.base import Assignor, RebalanceProtocol
from consumer_coord.errors import ConfigurationError
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.printable import get_logger
from consumer_coord.setting_names import INSTEAD, LIBRDKAFKA, did_you_mean, of_other_clients

logger = get_logger(__name__)

ENTRY_POINT_GROUP = "consumer_coord.assignors"

#: Java's default (``ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG``): it can join groups of Java and librdkafka
#: members as they are, and is eager for their sake.  ``cooperative-sticky`` alone gives the better rebalances.
DEFAULT_STRATEGY = "range,cooperative-sticky"

#: Settings of ours alone: they are not handed to librdkafka.
OWN = frozenset(
    {
        "rebalance.timeout.ms",
        "release.linger.ms",
        "assignor.timeout.ms",
        "exclude.internal.topics",
        "group.lease.enable",
        "poll.raises.errors",
    }
)

#: The group protocols.
CLASSIC = "classic"
CONSUMER = "consumer"

#: What the consumer protocol leaves to the broker, and where it is set there.
_CLASSIC_ONLY = {
    "session.timeout.ms": "the brokers' group.consumer.session.timeout.ms holds for all members (for one group,"
    " consumer.session.timeout.ms)",
    "heartbeat.interval.ms": "the brokers' group.consumer.heartbeat.interval.ms holds for all members (for one group,"
    " consumer.heartbeat.interval.ms)",
    "partition.assignment.strategy": "the broker assigns; group.remote.assignor chooses one of the brokers'"
    " group.consumer.assignors; an assignor in Python needs group.protocol=classic",
}

#: Java's names and librdkafka's for the same thing, where they differ.
ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "request.timeout.ms": "socket.timeout.ms",
    "enable.auto.create.topics": "allow.auto.create.topics",
}

#: Java's settings that librdkafka lacks, used by the coordinator only.
JAVA_ONLY = frozenset({"default.api.timeout.ms", "retry.backoff.max.ms"})

#: Every setting that one of the planes knows.
KNOWN = OWN | JAVA_ONLY | frozenset(ALIASES) | LIBRDKAFKA

_MAX_INT = 2**31 - 1


def as_integer(key: str, value: Any, low: int, high: int) -> int:
    """A setting that is a whole number from ``low`` to ``high``, as a number or a text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{key}={value!r} is not a whole number") from None
    if isinstance(value, bool) or number != float(value) or not low <= number <= high:
        raise ConfigurationError(f"{key}={value!r} is out of range: it must be a whole number from {low} to {high}")
    return number


def as_boolean(key: str, value: Any) -> bool:
    """A setting that is true or false, in one of the forms that librdkafka takes."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "t", "f"):
        return value.lower() in ("true", "1", "t")
    raise ConfigurationError(f"{key}={value!r} must be true or false")


@attrs.frozen(kw_only=True)
class CoordinatorConfig:
    """What the control plane needs to know.  Times are in milliseconds.

    Made by :func:`parse`, from Kafka's names; the defaults are the Java client's where both clients have one.
    """

    group_id: str
    #: ``classic`` or ``consumer`` (KIP-848).
    group_protocol: str = "classic"
    #: The broker's assignor, of ``group.consumer.assignors``; None leaves the choice to the broker.
    group_remote_assignor: str | None = None
    group_instance_id: str | None = None
    client_rack: str | None = None
    #: ``earliest``, ``latest``, ``error``, or ``by_duration:`` and an ISO 8601 duration.
    auto_offset_reset: str = "latest"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    #: How long the group waits for this member in a rebalance; ``max.poll.interval.ms`` unless said otherwise.
    rebalance_timeout_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    exclude_internal_topics: bool = True
    #: After an application let go of partitions, how long to wait for the other members of the process that have to let go,
    #: too, before the next round of the rebalance.
    release_linger_ms: int = 1_000
    #: How long an assignor may take before the leader gives up; the member then leaves the group.
    assignor_timeout_ms: int = 30_000
    #: Hand out records only while the coordinator must still count this member; see lease.py.
    group_lease_enable: bool = True


def _check(config: CoordinatorConfig) -> None:
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigurationError(
            f"heartbeat.interval.ms={config.heartbeat_interval_ms} must be below"
            f" session.timeout.ms={config.session_timeout_ms}; a third of it is usual"
        )
    if config.retry_backoff_max_ms < config.retry_backoff_ms:
        raise ConfigurationError(
            f"retry.backoff.max.ms={config.retry_backoff_max_ms} is below retry.backoff.ms={config.retry_backoff_ms}"
        )


@attrs.frozen(kw_only=True)
class Config:
    """A parsed dictionary: the control plane's parts, and what goes to librdkafka."""

    client: ClientConfig
    coordinator: CoordinatorConfig
    #: The names in ``partition.assignment.strategy``; none in the consumer protocol, in which the broker assigns.
    strategy: tuple[str, ...]
    isolation_level: str
    #: For ``confluent_kafka.Consumer``: manual assignment, its own commits off.
    librdkafka: Mapping[str, Any] = attrs.field(repr=False)
    #: ``GroupConsumer.poll`` raises what goes wrong in the background, instead of handing it out as a message.
    poll_raises_errors: bool = False

    @property
    def auto_offset_reset(self) -> str:
        """``auto.offset.reset``, in librdkafka's words."""
        return self.coordinator.auto_offset_reset


_LARGEST_INTERVAL = 86_400_000

#: key -> (field, low, high) of whole numbers for :class:`CoordinatorConfig`.
_COORDINATOR_INTEGERS = {
    "session.timeout.ms": ("session_timeout_ms", 1, 3_600_000),
    "heartbeat.interval.ms": ("heartbeat_interval_ms", 1, 3_600_000),
    "max.poll.interval.ms": ("max_poll_interval_ms", 1, _LARGEST_INTERVAL),
    "rebalance.timeout.ms": ("rebalance_timeout_ms", 1, _LARGEST_INTERVAL),
    "auto.commit.interval.ms": ("auto_commit_interval_ms", 0, _LARGEST_INTERVAL),
    "socket.timeout.ms": ("request_timeout_ms", 10, 300_000),
    "default.api.timeout.ms": ("default_api_timeout_ms", 1, _MAX_INT),
    "retry.backoff.ms": ("retry_backoff_ms", 1, 300_000),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", 1, 300_000),
    "release.linger.ms": ("release_linger_ms", 0, 60_000),
    "assignor.timeout.ms": ("assignor_timeout_ms", 1, _LARGEST_INTERVAL),
}

#: The same for :class:`ClientConfig`.
_CLIENT_INTEGERS = {
    "socket.timeout.ms": ("request_timeout_ms", 10, 300_000),
    "socket.connection.setup.timeout.ms": ("connection_setup_timeout_ms", 1000, _MAX_INT),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", 0, 3_600_000),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", 0, 3_600_000),
    "retry.backoff.ms": ("retry_backoff_ms", 1, 300_000),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", 1, 300_000),
    "metadata.max.age.ms": ("metadata_max_age_ms", 1, _LARGEST_INTERVAL),
    "metadata.recovery.rebootstrap.trigger.ms": ("rebootstrap_trigger_ms", 0, _MAX_INT),
    "connections.max.idle.ms": ("connections_max_idle_ms", 0, _MAX_INT),
}

_RESETS = {
    "earliest": "earliest",
    "beginning": "earliest",
    "smallest": "earliest",
    "latest": "latest",
    "end": "latest",
    "largest": "latest",
    "error": "error",
    "none": "error",
}
_BY_DURATION = re.compile(r"by_duration:P(?=.)(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?")


def parse(settings: Mapping[str, Any], *, needs_group: bool = True, needs_brokers: bool = True) -> Config:
    """Check a dictionary of settings.  Without ``needs_brokers`` a missing ``bootstrap.servers`` is a warning only.

    Raises :class:`~consumer_coord.errors.ConfigurationError`, which names the setting and says what would be right.
    """
    refuse_other_spellings(settings)
    given = _normalise(settings)
    if needs_brokers or given.get("bootstrap.servers") is not None:
        bootstrap = _addresses(given.get("bootstrap.servers"))
    else:
        bootstrap = ()
        logger.warning("no bootstrap.servers: this consumer cannot reach any Kafka cluster")
    group_id = given.get("group.id", "")
    if isinstance(group_id, (int, uuid.UUID)) and not isinstance(group_id, bool):
        group_id = str(group_id)
    if not isinstance(group_id, str) or (needs_group and not group_id):
        raise ConfigurationError(f"group.id={group_id!r}: set it to the name of the consumer group, a non-empty text")
    coordinator: dict[str, Any] = {"group_id": group_id}
    for key, (field, low, high) in _COORDINATOR_INTEGERS.items():
        if key in given:
            coordinator[field] = as_integer(key, given[key], low, high)
    coordinator.setdefault("max_poll_interval_ms", 300_000)
    coordinator.setdefault("rebalance_timeout_ms", coordinator["max_poll_interval_ms"])
    if "session.timeout.ms" in given and "heartbeat.interval.ms" not in given:
        coordinator["heartbeat_interval_ms"] = max(1, min(3_000, coordinator["session_timeout_ms"] // 3))
    if "enable.auto.commit" in given:
        coordinator["enable_auto_commit"] = as_boolean("enable.auto.commit", given["enable.auto.commit"])
    if "exclude.internal.topics" in given:
        coordinator["exclude_internal_topics"] = as_boolean("exclude.internal.topics", given["exclude.internal.topics"])
    if "group.lease.enable" in given:
        coordinator["group_lease_enable"] = as_boolean("group.lease.enable", given["group.lease.enable"])
    coordinator["group_protocol"] = _protocol(given)
    coordinator["auto_offset_reset"] = _reset(given)
    for key, field in (
        ("group.instance.id", "group_instance_id"),
        ("client.rack", "client_rack"),
        ("group.remote.assignor", "group_remote_assignor"),
    ):
        value = given.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{key}={value!r} must be a text")
        # An empty one is none, as in librdkafka.
        coordinator[field] = value or None
    isolation = given.get("isolation.level", "read_committed")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConfigurationError(f"isolation.level={isolation!r} must be read_committed or read_uncommitted")
    client: dict[str, Any] = {"bootstrap_servers": bootstrap}
    for key, (field, low, high) in _CLIENT_INTEGERS.items():
        if key in given:
            client[field] = as_integer(key, given[key], low, high)
    client.update(_metadata_age(client, given))
    if "client.id" in given:
        client["client_id"] = str(given["client.id"])
    if "allow.auto.create.topics" in given:
        client["allow_auto_create_topics"] = as_boolean("allow.auto.create.topics", given["allow.auto.create.topics"])
    client["security"] = {
        key: value
        for key, value in given.items()
        if key.startswith(("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")) or key == "oauth_cb"
    }
    coordinator_config = CoordinatorConfig(**coordinator)
    _check(coordinator_config)
    return Config(
        client=ClientConfig(**client),
        coordinator=coordinator_config,
        strategy=_strategy(given) if coordinator_config.group_protocol == CLASSIC else (),
        isolation_level=isolation,
        poll_raises_errors=as_boolean("poll.raises.errors", given.get("poll.raises.errors", False)),
        librdkafka=_for_librdkafka(given, group_id),
    )


def refuse_other_spellings(names: Iterable[object]) -> None:
    """Raise :class:`~consumer_coord.errors.ConfigurationError` for settings of kafka-python, with what takes their place."""
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


def _metadata_age(client: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """``topic.metadata.refresh.interval.ms``: how soon a new topic of a pattern is seen; -1 leaves ``metadata.max.age.ms``."""
    key = "topic.metadata.refresh.interval.ms"
    if key not in given:
        return {}
    interval_ms = as_integer(key, given[key], -1, 3_600_000)
    if interval_ms <= 0:
        return {}
    return {"metadata_max_age_ms": min(interval_ms, client.get("metadata_max_age_ms", interval_ms))}


def _protocol(given: Mapping[str, Any]) -> str:
    """``group.protocol``, with an error for settings that mean nothing in it (as in Java's ``ConsumerConfig``)."""
    protocol = str(given.get("group.protocol", CLASSIC)).lower()
    if protocol not in (CLASSIC, CONSUMER):
        raise ConfigurationError(f"group.protocol={given['group.protocol']!r} must be classic or consumer")
    if protocol == CLASSIC and given.get("group.remote.assignor") is not None:
        raise ConfigurationError(
            "group.remote.assignor cannot be set with group.protocol=classic, in which a member assigns:"
            " set partition.assignment.strategy, or group.protocol=consumer"
        )
    for key, instead in _CLASSIC_ONLY.items():
        if protocol == CONSUMER and given.get(key) is not None:
            raise ConfigurationError(f"{key} cannot be set with group.protocol=consumer: {instead}")
    return protocol


def _normalise(settings: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    flat = dict(settings)
    # librdkafka's old way to give topic settings.
    flat.update(flat.pop("default.topic.config", {}) or {})
    for key, value in flat.items():
        if not isinstance(key, str):
            raise ConfigurationError(f"settings have names like 'group.id', not {key!r}")
        name = ALIASES.get(key, key)
        if name in given and given[name] != value:
            raise ConfigurationError(f"{spelled[name]} and {key} are two names of one setting and contradict each other")
        given[name] = value
        spelled[name] = key
    return given


#: What librdkafka allows before an address, as in a broker's ``listeners``.
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _addresses(value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(
            f"bootstrap.servers={value!r}: give one text with one or more addresses, 'host:port,host:port'"
        )
    found = []
    for part in (piece.strip() for piece in value.split(",")):
        if not part:
            continue
        protocol, _, bare = part.rpartition("://")
        if protocol and protocol.upper() not in _PROTOCOLS:
            raise ConfigurationError(
                f"bootstrap.servers: {part!r} is a URL, and Kafka's brokers have addresses: give host:port, such as"
                f" {re.split('[/@]', bare)[0] or 'localhost'!r}"
            )
        match = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d+))?", bare)
        port = int(match.group(2) or 9092) if match else 0
        if match is None or not 0 < port < 65536:
            raise ConfigurationError(f"bootstrap.servers: {part!r} is no host:port")
        found.append((match.group(1).strip("[]"), port))
    if not found:
        raise ConfigurationError(f"bootstrap.servers={value!r} names no address; host:port,host:port")
    return tuple(dict.fromkeys(found))


def _reset(given: Mapping[str, Any]) -> str:
    value = str(given.get("auto.offset.reset", "latest"))
    if value in _RESETS:
        return _RESETS[value]
    if _BY_DURATION.fullmatch(value):
        return value
    raise ConfigurationError(
        f"auto.offset.reset={value!r} must be earliest, latest, none, or by_duration:PnDTnHnMnS (ISO 8601)"
    )


def _for_librdkafka(given: Mapping[str, Any], group_id: str) -> dict[str, Any]:
    ours = (
        OWN
        | JAVA_ONLY
        | {
            "group.protocol",
            "group.remote.assignor",
            "partition.assignment.strategy",
            "group.instance.id",
            "auto.commit.interval.ms",
        }
    )
    passed = {key: value for key, value in given.items() if key not in ours}
    # librdkafka tells that an offset is out of range, and the consumer looks up where to begin instead: a look-up of
    # librdkafka's own outlives a seek and another assignment, and reading goes on where it leads.
    passed["auto.offset.reset"] = "error"
    # Manual assignment needs a group.id all the same; a commit of librdkafka's own would carry no generation.
    passed["group.id"] = group_id or "consumer-coord"
    passed["enable.auto.commit"] = False
    passed["enable.auto.offset.store"] = False
    passed.setdefault("client.id", "consumer-coord")
    # As the control plane's connections: a firewall that forgot one is noticed on both.
    passed.setdefault("socket.keepalive.enable", True)
    # librdkafka's default is 100.  Without a broker both planes together connect no more often than librdkafka alone does
    # by default: 19 times a second with one address.
    passed.setdefault("reconnect.backoff.ms", 105)
    # librdkafka checks these two against each other although it does not use them here.
    passed.pop("session.timeout.ms", None)
    passed.pop("heartbeat.interval.ms", None)
    passed["max.poll.interval.ms"] = _LARGEST_INTERVAL
    return passed


def _strategy(given: Mapping[str, Any]) -> tuple[str, ...]:
    value = given.get("partition.assignment.strategy", DEFAULT_STRATEGY)
    names = value if isinstance(value, (list, tuple)) else str(value).split(",")
    if not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"partition.assignment.strategy={value!r}: give names, such as 'range'; assignors= takes classes and objects"
        )
    cleaned = tuple(name.strip() for name in names if name.strip())
    if not cleaned or len(cleaned) != len(set(cleaned)):
        raise ConfigurationError(f"partition.assignment.strategy={value!r}: name each assignor once, the favourite first")
    return cleaned


# -- assignors ------------------------------------------------------------------------------------------------------


def load_assignors(strategy: Iterable[str]) -> tuple[Assignor, ...]:
    """Assignor objects for names: built-in, of an installed package (entry point), or ``module:Class``."""
    return tuple(_load(name) for name in strategy)


def _load(name: str) -> Assignor:
    if name in BUILT_IN:
        return as_assignor(BUILT_IN[name])
    offered = _entry_points()
    load: Callable[[], Any]
    if name in offered:
        load = offered[name].load
    elif ":" in name:
        module, _, attribute = name.partition(":")
        load = lambda: getattr(importlib.import_module(module), attribute)  # noqa: E731
    else:
        known = sorted({*BUILT_IN, *offered})
        hint = did_you_mean(name, known) or "."
        raise ConfigurationError(
            f"partition.assignment.strategy: no assignor is called {name!r}{hint} Known are {', '.join(known)};"
            " your own is named as module:Class or through the entry-point group consumer_coord.assignors."
        )
    try:
        found = load()
    except Exception as error:
        told = error if isinstance(error, (ImportError, AttributeError)) else repr(error)
        raise ConfigurationError(f"partition.assignment.strategy: {name!r} cannot be loaded: {told}") from error
    try:
        return as_assignor(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"partition.assignment.strategy: {name!r}: {error}") from error


def _entry_points() -> Mapping[str, Any]:
    # Imported here: it looks into every installed package, and built-in assignors need none of them.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def as_assignor(candidate: Any) -> Assignor:
    """An assignor from an object or a class; anything else is a :class:`ConfigurationError` that says what is missing."""
    try:
        assignor = candidate() if isinstance(candidate, type) else candidate
    except Exception as error:
        raise ConfigurationError(
            f"{candidate!r} cannot be made without arguments ({error!r}): implement its abstract methods, and give it defaults,"
            " or pass an object as assignors=[...]"
        ) from error
    if not isinstance(assignor, Assignor):
        raise ConfigurationError(f"{candidate!r} is no assignor: derive it from assignors.Assignor")
    if not isinstance(getattr(assignor, "name", None), str) or not assignor.name:
        raise ConfigurationError(f"{candidate!r} has no name: set the class attribute `name` to what travels in JoinGroup")
    if not assignor.protocols or not set(assignor.protocols) <= set(RebalanceProtocol):
        raise ConfigurationError(f"assignor {assignor.name!r} must list its protocols, of RebalanceProtocol")
    try:
        assignor.check_needs()
    except ValueError as error:
        raise ConfigurationError(f"assignor {assignor.name!r}: {error}") from error
    return assignor


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """The highest rebalance protocol that all of a list support (``ConsumerCoordinator`` of Java's client)."""
    if not assignors:
        raise ConfigurationError("assignors: give at least one")
    names = [assignor.name for assignor in assignors]
    if len(names) != len(set(names)):
        raise ConfigurationError(f"assignors: two of them have one name: {', '.join(names)}")
    common = set(assignors[0].protocols).intersection(*(assignor.protocols for assignor in assignors[1:]))
    if not common:
        raise ConfigurationError(
            "assignors: " + ", ".join(names) + " have no rebalance protocol in common;"
            " an assignor for a mixed list supports EAGER too"
        )
    return max(common)
