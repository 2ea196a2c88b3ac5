"""The settings of topics, with Kafka's names, types, bounds and defaults (``LogConfig`` of Kafka 4.4).

All known settings are accepted, stored and described, because programs such as Kafka Streams and Connect set them. An unknown
setting, or an illegal value, is refused as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.errors import ConfigurationError

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_REPLICAS: Final = re.compile(r"\*?|\d+:\d+(,\d+:\d+)*")

#: The types of settings in DescribeConfigs (``ConfigType``).
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7


@attrs.frozen
class TopicSetting:
    """A setting: its type in DescribeConfigs, its default, a check of values, and whether it has an effect here.

    ``broker_field`` is the field of :class:`~consumer_coord.broker.config.BrokerConfig` that has the default.
    """

    kind: int
    default: str
    is_legal: Callable[[str], bool]
    broker_field: str = ""
    effective: bool = False

    @property
    def is_list(self) -> bool:
        """Whether a value has several elements, which can be added and removed one by one."""
        return self.kind == _LIST


def _number(
    default: int, minimum: int, maximum: int = _INT64_MAX, *, kind: int = _LONG, broker_field: str = "", effective: bool = False
) -> TopicSetting:
    def is_legal(value: str) -> bool:
        try:
            return minimum <= int(value) <= maximum
        except ValueError:
            return False

    return TopicSetting(kind, str(default), is_legal, broker_field, effective)


def _int(
    default: int, minimum: int, maximum: int = _INT32_MAX, *, broker_field: str = "", effective: bool = False
) -> TopicSetting:
    return _number(default, minimum, maximum, kind=_INT, broker_field=broker_field, effective=effective)


def _choice(*values: str) -> TopicSetting:
    return TopicSetting(_STRING, values[0], lambda value: value in values)


def _flag(*, only_false: bool = False) -> TopicSetting:
    legal = ("false",) if only_false else ("true", "false")
    return TopicSetting(_BOOLEAN, "false", lambda value: value.lower() in legal)


def _is_ratio(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


def _replicas() -> TopicSetting:
    return TopicSetting(_LIST, "", lambda value: _REPLICAS.fullmatch(value) is not None)


def _is_policy(value: str) -> bool:
    return all(part in ("compact", "delete") for part in as_list(value))


def as_list(value: str) -> list[str]:
    """Return the elements of a setting of type list."""
    return [part.strip() for part in value.split(",")] if value.strip() else []


#: The topic settings of Kafka 4.4. Remote storage can only be off, and -1 as ``retention.bytes`` means the broker's default.
TOPIC_SETTINGS: Final[Mapping[str, TopicSetting]] = {
    "cleanup.policy": TopicSetting(_LIST, "delete", _is_policy, effective=True),
    "compression.gzip.level": TopicSetting(_INT, "-1", lambda value: value == "-1" or _int(1, 1, 9).is_legal(value)),
    "compression.lz4.level": _int(9, 1, 17),
    "compression.type": _choice("producer", "uncompressed", "zstd", "lz4", "snappy", "gzip"),
    "compression.zstd.level": _int(3, -131_072, 22),
    "delete.retention.ms": _number(86_400_000, 0, effective=True),
    "errors.deadletterqueue.group.enable": _flag(),
    "file.delete.delay.ms": _number(60_000, 0),
    "flush.messages": _number(_INT64_MAX, 1),
    "flush.ms": _number(_INT64_MAX, 0),
    "follower.replication.throttled.replicas": _replicas(),
    "index.interval.bytes": _int(4_096, 0),
    "leader.replication.throttled.replicas": _replicas(),
    "local.retention.bytes": _number(-2, -2),
    "local.retention.ms": _number(-2, -2),
    "max.compaction.lag.ms": _number(_INT64_MAX, 1),
    "max.decompressed.message.bytes": _int(2_147_483_639, 1, 2_147_483_639),
    "max.message.bytes": _int(1_048_588, 0, broker_field="message_max_bytes", effective=True),
    "message.timestamp.after.max.ms": _number(3_600_000, 0),
    "message.timestamp.before.max.ms": _number(_INT64_MAX, 0),
    "message.timestamp.type": _choice("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": TopicSetting(_DOUBLE, "0.5", _is_ratio),
    "min.compaction.lag.ms": _number(0, 0, effective=True),
    "min.insync.replicas": _int(1, 1),
    "preallocate": _flag(),
    "remote.copy.lag.bytes": _number(-1, -1),
    "remote.copy.lag.ms": _number(0, -1),
    "remote.log.copy.disable": _flag(),
    "remote.log.delete.on.disable": _flag(),
    "remote.storage.enable": _flag(only_false=True),
    "retention.bytes": _number(-1, -_INT64_MAX, broker_field="log_retention_bytes", effective=True),
    "retention.ms": _number(-1, -1, broker_field="log_retention_ms", effective=True),
    "segment.bytes": _int(1 << 30, 1 << 20, broker_field="log_segment_bytes"),
    "segment.index.bytes": _int(10_485_760, 4),
    "segment.jitter.ms": _number(0, 0),
    "segment.ms": _number(604_800_000, 1),
    "unclean.leader.election.enable": _flag(),
}

#: The settings of brokers that may change while they run: the defaults of settings of topics, by the names of the brokers.
DYNAMIC: Final = frozenset(one.broker_field.replace("_", ".") for one in TOPIC_SETTINGS.values() if one.broker_field)


def check_topic_settings(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the settings given for a topic, without surrounding spaces.

    Raise :class:`~consumer_coord.errors.ConfigurationError` for an unknown setting, or an illegal value.
    """
    checked = {}
    for name, value in configs.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ConfigurationError(f"Unknown topic config name: {name}")
        if value is None or not setting.is_legal(value.strip()):
            raise ConfigurationError(f"{value!r} is not a legal value of the topic setting {name}")
        checked[name] = value.strip()
    if int(checked.get("min.compaction.lag.ms", "0")) > int(checked.get("max.compaction.lag.ms", _INT64_MAX)):
        raise ConfigurationError("min.compaction.lag.ms must not be greater than max.compaction.lag.ms")
    return checked


def default_of(name: str, config: BrokerConfig) -> str:
    """Return the value of a setting that a topic does not have: the broker's setting, or Kafka's default."""
    setting = TOPIC_SETTINGS[name]
    return str(getattr(config, setting.broker_field)) if setting.broker_field else setting.default


@attrs.frozen
class LogSettings:
    """The settings of a topic that have an effect on its logs; times in milliseconds, -1 without a limit."""

    retention_bytes: int = -1
    retention_ms: int = -1
    max_batch_bytes: int = 1_048_588
    #: Only the last record of each key is kept (``cleanup.policy=compact``).
    compacted: bool = False
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0

    @classmethod
    def of(cls, configs: Mapping[str, str], config: BrokerConfig, *, internal: bool) -> LogSettings:
        """Return the settings of a topic with these ``configs``. Only the coordinators delete records of internal topics."""

        def number(name: str) -> int:
            return int(configs.get(name) or default_of(name, config))

        policy = as_list(configs.get("cleanup.policy", "delete"))
        deletes = "delete" in policy and not internal
        return cls(
            retention_bytes=number("retention.bytes") if deletes else -1,
            retention_ms=number("retention.ms") if deletes else -1,
            max_batch_bytes=number("max.message.bytes"),
            compacted="compact" in policy,
            delete_retention_ms=number("delete.retention.ms"),
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
        )
