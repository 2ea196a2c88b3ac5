"""A pool of threads on confluent-kafka, as one writes it by hand: in order by key, and committed correctly.

The thread with the consumer gives each record to the queue of one worker, chosen by the key. A partition's committed offset
is its lowest unfinished one, or, if nothing is unfinished, the end of its log. Before it gives up a partition, the thread
waits for the handlers that run, and commits; what is queued for the partition is dropped.
"""

from __future__ import annotations

import itertools
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from benchmarks.parallel_peers.calls import Logged, Task, Timed, function
from benchmarks.parallel_peers.ours import call_of

_COMMITS_EVERY_S, _DRAIN_S = 1.0, 25.0


class Owned:
    """An assigned partition."""

    def __init__(self) -> None:
        #: Offsets that are not finished, in their order; True while a handler runs.
        self.unfinished: dict[int, bool] = {}
        #: The offset after everything that was received, transaction markers included.
        self.position = -1
        self.committed = -1
        self.gone = False


class Pool:
    """The consumer and its workers."""

    def __init__(self, task: Task, handle: Callable[[Any], None]) -> None:
        self._task = task
        self._handle = handle
        self._owned: dict[int, Owned] = {}
        self._changed = threading.Condition()
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(task.concurrency)]
        self._turns = itertools.cycle(self._queues)
        self._failure: BaseException | None = None
        self._unfinished = 0
        self._assigned_more = False
        settings = {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "on_commit": self._answered,
            "session.timeout.ms": task.session_ms,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        self._consumer = Consumer(settings)
        self._threads = [threading.Thread(target=self._work, args=(one,), daemon=True) for one in self._queues]

    def run(self, stop: threading.Event) -> None:
        """Process records until ``stop``; raise what a handler raised."""
        for thread in self._threads:
            thread.start()
        self._consumer.subscribe([self._task.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        paused, commits_at = False, time.monotonic()
        while not stop.is_set() and self._failure is None:
            for message in self._consumer.consume(500, 0.05):
                self._take(message)
            if self._assigned_more or paused is not (self._unfinished > self._task.most):
                # A partition that was paused when it was revoked is still paused when it comes back.
                paused, self._assigned_more = self._unfinished > self._task.most, False
                (self._consumer.pause if paused else self._consumer.resume)(self._consumer.assignment())
            if (now := time.monotonic()) >= commits_at:
                commits_at = now + _COMMITS_EVERY_S
                self._commit(list(self._owned), wait=False)
        self._consumer.close()  # It calls _revoked, too.
        for one in self._queues:
            one.put(None)
        if self._failure is not None:
            raise self._failure

    def _take(self, message: Any) -> None:
        owned = self._owned.get(message.partition())
        if owned is None:
            return
        if message.error() is not None:
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
            owned.position = max(owned.position, message.offset())
            return
        with self._changed:
            owned.unfinished[message.offset()] = False
            owned.position = message.offset() + 1
            self._unfinished += 1
        key = message.key()
        place = next(self._turns) if key is None else self._queues[hash((message.partition(), key)) % len(self._queues)]
        place.put((message, owned))

    def _work(self, place: queue.SimpleQueue[Any]) -> None:
        while (given := place.get()) is not None:
            message, owned = given
            with self._changed:
                if owned.gone or self._failure is not None:
                    continue
                owned.unfinished[message.offset()] = True
            try:
                self._handle(message)
            except BaseException as error:  # noqa: BLE001 - raised by run
                with self._changed:
                    owned.unfinished[message.offset()] = False
                    self._failure = error
                    self._changed.notify_all()
                continue
            with self._changed:
                del owned.unfinished[message.offset()]
                self._unfinished -= 1
                if owned.gone:
                    self._changed.notify_all()

    def _commit(self, partitions: Sequence[int], *, wait: bool) -> None:
        rows = []
        with self._changed:
            for number in partitions:
                owned = self._owned[number]
                offset = next(iter(owned.unfinished), owned.position)
                # A commit in the background may fail yet; the last one is made in any case.
                if offset > owned.committed or (wait and offset >= 0):
                    owned.committed = offset
                    rows.append(TopicPartition(self._task.topic, number, offset))
        if rows:
            self._consumer.commit(offsets=rows, asynchronous=not wait)

    def _answered(self, error: object, partitions: Sequence[TopicPartition]) -> None:
        """Repeat a commit that failed, for instance because of a rebalance."""
        for one in partitions:
            if (error is not None or one.error is not None) and one.partition in self._owned:
                self._owned[one.partition].committed = -1

    def _give_up(self, partitions: Sequence[int], *, commit: bool) -> None:
        ends = time.monotonic() + _DRAIN_S
        with self._changed:
            owned = [self._owned[number] for number in partitions]
            for one in owned:
                one.gone = True
            while commit and any(map(_busy, owned)) and (left_s := ends - time.monotonic()) > 0:
                self._changed.wait(left_s)
        if commit:
            try:
                self._commit(partitions, wait=True)
            except KafkaException as error:
                print(f"the last commit failed: {error}", flush=True)
        with self._changed:
            for number in partitions:
                # What runs still is subtracted when it ends.
                self._unfinished -= sum(not runs for runs in self._owned.pop(number).unfinished.values())

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._assigned_more = True
        for one in partitions:
            self._owned[one.partition] = Owned()

    def _revoked(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._give_up([one.partition for one in partitions], commit=True)

    def _lost(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._give_up([one.partition for one in partitions], commit=False)


def _busy(owned: Owned) -> bool:
    return any(owned.unfinished.values())


def main() -> None:
    """Run the program."""
    task, stop = Task.given(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    timed = Logged(task) if task.log else Timed(task, stop.set)
    Pool(task, function(task, timed, call_of)).run(stop)
    if isinstance(timed, Timed):
        timed.report()


if __name__ == "__main__":
    main()
