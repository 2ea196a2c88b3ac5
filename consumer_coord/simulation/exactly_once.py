"""The topics of members that read, process and write in transactions, and the rules for them.

The members read the topics of a run, and the topic ``relay``. For each record of the former they write one record to ``relay``,
and for each record of the latter one to ``outputs``. So members also read what members wrote, as the programs in Jepsen's
workloads for Kafka do, whose anomalies give the rules their names. A transaction may poll several times.

Each written record names its transaction, and so does the metadata of each offset that is committed with it. So the rules need
no word of the consumer or the producer: they compare what programs did with the logs.

``G0``             write cycle: of two transactions, of which one must follow the other (they have the same transactional id, or
                   read the same partition), each wrote a record before the other; a transaction of several polls must follow
                   from its first read of that partition on
``G1a``            aborted read: a committed transaction read a record of an aborted one
``G1b``            intermediate read: a committed transaction read a record before the end of the record's transaction was
                   decided
``G1c``            circular information flow: two or more committed transactions read from each other, or must follow each other
``lost-write``     a record of a committed transaction is not in the log; a transaction was committed for the program, and
                   aborted in a log; or a commit passes a record that no committed transaction has read
``int-send-skip``  within a transaction, the records in a log are not the first ones that the program sent there, in their order
``int-poll-skip``  within a transaction, polls skip a committed record, or go back
``exactly-once``   a record is processed by two committed transactions; the offsets that a transaction commits are not the end
                   of what it read; or it is committed in one log, and aborted in another, or for the program

As in Kafka, the records of two transactions of different ids may be interleaved in a log, which is no G0.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from consumer_coord.broker import record_batch
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.record_log import RecordedLog
from consumer_coord.topic_partition import TopicPartition

#: After an intermediate read, a cycle is looked for until about half this number of further transactions have begun and ended.
_GRACE: Final = 100

#: The topics that members write to, with their numbers of partitions.
RELAY: Final = "relay"
OUTPUTS: Final = "outputs"
WRITTEN: Final[Mapping[str, int]] = {RELAY: 3, OUTPUTS: 2}

_SEPARATOR: Final = b"|"


@attrs.frozen
class Written:
    """A record in a log of ``relay`` or ``outputs``; ``origin`` is the value of the first record of its chain."""

    partition: TopicPartition
    offset: int
    origin: bytes
    transaction: Txn


@attrs.frozen
class Read:
    """A record that a transaction read. ``decided``: it was committed when it was read."""

    partition: TopicPartition
    offset: int
    value: bytes
    decided: bool


@attrs.define(eq=False)
class Txn:
    """A transaction of a program, from its begin on."""

    #: When it began, and when its end was decided, as numbers that only grow.
    number: int
    #: The transactional id, and the process.
    owner: str
    process: str
    reads: list[Read] = attrs.field(factory=list)
    #: Partition -> the values that the program sent, in order, and those of them that are in the log.
    sent: defaultdict[TopicPartition, list[bytes]] = attrs.field(factory=lambda: defaultdict(list))
    written: defaultdict[TopicPartition, list[Written]] = attrs.field(factory=lambda: defaultdict(list))
    #: Partition -> how many records it had read when it sent each of these values.
    read_before: defaultdict[TopicPartition, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    #: The offsets that are to be committed with it.
    offsets: dict[TopicPartition, int] = attrs.field(factory=dict)
    #: What the markers say; None before the first one.
    committed: bool | None = None
    decided: int = 0
    #: What the producer said to the program: committed, aborted, or nothing yet.
    told: bool | None = None
    #: A partition with read records was revoked or lost, so the program must abort.
    doomed: bool = False
    #: The transactions that it must follow, because it reads the same partition, or has the same transactional id.
    after: list[Txn] = attrs.field(factory=list)

    @property
    def tag(self) -> str:
        """The name in records, and in the metadata of offsets."""
        return f"t{self.number}"

    def last_read(self) -> dict[TopicPartition, int]:
        """Return the offset of the last record that was read of each partition."""
        return {one.partition: one.offset for one in self.reads}

    def written_after(self, partition: TopicPartition, at: TopicPartition) -> list[Written]:
        """Return the records in a log that it sent after its first read of a partition."""
        first = next(place for place, one in enumerate(self.reads) if one.partition == partition)
        return [one for one, read in zip(self.written[at], self.read_before[at], strict=False) if read > first]


class WrittenLog(PartitionLog):
    """A log that members write to."""

    def __init__(self, settings: Any, at: TopicPartition, rules: ExactlyOnceRules) -> None:
        super().__init__(settings)
        self.at = at
        self._rules = rules

    def append(self, records: bytes, leader_epoch: int, *, verified: bool = False) -> int:
        """Append like the production log, and report the records, unless the log had them."""
        end = self.end_offset
        base = super().append(records, leader_epoch, verified=verified)
        if self.end_offset > end:
            header = record_batch.read_header(records)
            values = [one.value or b"" for one in record_batch.read_records(records, header)]
            self._rules.appended(self.at, base, values, header.producer_id)
        return base

    def append_marker(
        self,
        timestamp_ms: int,
        leader_epoch: int,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> int:
        """Append like the production log, and report the end of the transaction."""
        offset = super().append_marker(timestamp_ms, leader_epoch, producer_id, producer_epoch, committed, coordinator_epoch)
        self._rules.ended(self.at, producer_id, committed=committed)
        return offset


class ExactlyOnceRules:
    """The rules of one simulation run. ``log_of`` returns the current log of a partition; ``fail`` ends the run."""

    def __init__(self, log_of: Callable[[TopicPartition], object], fail: Callable[[Violation], None]) -> None:
        self.processed: int = 0
        self.aborted: int = 0
        self._log_of = log_of
        self._fail = fail
        self._transactions: dict[str, Txn] = {}
        self._numbers = itertools.count(1)
        #: Log -> producer id -> the transactions that the next marker there ends.
        self._open: defaultdict[TopicPartition, dict[int, dict[Txn, None]]] = defaultdict(dict)
        #: The records of the logs of ``relay`` and ``outputs`` by offset.
        self._records: defaultdict[TopicPartition, dict[int, Written]] = defaultdict(dict)
        #: Partition -> what committed transactions have read: the end, and the last transaction.
        self._committed: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, Txn] = {}
        #: Transactional id -> its latest transaction that wrote a record.
        self._latest: dict[str, Txn] = {}
        #: The first intermediate read, and the number from which on it is reported. A cycle that is found first says more.
        self._intermediate: tuple[int, Violation] | None = None
        #: A transaction whose records were read before it was decided -> the committed transactions that read them.
        self._early: defaultdict[Txn, list[Txn]] = defaultdict(list)

    # -- told by the programs -----------------------------------------------------------------------------------------

    def begin(self, owner: str, process: str) -> Txn:
        """Record the begin of a transaction."""
        transaction = Txn(next(self._numbers), owner, process)
        self._transactions[transaction.tag] = transaction
        return transaction

    def reads(self, transaction: Txn, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Record that a transaction has read a record, and check that it skipped none."""
        self._check_identity(transaction, partition, offset, value)
        before = transaction.last_read().get(partition)
        if before is not None and not transaction.doomed:
            skipped = list(self.visible(partition, before + 1, offset))
            if skipped or offset <= before:
                what = f"skipped the records at {skipped[:5]}" if skipped else "went back"
                raise Violation(
                    "int-poll-skip",
                    f"{transaction.process} read {partition} at {before} and then at {offset} in {transaction.tag}: it {what}",
                )
        decided = any(True for _ in self.visible(partition, offset, offset + 1))
        transaction.reads.append(Read(partition, offset, value, decided))

    def _check_identity(self, transaction: Txn, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Check that a record is the one that the log has at its offset, if the log has one."""
        log, written = self._log_of(partition), self._records[partition].get(offset)
        if isinstance(log, RecordedLog):
            there = log.committed_records(offset, offset + 1)
            same = value.startswith(b"%d:" % log.number) and (not there or there[0][1] == value)
        else:
            same = written is None or value.split(_SEPARATOR)[:2] == [written.origin, written.transaction.tag.encode()]
        if not same:
            raise Violation(
                "identity", f"{transaction.process} read {value.decode()} of {partition} at {offset}, where it is not"
            )

    def sends(self, transaction: Txn, read: bytes, topic: str) -> tuple[TopicPartition, bytes]:
        """Return where the record for a record that was read goes, and its value."""
        origin = read.split(_SEPARATOR)[0]
        to = TopicPartition(topic, zlib.crc32(origin) % WRITTEN[topic])
        value = _SEPARATOR.join((origin, transaction.tag.encode(), b"%d" % len(transaction.sent[to])))
        transaction.sent[to].append(value)
        transaction.read_before[to].append(len(transaction.reads))
        return to, value

    def told(self, transaction: Txn, *, committed: bool) -> None:
        """Record that the producer said how a transaction ended."""
        transaction.told = committed
        self.aborted += not committed
        self._compare_with_told(transaction)

    # -- told by the logs ---------------------------------------------------------------------------------------------

    def appended(self, at: TopicPartition, base: int, values: Sequence[bytes], producer_id: int) -> None:
        """Check a batch that is in the log. A violation ends the run, but not the broker's request."""
        try:
            for offset, value in enumerate(values, base):
                origin, tag, _ = value.split(_SEPARATOR)
                transaction = self._transactions[tag.decode()]
                self._check_sent(transaction, at, value)
                self._check_order(transaction, at, offset)
                self._open[at].setdefault(producer_id, {})[transaction] = None
                self._records[at][offset] = written = Written(at, offset, origin, transaction)
                transaction.written[at].append(written)
        except Violation as breach:
            self._fail(breach)

    def offset_sent(self, log: TopicPartition, producer_id: int, partition: TopicPartition, offset: int, tag: str) -> None:
        """Record that a group's coordinator has accepted an offset of a transaction."""
        transaction = self._transactions[tag]
        self._open[log].setdefault(producer_id, {})[transaction] = None
        transaction.offsets[partition] = offset

    def ended(self, log: TopicPartition, producer_id: int, *, committed: bool) -> None:
        """Check the transactions that a marker ends."""
        try:
            for transaction in self._open[log].pop(producer_id, ()):
                before, transaction.committed = transaction.committed, committed
                if before is None:
                    transaction.decided = next(self._numbers)
                    self._decided(transaction)
                elif before != committed:
                    raise Violation("exactly-once", f"{transaction.tag} is committed in one log, and aborted in another: {log}")
                self._compare_with_told(transaction)
        except Violation as breach:
            self._fail(breach)

    def outside_of_transactions(self, partition: TopicPartition, offset: int, client: str) -> None:
        """Report an offset that was committed without a transaction."""
        self._fail(Violation("exactly-once", f"{client} committed {offset} of {partition} outside of a transaction"))

    # -- the checks ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_sent(transaction: Txn, at: TopicPartition, value: bytes) -> None:
        have, sent = len(transaction.written[at]), transaction.sent[at]
        if have >= len(sent) or sent[have] != value:
            wanted = sent[have].decode() if have < len(sent) else "nothing"
            raise Violation(
                "int-send-skip",
                f"{transaction.process} sent {wanted} as number {have} of {transaction.tag} to {at}, but the log has"
                f" {value.decode()}",
            )

    def _check_order(self, transaction: Txn, at: TopicPartition, offset: int) -> None:
        latest = self._latest.get(transaction.owner, transaction)
        if latest.number > transaction.number:
            raise Violation(
                "G0",
                f"{transaction.process} wrote {offset} of {at} in {transaction.tag} after {latest.process} had written in"
                f" {latest.tag}, which has the same transactional id {transaction.owner}",
            )
        if transaction.committed is not None:
            raise Violation(
                "G0", f"{transaction.process} wrote {offset} of {at} in {transaction.tag} after the end of this transaction"
            )
        if latest is not transaction:
            transaction.after.append(latest)
        self._latest[transaction.owner] = transaction

    @staticmethod
    def _compare_with_told(transaction: Txn) -> None:
        if None in (transaction.committed, transaction.told) or transaction.committed == transaction.told:
            return
        rule, said = ("lost-write", "committed") if transaction.told else ("exactly-once", "aborted")
        raise Violation(
            rule, f"{transaction.tag} was {said} for {transaction.process}, but its marker in a log says something else"
        )

    def _decided(self, transaction: Txn) -> None:
        """Check a transaction when its end is decided."""
        if transaction.committed:
            self._check_written(transaction)
            for partition in transaction.last_read():
                self._check_partition(transaction, partition)
            if unread := transaction.offsets.keys() - transaction.last_read().keys():
                raise Violation("exactly-once", f"{transaction.tag} commits offsets of {min(unread)}, which it has not read")
            self._check_reads(transaction)
        for reader in self._early.pop(transaction, ()):
            self._check_early(reader, transaction)
        if self._intermediate is not None and transaction.decided > self._intermediate[0]:
            raise self._intermediate[1]

    @staticmethod
    def _check_written(transaction: Txn) -> None:
        for at, sent in transaction.sent.items():
            have = len(transaction.written[at])
            if have < len(sent):
                raise Violation(
                    "lost-write",
                    f"{transaction.tag} of {transaction.process} was committed, but {at} has only {have} of its {len(sent)}"
                    " records",
                )

    def _check_partition(self, transaction: Txn, partition: TopicPartition) -> None:
        """Check what a committed transaction did with one partition."""
        begin, last = self._committed.get(partition, 0), transaction.last_read()[partition]
        read = [one.offset for one in transaction.reads if one.partition == partition]
        if read[0] < begin:
            former = self._last[partition]
            raise Violation(
                "exactly-once",
                f"{transaction.tag} of {transaction.process} processed {partition} at {read[0]}, which {former.tag} of"
                f" {former.process} had processed: {begin} is committed",
            )
        if transaction.offsets.get(partition) != last + 1:
            raise Violation(
                "exactly-once",
                f"{transaction.tag} of {transaction.process} has processed {partition} up to {last}, and commits"
                f" {transaction.offsets.get(partition)}",
            )
        if missing := [offset for offset, _ in self.visible(partition, begin, last + 1) if offset not in read]:
            raise Violation(
                "lost-write",
                f"{transaction.tag} of {transaction.process} moves {partition} from {begin} to {last + 1}, but has not read"
                f" {missing[:5]}",
            )
        if partition in self._last:
            self._check_follows(self._last[partition], transaction, partition)
            transaction.after.append(self._last[partition])
        self._committed[partition], self._last[partition] = last + 1, transaction
        self.processed += len(read)

    @staticmethod
    def _check_follows(former: Txn, transaction: Txn, partition: TopicPartition) -> None:
        # What it wrote before it read the partition may lie before the former's records: these may be sent after the offsets.
        for at in tuple(transaction.written):
            records = transaction.written_after(partition, at)
            if former.written[at] and records and former.written[at][-1].offset > records[0].offset:
                raise Violation(
                    "G0",
                    f"{transaction.tag} must follow {former.tag}, which read the same partition, but wrote to {at} before it",
                )

    def _check_reads(self, transaction: Txn) -> None:
        """Check from whom a committed transaction has read."""
        for one in transaction.reads:
            written = self._records[one.partition].get(one.offset)
            if written is None:
                log = self._log_of(one.partition)
                undecided = isinstance(log, RecordedLog) and log.is_undecided(one.offset)
                if undecided or any(True for _ in self.visible(one.partition, one.offset, one.offset + 1)):
                    if not one.decided:
                        self._note_early(transaction, one)
                    continue
                raise _read_violation("G1a", transaction, one)
            source = written.transaction
            if source.committed is False:
                raise _read_violation("G1a", transaction, one)
            if source.committed is None:
                self._early[source].append(transaction)
            elif not one.decided:
                self._check_early(transaction, source)
            elif self._leads_to(source, transaction):
                self._raise_cycle(transaction, source)

    def _check_early(self, reader: Txn, source: Txn) -> None:
        """Check a committed transaction that read from another one before its end was decided, which it is now."""
        one = next(one for one in reader.reads if self._is_from(one, source))
        if not source.committed:
            raise _read_violation("G1a", reader, one)
        if source is not reader and self._leads_to(source, reader):
            self._raise_cycle(reader, source)
        self._note_early(reader, one)

    def _note_early(self, reader: Txn, one: Read) -> None:
        if self._intermediate is None:
            self._intermediate = (reader.decided + _GRACE, _read_violation("G1b", reader, one))

    def _is_from(self, one: Read, source: Txn) -> bool:
        written = self._records[one.partition].get(one.offset)
        return written is not None and written.transaction is source

    def _leads_to(self, later: Txn, earlier: Txn) -> bool:
        """Return whether information flows from ``earlier`` to ``later``, over committed transactions."""
        seen, left = {later}, [later]
        while left:
            one = left.pop()
            sources = (
                written.transaction
                for read in one.reads
                if (written := self._records[read.partition].get(read.offset)) is not None
            )
            for source in (*one.after, *sources):
                if source is earlier:
                    return True
                # Nothing flows to a transaction that was decided before ``earlier`` began.
                if source not in seen and source.committed and source.decided > earlier.number:
                    seen.add(source)
                    left.append(source)
        return False

    @staticmethod
    def _raise_cycle(reader: Txn, source: Txn) -> None:
        raise Violation(
            "G1c",
            f"{reader.tag} of {reader.process} has read from {source.tag} of {source.process}, which has read from it, or must"
            " follow it",
        )

    # -- the logs -----------------------------------------------------------------------------------------------------

    def visible(self, partition: TopicPartition, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over offsets and origins of the committed records from ``first`` up to, not including, ``end``."""
        log = self._log_of(partition)
        if isinstance(log, RecordedLog):
            yield from log.committed_records(first, end)
        else:
            records = self._records[partition]
            for offset in range(first, end):
                if offset in records and records[offset].transaction.committed:
                    yield offset, records[offset].origin

    def left(self, partition: TopicPartition, *, committed: bool = True) -> str | None:
        """Return why a partition is not processed up to its end; None if it is. A record is processed when it is committed."""
        log = self._log_of(partition)
        assert isinstance(log, PartitionLog)
        begin = self._committed.get(partition, 0)
        undone = [offset for offset, _ in self.visible(partition, begin, log.end_offset)]
        return f"{partition}: the records at {undone[:5]} are not processed, {begin} is committed" if undone else None

    @property
    def is_any_open(self) -> bool:
        """Whether a log waits for the marker of a transaction."""
        return any(self._open.values())

    def check_all(self) -> None:
        """Check at the end of a run that each transaction ended as its program was told."""
        if self._intermediate is not None:
            raise self._intermediate[1]
        for transaction in self._transactions.values():
            if transaction.told and not transaction.committed and (transaction.sent or transaction.offsets):
                raise Violation("lost-write", f"{transaction.tag} was committed for {transaction.process}, but in no log")
        for log, producers in self._open.items():
            for producer_id, transactions in producers.items():
                tags = ", ".join(one.tag for one in transactions)
                raise Violation("liveness", f"transaction {tags} of producer {producer_id} never ends in {log}")


def _read_violation(rule: str, transaction: Txn, one: Read) -> Violation:
    what = {"G1a": "which was aborted", "G1b": "before it was decided whether it is committed"}[rule]
    return Violation(
        rule,
        f"{transaction.tag} of {transaction.process}, which is committed, has read {one.value.decode()} at {one.offset} of"
        f" {one.partition}, {what}",
    )
