"""``GroupConsumer.process`` on an embedded Kafka: threads, executors, and worker processes that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, TopicPartition
from consumer_coord.errors import IllegalStateError
from consumer_coord.process import Context, Counts, context
from tests.support.consumer.embedded import BROKER, append_transaction, consumer
from tests.support.producer import Producer
from tests.support.waiting import eventually

PARTITIONS = 4
KEYS = 20


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=BROKER) as running:
        yield running


def produce(kafka: EmbeddedKafka, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        key = number % KEYS
        producer.produce("orders", str(number), key=f"k{key}", partition=key % PARTITIONS)
    assert producer.flush(60) == 0


def committed(member: GroupConsumer) -> list[int]:
    return [row.offset for row in member.committed([TopicPartition("orders", number) for number in range(PARTITIONS)])]


class Handler:
    """Records what is handled, and sets ``stop`` after ``count`` records."""

    def __init__(self, count: int) -> None:
        self.stop = threading.Event()
        self.keys: dict[bytes, list[int]] = {}
        self.running: Counter[bytes] = Counter()
        self._left = count
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        key = message.key()
        with self._lock:
            self.running[key] += 1
            assert self.running[key] == 1, "two handlers at once for one key"
        with self._lock:
            self.running[key] -= 1
            self.keys.setdefault(key, []).append(int(message.value()))
            self._left -= 1
            if not self._left:
                self.stop.set()


@pytest.mark.parametrize("make", [lambda: 8, lambda: ThreadPoolExecutor(8)], ids=["threads", "executor"])
def test_records_are_handled_once_in_the_order_of_their_keys_and_committed(
    kafka: EmbeddedKafka, make: Callable[[], int | Executor]
) -> None:
    produce(kafka, 1000)
    append_transaction(kafka, 4, committed=False)
    handler, workers = Handler(1000), make()
    with consumer(kafka, enable_auto_commit=False) as member:
        member.subscribe(["orders"])
        assert member.process(handler, workers=workers, stop=handler.stop) == Counts(1000, 0, 0, 0, 0)
        assert committed(member)[1:] == [250] * 3
        # Behind the aborted records and their marker, if the last Fetch has passed them.
        assert committed(member)[0] in (250, 255)
    assert all(numbers == sorted(numbers) for numbers in handler.keys.values())
    assert sorted(chain(*handler.keys.values())) == list(range(1000))
    if isinstance(workers, Executor):
        assert workers.submit(lambda: 7).result() == 7, "the caller's executor is not shut down"
        workers.shutdown()


class Gate:
    """A handler that waits at chosen values, and records the reasons why its result no longer counts."""

    def __init__(self, *waits_at: int) -> None:
        self.waits_at = waits_at
        self.opens = threading.Event()
        self.started: list[int] = []
        self.finished: list[int] = []
        self.contexts: dict[int, Context[threading.Event]] = {}

    def __call__(self, message: Any) -> None:
        number = int(message.value())
        self.started.append(number)
        self.contexts[number] = context()
        if number in self.waits_at:
            assert self.opens.wait(180)
        self.finished.append(number)


class Member:
    """A consumer that processes in a thread of its own."""

    def __init__(self, kafka: EmbeddedKafka, handle: Callable[[Any], object], **arguments: Any) -> None:
        self.consumer = consumer(kafka)
        self.consumer.subscribe(["orders"])
        self.stop = threading.Event()
        self.counts: Counts | None = None
        self._thread = threading.Thread(target=self._run, args=(handle, arguments))
        self._thread.start()

    def _run(self, handle: Callable[[Any], object], arguments: dict[str, Any]) -> None:
        self.counts = self.consumer.process(handle, stop=self.stop, **arguments)

    def end(self) -> Counts:
        self.stop.set()
        self._thread.join(180)
        self.consumer.close()
        assert self.counts is not None
        return self.counts


def test_a_hand_over_waits_for_the_handlers(kafka: EmbeddedKafka) -> None:
    produce(kafka, 400)
    first, second = Gate(0, 1, 2, 3), Gate()
    one = Member(kafka, first, drain_timeout=170)
    eventually(lambda: len(first.finished) == 320)
    other = Member(kafka, second)
    eventually(lambda: any(value.deadline is not None for value in first.contexts.values()))
    assert not second.started
    first.opens.set()
    eventually(lambda: len(other.consumer.assignment()) == 2)
    produce(kafka, 40)
    eventually(lambda: len(first.finished) + len(second.finished) >= 440)
    assert one.end().handled + other.end().handled == 440
    assert not any(value.reason for value in first.contexts.values())
    with consumer(kafka) as reader:
        assert committed(reader) == [110] * PARTITIONS


def test_the_result_of_a_thread_is_ignored_after_the_drain_timeout(kafka: EmbeddedKafka) -> None:
    produce(kafka, 400)
    first, second = Gate(0, 1, 2, 3), Gate()
    one = Member(kafka, first, drain_timeout=0.05)
    eventually(lambda: len(first.finished) == 320)
    other = Member(kafka, second)
    eventually(lambda: len(second.finished) == 40)
    lost = {number for number, value in first.contexts.items() if value.lost.is_set()}
    assert lost == {number for number in second.started if number < PARTITIONS}
    assert {first.contexts[number].reason for number in lost} == {"revoked"}
    first.opens.set()
    eventually(lambda: len(first.finished) == 362)
    counts = [one.end(), other.end()]
    assert sum(one.handled for one in counts) == 400
    assert sum(one.found_finished for one in counts) == 160
    with consumer(kafka) as reader:
        assert committed(reader) == [100] * PARTITIONS


def test_the_exception_of_a_handler_ends_the_process_before_its_record(kafka: EmbeddedKafka) -> None:
    produce(kafka, 100)

    def handle(message: Any) -> None:
        if message.value() == b"40":
            raise ZeroDivisionError("broken")

    with consumer(kafka) as member:
        member.subscribe(["orders"])
        with pytest.raises(ZeroDivisionError) as raised:
            member.process(handle, workers=4)
        assert raised.value.__notes__ == ["raised by the handler of process() for the record of orders-0 at offset 10"]
        assert committed(member)[0] == 10
        eventually(lambda: any(message.value() == b"40" for message in member.take(100)))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where a shell has started pytest in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_lets_the_handlers_finish(kafka: EmbeddedKafka) -> None:
    produce(kafka, 4)
    handler = Gate(0)

    def interrupt() -> None:
        eventually(lambda: len(handler.finished) == 3)
        os.kill(os.getpid(), signal.SIGINT)
        eventually(lambda: handler.contexts[0].deadline is not None)
        handler.opens.set()

    with consumer(kafka) as member:
        member.subscribe(["orders"])
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            member.process(handler)
        thread.join()
        assert committed(member) == [1] * PARTITIONS


def test_a_second_process_and_a_poll_beside_it_raise(kafka: EmbeddedKafka) -> None:
    produce(kafka, 4)
    handler = Gate(0, 1, 2, 3)
    one = Member(kafka, handler)
    eventually(lambda: len(handler.started) == 4)
    with pytest.raises(KafkaException, match="tracked already"):
        one.consumer.process(handler)
    for reads in (lambda: one.consumer.poll(0.1), lambda: one.consumer.consume(1, 0.1)):
        with pytest.raises(KafkaException, match="tracked"):
            reads()
    handler.opens.set()
    assert one.end().handled == 4


# -- worker processes -------------------------------------------------------------------------------------------------


def note(message: Any) -> None:
    """Append the record's value to the file that the environment names; die at the value 7, each time or the first time."""
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{message.value().decode()}\n")
    if message.value() == b"7" and (context().attempt == 1 or os.environ["DIES"] == "always"):
        os._exit(1)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "notes"
    file.touch()
    monkeypatch.setenv("NOTES", str(file))
    return file


def noted(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


@pytest.fixture(scope="module", autouse=True)
def _resource_tracker() -> None:
    """Start the process that multiprocessing starts once and never ends."""
    resource_tracker.ensure_running()


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@pytest.mark.slow
def test_a_worker_process_that_dies_costs_only_the_records_that_it_held(
    kafka: EmbeddedKafka, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIES", "once")
    produce(kafka, 40)
    stop = threading.Event()
    with processes() as pool, consumer(kafka) as member:
        member.subscribe(["orders"])
        threading.Thread(target=stop_when, args=(stop, lambda: set(noted(notes)) == set(range(40)))).start()
        counts = member.process(note, workers=pool, stop=stop)
        assert counts.handled == 40
        assert 1 <= counts.retried <= 4, "what the pool had"
        assert committed(member) == [10] * PARTITIONS
    twice = [number for number, count in Counter(noted(notes)).items() if count > 1]
    assert 7 in twice
    assert len(twice) <= counts.retried, "what the pool had"


@pytest.mark.slow
def test_a_record_with_which_two_processes_die_has_failed(
    kafka: EmbeddedKafka, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIES", "always")
    produce(kafka, 40)
    with processes() as pool, consumer(kafka) as member:
        member.subscribe(["orders"])
        with pytest.raises(BrokenProcessPool) as raised:
            member.process(note, workers=pool)
        assert raised.value.__notes__ == ["raised by the handler of process() for the record of orders-3 at offset 1"]
        assert committed(member)[3] == 1
    assert noted(notes).count(7) == 2


def test_offsets_cannot_be_sent_to_a_transaction(kafka: EmbeddedKafka) -> None:
    produce(kafka, 1)
    with consumer(kafka) as member:
        member.subscribe(["orders"])
        with pytest.raises(IllegalStateError, match=r"transactions do not work with process\(\)"):
            member.process(lambda _: member.consumer_group_metadata(), workers=1)


def stop_when(stop: threading.Event, condition: Callable[[], bool]) -> None:
    eventually(condition)
    stop.set()
