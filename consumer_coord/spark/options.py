"""The options of the ``kafka_group`` source, with the names of Spark's own Kafka source for options that both sources have.

An invalid option is an error at ``load()``. The error names the option, the value and the remedy. This module opens no
connection.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.spark.starting_offsets_option import Starting, parse_starting
from consumer_coord.spark.user_code import BY_VALUE, OAUTH_CB, load_assignors, load_packer, with_callbacks

if TYPE_CHECKING:
    from assignors.base import Assignor
    from consumer_coord.config import Config

#: Time between two polls, in milliseconds. Only planning counts as a poll, so this time includes a batch, which may be long.
MAX_POLL_INTERVAL_MS = 3_600_000
#: Time that the group waits for this query in a rebalance, in milliseconds. The query rejoins in the background, even during a
#: batch.
REBALANCE_TIMEOUT_MS = 60_000
#: Heartbeat interval, in milliseconds. A short interval speeds up a rebalance, because in each of the two rounds of a
#: cooperative rebalance, a joining query waits until heartbeats have notified the other members.
HEARTBEAT_INTERVAL_MS = 500

DEFAULT_ASSIGNOR = "cooperative-sticky"

_NAMES = """
    allowEager assignor failOnDataLoss group.id group.instance.id includeHeaders kafka.bootstrap.servers
    kafkaConsumer.pollTimeoutMs maxOffsetsPerTrigger maxRecordsPerPartition maxTriggerDelay minOffsetsPerTrigger
    minPartitions packer startingOffsets startingOffsetsByTimestamp startingOffsetsByTimestampStrategy startingTimestamp
    subscribe subscribePattern
"""
_KNOWN = {name.lower(): name for name in _NAMES.split()}

#: Unsupported option -> the reason. The table has options of Spark's own source, and other plausible names.
_REFUSED = {
    "assign": "the group decides which member reads which partition; use subscribe, or Spark's own source (format 'kafka')",
    "endingoffsets": "a stream has no end; use Trigger.AvailableNow to read all present records",
    "endingoffsetsbytimestamp": "a stream has no end; use Trigger.AvailableNow to read all present records",
    "endingtimestamp": "a stream has no end; use Trigger.AvailableNow to read all present records",
    "groupidprefix": "the query joins a real group; name it with group.id",
    "checkpointlocation": "it belongs to writeStream, and kafka_group reads only, because it is a consumer: set it on the"
    " writeStream of another format, and write to Kafka with Spark's own format 'kafka'",
    "path": "Kafka has no paths; call load() without one and name topics with subscribe",
    "fetchoffset.numretries": "look-ups are retried in the background; kafka.retry.backoff.ms sets the interval",
    "fetchoffset.retryintervalms": "look-ups are retried in the background; kafka.retry.backoff.ms sets the interval",
    "usedeprecatedoffsetfetching": "look-ups of offsets never use a consumer; remove this option",
    "asyncprogresstrackingenabled": "a range is committed to Kafka only after Spark has finished its batch",
}

#: Settings that the source itself determines -> the reason, or the option to use instead.
_RESERVED = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the source commits finished batches",
    "auto.commit.interval.ms": "the source commits finished batches",
    "enable.auto.offset.store": "the source commits finished batches",
    "enable.partition.eof": "the source always enables this setting",
    "partition.assignment.strategy": "use the option assignor",
    "key.deserializer": "keys are bytes; parse them with DataFrame operations",
    "value.deserializer": "values are bytes; parse them with DataFrame operations",
    "interceptor.classes": "Java classes are not supported",
    "max.poll.records": "use maxOffsetsPerTrigger",
}

#: Settings of Java's consumer that have another name in librdkafka.
_JAVA_NAMES = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
}


#: A prefix for any option: Spark hides the values of options with this word in their names.
HIDDEN = "secret."
#: Names that Spark hides automatically (``spark.redaction.regex``).
_SPARK_HIDES = re.compile(r"secret|password|token|access[.]?key")
#: Other names of Kafka's secrets. Certificates are public, and a file name is not a secret.
_SECRET = re.compile(
    r"passphrase|jaas|credentials$|oauthbearer\.(config|extensions)$|private\.key\.pem$|ssl[._]key(\.pem)?$|keystore\.key$"
)
_OF_A_TABLE = "option."
_TABLE_PROPERTIES = {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider"}


@attrs.frozen(kw_only=True)
class Options:
    """The parsed options of a query. Times are in milliseconds; None means that there is no limit."""

    settings: Mapping[str, Any] = attrs.field(repr=False)
    """Kafka's settings, by their dotted names, for the coordinator and librdkafka; includes ``group.id``."""
    topics: tuple[str, ...]
    pattern: str | None
    assignor: str
    allow_eager: bool
    starting: Starting
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    poll_timeout_ms: int
    packer: str | None

    def assignors(self) -> tuple[Assignor, ...] | None:
        """Return the assignors that the option names, or None in the consumer protocol; raise ``ConfigurationError``."""
        return None if modern(self.settings) else load_assignors(self.assignor, allow_eager=self.allow_eager)

    @property
    def group(self) -> str:
        """Return the group id."""
        return str(self.settings["group.id"])

    @property
    def bootstrap_servers(self) -> str:
        """Return ``kafka.bootstrap.servers`` as given."""
        return str(self.settings["bootstrap.servers"])

    def config(self) -> Config:
        """Return the settings that both the group connection and the fetching connections use."""
        # Imported here, because the workers of executors do not need the module and start faster without it.
        from consumer_coord.config import parse

        return parse(with_callbacks(self.settings))

    def data_plane(self) -> dict[str, Any]:
        """Return the settings of an executor's data plane. ``oauth_cb`` is still a text: see :func:`with_callbacks`."""
        callbacks = {OAUTH_CB: self.settings[OAUTH_CB]} if OAUTH_CB in self.settings else {}
        return {
            "queued.max.messages.kbytes": 32_768,
            # While the queue is full, librdkafka pauses fetching. The default pause of a second would be most of a batch's
            # time.
            "fetch.queue.backoff.ms": 5,
            # Limit for each partition. librdkafka decompresses the whole response, so compressed records may use several times
            # this memory.
            "max.partition.fetch.bytes": 2_097_152,
            "fetch.wait.max.ms": 100,
            **self.config().librdkafka,
            "enable.partition.eof": True,
            # A position out of range means data loss, so librdkafka must not choose a new position.
            "auto.offset.reset": "error",
            **callbacks,
        }

    def subscription(self) -> str:
        """Return the subscription as a text for messages."""
        return f"subscribePattern={self.pattern!r}" if self.pattern is not None else f"subscribe={','.join(self.topics)!r}"


def parse_options(given: Mapping[str, str]) -> Options:
    """Check a query's options; names are case-insensitive, as everywhere in Spark.

    Raise :class:`~consumer_coord.errors.ConfigurationError`.
    """
    options = _named(given)
    _check_names(options)
    settings = _settings(options)
    topics, pattern = _subscription(options)
    minimum = _integer(options, "minOffsetsPerTrigger")
    maximum = _integer(options, "maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigurationError(
            f"minOffsetsPerTrigger={minimum} is above maxOffsetsPerTrigger={maximum}: no batch could satisfy both"
        )
    if "maxtriggerdelay" in options and minimum is None:
        raise ConfigurationError(
            "maxTriggerDelay has no effect without minOffsetsPerTrigger: set minOffsetsPerTrigger, or remove maxTriggerDelay"
        )
    parsed = Options(
        settings=settings,
        topics=topics,
        pattern=pattern,
        assignor=options.get("assignor", DEFAULT_ASSIGNOR),
        allow_eager=_boolean(options, "allowEager", False),
        starting=parse_starting(options),
        max_offsets=maximum,
        min_offsets=minimum,
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", 15 * 60_000),
        min_partitions=_integer(options, "minPartitions"),
        max_records_per_partition=_integer(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        include_headers=_boolean(options, "includeHeaders", False),
        poll_timeout_ms=_integer(options, "kafkaConsumer.pollTimeoutMs") or 120_000,
        packer=options.get("packer"),
    )
    _check_starting(parsed)
    # Both calls raise an exception if a function cannot be loaded; the first also raises one for an eager assignor.
    parsed.assignors()
    load_packer(parsed.packer)
    _check_security(parsed.config())
    return parsed


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their names in lower case, without the prefix that hides a value.

    Raise ``ConfigurationError`` for a secret whose name does not make Spark hide it. No error contains a value.
    """
    options = {key.lower(): str(value) for key, value in given.items()}
    of_a_table = {name.removeprefix(_OF_A_TABLE): value for name, value in options.items() if name.startswith(_OF_A_TABLE)}
    if of_a_table:
        # For CREATE TABLE ... USING kafka_group, Spark adds this prefix to the options, and also adds properties of the table.
        others = {name: value for name, value in options.items() if not name.startswith(_OF_A_TABLE)}
        options = of_a_table | {name: value for name, value in others.items() if name not in _TABLE_PROPERTIES}
    for name, value in options.items():
        if _is_shown_secret(name, value):
            raise ConfigurationError(
                f"option {name} is a secret, but Spark does not hide the value of an option with this name in plans, its UI and"
                f" the event log: write it as {HIDDEN}{name}"
            )
    found: dict[str, str] = {}
    for name, value in options.items():
        key = name.removeprefix(HIDDEN)
        if found.setdefault(key, value) != value:
            raise ConfigurationError(f"{HIDDEN}{key} and {key} contradict each other: keep one")
    return found


def _is_shown_secret(name: str, value: str) -> bool:
    if _SPARK_HIDES.search(name):
        return False
    return _SECRET.search(name) is not None or (name == f"kafka.{OAUTH_CB}" and value.startswith(BY_VALUE))


def _check_security(config: Config) -> None:
    given = config.client.security
    if given:
        from consumer_coord.net import security
        from consumer_coord.net.oauth import with_oauth_callback

        protocol = str(given.get("security.protocol") or "plaintext")
        without_effect = sorted(name for name in given if name.startswith("sasl.") and given[name] is not None)
        if without_effect and not protocol.lower().startswith("sasl_"):
            # A consumer only logs a warning, as librdkafka does. A query fails, because the protocol was probably forgotten.
            raise ConfigurationError(
                f"{', '.join(without_effect)} without SASL have no effect: set kafka.security.protocol to sasl_ssl or"
                " sasl_plaintext, or leave them out"
            )
        try:
            security.load(with_oauth_callback(given))
        except ConfigurationError as error:
            raise ConfigurationError(f"a kafka.* option is wrong: {error}") from error


def _check_names(options: Mapping[str, str]) -> None:
    for name in options:
        if name in _REFUSED:
            raise ConfigurationError(f"option {name}={options[name]!r}: {_REFUSED[name]}")
        if name in _KNOWN or name.startswith("kafka."):
            continue
        close = difflib.get_close_matches(name, _KNOWN, 1)
        hint = f"; did you mean {_KNOWN[close[0]]!r}?" if close else f"; Kafka's own settings need the prefix: kafka.{name}"
        raise ConfigurationError(f"kafka_group has no option {name!r}{hint}")


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    settings = _kafka_options(options)
    for name, instead in _RESERVED.items():
        if name in settings:
            raise ConfigurationError(f"kafka.{name}={settings[name]!r} cannot be set on this source: {instead}")
    if not settings.get("bootstrap.servers"):
        raise ConfigurationError("kafka.bootstrap.servers is missing: set it to one or more brokers, host:port,host:port")
    if not settings.get("group.id"):
        raise ConfigurationError("group.id is missing: set it to the name of the consumer group that the query joins")
    settings.setdefault("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)
    if modern(settings):
        # The query must revoke partitions within this time, so a batch that reads the partitions must end within this time.
        settings.setdefault("rebalance.timeout.ms", settings["max.poll.interval.ms"])
        if options.get("assignor") is not None:
            raise ConfigurationError(
                f"assignor={options['assignor']!r} cannot be used with kafka.group.protocol=consumer, in which the broker"
                " assigns: kafka.group.remote.assignor chooses one of the brokers' group.consumer.assignors"
            )
    else:
        settings.setdefault("rebalance.timeout.ms", REBALANCE_TIMEOUT_MS)
        settings.setdefault("heartbeat.interval.ms", HEARTBEAT_INTERVAL_MS)
    return settings


def _kafka_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return Kafka's settings without the prefix ``kafka.``, including the two settings that need no prefix."""
    settings: dict[str, Any] = {
        name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")
    }
    for java, name in _JAVA_NAMES.items():
        if java in settings:
            value = settings.pop(java)
            # For the system's default size, Java writes -1 and librdkafka 0.
            settings.setdefault(name, "0" if value.strip() == "-1" else value)
    for name in ("group.id", "group.instance.id"):
        if name not in options:
            continue
        if settings.get(name, options[name]) != options[name]:
            raise ConfigurationError(
                f"{name}={options[name]!r} and kafka.{name}={settings[name]!r} contradict each other: keep {name}"
            )
        settings[name] = options[name]
    return settings


def modern(settings: Mapping[str, Any]) -> bool:
    """Return whether a query's settings choose the consumer protocol (KIP-848)."""
    # Imported here, because a worker also parses options, but does not need the group modules.
    from consumer_coord.settings import CLASSIC, CONSUMER

    return str(settings.get("group.protocol", CLASSIC)).lower() == CONSUMER


def _subscription(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    topics, pattern = options.get("subscribe"), options.get("subscribepattern")
    if (topics is None) == (pattern is None):
        raise ConfigurationError(
            "set one of subscribe (topics, separated by commas) and subscribePattern (a regular expression)"
            + ("" if topics is None else f": subscribe={topics!r} and subscribePattern={pattern!r} exclude each other")
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(f"subscribePattern={pattern!r} is not a regular expression: {error}") from error
        return (), pattern
    names = tuple(dict.fromkeys(name.strip() for name in (topics or "").split(",") if name.strip()))
    if not names:
        raise ConfigurationError(f"subscribe={topics!r} names no topic: give one or more, separated by commas")
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
            raise ConfigurationError(f"subscribe: {name!r} is not a valid topic name")
    return names, None


def _check_starting(options: Options) -> None:
    if options.pattern is not None:
        return
    for partition in options.starting.named():
        if partition.topic not in options.topics:
            raise ConfigurationError(
                f"{options.starting.option} names topic {partition.topic!r}, which {options.subscription()} does not contain"
            )


def _integer(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\+?\d{1,18}", value.strip()) or int(value) < 1:
        raise ConfigurationError(f"{name}={value!r} must be a whole number above 0")
    return int(value)


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"{name}={value!r} must be true or false")
    return value == "true"


_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    """Parse a duration as Spark's own options do (``JavaUtils.timeStringAsMs``): ``30s``, ``15m``, or milliseconds."""
    value = options.get(name.lower())
    if value is None:
        return default
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", value.strip().lower())
    unit = (match.group(2) or "ms") if match else ""
    if match is None or unit not in _UNITS_MS:
        raise ConfigurationError(f"{name}={value!r} is not a duration: write, for example, 500ms, 30s, 15m or 1h")
    return int(int(match.group(1)) * _UNITS_MS[unit])
