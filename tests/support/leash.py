"""Run as a script: become the given command, which the kernel kills when the process that started it ends.

    leash.py PARENT_PID COMMAND [ARGUMENT ...]

So no broker and no member outlives a test run, even one that was killed.  Linux keeps this promise (PR_SET_PDEATHSIG
survives ``exec``); elsewhere the command runs without it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Put the leash on and become the command."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the leash was on
        os._exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
