"""``AsyncGroupConsumer.process`` on an embedded Kafka: order, commits, rebalances, failures, and the end."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, TopicPartition
from consumer_coord.errors import ClosedError, IllegalStateError
from consumer_coord.finished_offsets_text import decode, encode
from consumer_coord.health import Reason
from consumer_coord.process import Context, Counts, context
from tests.consumer.test_async_consumer import MODERN, consumer
from tests.support.consumer.embedded import BROKER, append_transaction, change_log
from tests.support.consumer.process_member import SETTINGS
from tests.support.line_process import LineProcess
from tests.support.producer import Producer
from tests.support.waiting import eventually_async

PARTITIONS = 4
KEYS = 20
Handle = Callable[[Any], Awaitable[object]]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS, "single": 1}) as running:
        yield running


def produce(kafka: EmbeddedKafka, count: int, topic: str = "orders", key: Callable[[int], str | None] | None = None) -> None:
    """Produce the values 0 to ``count``; a key is always in the same partition."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        name = f"k{number % KEYS}" if key is None else key(number)
        partition = number % KEYS % PARTITIONS if topic == "orders" else 0
        producer.produce(topic, str(number), key=name, partition=partition)
    assert producer.flush(60) == 0


def test_offsets_cannot_be_sent_to_a_transaction(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 1)

        async def handle(_: Any) -> None:
            await member.consumer_group_metadata()

        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(IllegalStateError, match=r"transactions do not work with process\(\)"):
                await member.process(handle)
            assert await member.consumer_group_metadata() is not None

    asyncio.run(main())


async def committed(member: AsyncGroupConsumer, topic: str = "orders", count: int = PARTITIONS) -> list[int]:
    found = await member.committed([TopicPartition(topic, number) for number in range(count)])
    return [row.offset for row in found]


class Handler:
    """Records what is handled, and sets ``stop`` after ``count`` records."""

    def __init__(self, count: int) -> None:
        self.stop = asyncio.Event()
        self.seen: list[tuple[int, int]] = []
        self.keys: dict[bytes | None, list[int]] = {}
        self.running: Counter[bytes | None] = Counter()
        self.most = 0
        self._count = count

    async def __call__(self, message: Any) -> None:
        key = message.key()
        self.running[key] += 1
        assert key is None or self.running[key] == 1, "two handlers at once for one key"
        self.most = max(self.most, self.running.total())
        await asyncio.sleep(0)
        self.running[key] -= 1
        self.keys.setdefault(key, []).append(int(message.value()))
        self.seen.append((message.partition(), message.offset()))
        if len(self.seen) >= self._count:
            self.stop.set()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_records_are_handled_once_in_the_order_of_their_keys_and_committed(kafka: EmbeddedKafka, protocol: str) -> None:
    async def main() -> None:
        produce(kafka, 1000)
        handler = Handler(1000)
        settings = {"assignors": MODERN} if protocol == "consumer" else {}
        async with consumer(kafka, **settings, enable_auto_commit=False) as member:
            await member.subscribe(["orders"])
            counts = await member.process(handler, concurrency=50, stop=handler.stop)
            assert counts == Counts(1000, 0, 0, 0, 0)
            assert await committed(member) == [250] * PARTITIONS
        assert all(numbers == sorted(numbers) for numbers in handler.keys.values())
        assert len(set(handler.seen)) == 1000
        assert 1 < handler.most <= 50

    asyncio.run(main())


@pytest.mark.parametrize(("order", "at_once"), [("partition", 1), ("none", 7)])
def test_the_other_orders(kafka: EmbeddedKafka, order: str, at_once: int) -> None:
    async def main() -> None:
        produce(kafka, 100, "single")
        running, most, seen, stop = 0, 0, list[int](), asyncio.Event()

        async def handle(message: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            seen.append(message.offset())
            if len(seen) == 100:
                stop.set()

        async with consumer(kafka) as member:
            await member.subscribe(["single"])
            await member.process(handle, concurrency=7, order=order, stop=stop)
        assert most == at_once
        assert seen == list(range(100)) or order == "none"

    asyncio.run(main())


def test_the_commit_passes_markers_and_aborted_records(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        append_transaction(kafka, 3, committed=True)
        append_transaction(kafka, 5, committed=False)
        handler = Handler(3)
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            task = asyncio.create_task(member.process(handler, stop=stop))
            await eventually_async(handler.stop.is_set)
            await reaches_markers(member)
            stop.set()
            await task
            assert (await committed(member))[0] == 10

    asyncio.run(main())


async def reaches_markers(member: AsyncGroupConsumer) -> None:
    async def passed() -> bool:
        (at,) = await member.position([TopicPartition("orders", 0)])
        return bool(at.offset == 10)

    await eventually_async(passed)


def test_a_log_that_starts_above_zero(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 30, "single")
        change_log(kafka, lambda log: log.delete_before(20), topic="single")
        handler = Handler(10)
        async with consumer(kafka) as member:
            await member.subscribe(["single"])
            counts = await member.process(handler, stop=handler.stop)
            assert counts.handled == 10
            assert await committed(member, "single", 1) == [30]

    asyncio.run(main())


# -- rebalances -------------------------------------------------------------------------------------------------------


class Gate:
    """A handler that waits at chosen values, and records the reason why its result no longer counts."""

    def __init__(self, *waits_at: int) -> None:
        self.waits_at = waits_at
        self.opens = asyncio.Event()
        self.contexts: list[Context[asyncio.Event]] = []
        self.started: list[int] = []
        self.finished: list[int] = []
        self.cancelled: list[int] = []
        self.reasons: list[str | None] = []

    async def __call__(self, message: Any) -> None:
        number = int(message.value())
        self.started.append(number)
        self.contexts.append(context())
        try:
            if number in self.waits_at:
                await self.opens.wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            if context().lost.is_set():
                self.reasons.append(context().reason)
        self.finished.append(number)


class TwoMembers:
    """A member that processes with ``first``, and one that joins later and processes with ``second``."""

    def __init__(self, kafka: EmbeddedKafka, first: Handle, second: Handle, drain_timeout: float) -> None:
        self.first, self.second = consumer(kafka, heartbeat_interval_ms=100), consumer(kafka, heartbeat_interval_ms=100)
        self._handlers = {self.first: first, self.second: second}
        self._drain_timeout = drain_timeout
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[Counts]] = []

    async def start(self, member: AsyncGroupConsumer) -> None:
        await member.subscribe(["orders"])
        process = member.process(self._handlers[member], stop=self._stop, drain_timeout=self._drain_timeout)
        self._tasks.append(asyncio.create_task(process))

    async def end(self) -> list[Counts]:
        self._stop.set()
        found = await asyncio.gather(*self._tasks)
        await self.first.close()
        await self.second.close()
        return found


def test_a_clean_hand_over_waits_for_the_handlers_and_repeats_nothing(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 400)
        # Every partition has a handler that waits.
        first, second = Gate(0, 1, 2, 3), Gate()
        members = TwoMembers(kafka, first, second, drain_timeout=170)
        await members.start(members.first)
        await eventually_async(lambda: len(first.finished) == 320)
        await members.start(members.second)
        await eventually_async(lambda: any(one.deadline is not None for one in first.contexts))
        assert not second.started, "the first member still works on records of each partition"
        first.opens.set()
        await owns(members.second, 2)
        produce(kafka, 40)
        await eventually_async(lambda: len(first.finished) + len(second.finished) >= 440)
        counts = await members.end()
        assert sum(one.handled for one in counts) == 440
        assert not first.cancelled
        assert first.reasons == []
        async with consumer(kafka) as reader:
            assert await committed(reader) == [110] * PARTITIONS

    asyncio.run(main())


async def owns(member: AsyncGroupConsumer, count: int) -> None:
    async def has() -> bool:
        return len(await member.assignment()) == count

    await eventually_async(has, f"{count} partitions")


def test_handlers_of_a_revoked_partition_are_cancelled_after_the_drain_timeout(kafka: EmbeddedKafka) -> None:
    """The next owner handles the record that was not finished, and none of those that were finished above it."""

    async def main() -> None:
        produce(kafka, 400)
        first, second = Gate(0, 1, 2, 3), Gate()
        members = TwoMembers(kafka, first, second, drain_timeout=0.05)
        await members.start(members.first)
        # All keys but the four that wait: k0 to k3 have 20 records each.
        await eventually_async(lambda: len(first.finished) == 320)
        await members.start(members.second)
        await owns(members.second, 2)
        await eventually_async(lambda: len(second.finished) == 40)
        assert sorted(first.cancelled) == sorted({number for number in second.started if number < 4})
        assert set(first.reasons) == {"revoked"}
        first.opens.set()
        await eventually_async(lambda: len(first.finished) == 360)
        counts = await members.end()
        assert set(first.finished).isdisjoint(second.finished)
        assert sum(one.handled for one in counts) == 400
        assert sum(one.found_finished for one in counts) == 160
        async with consumer(kafka) as reader:
            assert await committed(reader) == [100] * PARTITIONS

    asyncio.run(main())


@pytest.mark.slow
def test_after_a_kill_the_next_owner_handles_only_what_was_not_finished() -> None:
    async def main(kafka: EmbeddedKafka, killed: LineProcess) -> None:
        produce(kafka, 400)
        async with process_consumer(kafka) as member:
            finished = [int(killed.receive().split()[0]) for _ in range(320)]
            await eventually_async(lambda: metadata_committed(member), every_s=0.05)
            killed.process.kill()
            await member.subscribe(["orders"])
            handler = Handler(80)
            counts = await member.process(handler, stop=handler.stop)
            assert counts == Counts(80, 0, 0, 0, 320)
            handled = [number for numbers in handler.keys.values() for number in numbers]
            assert sorted(finished + handled) == list(range(400))
            assert await committed(member) == [100] * PARTITIONS

    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=BROKER) as kafka, process_member(kafka) as killed:
        asyncio.run(main(kafka, killed))


@pytest.mark.slow
def test_after_a_freeze_beyond_the_session_nothing_that_ran_is_committed() -> None:
    """When it wakes up, the lease has ended, whatever the group has done in the meantime; its handlers are told."""

    async def main(kafka: EmbeddedKafka, frozen: LineProcess) -> None:
        produce(kafka, 400)
        async with process_consumer(kafka) as member:
            for _ in range(320):
                frozen.receive()
            await eventually_async(lambda: metadata_committed(member), every_s=0.05)
            frozen.pause()
            await member.subscribe(["orders"])
            handler = Handler(80)
            counts = await member.process(handler, stop=handler.stop)
            assert counts == Counts(80, 0, 0, 0, 320)
            frozen.resume()
            assert sorted(frozen.receive() for _ in range(4)) == [f"{number} timeout" for number in range(4)]
            assert await committed(member) == [100] * PARTITIONS

    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=BROKER) as kafka, process_member(kafka) as frozen:
        asyncio.run(main(kafka, frozen))


def process_member(kafka: EmbeddedKafka) -> LineProcess:
    """Start a member in a process of its own."""
    command = [sys.executable, "-m", "tests.support.consumer.process_member", kafka.bootstrap_servers]
    return LineProcess(command, name="the first member")


def process_consumer(kafka: EmbeddedKafka) -> AsyncGroupConsumer:
    return AsyncGroupConsumer({**SETTINGS, "bootstrap.servers": kafka.bootstrap_servers})


async def metadata_committed(member: AsyncGroupConsumer) -> bool:
    """Return whether each partition's commit is the first record, and names what is finished above it."""
    rows = await member.committed([TopicPartition("orders", number) for number in range(PARTITIONS)])
    ends = [decode(row.metadata or "", row.offset, 100)[-1:] for row in rows]
    return [row.offset for row in rows] == [0] * PARTITIONS and all(end == ((96, 100),) for end in ends)


# -- failures and the end ---------------------------------------------------------------------------------------------


def test_the_exception_of_a_handler_ends_the_process_before_its_record(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 400)
        seen: list[int] = []

        async def handle(message: Any) -> None:
            number = int(message.value())
            if number == 40:  # partition 0, offset 10
                raise ZeroDivisionError("broken")
            seen.append(number)

        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(ZeroDivisionError) as raised:
                await member.process(handle)
            assert raised.value.__notes__ == ["raised by the handler of process() for the record of orders-0 at offset 10"]
            assert not {number for number in seen if number % KEYS == 0 and number >= 40}, "its key went on"
            assert (await committed(member))[0] == 10
            # The record comes again, and what was delivered and not handled.
            again: set[int] = set()
            while len(again) < 400 - len(seen):
                again |= {int(message.value()) for message in await member.consume(100, 0.1)}
            assert 40 in again

    asyncio.run(main())


def test_processing_again_after_a_failure_handles_only_what_was_not_finished(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 400)
        seen: Counter[int] = Counter()

        async def handle(message: Any) -> None:
            number = int(message.value())
            if number == 40 and not seen[number]:
                seen[number] -= 1
                await eventually_async(lambda: seen.total() >= 300)
                raise ZeroDivisionError
            seen[number] += 1
            if seen.total() == 399:
                stop.set()

        stop = asyncio.Event()
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(ZeroDivisionError):
                await member.process(handle)
            counts = await member.process(handle, stop=stop)
            assert counts.found_finished > 0
            assert await committed(member) == [100] * PARTITIONS
        assert {number: count for number, count in seen.items() if count != 1} == {40: 0}

    asyncio.run(main())


def test_a_second_failure_does_not_repeat_what_was_finished_after_the_first(kafka: EmbeddedKafka) -> None:
    """A partition that the first failure left unfinished is finished by the second call; the third begins behind it."""

    async def main() -> None:
        produce(kafka, 2 * PARTITIONS)
        seen: Counter[int] = Counter()
        fails_after = {0: lambda: seen.total() == 2 * PARTITIONS - 2, 1: lambda: seen[0] == 1}

        async def handle(message: Any) -> None:
            number = int(message.value())
            if number in fails_after:
                await eventually_async(fails_after[number])
                del fails_after[number]
                raise ZeroDivisionError
            seen[number] += 1
            if seen.total() == 2 * PARTITIONS:
                stop.set()

        stop = asyncio.Event()
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    await member.process(handle, order="none", drain_timeout=0.1)
            assert (await committed(member))[0] == 2
            await member.process(handle, order="none", stop=stop)
            assert await committed(member) == [2] * PARTITIONS
        assert set(seen.values()) == {1}

    asyncio.run(main())


def test_a_handler_that_raises_cancelled_error_of_its_own_has_failed(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 1)

        async def handle(message: Any) -> None:
            raise asyncio.CancelledError

        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(RuntimeError, match="CancelledError"):
                await member.process(handle)
            assert (await committed(member))[0] == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_at_the_end_running_handlers_may_finish(kafka: EmbeddedKafka, how: str) -> None:
    async def main() -> None:
        produce(kafka, 40)
        handler, stop = Gate(0), asyncio.Event()
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            task = asyncio.create_task(member.process(handler, stop=stop))
            await eventually_async(lambda: len(handler.finished) == 38)
            if how == "stop":
                stop.set()
            else:
                task.cancel()
            await eventually_async(lambda: handler.contexts[0].deadline is not None)
            handler.opens.set()
            if how == "stop":
                assert await task == Counts(39, 0, 0, 0, 0)
            else:
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert handler.reasons == []
            # The second record of the key waited in its queue, and comes again.
            assert await committed(member) == [5, 10, 10, 10]
            messages = await member.consume(1, 60)
            assert [(message.partition(), message.offset()) for message in messages] == [(0, 5)]

    asyncio.run(main())


def test_a_handler_that_does_not_finish_in_time_is_cancelled(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 4)
        handler, stop = Gate(0), asyncio.Event()
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            task = asyncio.create_task(member.process(handler, stop=stop, drain_timeout=0.01))
            await eventually_async(lambda: len(handler.finished) == 3)
            stop.set()
            assert (await task).handled == 3
            assert (handler.cancelled, handler.reasons) == ([0], ["stopping"])
            assert await committed(member) == [0, 1, 1, 1]

    asyncio.run(main())


def test_a_second_process_and_a_poll_beside_it_raise(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 4)
        handler, stop = Gate(0, 1, 2, 3), asyncio.Event()
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            task = asyncio.create_task(member.process(handler, stop=stop))
            await eventually_async(lambda: len(handler.started) == 4)
            with pytest.raises(KafkaException, match="tracked already"):
                await member.process(handler)
            with pytest.raises(KafkaException, match="tracked"):
                await member.poll(0)
            handler.opens.set()
            stop.set()
            assert (await task).handled == 4

    asyncio.run(main())


def test_metadata_of_another_program_costs_a_log_line(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        produce(kafka, 20, "single")
        async with consumer(kafka) as member:
            await member.commit(offsets=[TopicPartition("single", 0, 5, metadata="checkpoint-7")], asynchronous=False)
            await member.subscribe(["single"])
            handler = Handler(15)
            assert (await member.process(handler, stop=handler.stop)).handled == 15
            assert await committed(member, "single", 1) == [20]

    with caplog.at_level(logging.WARNING, "consumer_coord.process"):
        asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records if "metadata" in record.getMessage()]
    assert line.startswith("single-0 starts at the committed offset 5")
    assert "another program wrote it" in line


def test_a_partition_that_is_beyond_its_bound_is_read_again_and_memory_stays_flat(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 3000, "single", key=lambda number: "hot" if number < 1500 else str(number))
        handler = Handler(3000)
        async with consumer(kafka) as member:
            await member.subscribe(["single"])
            counts = await member.process(handler, stop=handler.stop, concurrency=10, most_records=100)
            assert counts.handled == 3000
            assert await committed(member, "single", 1) == [3000]

    asyncio.run(main())


def test_a_rejected_length_of_metadata_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(kafka: EmbeddedKafka) -> None:
        produce(kafka, 400)
        handler, stop = Gate(0), asyncio.Event()
        async with consumer(kafka, auto_commit_interval_ms=5) as member:
            await member.subscribe(["orders"])
            task = asyncio.create_task(member.process(handler, stop=stop))
            await eventually_async(lambda: len(handler.finished) == 380)
            await eventually_async(lambda: committed_is(member, [0, 100, 100, 100]))
            handler.opens.set()
            await eventually_async(lambda: committed_is(member, [100] * PARTITIONS))
            stop.set()
            await task

    config = {"offset.metadata.max.bytes": 20}
    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=config) as kafka, caplog.at_level(logging.WARNING):
        asyncio.run(main(kafka))
    rejected = [record for record in caplog.records if "characters of metadata" in record.getMessage()]
    assert 1 <= len(rejected) <= 3


async def committed_is(member: AsyncGroupConsumer, offsets: list[int]) -> bool:
    return await committed(member) == offsets


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"order": "topic"}, "order must be"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"drain_timeout": -1}, "drain_timeout must be at least 0"),
    ],
)
def test_wrong_arguments(kafka: EmbeddedKafka, arguments: dict[str, Any], why: str) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            with pytest.raises(ValueError, match=why):
                await member.process(Gate(), **arguments)
            with pytest.raises(TypeError, match="coroutine function"):
                await member.process(lambda message: None)  # type: ignore[arg-type, return-value]

    asyncio.run(main())


def test_context_is_for_handlers() -> None:
    with pytest.raises(IllegalStateError, match="outside"):
        context()


def test_a_close_beside_it_waits_for_the_handlers_and_ends_it(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 40)
        handler = Gate(0)
        member = consumer(kafka)
        await member.subscribe(["orders"])
        task = asyncio.create_task(member.process(handler))
        await eventually_async(lambda: len(handler.finished) == 38)
        closing = asyncio.create_task(member.close(60))
        await eventually_async(lambda: handler.contexts[0].deadline is not None)
        handler.opens.set()
        await closing
        with pytest.raises(ClosedError):
            await task
        async with consumer(kafka) as reader:
            # The last record of the key k0 waited in its queue.
            assert await committed(reader) == [5, 10, 10, 10]

    asyncio.run(main())


def test_finished_offsets_beyond_the_log_are_not_believed(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    """For instance after the topic was deleted and created again, and the group kept its commits."""

    async def main() -> None:
        produce(kafka, 20, "single")
        async with consumer(kafka) as member:
            text = encode(5, [(7, 9), (18, 21)], 4096)
            await member.commit(offsets=[TopicPartition("single", 0, 5, metadata=text)], asynchronous=False)
            await member.subscribe(["single"])
            handler = Handler(15)
            assert (await member.process(handler, stop=handler.stop)).handled == 15

    with caplog.at_level(logging.WARNING, "consumer_coord.process"):
        asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records if "metadata" in record.getMessage()]
    assert "it names offset 20, and the log ends at 20" in line


def test_finished_offsets_of_an_earlier_commit_are_not_handled_again(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 20, "single")
        async with consumer(kafka) as member:
            text = encode(5, [(7, 9), (18, 20)], 4096)
            await member.commit(offsets=[TopicPartition("single", 0, 5, metadata=text)], asynchronous=False)
            await member.subscribe(["single"])
            handler = Handler(11)
            counts = await member.process(handler, stop=handler.stop)
            assert counts == Counts(11, 0, 0, 0, 4)
            assert sorted(offset for _, offset in handler.seen) == [5, 6, *range(9, 18)]
            assert await committed(member, "single", 1) == [20]

    asyncio.run(main())


def test_a_partition_that_the_application_paused_waits(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 400)
        handler, stop = Gate(), asyncio.Event()
        async with consumer(kafka) as member:
            await member.subscribe(["orders"], on_assign=lambda one, rows: one.pause([TopicPartition("orders", 1)]))
            task = asyncio.create_task(member.process(handler, stop=stop))
            await eventually_async(lambda: len(handler.finished) == 300)
            assert not [number for number in handler.finished if number % PARTITIONS == 1]
            await member.resume([TopicPartition("orders", 1)])
            await eventually_async(lambda: len(handler.finished) == 400)
            stop.set()
            await task

    asyncio.run(main())


def test_health_knows_the_handlers(kafka: EmbeddedKafka) -> None:
    """A partition that is full has a reason of the application's, and that is a handler."""

    async def main() -> None:
        produce(kafka, 1000, "single", key=lambda number: "hot")
        handler, stop = Gate(0), asyncio.Event()
        async with consumer(kafka, auto_commit_interval_ms=60_000) as member:
            await member.subscribe(["single"])
            task = asyncio.create_task(member.process(handler, stop=stop, concurrency=2, most_records=10))
            await eventually_async(lambda: handler.started == [0])

            async def busy() -> bool:
                (one,) = (await member.health()).partitions
                return one.reason is Reason.HANDLER_BUSY and one.excused and "a handler has worked for" in one.detail

            await eventually_async(busy)
            handler.opens.set()
            await eventually_async(lambda: len(handler.finished) == 1000)
            stop.set()
            await task

    asyncio.run(main())
