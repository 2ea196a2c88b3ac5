"""A process that stands for a planner: ``python -m tests.support.spark.ending CASE``; what happens at its end goes to stdout.

Its leave is over when a line comes on standard input.  The case says what the main thread does when the end comes.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

# By its path: the package beside it imports PySpark, which takes a second.
_PATH = Path(__file__).resolve().parents[3] / "consumer_coord" / "spark" / "lifeline.py"
_SPEC = importlib.util.spec_from_file_location("lifeline", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
lifeline = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lifeline)


def say(word: str) -> None:
    """To the test."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main(case: str) -> None:
    """Wait for the end."""
    if case == "orphan":
        subprocess.run([sys.executable, "-m", "tests.support.spark.ending", "idle"], check=False)
        return
    guard = threading.Lock()
    begun, over = threading.Event(), threading.Event()

    # So that a test need not wait for it where it counts; long where it does not.
    vars(lifeline)["END_WITHIN_S"] = 0.5 if "hangs" in case else 60.0

    def leave() -> None:
        """As a membership's: one operation for all callers, and it needs a lock that the main thread takes, too."""
        with guard:
            first = not begun.is_set()
            begun.set()
        if first and case == "the end hangs":
            return
        if first:
            say("leaving")
            sys.stdin.readline()
            say("left")
            over.set()
        over.wait()

    lifeline.leave_with_process(leave)
    if case == "in the lock":
        with guard:
            say("ready")
            sys.stdin.readline()
    elif case == "leaving":
        # Spark's runner, when its input ends.
        leave()
        sys.exit(255)
    elif case == "the end hangs":
        leave()
        lifeline.forget(leave)
        # Python waits for such a thread before it ends.
        threading.Thread(target=threading.Event().wait).start()
        say("ready")
        sys.exit(255)
    else:
        say("ready")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
