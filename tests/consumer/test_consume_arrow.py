"""`consume_arrow` for a member of a group, on the embedded Kafka: black-box tests of the columns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow as pa
import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer, confluent
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.columns import KERNEL, ArrowColumns, UnreadableRecordError
from consumer_coord.config import parse
from consumer_coord.confluent import Message
from consumer_coord.consumer import arrow_reads, thread_waits
from consumer_coord.consumer.arrow_reads import Bounds
from consumer_coord.consumer.partitions import Partition, Phase
from consumer_coord.consumer.reading.chunks import Decoding
from consumer_coord.errors import ConcurrentUseError, ConfigurationError, IllegalStateError, NoOffsetError, WakeupError
from consumer_coord.fetch import FetchedRecords, Fetcher
from consumer_coord.leaders.list_offsets import Listed, ListedOffset
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from tests.support.consumer.embedded import BROKER, DEADLINE_S, consumer, produce, row
from tests.support.consumer.signal_points import interrupted
from tests.support.environments import needs_librdkafka
from tests.support.waiting import eventually
from tests.support.white_box import coordinator_of, data_plane, turns_of

COUNT = 50
PROTOCOLS = ({"strategy": "cooperative-sticky"}, {"strategy": "range"}, {"group_protocol": "consumer"})
Pair = tuple[int, int]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(config=BROKER, topics={"orders": 4}) as running:
        produce(running, "orders", {number: range(COUNT) for number in range(4)})
        yield running


def member(kafka: EmbeddedKafka, **settings: Any) -> GroupConsumer:
    """Return a consumer; with the consumer protocol it has no settings of the classic one."""
    if settings.get("group_protocol") == "consumer":
        return GroupConsumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
    return consumer(kafka, **settings)


def pairs(batch: ArrowColumns) -> list[Pair]:
    """Return (partition, offset) of each record."""
    read = pa.record_batch(batch)
    return list(zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True))


def at(message: Message) -> Pair:
    """Return (partition, offset) of a message without an error."""
    partition, offset = message.partition(), message.offset()
    assert message.error() is None
    assert partition is not None
    assert offset is not None
    return partition, offset


def read(members: Sequence[GroupConsumer], until: Callable[[list[Pair]], bool], **limits: Any) -> list[Pair]:
    """Let members read in turn until a condition holds for all records received."""
    found: list[Pair] = []
    ends = time.monotonic() + DEADLINE_S
    while not until(found):
        assert time.monotonic() < ends, f"only {len(found)} records arrived"
        for one in members:
            found += pairs(one.consume_arrow(timeout=0.05, **limits))
    return found


def offset_of(kafka: EmbeddedKafka, partition: int) -> int:
    """Return the group's committed offset."""
    with consumer(kafka) as other:
        (found,) = other.committed([row(partition)], DEADLINE_S)
        return max(0, int(found.offset))


ALL = [(partition, offset) for partition in range(4) for offset in range(COUNT)]


def test_records_come_as_columns_once_and_in_order(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        found = read([one], lambda them: len(them) >= len(ALL), max_records=7)
        assert sorted(found) == ALL
        for partition in range(4):
            assert [offset for number, offset in found if number == partition] == list(range(COUNT))
        assert len(one.consume_arrow(timeout=0)) == 0


def test_only_the_chosen_columns_are_built(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        batch = one.consume_arrow(timeout=DEADLINE_S, columns=["value", "topic"])
        assert pa.record_batch(batch).schema.names == ["value", "topic"]
        with pytest.raises(ConfigurationError, match="there is no column 'price'"):
            one.consume_arrow(columns=["price"])
        with pytest.raises(ValueError, match="at least 1"):
            one.consume_arrow(0)


@pytest.mark.parametrize("settings", PROTOCOLS)
def test_a_hand_over_loses_and_doubles_nothing(kafka: EmbeddedKafka, settings: dict[str, Any]) -> None:
    with member(kafka, **settings) as first, member(kafka, **settings) as second:
        first.subscribe(["orders"])
        found = read([first], lambda them: len(them) >= 30, max_records=3)
        second.subscribe(["orders"])
        found += read([first, second], lambda _: len(first.assignment()) == 2 and len(second.assignment()) == 2, max_records=1)
        found += read([first, second], lambda them: len(found) + len(them) >= len(ALL), max_records=11)
        assert Counter(found) == Counter(ALL)


def test_automatic_commits_cover_finished_batches_only(kafka: EmbeddedKafka) -> None:
    def fail() -> None:
        with consumer(kafka) as one:
            one.assign([row(0, 0)])
            assert len(one.consume_arrow(10, timeout=DEADLINE_S)) == 10
            assert len(one.consume_arrow(5, timeout=DEADLINE_S)) == 5
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert offset_of(kafka, 0) == 10
    with consumer(kafka) as one:
        one.assign([row(0)])
        # Without an offset, the partition starts at the committed offset.
        assert pairs(one.consume_arrow(5, timeout=DEADLINE_S))[0] == (0, 10)
    assert offset_of(kafka, 0) == 15


def test_a_batch_is_committed_with_its_positions(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        first = one.consume_arrow(60, timeout=DEADLINE_S)
        one.consume_arrow(60, timeout=DEADLINE_S)
        rows = one.commit(first, asynchronous=False)
        assert rows is not None
        assert {(each.partition, each.offset) for each in rows} == {(at.partition, end) for at, end in first.positions.items()}
    for at, end in first.positions.items():
        assert offset_of(kafka, at.partition) == end


def test_a_batch_of_a_lost_ownership_is_not_committed(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        batch = one.consume_arrow(60, timeout=DEADLINE_S)
        one.unsubscribe()
        one.subscribe(["orders"])
        read([one], lambda them: len(them) >= 10, max_records=10)
        with pytest.raises(confluent.KafkaException):
            one.commit(batch, asynchronous=False)
    assert offset_of(kafka, 0) == 0


def test_an_empty_batch_commits_nothing_and_foreign_columns_are_refused(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.assign([row(0, COUNT)])
        assert one.commit(one.consume_arrow(timeout=0.01), asynchronous=False) == []


def test_pause_seek_and_resume(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.assign([row(0, 0)])
        read([one], bool, max_records=5)
        one.incremental_assign([row(1, 0)])
        one.pause([row(0)])
        assert {at for at, _ in read([one], lambda them: (1, COUNT - 1) in them)} == {1}
        assert one.position([row(1)])[0].offset == COUNT
        stopped = one.position([row(0)])[0].offset
        assert stopped == 5
        one.resume([row(0)])
        assert read([one], lambda them: (0, COUNT - 1) in them) == [(0, at) for at in range(stopped, COUNT)]
        one.seek(row(1, 40))
        assert read([one], lambda them: (1, COUNT - 1) in them) == [(1, at) for at in range(40, COUNT)]
        one.seek(row(1, confluent.OFFSET_BEGINNING))
        assert read([one], lambda them: (1, COUNT - 1) in them) == [(1, at) for at in range(COUNT)]
        one.seek(confluent.TopicPartition("orders", 1, confluent.OFFSET_END))
        assert len(one.consume_arrow(timeout=0.2)) == 0
        produce(kafka, "orders", {1: [1]})
        assert read([one], bool) == [(1, COUNT)]


def test_waiting_records_need_no_step_on_the_loop(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with member(kafka) as one:
        one.subscribe(["orders"])
        first = pairs(one.consume_arrow(1, timeout=DEADLINE_S))
        with monkeypatch.context() as patched:
            patched.setattr(turns_of(one), "on_loop", lambda work: pytest.fail("a step on the loop"))
            second = pairs(one.consume_arrow(1, timeout=DEADLINE_S))
        ((partition, offset),) = second
        assert first == [(partition, offset - 1)]
        one.pause([row(partition)])
        assert all(number != partition for number, _ in pairs(one.consume_arrow(timeout=DEADLINE_S)))
        one.resume([row(partition)])
        assert pairs(one.consume_arrow(1, timeout=DEADLINE_S)) == [(partition, offset + 1)]


def test_a_wait_without_other_work_needs_no_step_on_the_loop(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    # The records, the end of a commit and a wake-up must end the wait, not the end of a slice.
    monkeypatch.setattr(thread_waits, "SLICE_S", 10 * DEADLINE_S)
    committed: list[Any] = []
    with member(kafka, on_commit=lambda error, rows: committed.append(error)) as one:
        one.subscribe(["orders"])
        read([one], lambda got: len(got) == 4 * COUNT)
        assert len(one.consume_arrow(timeout=0.05)) == len(one.consume_arrow(timeout=0.05)) == 0
        with monkeypatch.context() as patched:
            patched.setattr(turns_of(one), "on_loop", lambda work: pytest.fail("a step on the loop"))
            assert len(one.consume_arrow(timeout=0.05)) == 0
        producing = threading.Thread(target=produce, args=(kafka, "orders", {1: [1]}))
        producing.start()
        assert pairs(one.consume_arrow(timeout=DEADLINE_S)) == [(1, COUNT)]
        producing.join()
        one.commit()
        eventually(lambda: committed == [None], step=lambda: one.consume_arrow(timeout=0.05))
        one.wakeup()
        with pytest.raises(WakeupError):
            one.consume_arrow(timeout=DEADLINE_S)


def threads_of_librdkafka() -> int:
    """Return the number of librdkafka's threads in this process."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("counts threads in /proc")
    return sum(name_of(task).startswith("rdk:") for task in tasks.iterdir())


def name_of(task: Path) -> str:
    """Return the name of a thread; an empty name if the thread has ended since its directory was listed."""
    try:
        return (task / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_consumer_of_columns_has_no_thread_of_librdkafka(kafka: EmbeddedKafka) -> None:
    before = threads_of_librdkafka()
    with member(kafka) as one:
        one.subscribe(["orders"])
        read([one], lambda got: len(got) == 4 * COUNT)
        assert threads_of_librdkafka() <= before
        assert set(one.list_topics("orders", timeout=DEADLINE_S).topics) == {"orders"}
        assert one.get_watermark_offsets(row(1), timeout=DEADLINE_S) == (0, COUNT)
        produce(kafka, "orders", {1: [1]})
        assert read([one], bool) == [(1, COUNT)]
    with member(kafka) as never_used_again:
        never_used_again.subscribe(["orders"])
        never_used_again.consume_arrow(timeout=0.05)
        never_used_again.set_sasl_credentials("name", "password")
    gc.collect()
    assert threads_of_librdkafka() <= before


def test_an_asyncio_consumer_of_columns_has_no_thread_of_librdkafka(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        before = threads_of_librdkafka()
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
        async with AsyncGroupConsumer(settings) as one:
            await one.subscribe(["orders"])
            got = 0
            while got < 4 * COUNT:
                got += len(await one.consume_arrow(timeout=DEADLINE_S))
            assert threads_of_librdkafka() <= before
            assert set((await one.list_topics("orders", timeout=DEADLINE_S)).topics) == {"orders"}
            await one.set_sasl_credentials("name", "password")

    asyncio.run(main())


def test_callbacks_of_the_settings_are_called(kafka: EmbeddedKafka) -> None:
    reports: list[str] = []
    with member(kafka, **{"statistics.interval.ms": 50, "stats_cb": reports.append}) as one:
        one.subscribe(["orders"])
        read([one], lambda got: len(got) == 4 * COUNT)
        reports.clear()
        eventually(lambda: len(reports) > 1, step=lambda: one.consume_arrow(timeout=0.05))


def test_messages_and_columns_share_the_positions(kafka: EmbeddedKafka) -> None:
    """Messages that were decoded ahead are delivered as columns, and every record is delivered once."""
    found: list[tuple[int, int]] = []
    reads: list[Callable[[GroupConsumer], Iterable[tuple[int, int]]]] = [
        lambda one: [at(message) for message in [one.poll(0.05)] if message is not None],
        lambda one: pairs(one.consume_arrow(3, timeout=0.05)),
        lambda one: map(at, one.consume(5, 0.05)),
    ]
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        turns = itertools.cycle(reads)
        eventually(lambda: len(found) == len(ALL), step=lambda: found.extend(next(turns)(one)))
        assert sorted(found) == ALL
        for number in range(4):
            offsets = [offset for partition, offset in found if partition == number]
            assert offsets == sorted(offsets)
        assert [each.offset for each in one.position([row(number) for number in range(4)])] == [COUNT] * 4
        one.commit(asynchronous=False)
        assert [each.offset for each in one.committed([row(number) for number in range(4)], 10)] == [COUNT] * 4


@needs_librdkafka
def test_librdkafka_has_no_columns(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        with pytest.raises(IllegalStateError, match=r"librdkafka fetches the records.*librdkafka\.enable"):
            one.consume_arrow(timeout=0)
        assert one.poll(DEADLINE_S) is not None


def test_a_callback_may_not_read(kafka: EmbeddedKafka) -> None:
    caught: list[BaseException] = []

    def on_assign(one: Any, _: Any) -> None:
        try:
            one.consume_arrow(timeout=0)
        except ConcurrentUseError as error:
            caught.append(error)

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        read([one], bool)
        assert len(caught) == 1


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 0), ("latest", COUNT)])
def test_an_offset_out_of_range_follows_the_policy(kafka: EmbeddedKafka, policy: str, expected: int) -> None:
    with consumer(kafka, auto_offset_reset=policy) as one:
        one.assign([row(0, 1_000)])
        batch = one.consume_arrow(1, timeout=1)
        produce(kafka, "orders", {0: [1]})
        assert (pairs(batch) or read([one], bool, max_records=1)) == [(0, expected)]


def test_an_offset_out_of_range_without_a_policy_is_an_error(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, auto_offset_reset="none") as one:
        one.assign([row(0, 1_000)])
        with pytest.raises(NoOffsetError):
            one.consume_arrow(timeout=DEADLINE_S)
        one.seek(row(0, 3))
        assert read([one], bool)[0] == (0, 3)


def test_reading_until_now_ends_by_position(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        found: list[Pair] = []
        for batch in one.arrow_batches(max_records=17):
            if not found:
                produce(kafka, "orders", {0: ["later"]})
            found += pairs(batch)
        assert sorted(found) == ALL
        assert [len(batch) for batch in one.arrow_batches()] == [1]
        assert list(one.arrow_batches()) == []


def test_reading_until_given_offsets(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.assign([row(number, 0) for number in range(4)])
        found = [pair for batch in one.arrow_batches([row(0, 20), row(1, 5)]) for pair in pairs(batch)]
        assert sorted(found) == [(0, at) for at in range(20)] + [(1, at) for at in range(5)]
        assert (0, 20) in read([one], lambda them: len(them) >= len(ALL) - 25)


def test_a_call_after_a_bounded_read_reads_the_other_partitions_again(kafka: EmbeddedKafka) -> None:
    """Also while records of the partition of the bounded read are there, so that nothing makes the call wait."""
    with consumer(kafka) as one:
        one.assign([row(number, 0) for number in range(4)])
        assert [pair for batch in one.arrow_batches([row(0, 5)]) for pair in pairs(batch)] == [(0, at) for at in range(5)]
        assert data_plane(one).assigned == {TopicPartition("orders", 0)}
        assert pairs(one.consume_arrow(1, timeout=DEADLINE_S)) == [(0, 5)]
        assert data_plane(one).assigned == {TopicPartition("orders", number) for number in range(4)}


def test_reading_until_a_time_without_later_records_ends_with_the_log(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.assign([row(number, 0) for number in range(4)])
        in_an_hour = int(time.time() * 1000) + 3_600_000
        until = one.offsets_for_times([row(number, in_an_hour) for number in range(4)], DEADLINE_S)
        assert {each.offset for each in until} == {confluent.OFFSET_END}
        assert sorted(pair for batch in one.arrow_batches(until) for pair in pairs(batch)) == ALL


def test_a_bounded_read_needs_offsets(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one, pytest.raises(ConfigurationError, match="no end offset is given for orders-3"):
        one.arrow_batches([row(3)])


def test_a_bounded_read_from_the_beginning_of_an_empty_log_ends(kafka: EmbeddedKafka) -> None:
    """The start is not an offset before it is looked up."""
    admin = pytest.importorskip("confluent_kafka.admin").AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for deleted in admin.delete_records([row(0, COUNT)]).values():
        deleted.result(DEADLINE_S)
    with consumer(kafka) as one:
        one.assign([row(0, confluent.OFFSET_BEGINNING), row(1, COUNT - 2)])
        assert [pair for batch in one.arrow_batches() for pair in pairs(batch)] == [(1, COUNT - 2), (1, COUNT - 1)]


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Look at a bounded read of one partition: ``position``, ``serial``, ``end`` of the log, ``moment``, ``look``."""
    at = TopicPartition("orders", 0)
    now = SimpleNamespace(position=0, end=50, serial=1, moment=0.0, topic_id=uuid.UUID(int=1))

    async def list_offsets(*_: Any, **__: Any) -> Listed:
        return Listed({at: ListedOffset(now.end)})

    async def look() -> tuple[bool, bool]:
        start = OffsetAndMetadata(0)
        value = Partition(phase=Phase.READING, ownership=None, serial=now.serial, topic_id=now.topic_id, start=start)
        application = SimpleNamespace(attention=False, clock=lambda: now.moment)
        engine: Any = SimpleNamespace(
            manual=True,
            attention=False,
            table={at: value},
            core=SimpleNamespace(application=application, cluster=None),
            reader=SimpleNamespace(positions=lambda partitions: {at: OffsetAndMetadata(now.position)}),
        )
        left = await bounds.look(engine)
        return at in left, bounds.reached

    bounds = Bounds.of(parse({"bootstrap.servers": "kafka:9092", "group.id": "g"}), "now")
    monkeypatch.setattr(arrow_reads, "list_offsets", list_offsets)
    now.look = look
    return now


def test_a_bounded_read_does_not_wait_for_records_that_a_truncation_removed(looking: SimpleNamespace) -> None:
    async def main() -> None:
        assert await looking.look() == (True, False)
        looking.position = looking.end = 20
        assert await looking.look() == (True, False)
        looking.moment += 10.0
        assert await looking.look() == (False, True)

    asyncio.run(main())


def test_a_bounded_read_from_behind_the_end_of_the_log_asks_what_was_truncated(looking: SimpleNamespace) -> None:
    """The fetcher detects the truncation, and the read restarts at the offset up to which the logs agree."""

    async def main() -> None:
        looking.position, looking.end = 30, 20
        assert await looking.look() == (True, False)
        looking.position, looking.serial = 10, 2
        assert await looking.look() == (True, False)
        looking.position = 20
        assert await looking.look() == (False, True)

    asyncio.run(main())


def test_a_bounded_read_ends_where_the_log_of_a_recreated_topic_ends(looking: SimpleNamespace) -> None:
    async def main() -> None:
        assert await looking.look() == (True, False)
        looking.topic_id, looking.serial, looking.end, looking.position = uuid.UUID(int=2), 2, 70, 60
        assert await looking.look() == (True, False)
        looking.position = 70
        assert await looking.look() == (False, True)

    asyncio.run(main())


def test_a_bounded_read_needs_partitions(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one, pytest.raises(IllegalStateError, match="subscribe or assign first"):
        next(iter(one.arrow_batches()))


def test_damaged_records_are_an_error_behind_the_records_before_them(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = Fetcher.deliver

    def damaged(self: Fetcher, state: Any, records: FetchedRecords, size: int, count: int) -> None:
        broken = bytearray(records.records)
        if records.offset <= 10 < records.next_offset:
            at = bytes(broken).index(b"\x31\x30", 61)  # the value of record 10
            broken[at] ^= 1
        deliver(self, state, attrs.evolve(records, records=bytes(broken)), size, count)

    monkeypatch.setattr(Fetcher, "deliver", damaged)
    kafka.create_topic("single", 2)
    for number in range(20):
        produce(kafka, "single", {0: [number], 1: [number]})
    with consumer(kafka, "range") as one:
        one.assign([row(0, 0, "single")])
        assert read([one], lambda them: len(them) >= 10) == [(0, at) for at in range(10)]
        for _ in range(2):
            with pytest.raises(UnreadableRecordError, match="single-0 cannot be read at offset 10") as caught:
                one.consume_arrow(timeout=DEADLINE_S)
            assert caught.value.partition.offset == 10
            assert one.position([row(0, topic="single")])[0].offset == 10
        one.incremental_assign([row(1, 12, "single")])
        one.seek(row(0, 11, "single"))
        monkeypatch.setattr(Fetcher, "deliver", deliver)
        assert sorted(read([one], lambda them: len(them) >= 17)) == [
            *((0, at) for at in range(11, 20)),
            *((1, at) for at in range(12, 20)),
        ]


def test_a_recreated_topic_is_read_from_its_first_record(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, metadata_max_age_ms=1_000) as one:
        one.subscribe(["orders"])
        read([one], lambda them: len(them) >= len(ALL))
        kafka.recreate_topic("orders", 4)
        produce(kafka, "orders", {number: range(COUNT + 5) for number in range(4)})
        found = read([one], lambda them: len(them) >= 4 * (COUNT + 5))
        assert sorted(found) == [(number, at) for number in range(4) for at in range(COUNT + 5)]


def test_static_members_keep_their_place(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, group_instance_id="one") as one:
        one.subscribe(["orders"])
        found = read([one], lambda them: len(them) >= 20, max_records=7)
        generation = one.generation()
    with consumer(kafka, group_instance_id="one") as one:
        one.subscribe(["orders"])
        found += read([one], lambda them: len(found) + len(them) >= len(ALL), max_records=7)
        assert one.generation() == generation
    assert sorted(found) == ALL


def interrupt_every_read(one: GroupConsumer, read_next: Callable[[], ArrowColumns]) -> None:
    """Interrupt reads of one record at each point in turn; the next read after an interrupt returns the same record."""
    expected, at, quiet, reached = 1, 0, 0, 0
    while quiet < 3:
        with interrupted(at) as points:
            batch = read_next()
        if points.raised_at is not None:
            batch = read_next()
        assert pairs(batch) == [(0, expected)], f"after an interrupt at {points.raised_at}"
        quiet = quiet + 1 if points.raised_at is None else 0
        reached += points.raised_at is not None
        at += 1
        expected += 1
        if expected == COUNT:
            one.seek(row(0, 0))
            expected = 0
    assert reached >= 50


def test_an_interrupt_at_any_point_loses_and_doubles_nothing(kafka: EmbeddedKafka) -> None:
    """A batch whose call was interrupted is returned again as a whole; the position shows that it was not delivered."""
    with consumer(kafka, enable_auto_commit=False) as one:
        one.assign([row(0, 0)])
        read([one], bool, max_records=1)
        interrupt_every_read(one, lambda: one.consume_arrow(1, timeout=DEADLINE_S))


def test_an_interrupt_of_a_bounded_read_loses_and_doubles_nothing(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.assign([row(0, 0)])
        batches = one.arrow_batches(max_records=1)
        assert pairs(next(batches)) == [(0, 0)]
        interrupt_every_read(one, lambda: next(batches))


def test_an_interrupt_while_messages_go_back_to_their_chunks_loses_and_doubles_nothing(kafka: EmbeddedKafka) -> None:
    """A poll decodes ahead, a pause sets these messages aside, and a read of columns is interrupted at each point in turn."""
    with consumer(kafka, enable_auto_commit=False) as one:
        one.assign([row(0, 0)])
        number, quiet = 0, 0
        while quiet < 3:
            one.seek(row(0, 0))
            message = one.poll(DEADLINE_S)
            assert message is not None
            assert at(message) == (0, 0)
            one.pause([row(0)])
            with interrupted(number) as points:
                assert not len(one.consume_arrow(timeout=0))
            one.resume([row(0)])
            found = read([one], lambda them: len(them) >= COUNT - 1)
            assert found == [(0, offset) for offset in range(1, COUNT)], f"after an interrupt at {points.raised_at}"
            quiet = quiet + 1 if points.raised_at is None else 0
            number += 1
        assert number >= 50


def test_a_group_that_lost_its_lease_delivers_nothing(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease expires while the batch is decoded."""
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        read([one], bool, max_records=1)
        step = Decoding.step

        def slow(self: Decoding) -> bool:
            coordinator_of(one).lease.clock = lambda: math.inf
            return step(self)

        monkeypatch.setattr(Decoding, "step", slow)
        before = {each.partition: each.offset for each in one.position([row(number) for number in range(4)])}
        assert len(one.consume_arrow(timeout=0.3)) == 0
        assert {each.partition: each.offset for each in one.position([row(number) for number in range(4)])} == before


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set after a fetcher was closed."""
    closed = threading.Event()
    close = Fetcher.close

    async def closing(self: Fetcher) -> None:
        await close(self)
        closed.set()

    monkeypatch.setattr(Fetcher, "close", closing)
    return closed


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_close_that_an_exception_interrupts_ends_the_fetcher(
    kafka: EmbeddedKafka, closed: threading.Event, error: type[BaseException]
) -> None:
    def on_commit(failure: Any, rows: Any) -> None:
        raise error

    one = consumer(kafka, on_commit=on_commit, enable_auto_commit=False)
    one.subscribe(["orders"])
    read([one], bool)
    one.commit(offsets=[row(0, 0)])
    with pytest.raises(error):
        one.close()
    one.close()
    assert closed.is_set()


def test_an_asyncio_close_that_an_exception_interrupts_ends_the_fetcher(kafka: EmbeddedKafka, closed: threading.Event) -> None:
    def on_commit(failure: Any, rows: Any) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "enable.auto.commit": False}
        one = AsyncGroupConsumer({**settings, "on_commit": on_commit})
        await one.assign([row(0, 0)])
        assert len(await one.consume_arrow())
        await one.commit(offsets=[row(0, 0)])
        with pytest.raises(ZeroDivisionError):
            await one.close()

    asyncio.run(main())
    assert closed.is_set()


def test_a_dropped_consumer_ends_its_fetcher(kafka: EmbeddedKafka, closed: threading.Event) -> None:
    one = consumer(kafka)
    one.subscribe(["orders"])
    read([one], bool)
    del one
    gc.collect()
    assert closed.wait(DEADLINE_S)


@pytest.mark.skipif(KERNEL != "c", reason="the Python kernel exports its arrays with pyarrow")
def test_pyarrow_is_imported_by_nothing_here(kafka: EmbeddedKafka) -> None:
    program = f"""
import sys
from consumer_coord import GroupConsumer
config = {{"bootstrap.servers": {kafka.bootstrap_servers!r}, "group.id": "g", "auto.offset.reset": "earliest"}}
with GroupConsumer(config) as one:
    one.subscribe(["orders"])
    batch = one.consume_arrow(timeout=180)
    assert len(batch)
    batch.__arrow_c_array__()
assert "pyarrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)


def test_a_commit_during_a_batch_of_columns_finishes_the_records_before_it(kafka: EmbeddedKafka) -> None:
    partition = -1

    def run() -> None:
        nonlocal partition
        with consumer(kafka, auto_offset_reset="earliest") as one:
            one.subscribe(["orders"])
            partition = pairs(one.consume_arrow(10, timeout=DEADLINE_S))[0][0]
            one.commit(offsets=[row(partition, 4)], asynchronous=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    with consumer(kafka) as other:
        assert other.committed([row(partition)], DEADLINE_S)[0].offset == 4


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_response_that_is_too_large_names_setting_and_position_and_costs_only_its_partition(
    kafka: EmbeddedKafka, partitions: int
) -> None:
    kafka.create_topic("large", partitions)
    produce(kafka, "large", {0: ["small"], **{one: ["a", "b"] for one in range(1, partitions)}})
    produce(kafka, "large", {0: ["v" * 900_000]})
    with consumer(kafka, "range", message_max_bytes=400_000, fetch_max_bytes=400_000, receive_message_max_bytes=500_000) as one:
        one.subscribe(["large"])
        values: list[object] = []
        errors: list[UnreadableRecordError] = []

        def read() -> None:
            try:
                values.extend(pa.table(one.consume_arrow(timeout=0.5))["value"].to_pylist())
            except UnreadableRecordError as error:
                errors.append(error)

        eventually(lambda: len(values) == 1 + 2 * (partitions - 1) and len(errors) >= 2, step=read)
        produce(kafka, "large", {partitions - 1: ["later"]})
        if partitions > 1:
            eventually(lambda: b"later" in values, step=read)
        (text,) = {str(error) for error in errors}
        assert "large-0" in text
        assert "Fetch at offset 1" in text
        assert "receive.message.max.bytes is 500000; raise this setting" in text
        assert values.count(b"small") == 1
