"""Parse ``startingOffsets`` and its variants: the start of a partition without a commit of the group.

As in Spark, -1 is the latest offset and -2 the earliest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.topic_partition import TopicPartition

LATEST = -1
EARLIEST = -2
#: The largest offset and the largest timestamp of Kafka (int64).
MOST = (1 << 63) - 1

_OPTIONS = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")


@attrs.frozen(kw_only=True)
class Starting:
    """Where one query starts to read. Each partition has either an offset or a time to look up."""

    option: str = "startingOffsets"
    word: int = LATEST
    """The offset for every partition, where there is no map and no time."""
    offsets: Mapping[str, Mapping[int, int]] | None = None
    """Offsets by topic and partition; LATEST and EARLIEST are possible."""
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[str, Mapping[int, int]] | None = None
    """Milliseconds since 1970 by topic and partition."""
    latest_after_the_end: bool = False
    """Start at the latest offset if no record is that young, instead of an error."""

    @property
    def by_partition(self) -> Mapping[str, Mapping[int, int]] | None:
        """Return the JSON of the option. Return None if one word or one time applies to all partitions."""
        return self.offsets if self.offsets is not None else self.timestamps_ms

    @property
    def needs_latest(self) -> bool:
        """Return whether some partition may start at the latest offset."""
        if self.offsets is not None:
            return any(LATEST in numbers.values() for numbers in self.offsets.values())
        if self.timestamp_ms is not None or self.timestamps_ms is not None:
            return self.latest_after_the_end
        return self.word == LATEST

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


def parse_starting(options: Mapping[str, str]) -> Starting:
    """Parse the start from a query's options, with names in lower case; raise ``ConfigurationError``."""
    given = [name for name in _OPTIONS if name.lower() in options]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} exclude each other: keep one")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigurationError(f"startingOffsetsByTimestampStrategy={strategy!r} must be error or latest")
    after_the_end = strategy == "latest"
    if not given:
        return Starting()
    name = given[0]
    value = options[name.lower()].strip()
    if name == "startingTimestamp":
        if not value.isdecimal() or not value.isascii() or int(value) > MOST:
            raise ConfigurationError(f"startingTimestamp={value!r} must be milliseconds since 1970")
        return Starting(option=name, timestamp_ms=int(value), latest_after_the_end=after_the_end)
    if name == "startingOffsets" and value.lower() in ("latest", "earliest"):
        return Starting(word=LATEST if value.lower() == "latest" else EARLIEST)
    lowest = 0 if name == "startingOffsetsByTimestamp" else EARLIEST
    parsed = _by_partition(name, value, lowest)
    if name == "startingOffsets":
        return Starting(offsets=parsed)
    return Starting(option=name, timestamps_ms=parsed, latest_after_the_end=after_the_end)


def _by_partition(name: str, value: str, lowest: int) -> Mapping[str, Mapping[int, int]]:
    words = "earliest, latest or " if name == "startingOffsets" else ""
    shape = f'must be {words}JSON like {{"topic":{{"0":23,"1":{-1 if lowest < 0 else 1700000000000}}}}}'
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
            if not number.isdecimal() or type(offset) is not int or not lowest <= offset <= MOST:
                raise ConfigurationError(f"{name}: {topic!r} partition {number!r} at {offset!r} {shape}")
            found.setdefault(topic, {})[int(number)] = offset
    return found
