"""Tasks, threads and processes do the same: the same records, failures, letters, counts and commits."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import tenacity

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from consumer_coord.process import Counts, DeadLetters, FailurePolicy, context
from tests.consumer.test_async_consumer import consumer as async_consumer
from tests.process.test_failures import LetterBox
from tests.process.test_thread_process import stop_when
from tests.support.consumer.embedded import consumer
from tests.support.producer import Producer
from tests.support.waiting import eventually_async

RECORDS, KEYS, PARTITIONS = 60, 6, 3
#: Fails twice and succeeds; fails always.
TWICE, ALWAYS = b"13", b"25"


@pytest.fixture(scope="module", autouse=True)
def _resource_tracker() -> None:
    """Start the process that multiprocessing starts once and never ends."""
    resource_tracker.ensure_running()


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            key = number % KEYS
            producer.produce("orders", str(number), key=f"k{key}", partition=key % PARTITIONS)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "notes"
    file.touch()
    monkeypatch.setenv("NOTES", str(file))
    return file


def note(message: Any) -> None:
    """Append the key, the value and the attempt to a file, in any process; fail at the chosen values."""
    if message.value() == ALWAYS or (message.value() == TWICE and context().attempt < 3):
        raise ValueError("broken")
    line = f"{message.key().decode()} {message.value().decode()}/{context().attempt}\n"
    file = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


async def note_async(message: Any) -> None:
    """Do the same in a task."""
    await asyncio.sleep(0)
    note(message)


def by_key(notes: Path) -> dict[str, list[str]]:
    """Return what was handled: key -> value and attempt, in the order of the handlers' ends."""
    found: dict[str, list[str]] = {}
    for line in notes.read_text().splitlines():
        key, what = line.split()
        found.setdefault(key, []).append(what)
    return found


def policy(box: LetterBox) -> FailurePolicy:
    return FailurePolicy(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(0.01), then=DeadLetters(box, "letters"))


def rows() -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(PARTITIONS)]


def with_tasks(kafka: EmbeddedKafka, box: LetterBox, done: Callable[[], bool]) -> tuple[Counts, list[int]]:
    async def main() -> tuple[Counts, list[int]]:
        stop = asyncio.Event()
        async with async_consumer(kafka) as member:
            await member.subscribe(["orders"])
            task = asyncio.create_task(member.process(note_async, concurrency=4, on_failure=policy(box), stop=stop))
            await eventually_async(lambda: done() or task.done(), every_s=0.01)
            stop.set()
            return await task, [row.offset for row in await member.committed(rows())]

    return asyncio.run(main())


def with_threads(kafka: EmbeddedKafka, box: LetterBox, done: Callable[[], bool], workers: Any = 4) -> tuple[Counts, list[int]]:
    stop = threading.Event()
    with consumer(kafka) as member:
        member.subscribe(["orders"])
        threading.Thread(target=stop_when, args=(stop, done)).start()
        counts = member.process(note, workers=workers, on_failure=policy(box), stop=stop)
        return counts, [row.offset for row in member.committed(rows())]


def with_processes(kafka: EmbeddedKafka, box: LetterBox, done: Callable[[], bool]) -> tuple[Counts, list[int]]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return with_threads(kafka, box, done, pool)


@pytest.mark.slow
@pytest.mark.parametrize("run", [with_tasks, with_threads, with_processes])
def test_every_driver_does_the_same(
    kafka: EmbeddedKafka, notes: Path, run: Callable[[EmbeddedKafka, LetterBox, Callable[[], bool]], tuple[Counts, list[int]]]
) -> None:
    box = LetterBox(None)
    counts, committed = run(kafka, box, lambda: notes.read_text().count("\n") == RECORDS - 1 and bool(box.letters))
    assert counts == Counts(handled=RECORDS - 1, failed=1, retried=4, given_up=0, found_finished=0, letters=1)
    assert committed == [RECORDS // PARTITIONS] * PARTITIONS
    assert [(letter.value, letter.headers["dead-letter.attempts"]) for letter in box.letters] == [(ALWAYS, "3")]
    assert by_key(notes) == {
        f"k{key}": [
            f"{number}/{3 if str(number).encode() == TWICE else 1}"
            for number in range(key, RECORDS, KEYS)
            if str(number).encode() != ALWAYS
        ]
        for key in range(KEYS)
    }
