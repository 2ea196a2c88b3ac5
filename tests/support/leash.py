"""Run as a script: become the given command, which the kernel kills when the process that started it ends.

    leash.py PARENT_PID DESCRIPTOR COMMAND [ARGUMENT ...]

So no broker and no member outlives a test run, even one that was killed.  Linux keeps this promise (PR_SET_PDEATHSIG
survives ``exec``); elsewhere the command runs without it.  The descriptor is a pipe's end that is
closed when the command begins to run, after a line that says why if it could not.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Put the leash on and become the command."""
    parent, started, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(started, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A run in a shell's background ignores Ctrl-C, one under nohup the terminal's end, and both would be handed down to what
    # the tests interrupt.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if os.getppid() != parent:  # it ended before the leash was on
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(started, f"{command[0]}: {error}".encode())
        os._exit(127)


if __name__ == "__main__":
    main()
