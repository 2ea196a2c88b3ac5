"""The handlers of members that call ``process``, and the rules for what they handle.

Each record's value is unique in a run, so the rules need no word of the consumer: they compare what handlers did with the logs
and with the commits in ``__consumer_offsets``.

``order``      while a handler runs, no other of this process runs for a record of the same key (or partition), and every
               earlier record of the key (or partition) is done
``undone``     no commit passes a record, and no commit's metadata names one, that is not done: its handler returned, or its
               policy skipped it, or the letters' topic has its letter
``handled``    a record that was done and committed before its present owner began is not handled again; nor is one that is done
               in the same holding, or that its former owner had done when it revoked the partition, if no fault interferes
``liveness``   in the end every record is done, and committed
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from consumer_coord.broker import record_batch
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.finished_offsets_text import Ranges, UnusableMetadataError, decode
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.record_log import RecordedLog
from consumer_coord.topic_partition import TopicPartition

#: The topic of dead letters, which no member reads.
LETTERS: Final = "letters"
#: The settings of the producer of letters: a short queue and short time limits, so that a minute shows what happens at them.
LETTERS_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "queue.buffering.max.messages": 20,
    "batch.num.messages": 5,
    "delivery.timeout.ms": 20_000,
    "request.timeout.ms": 5_000,
    "retry.backoff.ms": 200,
}
#: Of this many records, one fails once, one fails in each attempt, one takes long, and one ignores for a while that it is
#: cancelled.
_SHARE: Final = 29


class LettersLog(PartitionLog):
    """A log of dead letters, which knows the values of all letters."""

    def __init__(self, settings: Any, values: set[bytes]) -> None:
        super().__init__(settings)
        self._values = values

    def append(self, records: bytes, leader_epoch: int, *, verified: bool = False) -> int:
        """Append like the production log, and remember the letters."""
        base = super().append(records, leader_epoch, verified=verified)
        header = record_batch.read_header(records)
        self._values.update(one.value for one in record_batch.read_records(records, header) if one.value is not None)
        return base


@attrs.frozen
class Deed:
    """What the handler of a record does: it takes ``seconds``, and fails in the first ``failures`` attempts."""

    seconds: float
    failures: int = 0
    #: How much longer the first attempt takes.
    slow_s: float = 0.0
    #: Whether it raises CancelledError instead of an error, and whether it goes on for a while when it is cancelled.
    cancels: bool = False
    stubborn: bool = False


def deed_of(value: bytes, *, rarely: bool) -> Deed:
    """Return what the handler of the record with this value does, in every run the same.

    ``rarely``: only few records fail or take long, because each of them ends the ``process``.
    """
    number = zlib.crc32(value)
    seconds = (0.0, 0.001, 0.01, 0.05, 0.1, 0.3)[number // 31 % 6]
    return {
        0: Deed(seconds, failures=1),
        1: Deed(seconds, failures=1_000),
        2: Deed(seconds, slow_s=7.0 if number % 4 == 0 else 1.0),
        3: Deed(seconds, stubborn=True),
        4: Deed(seconds, failures=1, cancels=True),
        5: Deed(seconds, failures=2),
    }.get(number % (_SHARE * 8 if rarely else _SHARE), Deed(seconds))


@attrs.define(eq=False)
class _Handled:
    """What is known of one partition: the last commit, and who has done which record."""

    committed: int = -1
    finished: Ranges = ()
    #: Value -> the holding in which the record was done.
    by: dict[bytes, Stay] = attrs.field(factory=dict)
    #: The offset up to which all records are known to be done.
    checked: int = 0


@attrs.define(eq=False)
class Stay:
    """One uninterrupted ownership of a partition by a process, and what was committed when it began."""

    process: str
    partition: TopicPartition
    committed: int
    finished: Ranges
    #: Whether a fault could disturb the beginning.
    troubled: bool
    #: The start of the log. When retention moves it, the owner may begin there anew.
    log_start: int
    #: How it ended: revoked, lost or killed; None before the end. ``clean``: no fault could disturb the end.
    ended: str | None = None
    clean: bool = False
    #: Whether the coordinator may have removed the member meanwhile, so that running handlers lost their records.
    doubtful: bool = False


class HandlerRules:
    """The rules of one simulation run. ``log_of`` returns the current log of a partition."""

    def __init__(self, order: str, log_of: Callable[[TopicPartition], object]) -> None:
        self.order = order
        #: The values of all letters.
        self.letters: set[bytes] = set()
        self.handled: int = 0
        self.again: int = 0
        self._log_of = log_of
        self._partitions: dict[TopicPartition, _Handled] = {}
        #: Values of records that are done without a letter.
        self._done: set[bytes] = set()
        #: (process, lane) -> the record whose handler runs.
        self._running: dict[tuple[str, object], bytes] = {}

    # -- ownership ----------------------------------------------------------------------------------------------------

    def begin(self, process: str, partition: TopicPartition, *, troubled: bool) -> Stay:
        """Record the beginning of an ownership."""
        known = self._partitions.setdefault(partition, _Handled())
        return Stay(process, partition, known.committed, known.finished, troubled, self._log_start(partition))

    def _log_start(self, partition: TopicPartition) -> int:
        log = self._log_of(partition)
        return log.log_start_offset if isinstance(log, RecordedLog) else 0

    # -- handlers -----------------------------------------------------------------------------------------------------

    def starts(self, stay: Stay, message: Any, attempt: int) -> None:
        """Check that the handler of a record may begin."""
        partition, offset, value = stay.partition, message.offset(), message.value()
        known = self._partitions[partition]
        what = f"{stay.process} handles {partition} at {offset} ({value.decode()})"
        lane = self._lane(message)
        if lane is not None:
            other = self._running.setdefault((stay.process, lane), value)
            if other != value:
                raise Violation("order", f"{what} while the handler of {other.decode()} runs, which has the same key")
            self._earlier_are_done(partition, message, what)
        if attempt > 1 or not self.is_done(value):
            return
        if self._log_start(partition) > stay.log_start:
            return
        self.again += 1
        if offset < stay.committed or _is_in(offset, stay.finished):
            if not (stay.troubled and offset >= stay.committed):
                raise Violation("handled", f"{what} although it was done, and committed, before this ownership began")
            return
        by = known.by.get(value)
        if by is stay and not stay.doubtful:
            raise Violation("handled", f"{what} again in the same ownership")
        if by is not None and by is not stay and by.clean:
            raise Violation("handled", f"{what} again after {by.process} had done it, and revoked the partition normally")

    def ends(self, stay: Stay, message: Any, *, done: bool, counts: bool) -> None:
        """Record the end of a handler. ``done``: the record counts as finished, if the result ``counts``."""
        lane = self._lane(message)
        if lane is not None and self._running.get((stay.process, lane)) == message.value():
            del self._running[stay.process, lane]
        if done and counts:
            self.handled += 1
            self._done.add(message.value())
            self._partitions[stay.partition].by[message.value()] = stay

    def killed(self, process: str) -> None:
        """Forget the running handlers of a process that was killed."""
        for one in [one for one in self._running if one[0] == process]:
            del self._running[one]

    def is_done(self, value: bytes) -> bool:
        """Return whether a record need not be handled any more."""
        return value in self._done or value in self.letters

    def _lane(self, message: Any) -> object:
        partition = TopicPartition(message.topic(), message.partition())
        if self.order == "partition":
            return partition
        return (partition, message.key()) if self.order == "key" and message.key() is not None else None

    def _earlier_are_done(self, partition: TopicPartition, message: Any, what: str) -> None:
        log = self._log_of(partition)
        if not isinstance(log, RecordedLog):
            return
        for offset, value in reversed(
            log.committed_records(max(log.log_start_offset, self._partitions[partition].checked), message.offset())
        ):
            if self.order == "key" and log.key_of(value) != message.key():
                continue
            if not self.is_done(value):
                raise Violation("order", f"{what} before the record at {offset} ({value.decode()}), which has the same key")

    # -- commits ------------------------------------------------------------------------------------------------------

    def committed(self, partition: TopicPartition, offset: int, metadata: str, client: str) -> None:
        """Check a commit that a coordinator has accepted."""
        known, log = self._partitions.setdefault(partition, _Handled()), self._log_of(partition)
        if not isinstance(log, RecordedLog):
            return
        try:
            finished = decode(metadata, offset, log.end_offset)
        except UnusableMetadataError as error:
            raise Violation("undone", f"{client} committed {offset} of {partition} with unusable metadata: {error}") from error
        for first, end in ((known.checked, offset), *finished):
            for at, value in log.committed_records(max(first, log.log_start_offset), end):
                if not self.is_done(value):
                    raise Violation(
                        "undone",
                        f"{client} committed {offset} of {partition} with finished offsets {list(finished)}, but the record"
                        f" at {at} ({value.decode()}) is not done",
                    )
        known.checked = max(known.checked, offset)
        known.committed, known.finished = offset, finished

    # -- the end ------------------------------------------------------------------------------------------------------

    def left(self, partition: TopicPartition, *, committed: bool) -> str | None:
        """Return why a partition is not done, or, with ``committed``, not committed up to its end; None if it is."""
        known, log = self._partitions.setdefault(partition, _Handled()), self._log_of(partition)
        if not isinstance(log, RecordedLog):
            return None
        records = log.committed_records(max(log.log_start_offset, known.checked), log.end_offset)
        undone = [offset for offset, value in records if not self.is_done(value)]
        if undone:
            return f"{partition}: the records at {undone[:5]} are not done, of {log.end_offset}"
        if committed and log.first_record(max(known.committed, log.log_start_offset)) < log.end_offset:
            return f"{partition} is done, but only {known.committed} of {log.end_offset} is committed"
        return None

    def uncommitted(self, partition: TopicPartition) -> str | None:
        """Return a record that is done, and that the last commit does not cover; None if there is none."""
        known, log = self._partitions.setdefault(partition, _Handled()), self._log_of(partition)
        if not isinstance(log, RecordedLog):
            return None
        for offset, value in log.committed_records(max(known.committed, log.log_start_offset), log.end_offset):
            if self.is_done(value) and not _is_in(offset, known.finished):
                return f"{partition}: the record at {offset} is done, but only {known.committed} is committed"
        return None


def _is_in(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= offset < end for first, end in ranges)
