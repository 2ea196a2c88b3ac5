"""The process that Spark starts instead of a planner if there is a fork server: ``python -I -S fork_front.py SOCKET -m …``.

The process requests a planner from the server (see ``fork_server.py``), forwards signals to the planner, and ends with the
planner's exit status. If the fork server fails, the process starts a planner without the server. This module imports few
modules, to start fast.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from types import FrameType

READY = b"R"
GO = b"G"
ENDED = b"E"
#: Format of a request's length in bytes; the length is sent before the request.
LENGTH = struct.Struct("!I")
#: Format of a planner's wait status, as ``os.waitpid`` returns it.
STATUS = struct.Struct("!i")

#: Time limit for the server's response, in seconds. The server is usually idle.
ANSWER_S = 1.0
_LOOK_EVERY_S = 0.5

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def ask(path: str, arguments: list[str]) -> socket.socket | None:
    """Request a planner; return the connection to the server, or None if this process must start Python without the server."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        environment = [name + b"=" + value for name, value in os.environb.items()]
        fields = [os.getcwdb(), b"%d" % len(arguments), *map(os.fsencode, arguments), *environment]
        request = b"\0".join(fields)
        head = LENGTH.pack(len(request))
        sent = socket.send_fds(connection, [head + request], [0, 1, 2])
        connection.sendall((head + request)[sent:])
        if connection.recv(1) == READY:
            connection.sendall(GO)
            connection.settimeout(None)
            return connection
    except OSError:
        pass  # No server listens, or the server is busy.
    connection.close()
    return None


def follow(connection: socket.socket) -> int:
    """Forward signals until the planner has ended; return its wait status, or status 1 if the server ends first."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        try:
            connection.sendall(bytes((number,)))
        except OSError:
            os._exit(128 + number)  # The server has ended, and so has the planner.

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    parent = os.getppid()
    received = b""
    while len(received) < 1 + STATUS.size:
        ready, _, _ = select.select([connection], [], [], _LOOK_EVERY_S)
        if os.getppid() != parent:
            return 1 << 8  # Spark has ended. The server ends the planner when this process ends.
        if ready:
            try:
                more = connection.recv(64)
            except OSError:
                more = b""
            if not more:
                return 1 << 8
            received += more
    status: int = STATUS.unpack(received[1:])[0]
    return status


def main() -> None:
    """Run as the process that Spark started as its planner."""
    _, path, *arguments = sys.argv
    connection = ask(path, arguments)
    if connection is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    status = follow(connection)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
