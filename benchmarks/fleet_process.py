"""A process with many members of one group, of any Python client: one thread each, or one loop for aiokafka.

It gets one argument, an object in JSON: ``client``, ``members`` (how many), ``config`` (Kafka's dotted names),
``assignors``, ``topic``, ``work_ms`` (how long the application works on each poll's records; 0: not at all).  It makes its
consumers, tells ``ready``, and subscribes all of them at the command ``subscribe``.  Each event has ``at_ns`` of the
monotonic clock that all processes of a machine share:

* ``assigned``, ``revoked``, ``lost`` with ``member`` (its number) and ``partitions``;
* ``idle`` with ``member`` and ``ms``: how long a member was kept from working, each time it was;
* ``answer`` to a command.

Commands: ``subscribe``; ``close`` with ``member``; ``usage`` (answer: ``cpu_s``, ``rss_mb``, ``threads``, ``generation``, and
for ours ``ours_s``, ``our_threads``, ``requests``); ``end``.

``client`` may be ``manual``: librdkafka alone, each member with its share of the partitions assigned by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.member_process import Adapter, Confluent, KafkaPython, Ours

_POLL_S = 0.1
_PARTITIONS_BY_HAND = 240
_writing = threading.Lock()


def emit(event: str, **details: Any) -> None:
    """Write one event."""
    line = json.dumps({"event": event, "at_ns": time.monotonic_ns(), **details})
    with _writing:
        print(line, flush=True)


def make(setup: Mapping[str, Any], member: int) -> Adapter:
    """One consumer of the client."""

    def tell(what: str, partitions: Iterable[Any]) -> None:
        numbers = [one.partition for one in partitions]
        if numbers:
            # Fifty lines that say that nothing changed would be written while the others wait for their partitions.
            emit(what, member=member, partitions=numbers)

    def tell_error(error: str) -> None:
        print(f"member {member}: {error}", file=sys.stderr, flush=True)

    config, assignors = dict(setup["config"]), setup["assignors"]
    if setup["client"] == "kafka-python":
        return KafkaPython(config, assignors, tell)
    if assignors:
        config["partition.assignment.strategy"] = ",".join(assignors)
    if setup["client"] == "ours":
        from consumer_coord import GroupConsumer

        return Ours(GroupConsumer(config), tell, tell_error)
    from confluent_kafka import Consumer

    return Confluent(Consumer(config), tell, tell_error)


class MemberThread(threading.Thread):
    """One member: polls, and works on what it got, until told to close."""

    def __init__(self, setup: Mapping[str, Any], number: int) -> None:
        super().__init__(name=f"member {number}", daemon=True)
        self.number = number
        self.adapter = make(setup, number)
        #: As of the last poll; librdkafka's handle must not be touched from two threads.
        self.generation = -1
        self._topic = setup["topic"]
        self._work_s = setup["work_ms"] / 1000
        self._by_hand: list[Any] | None = None
        if setup["client"] == "manual":
            from confluent_kafka import TopicPartition

            share = range(number, _PARTITIONS_BY_HAND, setup["members"])
            self._by_hand = [TopicPartition(self._topic, one, 0) for one in share]
        self._subscribe = threading.Event()
        self._close = threading.Event()

    def subscribe(self) -> None:
        """Begin."""
        self._subscribe.set()

    def close(self) -> None:
        """Leave the group, and wait until that is done."""
        self._close.set()
        self.join()

    def run(self) -> None:
        """Until closed."""
        self._subscribe.wait()
        if self._by_hand is not None:
            self.adapter.consumer.assign(self._by_hand)  # type: ignore[attr-defined]  # an Adapter of confluent-kafka
            emit("assigned", member=self.number, partitions=[one.partition for one in self._by_hand])
        else:
            self.adapter.subscribe([self._topic], None)
        polling_since = time.monotonic()
        while not self._close.is_set():
            records = self.adapter.poll()
            if self.number == 0 and self._by_hand is None:
                self.generation = self.adapter.generation()
            if not records or not self._work_s:
                continue
            waited_ms = (time.monotonic() - polling_since) * 1000
            emit("idle", member=self.number, ms=waited_ms)
            self._close.wait(self._work_s)
            polling_since = time.monotonic()
        self.adapter.close()


class Threads:
    """Members of a blocking client."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._members = [MemberThread(setup, number) for number in range(setup["members"])]
        for member in self._members:
            member.start()

    def subscribe(self) -> None:
        """All of them."""
        for member in self._members:
            member.subscribe()

    def close(self, number: int) -> None:
        """One of them."""
        self._members[number].close()

    def generation(self) -> int:
        """What the first member says."""
        return self._members[0].generation

    def requests(self) -> float:
        """How many requests of the group's protocol ours have sent; NaN for others."""
        found = float("nan")
        for member in self._members:
            if isinstance(member.adapter, Ours):
                metrics = member.adapter.consumer.metrics()
                found = (0.0 if found != found else found) + metrics["heartbeat-total"] + metrics["join-total"]
        return found

    def end(self) -> None:
        """All leave."""
        for member in self._members:
            member._close.set()
        for member in self._members:
            member.subscribe()
            member.join()


class Tasks:
    """Members of aiokafka, all on one loop in one thread."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = setup
        self._loop = asyncio.new_event_loop()
        self._consumers: list[Any] = []
        self._polls: list[asyncio.Task[None]] = []
        threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()
        self._call(self._make())

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _make(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        settings = {name.replace(".", "_"): value for name, value in self._setup["config"].items()}
        for _ in range(self._setup["members"]):
            consumer = AIOKafkaConsumer(partition_assignment_strategy=[RangePartitionAssignor], **settings)
            self._consumers.append(consumer)

    def subscribe(self) -> None:
        """All of them."""
        self._call(self._subscribe())

    async def _subscribe(self) -> None:
        from aiokafka import ConsumerRebalanceListener

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's module is not followed
            def __init__(self, member: int) -> None:
                self._member = member

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                emit("assigned", member=self._member, partitions=[one.partition for one in assigned])

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                emit("revoked", member=self._member, partitions=[one.partition for one in revoked])

        async def run(number: int, consumer: Any) -> None:
            consumer.subscribe(topics=[self._setup["topic"]], listener=Listener(number))
            await consumer.start()
            while True:
                await consumer.getmany(timeout_ms=int(_POLL_S * 1000), max_records=500)

        self._polls = [asyncio.create_task(run(number, one)) for number, one in enumerate(self._consumers)]

    def close(self, number: int) -> None:
        """One of them."""
        self._call(self._close(number))

    async def _close(self, number: int) -> None:
        if self._polls:
            self._polls[number].cancel()
        consumer = self._consumers[number]
        left = [one.partition for one in consumer.assignment()]
        await consumer.stop()
        # Its listener does not hear of this.
        emit("revoked", member=number, partitions=left)

    def generation(self) -> int:
        """What the first member says."""
        return int(self._consumers[0]._coordinator.generation)

    def requests(self) -> float:
        """Not known."""
        return float("nan")

    def end(self) -> None:
        """All leave."""
        for number in range(len(self._consumers)):
            self.close(number)


def usage() -> Mapping[str, float]:
    """Processor time so far, memory and threads of this process; our background thread's part of the time as ``ours_s``."""
    times = os.times()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    ticks = os.sysconf("SC_CLK_TCK")
    ours_s, our_threads = 0.0, 0
    for thread in threading.enumerate():
        if thread.name.startswith("consumer-coord"):
            our_threads += 1
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            ours_s += (int(fields[11]) + int(fields[12])) / ticks
    return {
        "cpu_s": times.user + times.system,
        "ours_s": ours_s,
        "our_threads": our_threads,
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def main() -> None:
    """Until told to end."""
    setup = json.loads(sys.argv[1])
    fleet: Threads | Tasks = Tasks(setup) if setup["client"] == "aiokafka" else Threads(setup)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    emit("ready")

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="commands", daemon=True).start()
    while (line := lines.get()) is not None:
        command = json.loads(line)
        match command["command"]:
            case "subscribe":
                started = time.monotonic_ns()
                fleet.subscribe()
                emit("answer", started_ns=started)
            case "close":
                started = time.monotonic_ns()
                fleet.close(command["member"])
                emit("answer", started_ns=started)
            case "usage":
                emit("answer", **usage(), generation=fleet.generation(), requests=fleet.requests())
            case "end":
                break
    fleet.end()


if __name__ == "__main__":
    main()
