"""A process instead of a planner, which reports its start in JSON: ``python -m tests.support.spark.forked … CASE``."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from types import FrameType


def say(**what: object) -> None:
    """Report values to the test."""
    print(json.dumps(what), flush=True)


def on_signal(number: int, frame: FrameType | None) -> None:
    """Report the signal and exit, like a planner's own handler."""
    say(signal=number)
    sys.exit(40 + number)


def main() -> None:
    """Report the start, then end as the case requires."""
    case = sys.argv[-1]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    say(
        pid=os.getpid(),
        cwd=os.getcwd(),
        arguments=sys.argv[1:],
        path=sys.path[0],
        color=os.environ.get("COLOR"),
        loaded="consumer_coord.spark.query_membership" in sys.modules,
        main=sys.modules["__main__"].__name__,
        threads=threading.active_count(),
    )
    if case == "fails":
        raise RuntimeError("it fails")
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "echo":
        say(heard=sys.stdin.readline())
        print("to standard error", file=sys.stderr)
        sys.exit(7)
    if case == "waits":
        threading.Event().wait()


if __name__ == "__main__":
    main()
