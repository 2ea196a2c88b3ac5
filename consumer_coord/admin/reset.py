"""Compute new offsets for a group by one rule for several partitions (``--reset-offsets`` of Kafka's tool)."""

from __future__ import annotations

import csv
import datetime
import enum
import io
import re
from collections.abc import Iterable, Mapping

import attrs

from consumer_coord.admin.offset_access import all_partitions, committed_offsets, require_known
from consumer_coord.errors import ConfigurationError
from consumer_coord.lag.log_offsets import told_topics
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, list_offsets
from consumer_coord.log_text import printable
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed


class Rule(enum.Enum):
    """The rules by which Kafka resets offsets, with their flags."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    DATETIME = "--to-datetime"
    DURATION = "--by-duration"
    FILE = "--from-file"


@attrs.frozen
class Reset:
    """A rule with its value: an offset, a number to shift by, or a time in milliseconds since 1970.

    A time before 1970 selects the first record, like every time before the first record.
    """

    rule: Rule
    value: int = 0
    #: For FILE: the group's offsets in the file.
    offsets: Mapping[TopicPartition, int] = attrs.field(factory=dict)


@attrs.frozen
class Plan:
    """New offsets by partition, and warnings for the operator."""

    offsets: Mapping[TopicPartition, int]
    warnings: tuple[str, ...]


async def plan_reset(
    cluster: ClusterClient,
    group_id: str,
    reset: Reset,
    partitions: frozenset[TopicPartition],
    deadline: Deadline,
    *,
    share: bool = False,
) -> Plan:
    """Compute new offsets, or new start offsets of a share group; change nothing.

    ``partitions`` are the partitions to reset; the rule FILE ignores them. As in Kafka's tool, an offset outside the log is
    replaced by the log's first or end offset, with a warning. Raise :class:`ConfigurationError` if the rule does not apply to a
    partition, and :class:`UnknownTopicError` for partitions that do not exist.
    """
    scope = frozenset(reset.offsets) if reset.rule is Rule.FILE else partitions
    if not scope:
        return Plan({}, ())
    metadata = await told_topics(cluster, {partition.topic for partition in scope}, deadline)
    require_known(
        scope,
        (TopicPartition(name, number) for name, topic in metadata.topics.items() for number in range(topic.partition_count)),
    )
    if reset.rule in (Rule.EARLIEST, Rule.LATEST):
        stamp = EARLIEST if reset.rule is Rule.EARLIEST else LATEST
        return Plan(await _listed(cluster, dict.fromkeys(scope, stamp), deadline), ())
    if reset.rule in (Rule.DATETIME, Rule.DURATION):
        # ListOffsets reads a negative timestamp as a special request: -1 is the end of the log.
        return await _at_time(cluster, scope, max(0, reset.value), deadline)
    if reset.rule is Rule.FILE:
        return await _inside_the_log(cluster, reset.offsets, deadline)
    if reset.rule is Rule.OFFSET:
        return await _inside_the_log(cluster, dict.fromkeys(scope, reset.value), deadline)
    commits = await commits_of(cluster, group_id, deadline, partitions=scope, share=share)
    current = {partition: committed.offset for partition, committed in commits.items() if partition in scope}
    uncommitted = scope - current.keys()
    if reset.rule is Rule.CURRENT:
        latest = await _listed(cluster, dict.fromkeys(uncommitted, LATEST), deadline)
        return Plan(dict(sorted({**current, **latest}.items())), ())
    if uncommitted:
        raise ConfigurationError(
            f"--shift-by: group {group_id!r} has no committed offset for {listed(uncommitted)}; use another rule"
        )
    return await _inside_the_log(cluster, {one: offset + reset.value for one, offset in current.items()}, deadline)


async def commits_of(
    cluster: ClusterClient,
    group_id: str,
    deadline: Deadline,
    *,
    partitions: Iterable[TopicPartition] = (),
    share: bool = False,
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Return the group's commits, also those of ``partitions``; raise the error of a partition whose commit is unknown."""
    found = (await committed_offsets(cluster, group_id, deadline, partitions=partitions, share=share)).complete()
    return {partition: committed for partition, committed in found.items() if committed is not None}


async def _listed(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    if not wanted:
        return {}
    found = (await list_offsets(cluster, wanted, deadline)).complete()
    return {partition: found[partition].offset for partition in sorted(found)}


async def _at_time(cluster: ClusterClient, scope: frozenset[TopicPartition], timestamp_ms: int, deadline: Deadline) -> Plan:
    offsets = await _listed(cluster, dict.fromkeys(scope, timestamp_ms), deadline)
    younger = [partition for partition, offset in offsets.items() if offset < 0]
    offsets.update(await _listed(cluster, dict.fromkeys(younger, LATEST), deadline))
    return Plan(
        offsets,
        tuple(f"{partition} has no record at or after this time, so the end of the log is used" for partition in younger),
    )


async def _inside_the_log(cluster: ClusterClient, wanted: Mapping[TopicPartition, int], deadline: Deadline) -> Plan:
    first = await _listed(cluster, dict.fromkeys(wanted, EARLIEST), deadline)
    end = await _listed(cluster, dict.fromkeys(wanted, LATEST), deadline)
    offsets, warnings = {}, []
    for partition, offset in sorted(wanted.items()):
        offsets[partition] = max(first[partition], min(end[partition], offset))
        if offset > end[partition]:
            warnings.append(f"new offset ({offset}) of {partition} is higher than the end of the log; {end[partition]} is used")
        elif offset < first[partition]:
            warnings.append(f"new offset ({offset}) of {partition} is lower than the first offset; {first[partition]} is used")
    return Plan(offsets, tuple(warnings))


# -- values of flags ------------------------------------------------------------------------------------------------


async def partitions_of(cluster: ClusterClient, topics: Iterable[str], deadline: Deadline) -> frozenset[TopicPartition]:
    """Return the partitions that ``--topic`` arguments select (``name`` or ``name:0,1,2``)."""
    named: set[TopicPartition] = set()
    whole: set[str] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        if not colon:
            whole.add(name)
        elif not re.fullmatch(r"\d+(,\d+)*", numbers):
            raise ConfigurationError(f"--topic {text}: only partition numbers may follow the colon, for example topic:0,1,2")
        else:
            named |= {TopicPartition(name, int(number)) for number in numbers.split(",")}
    known = await all_partitions(cluster, whole | {partition.topic for partition in named}, deadline)
    require_known(named, known)
    return frozenset(named | {partition for partition in known if partition.topic in whole})


def parse_datetime(text: str) -> int:
    """Parse ``YYYY-MM-DDTHH:mm:SS.sss`` with ``Z`` or a UTC offset (default: UTC); return milliseconds since 1970."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or "T" not in text:
        raise ConfigurationError(f"--to-datetime {text}: use YYYY-MM-DDTHH:mm:SS.sss, in UTC or with an offset such as +02:00")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


_DURATION = re.compile(r"([-+])?P(?=.)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def parse_duration_ms(text: str) -> int:
    """Parse ``PnDTnHnMnS`` (ISO 8601) into milliseconds."""
    match = _DURATION.fullmatch(text.upper())
    if match is None:
        raise ConfigurationError(f"--by-duration {text}: use the format PnDTnHnMnS, for example PT1H30M")
    sign, days, hours, minutes, seconds = match.groups()
    try:
        span = datetime.timedelta(
            days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0), seconds=float(seconds or 0)
        )
    except OverflowError:
        raise ConfigurationError(f"--by-duration {text}: give at most {datetime.timedelta.max.days} days") from None
    return int(span.total_seconds() * 1000) * (-1 if sign == "-" else 1)


def parse_plan(text: str, group_ids: Iterable[str]) -> Mapping[str, Mapping[TopicPartition, int]]:
    """Parse a file from ``--export``: lines ``topic,partition,offset``, for several groups ``group,topic,partition,offset``.

    For one group, both forms are accepted. For an invalid line, raise :class:`ConfigurationError` with the line's number.
    """
    groups = {printable(group): group for group in group_ids}
    plan: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups.values()}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        fields = [field.strip() for field in row]
        if not any(fields):
            continue
        if len(fields) == 3 and len(groups) == 1:
            fields.insert(0, next(iter(groups)))
        try:
            group, topic, partition, offset = fields
            plan.setdefault(groups.get(group, group), {})[TopicPartition(topic, _natural(partition))] = _natural(offset)
        except ValueError:
            raise ConfigurationError(
                f"--from-file: line {number} must be topic,partition,offset (for several groups: group,topic,partition,offset)"
            ) from None
    return plan


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def export_plan(plans: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return new offsets in the format of ``--from-file``; unprintable characters in names are escaped."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in sorted(plans.items()):
        for partition, offset in sorted(offsets.items()):
            row = [printable(partition.topic), partition.partition, offset]
            writer.writerow(row if len(plans) == 1 else [printable(group), *row])
    return out.getvalue()
