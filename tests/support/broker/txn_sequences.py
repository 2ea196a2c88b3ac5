"""Drawn sequences of requests of transactional producers, played to any broker, with outcomes that can be compared.

A seed draws each move from what the broker answered before. So two brokers that answer alike get the same moves, and the first
difference shows in the outcomes. Producer ids are numbered in the order in which they appear, and offsets count from the end of
the log at the start, because a real broker has other sequences, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import attrs

from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import FindCoordinatorRequest
from consumer_coord.wire.messages.log import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from consumer_coord.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from consumer_coord.wire.schema import ZERO_UUID, Struct
from tests.support.broker.record_batches import producer_batch, read_headers

#: Sends a message in a version, and returns the response.
Call = Callable[[Struct, int], Awaitable[Any]]
#: (the move, its outcome).
Outcome = tuple[str, Any]

LONG_MS = 60_000
_LATEST = -1
_READ_COMMITTED = 1
_MOST_NAPS = 3_000
_UNSETTLED = ("PrepareCommit", "PrepareAbort")


@attrs.frozen
class Names:
    """What a sequence uses on its broker: a topic with its id, two partitions, a group, and the prefix of transactional ids."""

    topic: str
    topic_id: Any
    partitions: tuple[int, int]
    group: str
    prefix: str


@attrs.define
class Session:
    """A producer: its transactional id (None: idempotent), what it was told last, and its next sequence numbers."""

    name: str
    transactional_id: str | None
    producer_id: int = -1
    epoch: int = -1
    next_sequence: dict[int, int] = attrs.field(factory=dict)
    #: Partition -> (epoch, first sequence number, count) of its last batch that was accepted.
    last: dict[int, tuple[int, int, int]] = attrs.field(factory=dict)


@attrs.define
class TxnPlayer:
    """Plays one sequence. ``nap_s`` is the time between two looks at a transaction that must change by itself."""

    random: Random
    call: Call
    names: Names
    nap_s: float
    outcomes: list[Outcome] = attrs.field(factory=list)
    sessions: list[Session] = attrs.field(factory=list)
    _ids: dict[int, int] = attrs.field(factory=lambda: {-1: -1})
    _starts: dict[int, int] = attrs.field(factory=dict)
    _has_group: bool = False

    async def play(self, length: int) -> list[Outcome]:
        """Play ``length`` moves, then abort what is open, and read the logs."""
        one, other = (f"{self.names.prefix}-{which}" for which in "ab")
        self.sessions = [Session("a1", one), Session("a2", one), Session("b", other), Session("plain", None)]
        await self._find_coordinators()
        for partition in self.names.partitions:
            self._starts[partition] = await self._end_offset(partition, committed=False)
        for session in self.sessions[::2]:
            if self.random.random() < 0.8:
                await self._init_producer(session, LONG_MS, 5, None)
        moves = [
            *[self._init] * 3,
            *[self._produce] * 8,
            *[self._end] * 5,
            *[self._add_partitions] * 3,
            *[self._commit_offsets] * 3,
            self._add_offsets,
            self._describe,
            self._describe_producers,
            self._write_marker,
            self._list,
            self._read_offsets,
            self._stable_end,
        ]
        expires = self.random.randrange(length) if self.random.random() < 0.05 else -1
        for index in range(length):
            await (self._expire() if index == expires else self.random.choice(moves)())
        for session in self.sessions[1:3]:
            while await self._init_producer(session, LONG_MS, 5, None) == error_codes.CONCURRENT_TRANSACTIONS:
                continue
        for partition in self.names.partitions:
            await self._read_log(partition)
        return self.outcomes

    # -- helpers

    def _note(self, what: str, outcome: Any) -> None:
        self.outcomes.append((what, outcome))

    def _id(self, producer_id: int) -> int:
        """Return the number of a producer id, in the order in which the ids appear."""
        return self._ids.setdefault(producer_id, len(self._ids))

    def _session(self) -> Session:
        return self.random.choice((*self.sessions, *self.sessions[:2]))

    def _partition(self) -> int:
        return self.random.choice(self.names.partitions)

    def _who(self, session: Session, *, nameless: bool = True) -> tuple[str, int, int]:
        """Return (transactional id, producer id, epoch) of a request: mostly of the session, sometimes wrong ones.

        ``nameless``: the transactional id may be empty. A broker of Kafka that asks the coordinator about the empty id of two
        producers at the same time refuses one of them, so sequences would disturb each other.
        """
        producer_id, epoch = session.producer_id, session.epoch
        wrong = self.random.random()
        if wrong < 0.05:
            epoch -= 1
        elif wrong < 0.08:
            epoch += 1
        elif wrong < 0.11:
            producer_id = self.random.choice(self.sessions).producer_id
        transactional_id = session.transactional_id or self.sessions[0].transactional_id
        assert transactional_id is not None
        if 0.11 <= wrong < 0.12:
            transactional_id = f"{self.names.prefix}-unknown"
        return ("" if nameless and 0.12 <= wrong < 0.13 else transactional_id), producer_id, epoch

    async def _find_coordinators(self) -> None:
        """Wait until a fresh broker has loaded the coordinators of the transactions and of the group."""
        for key_type, key in ((0, self.names.group), *((1, one.transactional_id) for one in self.sessions[1:3])):
            for _ in range(_MOST_NAPS):
                found = await self.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key or "",)), 4)
                if key_type == 0:
                    group = OffsetFetchRequestGroup(group_id=self.names.group, topics=None)
                    ready = (await self.call(OffsetFetchRequest(groups=(group,)), 9)).groups[0].error_code
                else:
                    ready = (await self.call(DescribeTransactionsRequest((key or "",)), 0)).transaction_states[0].error_code
                if not found.coordinators[0].error_code and ready in (0, error_codes.TRANSACTIONAL_ID_NOT_FOUND):
                    break
                await asyncio.sleep(self.nap_s)
            else:
                raise AssertionError(f"{key} has no coordinator")

    async def _settle(self) -> None:
        """Wait until no transaction waits for its markers."""
        ids = tuple(dict.fromkeys(one.transactional_id for one in self.sessions if one.transactional_id))
        for _ in range(_MOST_NAPS):
            states = (await self.call(DescribeTransactionsRequest(ids), 0)).transaction_states
            if not any(one.transaction_state in _UNSETTLED for one in states):
                return
            await asyncio.sleep(self.nap_s)
        raise AssertionError(f"transactions do not end: {states}")

    # -- moves

    async def _init(self) -> None:
        session = self._session()
        version = self.random.randrange(6)
        timeout_ms = self.random.choice((LONG_MS, LONG_MS, LONG_MS, LONG_MS, 0, 900_001, 900_000))
        resumed = None
        if version >= 3 and self.random.random() < 0.5:
            _, producer_id, epoch = self._who(session)
            resumed = (producer_id, epoch if self.random.random() < 0.9 else -1)
        await self._init_producer(session, timeout_ms, version, resumed)

    async def _init_producer(self, session: Session, timeout_ms: int, version: int, resumed: tuple[int, int] | None) -> int:
        request = InitProducerIdRequest(session.transactional_id, timeout_ms)
        if resumed is not None:
            request = attrs.evolve(request, producer_id=resumed[0], producer_epoch=resumed[1])
        response = await self.call(request, version)
        while response.error_code == error_codes.COORDINATOR_LOAD_IN_PROGRESS:  # A fresh Kafka has no producer ids yet.
            await asyncio.sleep(self.nap_s)
            response = await self.call(request, version)
        code = int(response.error_code)
        if not code:
            session.producer_id, session.epoch = response.producer_id, response.producer_epoch
            session.next_sequence.clear()
        shown = None if resumed is None else (self._id(resumed[0]), resumed[1])
        outcome = (code, self._id(response.producer_id), response.producer_epoch)
        self._note(f"{session.name} init {version} {timeout_ms} {shown}", outcome)
        await self._settle()
        return code

    async def _add_partitions(self) -> None:
        session = self._session()
        transactional_id, producer_id, epoch = self._who(session)
        version = self.random.randrange(6)
        partitions = self.random.sample(self.names.partitions, self.random.choice((1, 1, 2)))
        if self.random.random() < 0.05:
            partitions.append(9_999)
        topics = (AddPartitionsToTxnTopic(self.names.topic, tuple(partitions)),)
        verify_only = version >= 4 and self.random.random() < 0.5
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
        if version >= 4:
            one = AddPartitionsToTxnTransaction(transactional_id, producer_id, epoch, verify_only, topics)
            request = AddPartitionsToTxnRequest(transactions=(one,))
        response = await self.call(request, version)
        results = response.results_by_topic_v3_and_below
        if version >= 4:
            results = response.results_by_transaction[0].topic_results
        codes = sorted(
            (self._place(row.partition_index), row.partition_error_code)
            for topic in results
            for row in topic.results_by_partition
        )
        self._note(f"{session.name} add {version} {verify_only} {epoch} {self._id(producer_id)}", (response.error_code, codes))

    def _place(self, partition: int) -> int:
        return self.names.partitions.index(partition) if partition in self.names.partitions else partition

    async def _add_offsets(self) -> None:
        session = self._session()
        transactional_id, producer_id, epoch = self._who(session)
        version = self.random.randrange(5)
        response = await self.call(AddOffsetsToTxnRequest(transactional_id, producer_id, epoch, self.names.group), version)
        self._note(f"{session.name} add offsets {version} {epoch} {self._id(producer_id)}", response.error_code)

    def _batch_numbers(self, session: Session, partition: int) -> tuple[int, int]:
        """Return (first sequence number, count) of the next batch: mostly right, sometimes repeated or out of order."""
        expected, count = session.next_sequence.get(partition, 0), self.random.randint(1, 3)
        last = session.last.get(partition)
        kind = self.random.random()
        if kind < 0.12 and last is not None:
            return last[1], last[2]
        if kind < 0.18:
            return expected + self.random.randint(1, 3), count
        if kind < 0.22:
            return 0, count
        return expected, count

    async def _produce(self) -> None:
        session = self._session()
        transactional_id, producer_id, epoch = self._who(session, nameless=False)
        version = self.random.choice((3, 7, 9, 10, 11, 12, 12, 12))
        partition = self._partition()
        sequence, count = self._batch_numbers(session, partition)
        transactional = session.transactional_id is not None and self.random.random() < 0.95
        if not transactional:
            # In Kafka, a batch outside of transactions, with an epoch that the producer does not have, prevents the end of its
            # transaction.
            producer_id, epoch = session.producer_id, min(epoch, session.epoch)
        named = transactional if self.random.random() < 0.97 else not transactional
        batch = producer_batch(count, producer_id, epoch, sequence, transactional=transactional)
        request = ProduceRequest(
            transactional_id if named else None,
            -1,
            10_000,
            (TopicProduceData(self.names.topic, (PartitionProduceData(partition, batch),)),),
        )
        response = (await self.call(request, version)).responses[0].partition_responses[0]
        place = self._place(partition)
        offset = response.base_offset - self._starts[partition] if response.base_offset >= 0 else -1
        numbers = f"{place} {sequence}+{count} {epoch} {self._id(producer_id)}"
        self._note(f"{session.name} produce {version} {numbers} {transactional} {named}", (_known(response.error_code), offset))
        if not response.error_code and producer_id == session.producer_id and epoch == session.epoch:
            session.next_sequence[partition] = sequence + count
            session.last[partition] = (epoch, sequence, count)

    async def _commit_offsets(self) -> None:
        session = self._session()
        transactional_id, producer_id, epoch = self._who(session, nameless=False)
        version = self.random.randrange(7)
        generation, member = -1, ""
        if version >= 3 and self.random.random() < 0.15:
            generation, member = self.random.choice(((5, ""), (-1, "stranger"), (5, "stranger")))
        offset = self.random.randrange(1_000)
        partition = 9_999 if self.random.random() < 0.03 else self.names.partitions[0]
        # A refused first commit creates a group in Kafka, but not here: an accepted difference.
        metadata = "m" * 5_000 if self.random.random() < 0.06 and self._has_group else "m"
        request = TxnOffsetCommitRequest(
            transactional_id,
            "" if self.random.random() < 0.02 else self.names.group,
            producer_id,
            epoch,
            generation,
            member,
            topics=(
                TxnOffsetCommitRequestTopic(
                    self.names.topic,
                    self.names.topic_id if version >= 6 else ZERO_UUID,
                    (TxnOffsetCommitRequestPartition(partition, offset, -1, metadata),),
                ),
            ),
        )
        response = await self.call(request, version)
        code = response.topics[0].partitions[0].error_code
        what = f"{session.name} commit offset {version} {offset} {generation} {member} {epoch} {self._id(producer_id)}"
        self._has_group = self._has_group or not code
        self._note(what, _known(code))

    async def _end(self) -> None:
        session = self._session()
        transactional_id, producer_id, epoch = self._who(session)
        version = self.random.choice((0, 1, 2, 3, 4, 5, 5, 5, 5))
        committed = self.random.random() < 0.6
        response = await self.call(EndTxnRequest(transactional_id, producer_id, epoch, committed), version)
        outcome = [response.error_code]
        if version >= 5:
            outcome += [self._id(response.producer_id), response.producer_epoch]
            if not response.error_code and session.producer_id == producer_id:
                session.producer_id, session.epoch = response.producer_id, response.producer_epoch
                session.next_sequence.clear()
        self._note(f"{session.name} end {version} {committed} {epoch} {self._id(producer_id)}", outcome)
        await self._settle()

    async def _describe(self) -> None:
        ids = (self.sessions[0].transactional_id or "", self.sessions[2].transactional_id or "", "")
        response = await self.call(DescribeTransactionsRequest(ids), 0)
        found = []
        for one in response.transaction_states:
            places = sorted(
                (topic.topic, self._place(index) if topic.topic == self.names.topic else index)
                for topic in one.topics
                for index in topic.partitions
            )
            open_ = one.transaction_start_time_ms > 0
            producer_id = -1 if one.error_code else self._id(one.producer_id)
            numbers = (one.transaction_timeout_ms, open_, producer_id, one.producer_epoch)
            found.append((one.error_code, one.transaction_state, *numbers, places))
        self._note("describe", found)

    async def _describe_producers(self) -> None:
        partition = self._partition()
        request = DescribeProducersRequest((DescribeProducersTopic(self.names.topic, (partition,)),))
        found = (await self.call(request, 0)).topics[0].partitions[0]
        start = self._starts[partition]
        # The log of a real broker also has producers of earlier sequences.
        rows = sorted(
            (
                self._ids[one.producer_id],
                one.producer_epoch,
                one.last_sequence,
                one.coordinator_epoch,
                one.current_txn_start_offset - start if one.current_txn_start_offset >= 0 else -1,
            )
            for one in found.active_producers
            if one.producer_id in self._ids
        )
        self._note(f"describe producers {self._place(partition)}", (found.error_code, rows))

    async def _write_marker(self) -> None:
        """End a producer's transaction in one partition, as an administrator does if it hangs."""
        session, partition = self._session(), self._partition()
        if session.producer_id < 0 or session.transactional_id is None:
            return
        # A marker with a later epoch would fence the coordinator, whose transaction would not end in Kafka.
        epoch = max(session.epoch - (self.random.random() < 0.2), 0)
        committed, coordinator_epoch = self.random.random() < 0.5, 0 if self.random.random() < 0.8 else -1
        topics = (WritableTxnMarkerTopic(self.names.topic, (partition,)),)
        marker = WritableTxnMarker(session.producer_id, epoch, committed, topics, coordinator_epoch)
        (result,) = (await self.call(WriteTxnMarkersRequest((marker,)), 1)).markers
        what = f"{self._place(partition)} {epoch} {committed} {coordinator_epoch} {self._id(result.producer_id)}"
        self._note(f"{session.name} marker {what}", result.topics[0].partitions[0].error_code)

    async def _list(self) -> None:
        states = self.random.choice(((), ("Ongoing",), ("Empty", "CompleteCommit"), ("CompleteAbort", "Nonsense"), ("Dead",)))
        pattern = self.random.choice((f"{self.names.prefix}-.*", f"{self.names.prefix}-a", f"{self.names.prefix}-[b-z]"))
        response = await self.call(ListTransactionsRequest(states, (), -1, pattern), 2)
        rows = sorted((one.transactional_id, one.transaction_state) for one in response.transaction_states)
        self._note(f"list {states}", (response.error_code, sorted(response.unknown_state_filters), rows))

    async def _read_offsets(self) -> None:
        stable = self.random.random() < 0.7
        wanted = OffsetFetchRequestTopics(self.names.topic, partition_indexes=(self.names.partitions[0],))
        group = OffsetFetchRequestGroup(group_id=self.names.group, topics=(wanted,))
        response = await self.call(OffsetFetchRequest(groups=(group,), require_stable=stable), 9)
        found = response.groups[0]
        rows = [(row.committed_offset, row.error_code) for topic in found.topics for row in topic.partitions]
        self._note(f"offset {stable}", (found.error_code, rows))

    async def _end_offset(self, partition: int, *, committed: bool) -> int:
        request = ListOffsetsRequest(
            -1,
            _READ_COMMITTED if committed else 0,
            (ListOffsetsTopic(self.names.topic, (ListOffsetsPartition(partition, timestamp=_LATEST),)),),
        )
        for _ in range(_MOST_NAPS):
            response = (await self.call(request, 7)).topics[0].partitions[0]
            if not response.error_code:
                return int(response.offset)
            await asyncio.sleep(self.nap_s)  # A new topic has no leader yet.
        raise AssertionError(f"partition {partition} has no end: {response}")

    async def _stable_end(self) -> None:
        ends = []
        for partition in self.names.partitions:
            for committed in (True, False):
                ends.append(await self._end_offset(partition, committed=committed) - self._starts[partition])
        self._note("ends", ends)

    async def _expire(self) -> None:
        """Let the coordinator abort a transaction, which takes a broker's interval of checks."""
        session = self.sessions[0]
        while await self._init_producer(session, 1, 5, None) == error_codes.CONCURRENT_TRANSACTIONS:
            continue
        batch = producer_batch(1, session.producer_id, session.epoch, 0, transactional=True)
        data = (TopicProduceData(self.names.topic, (PartitionProduceData(self.names.partitions[0], batch),)),)
        response = (await self.call(ProduceRequest(session.transactional_id, -1, 10_000, data), 12)).responses[0]
        self._note("open", response.partition_responses[0].error_code)
        # Another open transaction must not end, so only this one may be open; its own time-out is long.
        await self._settle_one(session)
        await self._describe()
        while await self._init_producer(session, LONG_MS, 5, None) == error_codes.CONCURRENT_TRANSACTIONS:
            continue

    async def _settle_one(self, session: Session) -> None:
        for _ in range(_MOST_NAPS):
            request = DescribeTransactionsRequest((session.transactional_id or "",))
            state = (await self.call(request, 0)).transaction_states[0].transaction_state
            if state not in (*_UNSETTLED, "Ongoing"):
                return
            await asyncio.sleep(self.nap_s)
        raise AssertionError(f"the transaction of {session} does not end")

    async def _read_log(self, partition: int) -> None:
        """Note the batches of this sequence, and the aborted transactions."""
        start = position = self._starts[partition]
        batches: list[Any] = []
        aborted: set[tuple[int, int]] = set()
        stable = start + 1
        while position < stable:
            wanted = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=1 << 24)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 24,
                isolation_level=_READ_COMMITTED,
                topics=(FetchTopic(topic=self.names.topic, partitions=(wanted,)),),
            )
            data = (await self.call(request, 11)).responses[0].partitions[0]
            stable = data.last_stable_offset
            for header in read_headers(data.records or b""):
                producer = (self._id(header.producer_id), header.producer_epoch, header.base_sequence)
                kind = (header.count, header.transactional, header.control)
                batches.append((header.base_offset - start, *producer, *kind))
                position = header.base_offset + header.last_offset_delta + 1
            aborted.update((self._id(one.producer_id), one.first_offset - start) for one in data.aborted_transactions or ())
        ends = (data.last_stable_offset - start, data.high_watermark - start)
        self._note(f"log {self._place(partition)}", (batches, sorted(aborted), ends))


def _known(code: int) -> int:
    """Return INVALID_TXN_STATE for TRANSACTION_ABORTABLE.

    Which of the two a producer of Kafka gets for a partition outside of its transaction does not depend on the version of its
    own request, but on that of the first of all requests that the broker verifies together.
    """
    return error_codes.INVALID_TXN_STATE if code == error_codes.TRANSACTION_ABORTABLE else code


def first_difference(theirs: list[Outcome], mine: list[Outcome]) -> str | None:
    """Return the first outcome that differs, with the moves before it; None if all are equal."""
    for index, (one, other) in enumerate(zip(theirs, mine, strict=False)):
        if one != other:
            before = "\n".join(f"    {what}: {outcome}" for what, outcome in theirs[max(index - 40, 0) : index])
            return f"step {index}:\n{before}\n  Kafka {one}\n  ours  {other}"
    return None if len(theirs) == len(mine) else f"{len(theirs)} outcomes of Kafka, {len(mine)} of ours"


def codes_seen(outcomes: list[Outcome]) -> Mapping[str, set[int]]:
    """Return the kind of each move -> the error codes of its outcomes."""
    seen: dict[str, set[int]] = {}
    for what, outcome in outcomes:
        words = what.split()
        kinds = ("init", "add", "produce", "commit", "end", "offset", "open", "marker")
        kind = next((word for word in words if word in kinds), words[0])
        first = outcome[0] if isinstance(outcome, (tuple, list)) and outcome else outcome
        if isinstance(first, int):
            seen.setdefault(kind, set()).add(first)
    return seen
