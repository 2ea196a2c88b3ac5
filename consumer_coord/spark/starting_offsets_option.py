"""Parse ``startingOffsets``, ``endingOffsets`` and their variants.

For a stream, the start applies to partitions without a commit of the group. A bounded read has a start and an end for every
partition. As in Spark, -1 is the latest offset and -2 the earliest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.topic_partition import TopicPartition

LATEST = -1
EARLIEST = -2
#: The word ``group``: each partition starts at the group's commit.
GROUP = -3
#: The largest offset and the largest timestamp of Kafka (int64).
MOST = (1 << 63) - 1

#: The options for one end of the records to read; they exclude each other.
_STARTING = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
_ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
#: Word -> its number, which JSON may contain, too (except GROUP). As in Spark, a bounded read neither starts at the latest
#: offset nor ends at the earliest.
_STREAM_STARTS = {"earliest": EARLIEST, "latest": LATEST}
_BOUNDED_STARTS = {"earliest": EARLIEST, "group": GROUP}
_BOUNDED_ENDS = {"latest": LATEST}


@attrs.frozen(kw_only=True)
class OffsetLimit:
    """Where to start, or where to end. Each partition has either an offset or a time to look up."""

    option: str = "startingOffsets"
    """The name of the option that sets the limit."""
    word: int = LATEST
    """The offset for every partition, where there is no map and no time."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    """Offsets by topic and partition; LATEST and EARLIEST are possible."""
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] | None = None
    """Milliseconds since 1970 by topic and partition."""

    @property
    def by_partition(self) -> Mapping[str, Mapping[int, int]] | None:
        """Return the JSON of the option. Return None if one word or one time applies to all partitions."""
        return self.offsets if self.offsets is not None else self.timestamps_ms

    def of(self, partition: TopicPartition) -> int:
        """Return the start of a partition: LATEST, EARLIEST or an offset.

        If the option lists partitions, this partition must be listed.

        Call this only if :meth:`timestamp_of` returns None.
        """
        return self.word if self.offsets is None else self.offsets[partition.topic][partition.partition]

    def timestamp_of(self, partition: TopicPartition) -> int | None:
        """Return the time whose offset must be looked up, in milliseconds since 1970, or None if the start is not a time."""
        return self.timestamp_ms if self.timestamps_ms is None else self.timestamps_ms[partition.topic][partition.partition]

    def named(self) -> Iterator[TopicPartition]:
        """Return every partition that the option names."""
        for topic, numbers in (self.by_partition or {}).items():
            for number in numbers:
                yield TopicPartition(topic, number)


@attrs.frozen(kw_only=True)
class Starting(OffsetLimit):
    """Where one query, or one bounded read, starts."""

    latest_after_the_end: bool = False
    """Start at the latest offset if no record is that young, instead of an error."""

    @property
    def at_commits(self) -> bool:
        """Return whether each partition starts at the group's commit."""
        return self.word == GROUP

    @property
    def needs_latest(self) -> bool:
        """Return whether some partition may start at the latest offset."""
        if self.offsets is not None:
            return any(LATEST in numbers.values() for numbers in self.offsets.values())
        if self.timestamp_ms is not None or self.timestamps_ms is not None:
            return self.latest_after_the_end
        return self.word == LATEST


def parse_starting(options: Mapping[str, str]) -> Starting:
    """Parse the start of a stream, with names in lower case; raise ``ConfigurationError``."""
    return _starting(options, _STREAM_STARTS, LATEST)


def parse_bounded(options: Mapping[str, str]) -> tuple[Starting, OffsetLimit]:
    """Parse the start and the end of a bounded read, with names in lower case; raise ``ConfigurationError``.

    A partition without a record as young as the time of its end ends at the latest offset.
    """
    return _starting(options, _BOUNDED_STARTS, EARLIEST), OffsetLimit(**_limit(options, _ENDING, _BOUNDED_ENDS, LATEST))


def _starting(options: Mapping[str, str], words: Mapping[str, int], default: int) -> Starting:
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigurationError(f"startingOffsetsByTimestampStrategy={strategy!r} must be error or latest")
    found = _limit(options, _STARTING, words, default)
    has_time = "timestamp_ms" in found or "timestamps_ms" in found
    return Starting(**found, latest_after_the_end=has_time and strategy == "latest")


def _limit(options: Mapping[str, str], names: Sequence[str], words: Mapping[str, int], default: int) -> dict[str, Any]:
    """Return the fields of an :class:`OffsetLimit` from the one option of ``names`` that is given."""
    by_offset, by_timestamp, timestamp = names
    given = [name for name in names if name.lower() in options]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} cannot be combined: keep one")
    name = given[0] if given else by_offset
    value = options[name.lower()].strip() if given else ""
    found: dict[str, Any] = {"option": name, "word": default}
    if name == timestamp:
        if not value.isdecimal() or not value.isascii() or int(value) > MOST:
            raise ConfigurationError(f"{name}={value!r} must be milliseconds since 1970")
        return found | {"timestamp_ms": int(value)}
    if name == by_timestamp:
        return found | {"timestamps_ms": _by_partition(name, value, (), 1_700_000_000_000)}
    if not given or value.lower() in words:
        return found | {"word": words.get(value.lower(), default)}
    special = tuple(sorted((number for number in words.values() if number != GROUP), reverse=True))
    return found | {"offsets": _by_partition(name, value, special, special[0], words)}


def _by_partition(
    name: str, value: str, special: Collection[int], example: int, words: Iterable[str] = ()
) -> Mapping[str, Mapping[int, int]]:
    """Parse JSON; its numbers are not negative, or in ``special``."""
    shape = f'must be {"".join(f"{word}, " for word in words)}JSON like {{"topic":{{"0":23,"1":{example}}}}}'
    shape = shape.replace(", JSON", " or JSON")
    try:
        read: Any = json.loads(value)
    except ValueError as error:
        raise ConfigurationError(f"{name}={value!r} {shape}: {error}") from error
    if not isinstance(read, dict):
        raise ConfigurationError(f"{name}={value!r} {shape}")
    found: dict[str, dict[int, int]] = {}
    for topic, numbers in read.items():
        if not isinstance(numbers, dict):
            raise ConfigurationError(f"{name}: {topic!r} {shape}")
        for number, offset in numbers.items():
            is_offset = type(offset) is int and (0 <= offset <= MOST or offset in special)
            if not number.isdecimal() or not is_offset:
                raise ConfigurationError(f"{name}: {topic!r} partition {number!r} at {offset!r} {shape}")
            found.setdefault(topic, {})[int(number)] = offset
    return found
