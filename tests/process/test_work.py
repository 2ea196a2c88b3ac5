"""The state of a ``process`` against a naive model, and the faults of Java's Parallel Consumer and its fork."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumer_coord.finished_offsets_text import decode
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.process.work import Order, Record, Work
from consumer_coord.topic_partition import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
KEYS = (None, b"a", b"b", b"c")


@attrs.frozen
class FakeMessage:
    """A record as the work reads it."""

    at: int
    name: bytes | None
    size: int = 10

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.name

    def leader_epoch(self) -> int:
        return 3

    def __len__(self) -> int:
        return self.size


def work(
    order: str = "key",
    *,
    concurrency: int = 4,
    most_records: int = 10_000,
    most_bytes: int = 1 << 30,
    metadata_bytes: int = 4096,
    most_together: int = 1,
    fill_s: float = 0.0,
) -> Work:
    return Work(
        Order(order),
        concurrency=concurrency,
        most_records=most_records,
        most_bytes=most_bytes,
        metadata_bytes=metadata_bytes,
        retry_share=0.3,
        most_together=most_together,
        fill_s=fill_s,
    )


def messages(*offsets: int, key: bytes | None = b"a") -> list[FakeMessage]:
    return [FakeMessage(offset, key) for offset in offsets]


def start_all(one: Work, now: float = 0.0) -> list[Record]:
    found = []
    while (record := one.next(now)) is not None:
        found.append(record)
    return found


def offsets(records: Sequence[Record]) -> list[int]:
    return [record.offset for record in records]


def finished_above(at: OffsetAndMetadata) -> set[int]:
    return {offset for first, end in decode(at.metadata, at.offset, 1 << 62) for offset in range(first, end)}


def together(record: Record) -> tuple[Record, ...]:
    """Return the records that one call of the handler has."""
    return (record, *record.rest)


class AgainstAModel(RuleBasedStateMachine):
    """Deliveries with gaps, handlers that end in any order, and partitions that come and go."""

    order = "key"
    #: The most records in one call, and how long a call waits for them.
    most_together, fill_s = 1, 0.0
    #: The partition of a retry topic, and how long its records wait.
    retries, delay_s = P1, 5.0

    def __init__(self) -> None:
        super().__init__()
        self.work = work(self.order, most_together=self.most_together, fill_s=self.fill_s)
        self.now = 100.0
        #: Partition -> offset -> when the record may start, in a retry topic.
        self.due: dict[TopicPartition, dict[int, float]] = {}
        #: Partition -> the next offset of its log, the number of its holding, and what was delivered and finished in it.
        self.log = {P0: 0, P1: 0}
        self.number = 0
        self.delivered: dict[TopicPartition, dict[int, bytes | None]] = {}
        self.finished: dict[TopicPartition, set[int]] = {}
        self.running: list[Record] = []

    @rule(partition=st.sampled_from((P0, P1)), start=st.integers(0, 5), known=st.booleans())
    def take_over(self, partition: TopicPartition, start: int, known: bool) -> None:
        if partition not in self.delivered:
            self.number += 1
            self.log[partition] = start
            at = None if known else OffsetAndMetadata(start, 0, "of a former owner")
            self.work.begin(partition, self.number, start, at, again=partition == self.retries)
            self.delivered[partition], self.finished[partition], self.due[partition] = {}, set(), {}

    @rule(partition=st.sampled_from((P0, P1)), data=st.data())
    def learn_what_is_finished(self, partition: TopicPartition, data: st.DataObject) -> None:
        holding = self.work.holdings.get(partition)
        if holding is not None and holding.pending is not None:
            delivered = sorted(self.delivered[partition])[1:]
            found = sorted(data.draw(st.sets(st.sampled_from(delivered)))) if delivered else []
            self.work.know_finished(holding, [(offset, offset + 1) for offset in found])
            self.finished[partition] |= set(found)

    @rule(partition=st.sampled_from((P0, P1)), keys=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 3)), max_size=8))
    def deliver(self, partition: TopicPartition, keys: list[tuple[bytes | None, int]]) -> None:
        if partition not in self.delivered or not keys:
            return
        batch = []
        for key, step in keys:
            self.log[partition] += step
            batch.append(FakeMessage(self.log[partition], key))
            self.delivered[partition][self.log[partition]] = key
            if partition == self.retries:
                self.due[partition][self.log[partition]] = self.now + self.delay_s
        due = self.due[partition]
        schedule = (lambda message: (due[message.offset()], 1)) if partition == self.retries else None
        self.work.deliver(self.work.holdings[partition], batch, self.now, schedule)

    @rule(seconds=st.sampled_from((0.0, 0.0, 0.5, 3.0)))
    def start(self, seconds: float) -> None:
        self.now += seconds
        started = start_all(self.work, self.now)
        assert not any(record.holding.draining for record in started)
        for record in started:
            assert len(record.rest) < self.most_together
            assert all(self.due[one.holding.partition].get(one.offset, 0.0) <= self.now for one in together(record))
        self.running += started
        next_due = self.work.next_due()
        assert next_due is None or next_due > self.now or len(self.running) == self.work.concurrency

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3), how=st.sampled_from(("finish", "finish", "skip", "retry")))
    def end_a_handler(self, which: int, how: str) -> None:
        record = self.running.pop(which % len(self.running))
        counts, ended = not record.holding.ended, {one.offset for one in together(record)}
        if how == "finish":
            assert self.work.finish(record) is counts
        elif how == "skip":
            assert self.work.skip(record) is counts
        else:
            assert self.work.retry(record, self.now) is counts
        if counts and how in ("finish", "skip"):
            self.finished[record.holding.partition] |= ended

    @rule(partition=st.sampled_from((P0, P1)))
    def begin_to_revoke_or_keep(self, partition: TopicPartition) -> None:
        holding = self.work.holdings.get(partition)
        if holding is not None and holding.draining:
            self.work.resume(holding)
        elif holding is not None:
            self.work.drain(holding)

    @rule(partition=st.sampled_from((P0, P1)))
    def lose(self, partition: TopicPartition) -> None:
        assert all(record in self.running for record in self.work.end(partition, "lost"))
        self.delivered.pop(partition, None)
        self.finished.pop(partition, None)

    @invariant()
    def no_more_handlers_than_slots(self) -> None:
        assert set(self.running) == self.work.running
        assert len(self.running) <= self.work.concurrency

    @invariant()
    def handlers_are_in_order(self) -> None:
        """One per key, also across holdings, and never after an unfinished record of the same key."""
        lanes = [lane for record in self.running if (lane := self.lane(record)) is not None]
        assert len(lanes) == len(set(lanes))
        for record in self.running:
            partition, offsets_together = record.holding.partition, {one.offset for one in together(record)}
            assert len({self.lane(one) for one in together(record)}) == 1
            if self.lane(record) is not None and not record.holding.ended:
                up_to_the_last = {
                    offset
                    for offset, key in self.delivered[partition].items()
                    if offset <= max(offsets_together) and (self.order == "partition" or key == record.message.key())
                }
                assert up_to_the_last <= self.finished[partition] | offsets_together

    def lane(self, record: Record) -> tuple[TopicPartition, bytes | None] | None:
        partition, key = record.holding.partition, record.message.key()
        if self.order == "partition":
            return partition, None
        return None if self.order == "none" or key is None else (partition, key)

    @invariant()
    def the_commit_is_the_lowest_unfinished_offset(self) -> None:
        for partition, delivered in self.delivered.items():
            left = delivered.keys() - self.finished[partition]
            if (waits_with := self.work.holdings[partition].committed) is not None:
                assert self.work.to_commit(self.work.holdings[partition]) == waits_with
                continue
            at = self.work.to_commit(self.work.holdings[partition])
            assert (at.offset if at is not None else None) == min(left, default=None)
            if at is not None:
                above = finished_above(at)
                assert above.isdisjoint(left)
                assert {offset for offset in self.finished[partition] if offset > at.offset} <= above
                assert not above or max(above) <= max(delivered)

    @invariant()
    def nothing_is_kept_of_what_ended(self) -> None:
        kept = sum(len(holding.unfinished) for holding in self.work.holdings.values())
        assert kept == sum(len(self.delivered[one].keys() - self.finished[one]) for one in self.delivered)

    def teardown(self) -> None:
        """Everything that was delivered can be finished."""
        for holding in self.work.holdings.values():
            if holding.draining:
                self.work.resume(holding)
            if holding.pending is not None:
                self.work.know_finished(holding, ())
        for _ in range(10_000):
            self.running += start_all(self.work, self.now)
            if self.running:
                record = self.running.pop(0)
                ended = {one.offset for one in together(record)}
                if self.work.finish(record):
                    self.finished[record.holding.partition] |= ended
            elif (due := self.work.next_due()) is not None:
                self.now = due
            else:
                break
        assert all(self.delivered[one].keys() == self.finished[one] for one in self.delivered)


class ByPartition(AgainstAModel):
    order = "partition"


class WithoutOrder(AgainstAModel):
    order = "none"


class Batches(AgainstAModel):
    most_together, fill_s = 3, 2.0


class BatchesByPartition(Batches):
    order = "partition"


class BatchesWithoutOrder(Batches):
    order = "none"
    fill_s = 0.0


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBatchesByPartition = BatchesByPartition.TestCase
TestBatchesByPartition.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestBatchesWithoutOrder = BatchesWithoutOrder.TestCase
TestBatchesWithoutOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestByKey = AgainstAModel.TestCase
TestByKey.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestByPartition = ByPartition.TestCase
TestByPartition.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestWithoutOrder = WithoutOrder.TestCase
TestWithoutOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_key_with_many_records_delays_another_by_one_handler() -> None:
    one = work(concurrency=1)
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, messages(*range(100), key=b"hot"))
    one.deliver(holding, messages(100, key=b"cold"))
    (first,) = start_all(one)
    one.finish(first)
    assert [first.offset, *offsets(start_all(one))] == [0, 100]


def test_unordered_records_take_turns_with_keys() -> None:
    one = work(concurrency=1)
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, messages(*range(100), key=None))
    one.deliver(holding, messages(100, key=b"cold"))
    seen = []
    for _ in range(3):
        (record,) = start_all(one)
        one.finish(record)
        seen.append(record.offset)
    assert seen == [0, 100, 1]


def test_null_keys_are_handled_at_the_same_time() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 0), messages(0, 1, 2, key=None))
    assert offsets(start_all(one)) == [0, 1, 2]


def test_a_partition_that_comes_back_waits_for_its_former_handlers() -> None:
    """And a fresh record at an offset that a former handler still works on is not dropped: the fault 31 of Java's fork."""
    one = work()
    one.deliver(one.begin(P0, 1, 5), messages(5))
    (former,) = start_all(one)
    assert list(one.end(P0, "revoked")) == [former]
    one.deliver(one.begin(P0, 2, 5), messages(5))
    assert start_all(one) == []
    assert not one.finish(former), "the former ownership is over"
    (fresh,) = start_all(one)
    assert fresh.offset == 5
    assert one.to_commit(one.holdings[P0]) == OffsetAndMetadata(5, 3)
    assert one.finish(fresh)
    assert one.to_commit(one.holdings[P0]) is None


def test_a_result_of_a_former_holding_changes_no_offset() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 0), messages(0, key=None))
    (former,) = start_all(one)
    one.end(P0, "lost")
    one.deliver(one.begin(P0, 2, 0), messages(0, 1, key=None))
    one.finish(former)
    assert one.to_commit(one.holdings[P0]) == OffsetAndMetadata(0, 3)
    assert one.held(P0, 1) is None


def test_the_offset_and_its_metadata_are_one_value() -> None:
    """121 of Java's fork: the offset was computed a second time after its metadata, and records had finished in between."""
    one = work()
    one.deliver(one.begin(P0, 1, 0), [FakeMessage(at, None) for at in range(4)])
    records = start_all(one)
    one.finish(records[2])
    at = one.to_commit(one.holdings[P0])
    one.finish(records[0])
    assert at is not None
    assert (at.offset, finished_above(at)) == (0, {2})
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    assert (at.offset, finished_above(at)) == (1, {2})


def test_the_log_may_start_above_zero_and_have_gaps() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 400), messages(403, 407, 409, key=None))
    first, second, third = start_all(one)
    one.finish(second)
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    # A gap that was passed counts as passed, as in any commit behind it.
    assert (at.offset, finished_above(at)) == (403, {404, 405, 406, 407, 408})
    one.finish(first)
    one.finish(third)
    assert one.to_commit(one.holdings[P0]) is None


def test_what_a_former_owner_finished_is_not_handled_again() -> None:
    one = work()
    holding = one.begin(P0, 1, 10)
    one.know_finished(holding, ((11, 13), (14, 20)))
    one.deliver(holding, messages(10, 11, 12, 13, 14, key=None))
    ten, thirteen = start_all(one)
    assert offsets([ten, thirteen]) == [10, 13]
    assert one.finish(ten)
    assert one.finish(thirteen)
    at = one.to_commit(one.holdings[P0])
    assert at == OffsetAndMetadata(20), "the predecessor has also finished what was not delivered yet"
    one.deliver(holding, messages(*range(15, 22), key=None))
    assert offsets(start_all(one)) == [20, 21]
    assert one.found_finished == 8


def test_what_a_former_owner_finished_travels_on() -> None:
    one = work()
    holding = one.begin(P0, 1, 10)
    one.know_finished(holding, ((11, 13), (20, 30), (40, 50)))
    one.deliver(holding, messages(10, 11, 12, key=None))
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    assert (at.offset, finished_above(at)) == (10, {11, 12, *range(20, 30), *range(40, 50)})
    one.deliver(holding, messages(13, 25, key=None))
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    assert (at.offset, finished_above(at)) == (10, {11, 12, *range(14, 30), *range(40, 50)})


def test_nothing_starts_and_nothing_else_is_committed_before_the_finished_offsets_are_known() -> None:
    one = work()
    committed = OffsetAndMetadata(10, 2, "of the former owner")
    holding = one.begin(P0, 1, 10, committed)
    one.deliver(holding, messages(10, 11, 12))
    assert start_all(one) == []
    assert one.to_commit(one.holdings[P0]) == committed
    one.know_finished(holding, ((11, 12),))
    (ten,) = start_all(one)
    one.finish(ten)
    assert offsets(start_all(one)) == [12]


def test_a_key_has_one_lane_after_its_first_record_was_found_finished() -> None:
    one = work()
    holding = one.begin(P0, 1, 10, OffsetAndMetadata(10, 2, "x"))
    one.deliver(holding, [*messages(10, key=b"b"), *messages(11, 12)])
    one.know_finished(holding, ((11, 12),))
    one.deliver(holding, messages(13))
    assert offsets(start_all(one)) == [10, 12]


def test_a_key_has_one_lane_after_its_partition_was_kept() -> None:
    one = work()
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, messages(0, 1))
    one.drain(holding)
    assert start_all(one) == []
    one.resume(holding)
    one.deliver(holding, messages(2))
    assert offsets(start_all(one)) == [0]


def test_a_pending_holding_that_ends_leaves_nothing() -> None:
    one = work()
    holding = one.begin(P0, 1, 10, OffsetAndMetadata(10, 2, "x"))
    one.deliver(holding, messages(10, 11))
    one.end(P0, "lost")
    one.know_finished(holding, ())
    assert start_all(one) == []


def test_after_the_end_of_a_lease_a_record_that_this_member_keeps_is_handled_again() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 0), messages(0, 1))
    (record,) = start_all(one)
    assert list(one.disregard("timeout")) == [record]
    assert list(one.disregard("timeout")) == []
    assert not one.finish(record)
    assert one.to_commit(one.holdings[P0]) == OffsetAndMetadata(0, 3)
    assert offsets(start_all(one)) == [0]


def test_a_partition_that_is_revoked_starts_nothing_and_goes_on_if_it_is_kept() -> None:
    one = work()
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, [*messages(0, 1), *messages(2, key=b"b")])
    first, other = start_all(one)
    one.retry(other, due=5.0)
    one.drain(holding)
    assert one.busy(holding)
    one.finish(first)
    assert not one.busy(holding)
    assert start_all(one, now=9.0) == []
    at = one.to_commit(holding)
    assert at is not None
    assert at.offset == 1
    one.resume(holding)
    assert offsets(start_all(one)) == [1, 2]


def test_the_handlers_of_a_revoked_partition_have_a_time_limit() -> None:
    one = work()
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, messages(0, 1))
    (record,) = start_all(one)
    one.drain(holding)
    assert list(one.expire(holding, "revoked")) == [record]
    assert not one.busy(holding), "its result no longer counts"
    assert not one.finish(record)
    assert one.to_commit(holding) == OffsetAndMetadata(0, 3)
    assert start_all(one) == []


def test_nothing_starts_without_a_lease() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 0), messages(0))
    one.suspended = True
    assert start_all(one) == []
    one.suspended = False
    assert offsets(start_all(one)) == [0]


def test_a_failed_record_stays_unfinished_and_its_key_never_goes_on() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 0), [*messages(0, 1), *messages(2, key=b"b")])
    first, other = start_all(one)
    assert one.fail(first)
    assert one.finish(other)
    assert start_all(one) == []
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    assert at.offset == 0
    # The next ownership of the partition begins anew.
    one.end(P0, "revoked")
    one.deliver(one.begin(P0, 2, 0), messages(0))
    assert offsets(start_all(one)) == [0]


def test_a_retry_holds_no_slot_and_delays_its_own_key_alone() -> None:
    one = work(concurrency=1)
    one.deliver(one.begin(P0, 1, 0), [*messages(0, 1), *messages(2, key=b"b")])
    (first,) = start_all(one)
    one.retry(first, due=10.0)
    assert one.next_due() == 10.0
    (other,) = start_all(one, now=5.0)
    assert other.offset == 2
    one.finish(other)
    assert start_all(one, now=9.9) == []
    (again,) = start_all(one, now=10.0)
    assert (again.offset, again.attempt) == (0, 2)
    one.finish(again)
    assert offsets(start_all(one, now=10.0)) == [1]


def test_retries_take_a_share_of_the_slots_while_other_records_wait() -> None:
    one = work(concurrency=10)
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, messages(*range(10), key=None))
    for record in start_all(one):
        one.retry(record, due=1.0)
    one.deliver(holding, messages(*range(10, 30), key=None))
    assert sum(record.attempt == 2 for record in start_all(one, now=1.0)) == 3
    for record in list(one.running):
        one.finish(record)
    # The last fresh records start; retries may then take all slots.
    assert len(one.running) == 0
    for _ in range(10):
        for record in start_all(one, now=1.0):
            one.finish(record)
    assert one.to_commit(one.holdings[P0]) is None


def test_a_retry_of_a_partition_that_ended_never_starts() -> None:
    one = work()
    one.deliver(one.begin(P0, 1, 0), messages(0, 1))
    (record,) = start_all(one)
    one.retry(record, due=1.0)
    one.end(P0, "revoked")
    assert one.next_due() is None
    assert start_all(one, now=2.0) == []
    one.deliver(one.begin(P0, 2, 0), messages(0))
    assert offsets(start_all(one)) == [0]


@pytest.mark.parametrize(("most_records", "most_bytes"), [(20, 1 << 30), (10_000, 20 * 600)])
def test_a_partition_beyond_its_share_is_not_read(most_records: int, most_bytes: int) -> None:
    one = work(most_records=most_records, most_bytes=most_bytes)
    first, other = one.begin(P0, 1, 0), one.begin(P1, 2, 0)
    one.deliver(first, [FakeMessage(at, None, 100) for at in range(9)])
    assert one.room() is None
    one.deliver(first, [FakeMessage(9, None, 100)])
    one.deliver(other, [FakeMessage(0, None, 100)])
    assert one.room() == frozenset({P1})
    records = [record for record in start_all(one) if record.holding is first]
    for record in records[:3]:
        one.finish(record)
    assert one.room() == frozenset({P1}), "it is read again when it has shrunk to half"
    for record in [record for record in start_all(one) if record.holding is first]:
        one.finish(record)
    assert one.room() is None


def test_a_partition_whose_finished_offsets_fill_the_metadata_is_not_read() -> None:
    """Each handler that finishes above the lowest unfinished offset must find room in the next commit."""
    one = work(metadata_bytes=80, concurrency=1000)
    holding = one.begin(P0, 1, 0)
    count = 0
    while one.room() is None:
        one.deliver(holding, messages(*range(count, count + 10), key=None))
        count += 10
    assert 8 * 40 < count < 8 * 60
    for record in start_all(one):
        if record.offset % 2:
            one.finish(record)
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    assert len(at.metadata) <= 80
    # What was delivered by the batch that exceeded the bound may be cut off.
    assert set(range(1, count - 30, 2)) <= finished_above(at) <= set(range(1, count, 2))


def test_a_rejected_length_lowers_the_bound() -> None:
    one = work(metadata_bytes=4096, concurrency=1000)
    one.deliver(one.begin(P0, 1, 0), messages(*range(1000), key=None))
    for record in start_all(one):
        if record.offset % 2:
            one.finish(record)
    at = one.to_commit(one.holdings[P0])
    assert at is not None
    one.lower_metadata(len(at.metadata))
    again = one.to_commit(one.holdings[P0])
    assert again is not None
    assert 0 < len(again.metadata) <= len(at.metadata) // 2
    assert again.offset == at.offset


@given(st.lists(st.integers(0, 50), unique=True, max_size=30))
def test_lanes_are_forgotten(order: list[int]) -> None:
    one = work(concurrency=1000)
    one.deliver(one.begin(P0, 1, 0), [FakeMessage(at, str(at % 7).encode()) for at in range(51)])
    while records := start_all(one):
        for record in records:
            one.finish(record)
    assert one.lanes == 0


def test_a_call_waits_for_more_records_and_no_longer_than_it_may() -> None:
    one = work("partition", most_together=3, fill_s=2.0)
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, messages(0, 1))
    assert start_all(one, 10.0) == []
    assert one.next_due() == 12.0
    one.deliver(holding, messages(2, 3))
    (full,) = start_all(one, 11.0)
    assert offsets(together(full)) == [0, 1, 2]
    one.finish(full)
    assert start_all(one, 11.5) == []
    assert start_all(one, 13.4) == []
    (short,) = start_all(one, 13.5)
    assert offsets(together(short)) == [3]


def test_records_of_one_call_are_handled_again_together() -> None:
    one = work("partition", most_together=3)
    one.deliver(one.begin(P0, 1, 0), messages(0, 1, 2, 3))
    (first,) = start_all(one)
    one.retry(first, 5.0)
    assert start_all(one, 4.0) == []
    (again,) = start_all(one, 5.0)
    assert (offsets(together(again)), again.attempt) == ([0, 1, 2], 2)
    assert one.to_commit(one.holdings[P0]) == OffsetAndMetadata(0, 3)
    one.finish(again)
    assert (one.handled, one.retried, offsets(start_all(one, 5.0))) == (3, 3, [3])


def test_a_record_of_a_retry_topic_starts_when_it_is_due_and_its_partition_is_not_read_before() -> None:
    one = work()
    again = one.begin(P1, 1, 0, again=True)
    one.deliver(again, messages(0, 1), 0.0, lambda message: (60.0 + message.offset(), 1))
    one.deliver(one.begin(P0, 2, 0), messages(0))
    (fresh,) = start_all(one, 1.0)
    assert fresh.holding.partition == P0
    assert (one.room(), one.crowded, one.next_due()) == (frozenset({P0}), False, 60.0)
    (due,) = start_all(one, 60.5)
    assert (due.holding.partition, due.offset, due.earlier) == (P1, 0, 1)
    one.finish(due)
    assert offsets(start_all(one, 61.0)) == [1]
    assert one.room() is None


def test_records_of_a_retry_topic_take_their_part_of_the_slots_while_others_wait() -> None:
    one = work(concurrency=10)
    one.deliver(one.begin(P1, 1, 0, again=True), messages(*range(20), key=None), 0.0, lambda _: (5.0, 1))
    one.deliver(one.begin(P0, 2, 0), messages(*range(8), key=None))
    started = start_all(one, 5.0)
    assert sum(record.holding.again for record in started) == 3
    for record in started:
        if not record.holding.again:
            one.finish(record)
    assert all(record.holding.again or record.offset == 7 for record in start_all(one, 5.0))
    assert len(one.running) == 10
