"""What applications received: the records of messages or of a batch of columns, and the log to which these records belong.

A member reads messages, or with ``columns`` columns (``consume_arrow``). In either case the production :class:`Reader` and
:class:`Fetcher` send Fetch requests to the simulated brokers, and the kernel decodes the responses.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from consumer_coord.columns import ArrowColumns
from consumer_coord.consumer.reading.chunks import ReadingEvent
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.errors import ConfigurationError
from consumer_coord.fetch import Fetcher
from consumer_coord.offsets import partition_of_message
from consumer_coord.simulation.brokers import SimulatedCluster
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.holdings import Holding, Run
from consumer_coord.simulation.record_log import RecordedLog, Row
from consumer_coord.topic_partition import TopicPartition, grouped

#: The columns that an application reads.
WANTED = ("topic", "partition", "offset", "value")


@attrs.frozen(eq=False)
class Delivery:
    """A batch of columns, which takes the place of a message in the result of a poll."""

    batch: ArrowColumns
    rows: Mapping[TopicPartition, Sequence[Row]]

    def error(self) -> None:
        """Return None, because a batch is not an event."""


def delivery_of(batch: ArrowColumns) -> list[Delivery]:
    """Return a list with the batch, or an empty list for a batch without records."""
    if not len(batch):
        return []
    columns = pyarrow().record_batch(batch).to_pydict()
    rows = zip(*(columns[name] for name in WANTED), strict=True)
    return [Delivery(batch, grouped((TopicPartition(topic, number), (offset, value)) for topic, number, offset, value in rows))]


def rows_of(messages: Sequence[Any]) -> list[tuple[TopicPartition, list[Row]]]:
    """Return each sequence of records of one partition in the messages of one call, without events."""
    records = [message for message in messages if message.error() is None]
    return [
        (partition, [(message.offset(), message.value()) for message in run])
        for partition, run in itertools.groupby(records, partition_of_message)
    ]


def pyarrow() -> Any:
    """Return pyarrow, which reads the batches independently of this package; raise :class:`ConfigurationError` without it."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigurationError(f"members that read columns need pyarrow, to check their batches: {error}") from error


def by_log(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Split records by their logs, because a Fetch by name may continue in the log of a recreated topic."""
    return [list(run) for _, run in itertools.groupby(rows, _number_of_log)]


def _number_of_log(row: Row) -> int:
    return int(row[1].partition(b":")[0])


def identified(cluster: SimulatedCluster, name: str, holding: Holding, rows: Sequence[Row]) -> RecordedLog:
    """Return the log of records that the owner ``name`` received; raise :class:`Violation` if it may not read this log.

    The log belongs to the owner's partition. The log of a former topic of the same name counts only if that topic still existed
    when the ownership began, and until the owner has received a record of a later topic.
    """
    logs = [cluster.logs[number] for number in sorted(set(map(_number_of_log, rows)))]
    for log in logs:
        what = f"{name} received {_shown(rows)} as records of {holding.partition}"
        if log.partition != holding.partition:
            raise Violation("identity", f"{what}, but log {log.number} is that of {log.partition}")
        if log.replaced_at < holding.began:
            raise Violation("identity", f"{what}, but the topic of log {log.number} was gone before {name} owned the partition")
        if log.number < holding.log_number:
            raise Violation("identity", f"{what}, after records of log {holding.log_number}, which is that of a later topic")
    if len(logs) > 1:
        raise Violation("records", f"{name} received {_shown(rows)} of {holding.partition}, which are in several logs")
    holding.log_number = logs[0].number
    return logs[0]


def run_of(cluster: SimulatedCluster, name: str, partition: TopicPartition, holding: Holding, rows: Sequence[Row]) -> Run:
    """Find the log of a partition's records; raise :class:`Violation` if no log has exactly these records in sequence."""
    first, last = rows[0][0], rows[-1][0]
    log = identified(cluster, name, holding, rows)
    version = log.version_of(rows)
    if version is None:
        raise Violation(
            "records",
            f"{name} received {_shown(rows)} of {partition}, but no log has exactly these records from {first} to {last}",
        )
    present = log is cluster.log(partition)
    cut_at = log.cut_at(version) if present else math.inf
    return Run(_start(log, version, holding, first, present=present), last + 1, present, cut_at)


def _start(log: RecordedLog, version: int, holding: Holding, first: int, *, present: bool) -> int:
    """Return the owner's position before the first record; the log may have no record at the offsets between them."""
    before = holding.committed_before if holding.start is None else holding.position
    marks = [before] if holding.resumes_at is None else [holding.resumes_at, before]
    if present:
        # The first records of a recreated topic may be aborted. An owner that starts with the new topic may have any position
        # before the first record.
        beginnings = [log.log_start_offset, 0]
        marks = [*beginnings, *marks] if holding.may_begin else [*marks, *beginnings]
    return next((at for at in marks if 0 <= at <= first and log.first_record(at, version) >= first), first)


def _shown(rows: Sequence[Row]) -> str:
    return ", ".join(f"{offset}={value.decode()}" for offset, value in rows[:12]) + (" ..." if len(rows) > 12 else "")


@attrs.frozen
class _Reading:
    stopped: bool


@attrs.frozen
class FetchWitness:
    """The production reader, with the methods that the rule *stranded* uses."""

    reader: Reader

    @property
    def _fetcher(self) -> Fetcher:
        fetcher = self.reader._fetcher
        assert isinstance(fetcher, Fetcher)
        return fetcher

    def reading(self, partition: TopicPartition) -> _Reading | None:
        """Return how a partition is fetched now."""
        reading = self.reader._readings.get(partition)
        if reading is None or not reading.on:
            return None
        state = self._fetcher._states.get(partition)
        return _Reading(state is not None and state.stopped)

    def has_event(self, partition: TopicPartition) -> bool:
        """Return whether an event about a partition waits for delivery, or its Fetches begin again after one."""
        reader = self.reader
        fetched = (item.value.partition for item in self._fetcher._buffer._ready if item.state.stopped)
        if partition in fetched or any(one.at == partition for one in reader._queue if isinstance(one, ReadingEvent)):
            return True
        reading = reader._readings.get(partition)
        return reading is not None and reading.retries
