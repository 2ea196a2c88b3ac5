"""The settings that the control plane reads, as one table, and the kinds of their values.

A row defines a setting: its name, the check of its value, the attribute for the value, the planes that read it, and its text in
the reference. :func:`consumer_coord.config.parse`, the spelling help and the pages of docs/reference/ derive from the rows. The
default is the default of the attribute in its class: ``CoordinatorConfig`` and ``Config`` in ``config.py``, ``ClientConfig`` in
``net/client_config.py``. All other settings belong to librdkafka, which receives them unchanged.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.setting_names import LIBRDKAFKA, did_you_mean

#: The group protocols.
CLASSIC = "classic"
CONSUMER = "consumer"

DAY_MS = 86_400_000
MAX_INT = 2**31 - 1


class Plane(enum.Enum):
    """The planes that read a setting."""

    CONTROL = "control"
    BOTH = "both"


CONTROL, BOTH = Plane


# -- kinds of values: each checks a value, and returns it as the control plane keeps it -----------------------------------


def as_integer(name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number from ``low`` to ``high``, given as a number or a text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name}={value!r} is not a whole number") from None
    if isinstance(value, bool) or number != float(value) or not low <= number <= high:
        raise ConfigurationError(f"{name}={value!r} is out of range: it must be a whole number from {low} to {high}")
    return number


@attrs.frozen
class Integer:
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    def __call__(self, name: str, value: Any) -> int:
        """Check a value and return it."""
        return as_integer(name, value, self.low, self.high)


@attrs.frozen
class OneOf:
    """One of a few words, in lower case."""

    words: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> str:
        """Check a value and return it."""
        if not isinstance(value, str) or value.lower() not in self.words:
            raise ConfigurationError(f"{name}={value!r} must be {' or '.join(self.words)}")
        return value.lower()


def as_boolean(name: str, value: Any) -> bool:
    """Return a boolean from one of the forms that librdkafka accepts."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "t", "f"):
        return value.lower() in ("true", "1", "t")
    raise ConfigurationError(f"{name}={value!r} must be true or false")


def text(name: str, value: Any) -> str | None:
    """Return a string, or None for an empty string, like librdkafka."""
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r} must be a string")
    return value or None


def as_text(name: str, value: Any) -> str:
    """Return any value as a string."""
    return str(value)


def group_id(name: str, value: Any) -> str:
    """Return the name of a group, which may be given as a number or a UUID."""
    if isinstance(value, (int, uuid.UUID)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ConfigurationError(f"{name}={value!r}: set it to the name of the consumer group, a non-empty string")
    return value


#: Prefixes that librdkafka allows before an address, as in a broker's ``listeners``.
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def addresses(name: str, value: Any) -> tuple[tuple[str, int], ...]:
    """Parse ``host:port,host:port``."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name}={value!r}: give one string with one or more addresses, 'host:port,host:port'")
    found = []
    for part in (piece.strip() for piece in value.split(",")):
        if not part:
            continue
        protocol, _, bare = part.rpartition("://")
        if protocol and protocol.upper() not in _PROTOCOLS:
            raise ConfigurationError(
                f"{name}: {part!r} is a URL, but Kafka's brokers have addresses: give host:port, such as"
                f" {re.split('[/@]', bare)[0] or 'localhost'!r}"
            )
        match = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d+))?", bare)
        port = int(match.group(2) or 9092) if match else 0
        if match is None or not 0 < port < 65536:
            raise ConfigurationError(f"{name}: {part!r} is not host:port")
        found.append((match.group(1).strip("[]"), port))
    if not found:
        raise ConfigurationError(f"{name}={value!r} names no address: give host:port,host:port")
    return tuple(dict.fromkeys(found))


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
_BY_DURATION = r"by_duration:P(?=.)(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?"


def reset(name: str, value: Any) -> str:
    """Return ``earliest``, ``latest``, ``error``, or ``by_duration:`` and an ISO 8601 duration (KIP-1106)."""
    word = str(value)
    if word in _RESETS:
        return _RESETS[word]
    if re.fullmatch(_BY_DURATION, word):
        return word
    raise ConfigurationError(f"{name}={word!r} must be earliest, latest, none, or by_duration:PnDTnHnMnS (ISO 8601)")


def assignor_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of assignors, given as a list or as one string with commas."""
    names = value if isinstance(value, (list, tuple)) else str(value).split(",")
    if not all(isinstance(one, str) for one in names):
        raise ConfigurationError(f"{name}={value!r}: give names, such as 'range'; assignors= takes classes and objects")
    cleaned = tuple(one.strip() for one in names if one.strip())
    if not cleaned or len(cleaned) != len(set(cleaned)):
        raise ConfigurationError(f"{name}={value!r}: name each assignor once, the preferred one first")
    return cleaned


# -- the table ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Setting:
    """A row: a setting that the control plane reads."""

    name: str
    #: Checks a value, and returns the value to keep; called with the name and the value.
    kind: Callable[[str, Any], Any]
    #: Name of the attribute of ``CoordinatorConfig``, ``ClientConfig`` or ``Config`` that holds the value, and that declares
    #: the default.
    field: str
    plane: Plane
    #: Texts of the reference: the effect, and when to change the setting or the cost of a change.
    effect: str
    advice: str


SETTINGS: Mapping[str, Setting] = {
    row.name: row
    for row in (
        Setting(
            "bootstrap.servers",
            addresses,
            "bootstrap_servers",
            BOTH,
            "Brokers for the first connection: `host:port,host:port`. Required.",
            "Name two or three brokers, because one may be down.",
        ),
        Setting(
            "client.id",
            as_text,
            "client_id",
            BOTH,
            "Names this client in the brokers' logs, quotas and member ids.",
            "Set it to the application's name.",
        ),
        Setting(
            "client.rack",
            text,
            "client_rack",
            BOTH,
            "The rack of this client, for rack-aware assignors and for fetching from the nearest replica.",
            "Set it if traffic between zones costs money. To fetch from the nearest replica, also set"
            " `replica.selector.class` on the brokers.",
        ),
        Setting(
            "group.id",
            group_id,
            "group_id",
            BOTH,
            "The name of the consumer group. Required.",
            "",
        ),
        Setting(
            "group.instance.id",
            text,
            "group_instance_id",
            CONTROL,
            "Makes the member static (KIP-345): a restart within its session moves no partitions, and a close does not leave"
            " the group.",
            "Each running member needs a different id. The group notices a dead member only after `session.timeout.ms`.",
        ),
        Setting(
            "group.protocol",
            OneOf((CLASSIC, CONSUMER)),
            "group_protocol",
            CONTROL,
            "`classic`: a member of the group assigns the partitions. `consumer` (KIP-848): the broker does.",
            "`consumer` needs Kafka 4.0, and does not use assignors in Python.",
        ),
        Setting(
            "group.remote.assignor",
            text,
            "group_remote_assignor",
            CONTROL,
            "The broker's assignor for `group.protocol=consumer`: one of the brokers' `group.consumer.assignors`.",
            (
                "Use `range` to join topics partition by partition. Otherwise the brokers use their first assignor, usually"
                " `uniform`."
            ),
        ),
        Setting(
            "group.lease.enable",
            as_boolean,
            "group_lease_enable",
            CONTROL,
            "Deliver records only while the member's session at the coordinator cannot have expired.",
            "If off, a member continues to deliver without a coordinator, so two members may read the same partition.",
        ),
        Setting(
            "librdkafka.enable",
            as_boolean,
            "librdkafka_enable",
            CONTROL,
            "Read messages through librdkafka. If off, this package's own Fetch reads them. If not set, librdkafka reads only"
            " with a setting that this package does not have, such as `ssl.providers`.",
            "Off: no threads of librdkafka, and less CPU time for small records; large records arrive more slowly.",
        ),
        Setting(
            "poll.raises.errors",
            as_boolean,
            "poll_raises_errors",
            CONTROL,
            "`GroupConsumer.poll` and `consume` raise background errors. If off, they return a message with `error()`.",
            "Programs written for confluent-kafka check `error()`. If on, a missing check cannot hide an error.",
        ),
        Setting(
            "partition.assignment.strategy",
            assignor_names,
            "strategy",
            CONTROL,
            "Assignors in order of preference: names, entry points, or `module:Class`.",
            "`cooperative-sticky` alone gives better rebalances; every member of the group must support it.",
        ),
        Setting(
            "session.timeout.ms",
            Integer(1, 3_600_000),
            "session_timeout_ms",
            CONTROL,
            "The coordinator removes a member after this time without a heartbeat.",
            "Lower: partitions of a dead member move sooner, but a shorter pause of the process causes a rebalance. The"
            " brokers limit the value.",
        ),
        Setting(
            "heartbeat.interval.ms",
            Integer(1, 3_600_000),
            "heartbeat_interval_ms",
            CONTROL,
            "The interval of heartbeats, at which the member notices a rebalance. If the session is below 9 s, the default is"
            " a third of it.",
            "Lower: faster rebalances, but more requests (one per member and interval).",
        ),
        Setting(
            "max.poll.interval.ms",
            Integer(1, DAY_MS),
            "max_poll_interval_ms",
            CONTROL,
            "The member leaves the group after this time without a poll (a static member stops its heartbeats instead).",
            "Set it higher than your slowest batch. An application that hangs keeps its partitions for this time.",
        ),
        Setting(
            "rebalance.timeout.ms",
            Integer(1, DAY_MS),
            "rebalance_timeout_ms",
            CONTROL,
            "How long the group waits for this member in a rebalance. Default: `max.poll.interval.ms`.",
            "Lower it if batches are long and the group is cooperative: a member that hangs then delays the others less.",
        ),
        Setting(
            "release.linger.ms",
            Integer(0, 60_000),
            "release_linger_ms",
            CONTROL,
            (
                "After a cooperative member has revoked partitions: maximum wait for other members of this process to revoke"
                " theirs, before the member joins the second round of the rebalance."
            ),
            "With 0, the member joins at once; a process with many consumers then causes more generations.",
        ),
        Setting(
            "assignor.timeout.ms",
            Integer(1, DAY_MS),
            "assignor_timeout_ms",
            CONTROL,
            "Time limit of an assignor; after it, the leader leaves the group.",
            "Raise it for a slow assignor, but keep it below `rebalance.timeout.ms`.",
        ),
        Setting(
            "enable.auto.commit",
            as_boolean,
            "enable_auto_commit",
            CONTROL,
            "Commit finished records periodically at a poll, and before partitions are revoked.",
            "Turn it off if you commit explicitly, or in a transaction.",
        ),
        Setting(
            "auto.commit.interval.ms",
            Integer(0, DAY_MS),
            "auto_commit_interval_ms",
            CONTROL,
            "The interval of automatic commits.",
            "Lower: fewer duplicates after a crash, but more requests.",
        ),
        Setting(
            "auto.offset.reset",
            reset,
            "auto_offset_reset",
            CONTROL,
            "The start of a partition without a commit: `earliest`, `latest`, `none` (an error), or `by_duration:PT1H`.",
            "`latest` skips records that were written before the first poll; most new groups need `earliest`.",
        ),
        Setting(
            "isolation.level",
            OneOf(("read_committed", "read_uncommitted")),
            "isolation_level",
            BOTH,
            "`read_committed` hides records of open and aborted transactions; `read_uncommitted` shows them.",
            "An open transaction delays readers of committed records.",
        ),
        Setting(
            "fetch.min.bytes",
            Integer(1, 100_000_000),
            "fetch_min_bytes",
            BOTH,
            "A broker answers a Fetch when this number of bytes is available, or after `fetch.wait.max.ms`.",
            "Higher: fewer and larger responses, but records arrive later.",
        ),
        Setting(
            "fetch.wait.max.ms",
            Integer(0, 300_000),
            "fetch_wait_max_ms",
            BOTH,
            "How long a broker waits for `fetch.min.bytes`.",
            "",
        ),
        Setting(
            "fetch.max.bytes",
            Integer(1, 2_147_483_135),
            "fetch_max_bytes",
            BOTH,
            "The maximum size of one Fetch response; a larger first batch is returned nevertheless.",
            "",
        ),
        Setting(
            "max.partition.fetch.bytes",
            Integer(1, 1_000_000_000),
            "max_partition_fetch_bytes",
            BOTH,
            "The maximum size of one partition in a Fetch response. librdkafka calls it `fetch.message.max.bytes`. The default"
            " is exceeded, up to 4 MiB, for a partition that is far behind while few others are.",
            "A higher value saves requests if most records are in a few partitions.",
        ),
        Setting(
            "queued.max.messages.kbytes",
            Integer(1, 2_097_151),
            "queued_max_messages_kbytes",
            BOTH,
            "The maximum size of fetched records that wait for the application, in KiB.",
            "Lower it to save memory. For `consume_arrow`, compressed bytes count, including those of the current batch.",
        ),
        Setting(
            "queued.min.messages",
            Integer(1, 10_000_000),
            "queued_min_messages",
            BOTH,
            "The number of records of a partition that are fetched ahead, within `queued.max.messages.kbytes`.",
            "Lower it to save memory. A higher value helps an application that takes many records at long intervals.",
        ),
        Setting(
            "check.crcs",
            as_boolean,
            "check_crcs",
            BOTH,
            "Check the CRC-32C of each record batch. If librdkafka reads, the default is false.",
            "If off, `consume_arrow` needs about a tenth less CPU time, but damage on the network may go unnoticed.",
        ),
        Setting(
            "exclude.internal.topics",
            as_boolean,
            "exclude_internal_topics",
            CONTROL,
            "Patterns do not match `__consumer_offsets` and other internal topics.",
            "",
        ),
        Setting(
            "allow.auto.create.topics",
            as_boolean,
            "allow_auto_create_topics",
            BOTH,
            "Whether a subscription to a topic that does not exist may create the topic.",
            "If off, a misspelled name does not create a topic.",
        ),
        Setting(
            "enable.metrics.push",
            as_boolean,
            "enable_metrics_push",
            BOTH,
            "Push this consumer's metrics to the brokers, if an operator of the cluster subscribes to them (KIP-714).",
            "The metrics name the group, the member and its topics. Without a subscription nothing is sent.",
        ),
        Setting(
            "default.api.timeout.ms",
            Integer(1, MAX_INT),
            "default_api_timeout_ms",
            CONTROL,
            "The time limit of blocking calls without a `timeout`.",
            "",
        ),
        Setting(
            "socket.timeout.ms",
            Integer(10, 300_000),
            "request_timeout_ms",
            BOTH,
            "How long a request may take (JoinGroup and SyncGroup wait longer). Java calls it `request.timeout.ms`.",
            "Lower: a dead broker is noticed sooner, but requests to a slow broker may fail unnecessarily.",
        ),
        Setting(
            "socket.connection.setup.timeout.ms",
            Integer(1_000, MAX_INT),
            "connection_setup_timeout_ms",
            BOTH,
            "The time limit for opening a connection, including TLS and SASL.",
            "",
        ),
        Setting(
            "receive.message.max.bytes",
            Integer(1_000, MAX_INT),
            "receive_message_max_bytes",
            BOTH,
            "The maximum size of a response. A single batch may be larger than `fetch.max.bytes`, so leave room.",
            "Raise it if an error says that a response is larger.",
        ),
        Setting(
            "reconnect.backoff.ms",
            Integer(0, 3_600_000),
            "reconnect_backoff_ms",
            BOTH,
            "Pause before the second attempt to connect to a broker; it doubles with each attempt.",
            "",
        ),
        Setting(
            "reconnect.backoff.max.ms",
            Integer(0, 3_600_000),
            "reconnect_backoff_max_ms",
            BOTH,
            "The longest pause between attempts to connect.",
            "",
        ),
        Setting(
            "retry.backoff.ms",
            Integer(1, 300_000),
            "retry_backoff_ms",
            BOTH,
            "Pause before the retry of a failed request; it doubles with each retry, with jitter.",
            "",
        ),
        Setting(
            "retry.backoff.max.ms",
            Integer(1, 300_000),
            "retry_backoff_max_ms",
            CONTROL,
            "The longest pause between retries.",
            "",
        ),
        Setting(
            "metadata.max.age.ms",
            Integer(1, DAY_MS),
            "metadata_max_age_ms",
            BOTH,
            "The maximum age of the cluster's metadata.",
            "Lower: new topics of a pattern and new partitions are found sooner, but with more requests.",
        ),
        Setting(
            "metadata.recovery.rebootstrap.trigger.ms",
            Integer(0, MAX_INT),
            "rebootstrap_trigger_ms",
            BOTH,
            ("If no known broker answers a Metadata request for this time, the client also asks `bootstrap.servers`."),
            "",
        ),
        Setting(
            "connections.max.idle.ms",
            Integer(0, MAX_INT),
            "connections_max_idle_ms",
            BOTH,
            "An idle connection is closed after this time; 0 means never.",
            "",
        ),
    )
}

#: Other names in Java or librdkafka -> the names here.
ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "request.timeout.ms": "socket.timeout.ms",
    "enable.auto.create.topics": "allow.auto.create.topics",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
}

#: Every setting that one of the planes knows.
KNOWN = SETTINGS.keys() | ALIASES.keys() | LIBRDKAFKA


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise :class:`~consumer_coord.errors.ConfigurationError` for a name that neither this package nor librdkafka knows."""
    for name in names:
        if name not in KNOWN:
            raise ConfigurationError(f'No such configuration property: "{name}"{did_you_mean(name, KNOWN)}')


#: Settings of the classic protocol -> their replacements in the consumer protocol.
CLASSIC_ONLY = {
    "session.timeout.ms": "the brokers' group.consumer.session.timeout.ms applies to all members (for one group,"
    " consumer.session.timeout.ms)",
    "heartbeat.interval.ms": "the brokers' group.consumer.heartbeat.interval.ms applies to all members (for one group,"
    " consumer.heartbeat.interval.ms)",
    "partition.assignment.strategy": "the broker assigns the partitions; group.remote.assignor chooses one of the brokers'"
    " group.consumer.assignors; an assignor in Python needs group.protocol=classic",
}
