"""What the programs have in common: their task, their handlers, and the times of the handlers' calls.

It needs only the standard library, because some of the programs run in an environment of their own.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

#: Values at which a handler fails always: with an error, and with a CancelledError of its own.
FAILS, CANCELS = b'"fails"', b'"cancels"'


@dataclass(frozen=True)
class Task:
    """What a program does. Without ``log``, it measures; with it, it is a member of a case until SIGTERM."""

    driver: str = "asyncio"
    bootstrap: str = ""
    topic: str = ""
    group: str = ""
    concurrency: int = 1
    #: It measures from the first call of a handler until ``records`` calls or ``seconds`` have passed.
    records: int = 1_000
    seconds: float = 5.0
    #: How long a handler sleeps (asyncio, threads) or computes (processes), in seconds.
    work: float = 0.005
    log: str = ""
    session_ms: int = 45_000
    #: The topic for dead letters; its name is the topic's with ``.dlq``.
    letters: str = ""
    #: Also log what the health check says, every half second.
    health: bool = False

    @staticmethod
    @functools.cache
    def given() -> Task:
        """Return the task of this program, also in a worker process."""
        return Task(**json.loads(sys.argv[1]))

    @property
    def most(self) -> int:
        """How many records may be in memory, for programs with such a bound: enough for every handler."""
        return max(5_000, 2 * self.concurrency)


@dataclass(frozen=True)
class Call:
    """The record of a call, as far as the log names it."""

    key: bytes | str | None
    partition: int
    offset: int
    value: bytes | str | None


class Timed:
    """Counts the calls of handlers; threads use it under a lock of their own."""

    def __init__(self, task: Task, stop: Callable[[], object] = lambda: None) -> None:
        self._task = task
        self._stop = stop
        self._count = 0
        self._began = self._ended = self._cpu = 0.0

    def begin(self) -> None:
        """Note the first call."""
        if not self._began:
            self._began, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Note the end of a call; stop after the last one that is measured."""
        if self.over:
            return
        self._count += 1
        now = time.perf_counter()
        if self._count == self._task.records or now - self._began >= self._task.seconds:
            self._ended, self._cpu = now, time.process_time() - self._cpu
            self._stop()

    @property
    def over(self) -> bool:
        """Whether everything is measured."""
        return self._ended > 0

    def report(self) -> None:
        """Print the rate per second, and the processor time of this process per record in microseconds."""
        assert self.over, "no handler was called often enough"
        rate = self._count / (self._ended - self._began)
        print(json.dumps({"rate": rate, "cpu": self._cpu / self._count * 1e6, "records": self._count}), flush=True)


class Logged:
    """Appends lines to a file: ``+ key partition offset`` when a call begins, ``-`` when it has ended well, ``x`` when not."""

    def __init__(self, task: Task) -> None:
        self._file = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, call: Call) -> None:
        """Note the beginning of a call."""
        self._write("+", call)

    def end(self, call: Call) -> None:
        """Note the end of a call; fail if the value says so."""
        try:
            decode(call.value)
        except BaseException:
            self._write("x", call)
            raise
        self._write("-", call)

    def note(self, text: str) -> None:
        """Append a line of another kind; the text has no line break."""
        os.write(self._file, f"! {text}\n".encode())

    def _write(self, sign: str, call: Call) -> None:
        key = call.key.decode() if isinstance(call.key, bytes) else call.key
        os.write(self._file, f"{sign} {key or '~'} {call.partition} {call.offset}\n".encode())


def coroutine(task: Task, timed: Timed | Logged, call_of: Callable[[Any], Call]) -> Callable[[Any], Awaitable[None]]:
    """Return a handler for asyncio; ``call_of`` returns what the log names of the library's message."""

    async def measured(_: Any) -> None:
        assert isinstance(timed, Timed)
        timed.begin()
        await asyncio.sleep(task.work)
        timed.end()

    async def logged(message: Any) -> None:
        assert isinstance(timed, Logged)
        call = call_of(message)
        timed.begin(call)
        await asyncio.sleep(task.work)
        timed.end(call)

    return logged if isinstance(timed, Logged) else measured


def function(task: Task, timed: Timed | Logged, call_of: Callable[[Any], Call]) -> Callable[[Any], None]:
    """Return a handler for threads."""
    lock = threading.Lock()

    def measured(_: Any) -> None:
        assert isinstance(timed, Timed)
        with lock:
            timed.begin()
        time.sleep(task.work)
        with lock:
            timed.end()

    def logged(message: Any) -> None:
        assert isinstance(timed, Logged)
        call = call_of(message)
        timed.begin(call)
        time.sleep(task.work)
        timed.end(call)

    return logged if isinstance(timed, Logged) else measured


def decode(value: bytes | str | None) -> None:
    """Fail at a value that is no JSON, or that says so."""
    text = value.encode() if isinstance(value, str) else value or b"null"
    if text == CANCELS:
        raise asyncio.CancelledError
    if text == FAILS:
        raise ValueError("the handler fails at this record")
    json.loads(text)


# -- worker processes ---------------------------------------------------------------------------------------------------


def compute(_: Any) -> None:
    """Use a processor for the task's time, and append the beginning and the end to the file in ``CALLS``."""
    began, ends = time.perf_counter(), time.process_time() + Task.given().work
    while time.process_time() < ends:
        pass
    file = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{began:020.6f} {time.perf_counter():020.6f}\n".encode())
    os.close(file)


class Counted:
    """Watches the file to which worker processes append; it measures the CPU of this process alone."""

    _LINE = 42

    def __init__(self, task: Task, stop: Callable[[], object]) -> None:
        self._task = task
        self._stop = stop
        self._file = os.environ["CALLS"]
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        began = cpu = 0.0
        while True:
            count = os.stat(self._file).st_size // self._LINE
            now = time.perf_counter()
            if count and not began:
                began, cpu = now, time.process_time()
            if began and (count >= self._task.records or now - began >= self._task.seconds):
                self._cpu, self._first = time.process_time() - cpu, began
                break
            time.sleep(0.005)
        self._stop()

    def report(self) -> None:
        """Print the same as :meth:`Timed.report`."""
        self._thread.join()
        with open(self._file) as file:
            calls = [tuple(map(float, line.split())) for line in file]
        calls = [call for call in calls if self._first <= call[1] <= self._first + self._task.seconds]
        rate = len(calls) / (max(end for _, end in calls) - self._first)
        print(json.dumps({"rate": rate, "cpu": self._cpu / len(calls) * 1e6, "records": len(calls)}), flush=True)
