"""The process that a soak measures: members of ours, one thread each, and nothing that grows by itself.

Its argument is an object in JSON: ``config``, ``topic``.  It is told lines of JSON, ``start`` and ``close`` with a
``member`` (its name), ``sample``, and answers each by one ``answer``; at the end of its input all members leave.  What its
members do it tells in the lines of ``tests/kafka/churn_member.py``, with ``member``, and keeps nothing of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from consumer_coord import GroupConsumer
from consumer_coord.consumer.runtime import Runtime
from tests.kafka.churn_member import commit

_writing = threading.Lock()


def emit(event: str, **details: Any) -> None:
    """One line."""
    line = json.dumps({"event": event, "at_ns": time.monotonic_ns(), **details})
    with _writing:
        print(line, flush=True)


class Member(threading.Thread):
    """It consumes, commits each batch and waits for the answer, until closed."""

    def __init__(self, config: Mapping[str, object], topic: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._topic = topic
        self._consumer = GroupConsumer(config)
        self._closing = threading.Event()
        self.start()

    def run(self) -> None:
        """Until closed."""

        def tell(what: str) -> Callable[[Any, Any], None]:
            return lambda _, rows: emit(what, member=self.name, partitions=[row.partition for row in rows])

        try:
            self._consumer.subscribe(
                [self._topic], on_assign=tell("assigned"), on_revoke=tell("revoked"), on_lost=tell("lost")
            )
            while not self._closing.is_set():
                self._work()
            self._consumer.close(30)
        except BaseException as error:  # noqa: BLE001 - the soak reports it
            emit("failure", member=self.name, error=repr(error))

    def _work(self) -> None:
        try:
            messages = self._consumer.consume(200, 1.0)
        except KafkaException:
            # A broker is away, say: the consumer goes on.
            return
        generation = self._consumer.generation()
        ranges: dict[int, tuple[int, int, int]] = {}
        for message in messages:
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                first, _, count = ranges.get(partition, (offset, offset, 0))
                ranges[partition] = (first, offset, count + 1)
        if ranges:
            emit("batch", member=self.name, generation=generation, ranges=ranges)
            began = time.monotonic()
            refused = commit(self._consumer, self._topic, ranges)
            emit("committed", member=self.name, took_ms=(time.monotonic() - began) * 1000, refused=refused)

    def close(self) -> None:
        """Leave, and wait for that."""
        self._closing.set()
        self.join(60)


def sample() -> Mapping[str, float]:
    """This process now; what the allocator holds back for later is no part of its memory."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    sockets = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            sockets += os.readlink(descriptor).startswith("socket:")
        except OSError:
            continue  # closed while we looked

    async def count() -> int:
        return len(asyncio.all_tasks())

    return {
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "sockets": sockets,
        "tasks": asyncio.run_coroutine_threadsafe(count(), Runtime.shared().loop).result(10),
    }


def main() -> None:
    """Until the input ends."""
    setup = json.loads(sys.argv[1])
    members: dict[str, Member] = {}
    for line in sys.stdin:
        command = json.loads(line)
        answer: Mapping[str, float] = {}
        match command["command"]:
            case "start":
                members[command["member"]] = Member(setup["config"], setup["topic"], command["member"])
            case "close":
                members.pop(command["member"]).close()
            case "sample":
                answer = sample()
        emit("answer", **answer)
    for member in members.values():
        member.close()


if __name__ == "__main__":
    main()
