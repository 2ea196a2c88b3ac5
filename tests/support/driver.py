"""A process with any number of members of groups, of any Python client, each in a separate thread.

Tests and benchmarks start it by ``python -m tests.support.driver`` with one argument, an object in JSON:

* ``client``, ``config`` (Kafka's dotted names), ``assignors``; ``topics`` or ``pattern``; ``members``: the names of the
  first members;
* ``does``: the work of a member on records.  ``report`` reports them, ``count`` only counts them, ``work`` works for
  ``work_ms`` on each batch and reports its idle time, ``commit`` commits each batch and waits for the response;
* ``waits``: the members subscribe at the command ``begin``, not at once; ``lasts``: the process continues without members;
* ``batch``: the maximum number of records of a poll; ``partitions``: the number of partitions of the topic, for the client
  ``manual`` (librdkafka without a group).

The process writes *events*, a line of JSON each, with ``member`` and with ``at_ns`` of the monotonic clock, which all
processes of a machine share:

* ``ready`` of the process; ``assigned``, ``revoked``, ``lost`` with ``partitions`` (topic -> numbers);
* ``records`` with ``ranges`` (topic -> partition -> [first offset, last offset, count]), ``generation`` and ``total``;
* ``batch`` with ``ranges`` and ``generation``, then ``committed`` for the same batch with ``took_ms`` and ``refused``
  (topic -> partition -> reason); ``idle`` with ``ms``;
* ``error``: ``poll`` raised or delivered an error, and the member continues; ``failure``: the member ended;
* ``answer`` to a command: its ``id``, ``started_ns`` when the command began, and ``error`` if it failed.

Commands are objects, one a line, with ``command`` and ``id``: ``begin``, ``start`` (one more ``member``), ``usage``,
``sample``; and for one ``member``, by default the first, the commands of :mod:`tests.support.members`.  At SIGTERM, and at
the end of the input, all members leave.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.clients import POLL_S, Adapter, Confluent, Ours, Ranges, by_topic, make
from tests.support.processes import processor_s

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Out:
    """Standard output, shared by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def emit(self, event: str, **details: Any) -> None:
        """Write one event."""
        line = json.dumps({"event": event, "at_ns": time.monotonic_ns(), **details})
        with self._lock:
            print(line, flush=True)


class Member(threading.Thread):
    """A member: polls, processes the records as configured, and executes commands between two polls."""

    def __init__(self, setup: Mapping[str, Any], number: int, name: str, out: Out) -> None:
        super().__init__(name=f"member {name}", daemon=True)
        self.member = name
        self.failed = False
        #: Generation as of the last poll, for other threads: they may not use librdkafka's handle at the same time.
        self.generation = -1
        self._setup = setup
        self._does = {"report": self._report, "count": self._count, "work": self._work, "commit": self._commit_batch}[
            setup["does"]
        ]
        self._out = out
        self._commands: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._polling = False
        self._closed = False
        self._number = number
        self._total = 0
        self._polling_since = 0.0
        self.adapter: Adapter = make(setup, number, self._on_rebalance, self._on_error)

    def put(self, command: Mapping[str, Any] | None) -> None:
        """Queue a command, which runs between two polls; None ends the member."""
        self._commands.put(command)

    def begin(self) -> None:
        """Subscribe, and start to poll."""
        self.adapter.subscribe(self._setup.get("topics", ()), self._setup.get("pattern"))
        self._polling = True
        self._polling_since = time.monotonic()

    def run(self) -> None:
        """Poll and execute commands until the member is to end."""
        try:
            while self._execute_next(block=not self._polling):
                if self._polling:
                    self._poll()
            if not self._closed:
                self.adapter.close()
        except BaseException as error:  # noqa: BLE001 - reported to the process that drives this one
            self.failed = True
            self._emit("failure", error=repr(error))
            traceback.print_exc()

    def _execute_next(self, block: bool = False, timeout_s: float | None = None) -> bool:
        """Execute the next command if there is one; return False if it was the last."""
        try:
            command = self._commands.get(block, timeout_s)
        except queue.Empty:
            return True
        if command is None:
            return False
        if command["command"] == "begin":
            self.begin()
            return True
        answer = {"id": command.get("id"), "started_ns": command["started_ns"]}
        try:
            answer.update(self._execute(command))
        except Exception as error:  # noqa: BLE001 - reported to the process that drives this one
            answer["error"] = f"{type(error).__name__}: {error}"
        self._emit("answer", **answer)
        return not self._closed

    def _execute(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        match command["command"]:
            case "close":
                self.adapter.close()
                self._closed = True
            case "commit":
                return {"offsets": self.adapter.commit()}
            case "enforce_rebalance":
                self.adapter.enforce_rebalance(command.get("reason"))
            case "start_polling":
                self._polling = True
            case "stop_polling":
                self._polling = False
            case "state":
                return {
                    "owned": by_topic(self.adapter.owned()),
                    "total": self._total,
                    "generation": self.adapter.generation(),
                    "member_id": self.adapter.member_id(),
                }
            case "subscribe":
                self.adapter.subscribe(command.get("topics", ()), command.get("pattern"))
            case unknown:
                return {"error": f"unknown command {unknown}"}
        return {}

    def _poll(self) -> None:
        try:
            ranges = self._take()
        except Exception as error:  # noqa: BLE001 - reported to the process that drives this one
            self._on_error(f"{type(error).__name__}: {error}")
            time.sleep(POLL_S)
            return
        if self._number == 0 and self._setup["does"] == "work":
            self.generation = self.adapter.generation()
        if ranges:
            self._total += sum(count for partitions in ranges.values() for _, _, count in partitions.values())
            self._does(ranges)

    def _take(self) -> Ranges:
        if self._setup["does"] == "commit":
            assert isinstance(self.adapter, Confluent)
            return self.adapter.poll_once()
        return self.adapter.poll()

    def _report(self, ranges: Ranges) -> None:
        self._emit("records", ranges=ranges, total=self._total, generation=self.adapter.generation())

    def _count(self, ranges: Ranges) -> None:
        """Do nothing: all records are counted already."""

    def _work(self, ranges: Ranges) -> None:
        work_s = self._setup["work_ms"] / 1000
        if work_s:
            self._emit("idle", ms=(time.monotonic() - self._polling_since) * 1000)
            # Wait as an application at work does; a command ends the work early.
            if not self._execute_next(block=True, timeout_s=work_s):
                self._commands.put(None)
            self._polling_since = time.monotonic()

    def _commit_batch(self, ranges: Ranges) -> None:
        assert isinstance(self.adapter, Confluent)
        self._emit("batch", ranges=ranges, generation=self.adapter.generation())
        began = time.monotonic()
        refused = self.adapter.commit_behind(ranges)
        self._emit("committed", took_ms=(time.monotonic() - began) * 1000, refused=refused)

    def _on_rebalance(self, what: str, partitions: Iterable[Any]) -> None:
        """Report a callback of the client."""
        found = by_topic(partitions)
        if self._setup["does"] in ("report", "count"):
            generation = self.adapter.generation() if hasattr(self, "adapter") else -1
            self._emit(what, partitions=found, generation=generation)
        elif found:
            # Omit empty callbacks: fifty members would write a line each while the others wait for their partitions.
            self._emit(what, partitions=found)

    def _on_error(self, error: str) -> None:
        self._emit("error", error=error)

    def _emit(self, event: str, **details: Any) -> None:
        self._out.emit(event, member=self.member, **details)


class Driver:
    """All members of the process, and the commands on standard input."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = setup
        self._out = Out()
        self._members: dict[str, Member] = {}
        self._started = 0
        #: Lines of the input; None asks all members to leave.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run(self) -> int:
        """Run until all members have left; return the exit code."""
        for name in self._setup["members"]:
            self._start(name)
        if not self._setup.get("waits"):
            for member in self._members.values():
                member.begin()
        for member in self._members.values():
            member.start()
        self._out.emit("ready")
        signal.signal(signal.SIGTERM, lambda *_: self._lines.put(None))
        threading.Thread(target=self._read, name="commands", daemon=True).start()
        while not self._is_over():
            try:
                line = self._lines.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if line is None:
                break
            self._execute(json.loads(line))
        for member in self._members.values():
            member.put(None)
        for member in self._members.values():
            member.join()
        return int(any(member.failed for member in self._members.values()))

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put(None)

    def _is_over(self) -> bool:
        return not self._setup.get("lasts") and not any(member.is_alive() for member in self._members.values())

    def _start(self, name: str) -> Member:
        member = self._members[name] = Member(self._setup, self._started, name, self._out)
        self._started += 1
        return member

    def _execute(self, command: dict[str, Any]) -> None:
        command["started_ns"] = time.monotonic_ns()
        whole: Callable[[], Mapping[str, Any]] | None = {
            "start": lambda: self._start_one_more(command["member"]),
            "begin": self._begin,
            "usage": self._usage,
            "sample": sample,
        }.get(command["command"])
        if whole is not None:
            self._out.emit("answer", id=command.get("id"), started_ns=command["started_ns"], **whole())
            return
        name = command["member"] if "member" in command else next(iter(self._members))
        member = self._members.get(str(name))
        if member is not None and member.is_alive():
            member.put(command)
        else:
            self._out.emit("answer", id=command.get("id"), started_ns=command["started_ns"], error="the member has ended")

    def _start_one_more(self, name: str) -> Mapping[str, Any]:
        # Forget the members that have ended: a process in which members are replaced must not grow.
        self._members = {known: one for known, one in self._members.items() if one.is_alive() or one.failed}
        member = self._start(name)
        member.begin()
        member.start()
        return {}

    def _begin(self) -> Mapping[str, Any]:
        for member in self._members.values():
            member.put({"command": "begin"})
        return {}

    def _usage(self) -> Mapping[str, Any]:
        first = next(iter(self._members.values()))
        requests = [
            figures["heartbeat-total"] + figures["join-total"]
            for member in self._members.values()
            if isinstance(member.adapter, Ours)
            for figures in (member.adapter.consumer.metrics(),)
        ]
        return {
            **usage(),
            "generation": first.generation,
            "requests": sum(requests) if requests else float("nan"),
        }


def usage() -> Mapping[str, float]:
    """Return processor time, memory and threads of this process; ``ours_s`` is the time of our background thread."""
    times = os.times()
    ours_s, our_threads = 0.0, 0
    for thread in threading.enumerate():
        if thread.name.startswith("consumer-coord"):
            our_threads += 1
            ours_s += processor_s(f"self/task/{thread.native_id}")
    return {
        "cpu_s": times.user + times.system,
        "ours_s": ours_s,
        "our_threads": our_threads,
        "rss_mb": _rss_mb(),
        "threads": _threads(),
        "sockets": _sockets(),
    }


def sample() -> Mapping[str, float]:
    """Return the figures that must not grow in a process with our client, without memory that the allocator keeps for reuse."""
    from consumer_coord.threads.background import Runtime

    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)

    async def count() -> int:
        return len(asyncio.all_tasks())

    return {
        "rss_mb": _rss_mb(),
        "blocks": sys.getallocatedblocks(),
        "threads": _threads(),
        "sockets": _sockets(),
        "tasks": asyncio.run_coroutine_threadsafe(count(), Runtime.shared().loop).result(60),
    }


def _sockets() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(descriptor).startswith("socket:")
        except OSError:
            continue  # closed since the directory was listed
    return found


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MB


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


if __name__ == "__main__":
    sys.exit(Driver(json.loads(sys.argv[1])).run())
