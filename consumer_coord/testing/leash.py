"""Run as a script: become the given command, which the kernel kills when the process that started it ends.

    leash.py PARENT_PID DESCRIPTOR COMMAND [ARGUMENT ...]

So no broker and no member outlives a test run, not even a run that was killed.  Linux guarantees this (PR_SET_PDEATHSIG
survives ``exec``); on other systems the command runs without the guarantee.  The descriptor is one end of a pipe,
closed when the command begins to run; if the command cannot run, a line with the reason is written first.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Let the kernel kill this process with its parent, and become the command."""
    parent, started, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(started, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell's background job ignores SIGINT, and a run under nohup ignores SIGHUP. The command would inherit that, and the
    # tests could not interrupt it.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(started, f"{command[0]}: {error}".encode())
        os._exit(127)


if __name__ == "__main__":
    main()
