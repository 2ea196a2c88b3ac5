"""The health in a file, for exec probes: ``python -m consumer_coord.health FILE``.

The file is replaced as a whole, every few seconds. If it is old, missing or not readable, the probe fails, because a process
that hangs cannot write that it is unhealthy. Ages are by the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from consumer_coord.health.source import UNANSWERED, HasHealth, unanswered
from consumer_coord.health.values import Health
from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)

#: A file is old after this many intervals without a new one, or after this time if it is longer, in seconds.
_INTERVALS: Final = 3
_OLD_S: Final = 5.0


class HealthFile:
    """Writes a consumer's health into a file every ``every`` seconds, from ``with`` until its end, which removes the file.

    ``with HealthFile(consumer, path):`` is for a ``GroupConsumer``, and writes in a thread; ``async with`` is for an
    ``AsyncGroupConsumer``, and writes in a task. ``limit`` is how long a partition may owe records, in seconds. A file that
    cannot be written is logged, and becomes old.
    """

    def __init__(self, consumer: HasHealth, path: str | os.PathLike[str], *, limit: float = 60.0, every: float = 5.0) -> None:
        self._consumer = consumer
        self._path = Path(path)
        self._limit_s = limit
        self._every_s = every
        self._ended = Event()
        self._thread: Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if inspect.iscoroutinefunction(self._consumer.health):
            raise TypeError("use 'async with HealthFile(...)' for an AsyncGroupConsumer")
        self._thread = Thread(target=self._write_on, name="consumer-coord-health", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._thread is not None
        self._ended.set()
        # A call of the consumer ends at its own time limit.
        self._thread.join()
        self._path.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._write_on_loop(), name="consumer-coord-health")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            # It failed.
            self._task.result()
        self._path.unlink(missing_ok=True)

    def _write_on(self) -> None:
        while not self._ended.is_set():
            try:
                health = self._consumer.health(self._limit_s)
            except UNANSWERED as error:
                health = unanswered(error)
            assert isinstance(health, Health)
            self._write(health)
            self._ended.wait(self._every_s)

    async def _write_on_loop(self) -> None:
        while True:
            try:
                health = self._consumer.health(self._limit_s)
                if not isinstance(health, Health):
                    health = await health
            except UNANSWERED as error:
                health = unanswered(error)
            self._write(health)
            await asyncio.sleep(self._every_s)

    def _write(self, health: Health) -> None:
        try:
            write_health(self._path, health, every_s=self._every_s)
        except OSError as error:
            logger.warning("could not write the health to %s, so its probe will fail: %s", self._path, error)


def write_health(path: Path, health: Health, *, every_s: float) -> None:
    """Replace the file as a whole; it is old ``3 * every_s`` seconds later, but not before 5 s. Raise OSError."""
    written = {"written": time.monotonic(), "old_after_s": max(_OLD_S, _INTERVALS * every_s), "health": health.as_dict()}
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(written))
    fresh.replace(path)


def read_health(path: Path) -> Mapping[str, Any]:
    """Return the health that a process has written, as JSON; if the file cannot be used, an unhealthy one with the reason."""
    try:
        told = json.loads(path.read_text())
        age_s = time.monotonic() - float(told["written"])
        health: Mapping[str, Any] = told["health"]
        # The clock starts again at a reboot, so the age of a file from before it is negative.
        if not 0 <= age_s <= float(told["old_after_s"]):
            return unanswered(f"{path} is {age_s:.0f} s old: the process no longer writes it").as_dict()
        if not isinstance(health["healthy"], bool) or not isinstance(health["live"], bool):
            raise TypeError("healthy and live must be true or false")
    except OSError as error:
        return unanswered(f"no health in {path}: {error.strerror}").as_dict()
    except (ValueError, KeyError, TypeError) as error:
        return unanswered(f"no health in {path}: {error!r}").as_dict()
    return health
