"""Convert between rows (confluent-kafka's TopicPartition) and the engine's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from consumer_coord.confluent.arguments import check_timeout, checked_rows
from consumer_coord.confluent.kafka_exceptions import to_kafka_error
from consumer_coord.confluent.types import KafkaError, Message
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.errors import ConfigurationError, CoordinatorError, NothingToCommitError
from consumer_coord.group.commits import Entry, Ticket
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OFFSET_INVALID, OFFSET_STORED, CommitResult, OffsetAndMetadata, after, partition_of_message
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

#: A partition from the application, as an object of confluent-kafka or of this package; and a sequence of such objects.
Row: TypeAlias = "NativePartition | TopicPartition"
GivenRows: TypeAlias = "Sequence[NativePartition | TopicPartition]"
#: Partitions as a consumer returns them.
Rows: TypeAlias = "list[NativePartition]"
Positions = Mapping[TopicPartition, OffsetAndMetadata]


#: confluent-kafka commits a row's metadata with a terminating zero byte, and reads past the end of metadata without this byte.
#: Rows are committed in the same way, so that clients of both kinds can be in one group.
_END_OF_TEXT = "\0"


def native(partition: TopicPartition, position: OffsetAndMetadata | None = None) -> NativePartition:
    """Return a partition as confluent-kafka's TopicPartition."""
    if position is None:
        return NativePartition(partition.topic, partition.partition)
    topic, number = partition
    offset, epoch, metadata = position.offset, position.leader_epoch, position.metadata
    # A row without metadata has None as its metadata, which the constructor does not accept.
    if metadata:
        return NativePartition(topic, number, offset, metadata.removesuffix(_END_OF_TEXT), leader_epoch=epoch)
    return NativePartition(topic, number, offset, leader_epoch=epoch)


def rows(partitions: Iterable[TopicPartition]) -> list[NativePartition]:
    """Return partitions as confluent-kafka's TopicPartition, sorted."""
    return [native(partition) for partition in sorted(partitions)]


def epoch_of(row: NativePartition) -> int:
    """Return a row's leader epoch; -1 if the row has no epoch."""
    return -1 if row.leader_epoch is None else int(row.leader_epoch)


def partition_of(row: Any) -> TopicPartition:
    """Return a row's topic and partition; raise TypeError if the object has no topic or no partition."""
    try:
        return TopicPartition(row.topic, row.partition)
    except AttributeError:
        raise TypeError(f"requires list of TopicPartition, such as [TopicPartition('orders', 0)], not {row!r}") from None


def position_of(row: Any) -> OffsetAndMetadata:
    """Return the offset, epoch and metadata of a row; ``OFFSET_INVALID`` for a partition without an offset."""
    if not isinstance(row, NativePartition):
        offset = getattr(row, "offset", None)
        return OffsetAndMetadata(OFFSET_INVALID if offset is None else offset)
    return OffsetAndMetadata(row.offset, epoch_of(row), "" if row.metadata is None else row.metadata + _END_OF_TEXT)


class _FailedPartition(NativePartition):  # type: ignore[misc]  # confluent-kafka has no types
    """A row with an error, because Python code cannot set the ``error`` of confluent-kafka's class."""

    def __init__(self, row: NativePartition, error: KafkaError) -> None:
        epoch = {} if row.leader_epoch is None else {"leader_epoch": row.leader_epoch}
        super().__init__(row.topic, row.partition, row.offset, metadata=row.metadata or "", **epoch)
        self._error = error

    @property
    def error(self) -> KafkaError:
        """The reason why the offset was not committed."""
        return self._error


def to_rows(entries: Mapping[TopicPartition, Entry], result: CommitResult) -> Rows:
    """Return the outcome of a commit in confluent-kafka's form: rows with an ``error``."""
    return [_outcome(partition, entry.position, result.get(partition)) for partition, entry in entries.items()]


def _outcome(partition: TopicPartition, position: OffsetAndMetadata, error: CoordinatorError | None) -> Any:
    row = native(partition, position)
    return row if error is None else _FailedPartition(row, to_kafka_error(error))


def looked_up_rows(
    wanted: Iterable[TopicPartition],
    found: Mapping[TopicPartition, OffsetAndMetadata],
    failed: Mapping[TopicPartition, CoordinatorError],
) -> Rows:
    """Return the offsets of a look-up as rows; a row without an offset has an ``error``."""
    return [_outcome(one, found.get(one, OffsetAndMetadata(OFFSET_INVALID)), failed.get(one)) for one in wanted]


def committed_rows(found: Mapping[TopicPartition, OffsetAndMetadata | None]) -> Rows:
    """Return committed offsets as rows, with ``OFFSET_INVALID`` for partitions without a commit."""
    return [native(partition, at) if at is not None else native(partition) for partition, at in found.items()]


def assigned_rows(partitions: Iterable[TopicPartition], begun: Positions) -> Rows:
    """Return the rows of ``assignment()``, with the start that the application chose, otherwise ``OFFSET_STORED``."""
    made = []
    for partition in sorted(partitions):
        at = begun.get(partition)
        offset = OFFSET_STORED if at is None or at.offset == OFFSET_INVALID else at.offset
        made.append(NativePartition(partition.topic, partition.partition, offset))
    return made


def positions_of(rows: GivenRows) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions of rows."""
    return {partition_of(row): position_of(row) for row in rows}


def distinct_positions_of(rows: GivenRows, what: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions of rows; raise :class:`ConfigurationError` if a partition is given twice, or has no valid number."""
    positions = positions_of(rows)
    if negative := [one for one in positions if one.partition < 0]:
        raise ConfigurationError(f"{what}: {listed(negative)}: a partition's number is 0 or more")
    if len(positions) < len(rows):
        twice = [one for one, count in Counter(map(partition_of, rows)).items() if count > 1]
        raise ConfigurationError(f"{what}: {listed(twice)} is given more than once; give each partition once")
    return positions


def known(positions: Positions) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions with an offset, including logical offsets."""
    return {partition: at for partition, at in positions.items() if at.offset not in (OFFSET_INVALID, OFFSET_STORED)}


def to_commit(message: Message | None, rows: GivenRows | None) -> Positions | None:
    """Return the positions in a commit's arguments; None without arguments."""
    if message is not None and rows is not None:
        raise ValueError("message and offsets are mutually exclusive")
    if message is not None:
        if not isinstance(message, Message):
            raise TypeError(f"expected {Message.__module__}.Message")
        if message.error() is not None:
            raise ConfigurationError(f"Cannot commit offsets for message with error: {message.error().str()!r}")
        # A message that the application created may have no offset.
        return {} if message.offset() is None else {partition_of_message(message): after(message)}
    if rows is not None:
        return {partition: at for partition, at in positions_of(checked_rows(rows)).items() if at.offset >= 0}
    return None


def to_store(message: Message | None, rows: GivenRows | None) -> Positions:
    """Return the positions in the arguments of ``store_offsets``; raise ValueError without arguments."""
    wanted = to_commit(message, rows)
    if wanted is None:
        raise ValueError("expected either message or offsets")
    return wanted


def nothing_to_commit() -> NothingToCommitError:
    """Return the error for a commit without an offset (librdkafka's ``_NO_OFFSET``)."""
    return NothingToCommitError("there is nothing to commit: no message was delivered yet", code=KafkaError._NO_OFFSET)


def raise_if_all_failed(result: CommitResult) -> None:
    """Raise an error if no offset could be committed."""
    failures = [error for error in result.values() if error is not None]
    if failures and len(failures) == len(result):
        raise failures[0]


def raise_if_any_failed(result: CommitResult) -> None:
    """Raise an error if any offset could not be committed, as confluent-kafka's synchronous commit does."""
    failures = [error for error in result.values() if error is not None]
    if failures:
        raise failures[0]


def is_out_of_range(error: Any) -> bool:
    """Return whether librdkafka's event reports an offset that is not in the log."""
    return bool(error.code() == KafkaError._AUTO_OFFSET_RESET)


def seconds(timeout: float | None, forever: float) -> float:
    """Return ``timeout``, but ``forever`` if it is None or negative; raise TypeError if it is not a number."""
    check_timeout(timeout)
    return forever if timeout is None or timeout < 0 else timeout


def milliseconds(timeout: float | None) -> float | None:
    """Convert a timeout from seconds to milliseconds; None (the default limit) if the timeout is None or negative."""
    return None if timeout is None or timeout < 0 else timeout * 1000


def commit_reports(tickets: Iterable[Ticket], *, wanted: bool) -> Iterator[tuple[KafkaError | None, Rows]]:
    """Yield the arguments of ``on_commit`` for each answered asynchronous commit.

    If the application has no ``on_commit`` (``wanted`` is False), log the failures instead.
    """
    for ticket in tickets:
        answers = ticket.answers
        error = next(filter(None, answers.values()), None)
        if wanted:
            yield None if error is None else to_kafka_error(error), to_rows(ticket.entries, answers)
        elif error is not None:
            logger.warning("an asynchronous commit failed: %s", error)
