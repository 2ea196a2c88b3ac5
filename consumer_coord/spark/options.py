"""The options of the ``kafka_group`` source, with the names of Spark's own Kafka source for options that both sources have.

A stream (``spark.readStream``) and a bounded read (``spark.read``) have most options in common; :data:`_OPTIONS` has the
differences. An error names the option, the value and the remedy. This module opens no connection.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.spark.starting_offsets_option import OffsetLimit, Starting, parse_bounded, parse_starting
from consumer_coord.spark.user_code import BY_VALUE, OAUTH_CB, load_assignors, load_task_splitter, with_callbacks
from consumer_coord.topic_partition import TopicPartition, flatten, listed

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


class MissingOptionError(ConfigurationError):
    """Raised if a required option is missing; the options of a table may still contain it."""


class Mode(enum.Enum):
    """How Spark uses the source."""

    STREAM = "a stream"
    BOUNDED = "a bounded read"


@attrs.frozen
class _Option:
    """An option, and why it is rejected in one of the modes, or in both; None where it is accepted."""

    name: str
    in_stream: str | None = None
    in_bounded: str | None = None

    def rejected(self, mode: Mode) -> str | None:
        """Return why the option is rejected in this mode, or None."""
        return self.in_stream if mode is Mode.STREAM else self.in_bounded


_IN_BOTH = """
    failOnDataLoss group.id includeHeaders kafka.bootstrap.servers kafkaConsumer.pollTimeoutMs maxRecordsPerPartition
    minPartitions taskSplitter startingOffsets startingOffsetsByTimestamp startingOffsetsByTimestampStrategy startingTimestamp
    subscribe subscribePattern
"""
_NO_END = "a stream has no end; use Trigger.AvailableNow to read all present records, or spark.read to read a range once"
_NO_GROUP = "spark.read joins no group; use spark.readStream, or remove the option"
_NO_TRIGGER = "spark.read has no triggers; endingOffsets sets its end, and maxRecordsPerPartition the size of its tasks"

_TABLE = (
    *map(_Option, _IN_BOTH.split()),
    *(_Option(name, in_bounded=_NO_GROUP) for name in ("allowEagerAssignor", "assignor", "group.instance.id")),
    *(_Option(name, in_bounded=_NO_TRIGGER) for name in ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")),
    *(_Option(name, in_stream=_NO_END) for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")),
    _Option(
        "assign",
        in_stream="the group decides which member reads which partition; use subscribe, or Spark's own source (format 'kafka')",
    ),
    *(
        # Options of Spark's own source, and other plausible names.
        _Option(name, why, why)
        for name, why in {
            "groupIdPrefix": "a query joins a real group; name it with group.id",
            "checkpointLocation": "it belongs to writeStream, and kafka_group reads only, because it is a consumer: set it on"
            " the writeStream of another format, and write to Kafka with Spark's own format 'kafka'",
            "path": "Kafka has no paths; call load() without one and name topics with subscribe",
            "fetchOffset.numRetries": "look-ups are retried until default.api.timeout.ms; kafka.retry.backoff.ms sets the"
            " interval",
            "fetchOffset.retryIntervalMs": "look-ups are retried until default.api.timeout.ms; kafka.retry.backoff.ms sets the"
            " interval",
            "useDeprecatedOffsetFetching": "look-ups of offsets never use a consumer; remove this option",
            "asyncProgressTrackingEnabled": "a range is committed to Kafka only after Spark has finished its batch",
        }.items()
    ),
)
_OPTIONS: Final = {one.name.lower(): one for one in _TABLE}
#: Options that exclude each other, in lower case.
ALTERNATIVES: Final = (
    frozenset({"assign", "subscribe", "subscribepattern"}),
    frozenset({"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"}),
    frozenset({"endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"}),
)

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
class ReadOptions:
    """The parsed options that a stream and a bounded read have in common. None means that there is no limit."""

    settings: Mapping[str, Any] = attrs.field(repr=False)
    """Kafka's settings, by their dotted names, for the control plane and librdkafka."""
    topics: tuple[str, ...]
    pattern: str | None
    starting: Starting
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    poll_timeout_ms: int
    task_splitter: str | None

    @property
    def group(self) -> str:
        """Return the group id; empty for a bounded read without a group."""
        return str(self.settings.get("group.id") or "")

    @property
    def bootstrap_servers(self) -> str:
        """Return ``kafka.bootstrap.servers`` as given."""
        return str(self.settings["bootstrap.servers"])

    def config(self) -> Config:
        """Return the settings that both the group connection and the fetching connections use."""
        # Imported here, because the workers of executors do not need the module and start faster without it.
        from consumer_coord.config import parse

        return parse(with_callbacks(self.settings), needs_group=False)

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


@attrs.frozen(kw_only=True)
class Options(ReadOptions):
    """The parsed options of a streaming query, which has a group. Times are in milliseconds."""

    assignor: str
    allow_eager_assignor: bool
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int

    def assignors(self) -> tuple[Assignor, ...] | None:
        """Return the assignors that the option names, or None in the consumer protocol; raise ``ConfigurationError``."""
        return None if modern(self.settings) else load_assignors(self.assignor, allow_eager_assignor=self.allow_eager_assignor)


@attrs.frozen(kw_only=True)
class BoundedOptions(ReadOptions):
    """The parsed options of a bounded read."""

    ending: OffsetLimit
    assigned: frozenset[TopicPartition] | None
    """The partitions of the option ``assign``; None for all partitions of the topics."""

    def subscription(self) -> str:
        """Return the partitions or the subscription as a text for messages."""
        return ReadOptions.subscription(self) if self.assigned is None else f"assign={listed(self.assigned)!r}"


def parse_options(given: Mapping[str, str]) -> Options:
    """Check a streaming query's options; names are case-insensitive, as everywhere in Spark.

    Raise :class:`~consumer_coord.errors.ConfigurationError`.
    """
    options = _named(given)
    _check_names(options, Mode.STREAM)
    settings = _stream_settings(options)
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
        **_common(options),
        settings=settings,
        topics=topics,
        pattern=pattern,
        starting=parse_starting(options),
        assignor=options.get("assignor", DEFAULT_ASSIGNOR),
        allow_eager_assignor=_boolean(options, "allowEagerAssignor", False),
        max_offsets=maximum,
        min_offsets=minimum,
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", 15 * 60_000),
    )
    _check_limit(parsed.starting, parsed)
    # Raises an exception if an assignor cannot be loaded, or is eager.
    parsed.assignors()
    _check_code_and_security(parsed)
    return parsed


def parse_bounded_options(given: Mapping[str, str]) -> BoundedOptions:
    """Check the options of a bounded read, as :func:`parse_options` does. Only ``startingOffsets=group`` needs ``group.id``."""
    options = _named(given)
    _check_names(options, Mode.BOUNDED)
    settings = _settings(options)
    assigned = _assigned(options)
    topics, pattern = _subscription(options) if assigned is None else (tuple(sorted({one.topic for one in assigned})), None)
    starting, ending = parse_bounded(options)
    if starting.at_commits and not settings.get("group.id"):
        raise MissingOptionError("startingOffsets='group' needs group.id: set it to the group whose commits are the start")
    parsed = BoundedOptions(
        **_common(options),
        settings=settings,
        topics=topics,
        pattern=pattern,
        starting=starting,
        ending=ending,
        assigned=assigned,
    )
    for limit in (starting, ending):
        _check_limit(limit, parsed)
    _check_code_and_security(parsed)
    return parsed


def _common(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of :class:`ReadOptions` that every mode parses alike."""
    return {
        "min_partitions": _integer(options, "minPartitions"),
        "max_records_per_partition": _integer(options, "maxRecordsPerPartition"),
        "fail_on_data_loss": _boolean(options, "failOnDataLoss", True),
        "include_headers": _boolean(options, "includeHeaders", False),
        "poll_timeout_ms": _integer(options, "kafkaConsumer.pollTimeoutMs") or 120_000,
        "task_splitter": options.get("tasksplitter"),
    }


def _check_code_and_security(parsed: ReadOptions) -> None:
    load_task_splitter(parsed.task_splitter)
    _check_security(parsed.config())


def check_options(given: Mapping[str, str]) -> ReadOptions:
    """Check options before Spark says whether it streams; return the options of a mode in which they are right.

    Raise the ``ConfigurationError`` of the likelier mode if the options are wrong in both.
    """
    parsers: dict[Mode, Callable[[Mapping[str, str]], ReadOptions]] = {
        Mode.STREAM: parse_options,
        Mode.BOUNDED: parse_bounded_options,
    }
    likely = _likely_mode(given)
    try:
        return parsers.pop(likely)(given)
    except ConfigurationError as error:
        (other,) = parsers.values()
        try:
            return other(given)
        except ConfigurationError:
            raise error from None


def _likely_mode(given: Mapping[str, str]) -> Mode:
    names = {name.lower() for name in given}
    known = [_OPTIONS[name] for name in names & _OPTIONS.keys()]
    for mode, other in ((Mode.BOUNDED, Mode.STREAM), (Mode.STREAM, Mode.BOUNDED)):
        if any(one.rejected(mode) is None and one.rejected(other) is not None for one in known):
            return mode
    return Mode.STREAM if names & {"group.id", "kafka.group.id"} else Mode.BOUNDED


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their names in lower case, without the prefix that hides a value.

    Raise ``ConfigurationError`` for a secret whose name does not make Spark hide it. No error contains a value.
    """
    options = given_to_table(given)
    if options is None:
        options = {key.lower(): str(value) for key, value in given.items()}
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
            shown = _OPTIONS[key].name if key in _OPTIONS else key
            raise ConfigurationError(f"{HIDDEN}{shown} and {shown} have different values: keep one")
    return found


def given_to_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of ``CREATE TABLE … USING kafka_group``, with names in lower case; None if there is no such statement.

    Spark adds a prefix to these options, and also adds properties of the table.
    """
    options = {key.lower(): str(value) for key, value in given.items()}
    of_a_table = {name.removeprefix(_OF_A_TABLE): value for name, value in options.items() if name.startswith(_OF_A_TABLE)}
    if not of_a_table:
        return None
    others = {name: value for name, value in options.items() if not name.startswith(_OF_A_TABLE)}
    return of_a_table | {name: value for name, value in others.items() if name not in _TABLE_PROPERTIES}


def is_secret(name: str, value: str) -> bool:
    """Return whether an option, with its name in lower case, is a secret."""
    return _SPARK_HIDES.search(name) is not None or _is_shown_secret(name, value)


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


def _check_names(options: Mapping[str, str], mode: Mode) -> None:
    for name in options:
        known = _OPTIONS.get(name)
        why = None if known is None else known.rejected(mode)
        if why is not None:
            raise ConfigurationError(f"option {name}={options[name]!r}: {why}")
        if known is not None or name.startswith("kafka."):
            continue
        accepted = [key for key, one in _OPTIONS.items() if one.rejected(mode) is None]
        close = difflib.get_close_matches(name, accepted, 1)
        hint = (
            f"; did you mean {_OPTIONS[close[0]].name!r}?" if close else f"; Kafka's own settings need the prefix: kafka.{name}"
        )
        raise ConfigurationError(f"kafka_group has no option {name!r}{hint}")


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    settings = _kafka_options(options)
    for name, instead in _RESERVED.items():
        if name in settings:
            raise ConfigurationError(f"kafka.{name}={settings[name]!r} cannot be set on this source: {instead}")
    if not settings.get("bootstrap.servers"):
        raise MissingOptionError("kafka.bootstrap.servers is missing: set it to one or more brokers, host:port,host:port")
    return settings


def _stream_settings(options: Mapping[str, str]) -> dict[str, Any]:
    settings = _settings(options)
    if not settings.get("group.id"):
        raise MissingOptionError("group.id is missing: set it to the name of the consumer group that the query joins")
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
            raise ConfigurationError(f"{name}={options[name]!r} and kafka.{name}={settings[name]!r} differ: keep {name}")
        settings[name] = options[name]
    return settings


def modern(settings: Mapping[str, Any]) -> bool:
    """Return whether a query's settings choose the consumer protocol (KIP-848)."""
    # Imported here, because a worker also parses options, but does not need the group modules.
    from consumer_coord.settings import CLASSIC, CONSUMER

    return str(settings.get("group.protocol", CLASSIC)).lower() == CONSUMER


def _subscription(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    topics, pattern = options.get("subscribe"), options.get("subscribepattern")
    ways = "set one of subscribe (topics, separated by commas) and subscribePattern (a regular expression)"
    if topics is None and pattern is None:
        raise MissingOptionError(ways)
    if topics is not None and pattern is not None:
        raise ConfigurationError(f"{ways}: subscribe={topics!r} and subscribePattern={pattern!r} cannot be combined")
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


def _assigned(options: Mapping[str, str]) -> frozenset[TopicPartition] | None:
    """Parse ``assign``, with Spark's JSON: topic -> numbers of partitions."""
    value = options.get("assign")
    if value is None:
        return None
    for other in ("subscribe", "subscribePattern"):
        if other.lower() in options:
            raise ConfigurationError(f"assign and {other} cannot be combined: keep one")
    shape = f'assign={value!r} must be JSON like {{"topic":[0,1]}}'
    try:
        read: Any = json.loads(value)
    except ValueError as error:
        raise ConfigurationError(f"{shape}: {error}") from error
    if not isinstance(read, dict) or not all(isinstance(numbers, list) for numbers in read.values()):
        raise ConfigurationError(shape)
    if not all(type(number) is int and number >= 0 for numbers in read.values() for number in numbers):
        raise ConfigurationError(f"{shape}, with partition numbers from 0")
    found = flatten(read)
    if not found:
        raise ConfigurationError(f"{shape}: it names no partition")
    return found


def _check_limit(limit: OffsetLimit, options: ReadOptions) -> None:
    if options.pattern is not None:
        return
    for partition in limit.named():
        if partition.topic not in options.topics:
            raise ConfigurationError(
                f"{limit.option} names topic {partition.topic!r}, which {options.subscription()} does not contain"
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
