"""A process in the role of a planner: ``python -m tests.support.spark.ending CASE``; it reports its end on standard output.

Its leave ends at a line on standard input.  The case determines the work of the main thread when the process is to end.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

# Loaded by its path: the package around it imports PySpark, which takes a second.
_PATH = Path(__file__).resolve().parents[3] / "consumer_coord" / "spark" / "leave_at_end.py"
_SPEC = importlib.util.spec_from_file_location("leave_at_end", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
leave_at_end = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(leave_at_end)


def say(word: str) -> None:
    """Report a word to the test."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main(case: str) -> None:
    """Wait for the end of the process."""
    if case == "orphan":
        subprocess.run([sys.executable, "-m", "tests.support.spark.ending", "idle"], check=False)
        return
    guard = threading.Lock()
    begun, over = threading.Event(), threading.Event()

    # Short, where the test waits for this limit; long, where the limit must not apply.
    vars(leave_at_end)["END_WITHIN_S"] = 0.5 if "hangs" in case else 60.0

    def leave() -> None:
        """Leave as a membership does: one operation for all callers, with a lock that the main thread acquires, too."""
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

    leave_at_end.leave_with_process(leave)
    if case == "in the lock":
        with guard:
            say("ready")
            sys.stdin.readline()
    elif case == "leaving":
        # Like Spark's runner at the end of its input.
        leave()
        sys.exit(255)
    elif case == "the end hangs":
        leave()
        leave_at_end.forget(leave)
        # Python waits for such a thread before the process ends.
        threading.Thread(target=threading.Event().wait).start()
        say("ready")
        sys.exit(255)
    else:
        say("ready")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
