"""Run each check in a separate process, forked from a process that has imported everything that does not change."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: A process that waits forever uses no processor time, so the wait is limited, too. The limit counts ticks instead of seconds,
#: so that a pause of the whole run counts as one tick. Length of a tick, in seconds.
_TICK_S = 1.0


class End(NamedTuple):
    """The end of a check. ``value`` is the result; ``broke`` is the reason if there is no result."""

    value: Any
    broke: str | None = None


def import_ahead() -> None:
    """Import everything that checks import, except the project itself, which each check imports from its own directory."""
    import pytest  # noqa: F401
    import xdist  # noqa: F401

    import consumer_coord.simulation.command  # noqa: F401
    import tests.conftest  # noqa: F401

    for name in [name for name in sys.modules if name.partition(".")[0] in ("consumer_coord", "assignors", "tests")]:
        del sys.modules[name]


def in_child(tree: Path, check: Callable[[], Any], *, processor_s: float, wall_s: float) -> End:
    """Run a check in a separate process, in the directory ``tree``. The check's result must be valid in JSON.

    The kernel ends a process that uses more than ``processor_s``; after ``wall_s`` the process counts as hung.
    """
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reads)
            _become(tree, processor_s)
            answer = json.dumps({"value": check()})
        except BaseException:  # noqa: BLE001 - whatever ends a check is its finding
            answer = json.dumps({"broke": traceback.format_exc(limit=-3)})
        with contextlib.suppress(OSError), os.fdopen(writes, "w") as file:
            file.write(answer)
        os._exit(0)
    os.close(writes)
    text = b""
    left = wall_s
    while left > 0:
        if not select.select([reads], [], [], _TICK_S)[0]:
            left -= _TICK_S
            continue
        piece = os.read(reads, 1 << 20)
        if not piece:
            break
        text += piece
    descendants = list(_descendants(pid))
    for process in [*descendants, pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    os.close(reads)
    _, status = os.waitpid(pid, 0)
    if text:
        return End(**{"value": None, "broke": None, **json.loads(text)})
    return End(None, f"hung for {wall_s:.0f} s" if left <= 0 else f"ended by signal {os.WTERMSIG(status)}")


def _become(tree: Path, processor_s: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(processor_s), math.ceil(processor_s) + 1))
    os.chdir(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(Path(__file__).resolve().parents[2])))]
    os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def _descendants(pid: int) -> Iterator[int]:
    """Yield all descendants of a process, children before their parents; Linux only."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield from _descendants(child)
                yield child
