"""Fork server: a process that has imported a planner's modules, and forks planners.

A planner then starts in 50 ms instead of a second.

:func:`~consumer_coord.spark.launcher.write_python_launcher` starts ``python -m consumer_coord.spark.fork_server SOCKET`` and
keeps the server's standard input open, so the server ends when the driver ends. The clients are the processes that Spark starts
(``fork_front.py``). Each connection is for one planner:

1. The client sends its working directory, arguments and environment, and the descriptors of its standard streams.
2. The server responds ``READY``, or closes the connection if the environment does not match the server's.
3. The client responds ``GO``, or closes the connection and starts Python itself. So no planner starts twice.
4. The server forks, forwards the signals that the client names, and reports the planner's exit status. If the client
   disappears, the server ends the planner.

The server accepts only processes of the same user.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.log_text import get_logger
from consumer_coord.spark.fork_front import ENDED, GO, LENGTH, PASSED_ON, READY, STATUS

logger: Final = get_logger(__name__)

#: Time limit for receiving a request, in seconds. Other clients wait during this time.
REQUEST_S = 1.0
#: A planner that ignores a signal is killed after this time, in seconds. Planners normally end within five seconds.
KILL_AFTER_S = 10.0
#: Time limit for Spark to send the source to a planner, in seconds. Without a limit, a query that stops before it sends the
#: source would leave the planner running until the query's JVM ends.
SOURCE_WITHIN_S = 30
#: The functions of Spark's runner, of which at least one is active until the planner has received the source.
_UNTIL_SOURCE = {"check_python_version", "setup_spark_files", "read_command"}
#: Interval between checks whether the driver runs, in seconds. The end of standard input is not enough, because other children
#: of the driver may keep the pipe open.
_LOOK_EVERY_S = 1.0
_MAX_REQUEST = 4 << 20

#: Variables that Python and the loaded libraries read only at their start. Names that begin with PYTHON_ are Spark's.
_READ_AT_START = re.compile(
    r"(PYTHON(?!_)|LD_|LC_|LANG|ARROW_|OPENBLAS_|OMP_|MKL_|MALLOC_|OPENSSL_|SSL_|SPARK_TESTING|PYSPARK_ENABLE_)"
)

_LOADED = (
    "pyspark.sql.worker.plan_data_source_read",
    "consumer_coord.spark.source",
    "consumer_coord.spark.leave_at_end",
    "consumer_coord.spark.batch_ends",
    "consumer_coord.spark.query_membership",
)


@attrs.frozen
class Request:
    """A request to start a planner. ``descriptors`` become the planner's standard input, output and error."""

    directory: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    descriptors: Sequence[int]


def read_at_start(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that have an effect only at Python's start; remove empty and repeated entries of ``PYTHONPATH``."""
    found = {name: value for name, value in environment.items() if _READ_AT_START.match(name) and value}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, found["PYTHONPATH"].split(os.pathsep))))
        if not found["PYTHONPATH"]:
            del found["PYTHONPATH"]
    return found


@attrs.define
class _Client:
    """A connection: the client's request, and after the fork the client's planner."""

    connection: socket.socket
    request: Request
    pid: int = 0
    kill_at_s: float = 0.0


@attrs.define
class ForkServer:
    """A server that runs until standard input ends."""

    listener: socket.socket
    environment: Mapping[str, str]
    _selector: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)
    _clients: dict[int, _Client] = attrs.field(factory=dict)
    _parent: int = attrs.field(factory=os.getppid)
    _ending: bool = False

    def serve(self) -> Request | None:
        """Serve until standard input ends and return None; in a forked process, return the request to run."""
        reading, writing = socket.socketpair()
        for one in (reading, writing):
            one.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._selector.register(reading, selectors.EVENT_READ)
        while not self._ending or self._planners():
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj is reading:
                    reading.recv(4096)
                elif key.fileobj == sys.stdin.fileno():
                    # No process writes to standard input, so standard input is readable only after its other end was closed.
                    self._end()
                elif isinstance(client := key.data, _Client) and self._clients.get(key.fd) is client:
                    request = self._receive(client)
                    if request is not None:
                        self._be_child(request, (reading, writing))
                        return request
            self._reap()
            self._kill_overdue()
            if os.getppid() != self._parent:
                self._end()
        return None

    # -- the server -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        request = None
        try:
            connection.settimeout(REQUEST_S)
            _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            request = _receive(connection) if user == os.getuid() else None
            if request is not None and not self._ending and read_at_start(request.environment) == self.environment:
                connection.sendall(READY)
                client = _Client(connection, request)
                self._clients[connection.fileno()] = client
                self._selector.register(connection, selectors.EVENT_READ, client)
                return
        except (OSError, ValueError) as error:
            # The client disconnected or took too long. The client then starts Python itself.
            logger.debug("a request was not served: %s", error)
        _close(request)
        connection.close()

    def _receive(self, client: _Client) -> Request | None:
        """Read from a client; in a forked process return the request, otherwise None."""
        try:
            said = client.connection.recv(64)
        except OSError:
            said = b""
        if client.pid:
            for number in said:
                if number in PASSED_ON:
                    os.kill(client.pid, number)
            if not said:
                self._end_client(client)
        elif said == GO:
            client.pid = os.fork()
            if not client.pid:
                return client.request
            _close(client.request)
        else:
            self._forget(client)
            _close(client.request)
        return None

    def _end_client(self, client: _Client) -> None:
        if not client.kill_at_s:
            client.kill_at_s = time.monotonic() + KILL_AFTER_S
            os.kill(client.pid, signal.SIGTERM)
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)

    def _kill_overdue(self) -> None:
        for client in self._planners():
            if client.kill_at_s and time.monotonic() > client.kill_at_s:
                os.kill(client.pid, signal.SIGKILL)

    def _reap(self) -> None:
        by_pid = {client.pid: client for client in self._planners()}
        for pid, client in by_pid.items():
            # Wait only for known planners, and forget a planner after its end, so that a signal never reaches a process that
            # got the same id later.
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    client.connection.sendall(ENDED + STATUS.pack(status))
                self._forget(client)

    def _planners(self) -> Sequence[_Client]:
        return [client for client in self._clients.values() if client.pid]

    def _forget(self, client: _Client) -> None:
        del self._clients[client.connection.fileno()]
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)
        client.connection.close()

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            self._selector.unregister(sys.stdin.fileno())
            for client in self._planners():
                self._end_client(client)

    # -- the forked process -----------------------------------------------------------------------------------------

    def _be_child(self, request: Request, wakeups: Sequence[socket.socket]) -> None:
        """Close the server's sockets and descriptors, and reset its signal handling, in a forked process."""
        for client in self._clients.values():
            if not client.pid and client.request is not request:
                _close(client.request)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for one in (self.listener, *wakeups, *(client.connection for client in self._clients.values())):
            one.close()


def _receive(connection: socket.socket) -> Request:
    """Return the request; raise OSError or ValueError if the request is malformed."""
    received, descriptors, _, _ = socket.recv_fds(connection, 65536, 3)
    request = Request("", (), {}, descriptors)
    try:
        while len(received) < LENGTH.size or len(received) < LENGTH.size + LENGTH.unpack_from(received)[0]:
            more = connection.recv(65536)
            if not more or len(received) > _MAX_REQUEST:
                raise ValueError("the request is not complete")
            received += more
        directory, count, *fields = map(os.fsdecode, received[LENGTH.size :].split(b"\0"))
        arguments, variables = fields[: int(count)], fields[int(count) :]
        if len(descriptors) != 3 or arguments[:1] != ["-m"] or len(arguments) < 2:
            raise ValueError("the request does not start a module with three standard streams")
    except (OSError, ValueError):
        _close(request)
        raise
    return Request(directory, arguments, dict(_pairs(variables)), descriptors)


def _pairs(variables: Sequence[str]) -> Iterator[tuple[str, str]]:
    for variable in variables:
        name, separator, value = variable.partition("=")
        if separator:
            yield name, value


def _close(request: Request | None) -> None:
    if request is not None:
        for descriptor in request.descriptors:
            os.close(descriptor)


def become(request: Request) -> str:
    """Adopt the request's streams, environment, directory and arguments; return the name of the module to run."""
    for target, descriptor in enumerate(request.descriptors):
        os.dup2(descriptor, target)
    _close(request)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    os.chdir(request.directory)
    if not getattr(sys.flags, "safe_path", False):
        # Set the path as ``python -m`` does.
        sys.path[0] = request.directory
    module = request.arguments[1]
    sys.argv[:] = ["-m", *request.arguments[2:]]
    return module


def end_without_source(number: int, frame: FrameType | None) -> None:
    """Handle SIGALRM: end a planner that still waits for the source."""
    while frame is not None:
        if frame.f_code.co_name in _UNTIL_SOURCE:
            os._exit(1)
        frame = frame.f_back


def load() -> None:
    """Import everything that planners need, except the module that Spark runs, which must be ``__main__``."""
    for module in _LOADED:
        importlib.import_module(module)


def main() -> None:
    """Serve; in a forked process, run the requested module."""
    path = Path(sys.argv[1])
    environment = read_at_start(os.environ)
    load()
    gc.collect()
    gc.freeze()
    waiting = path.with_suffix(".new")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(waiting))
        listener.listen()
        # Rename the socket only after the server listens, so that a client that finds the socket gets a response at once.
        waiting.rename(path)
        request = None
        try:
            request = ForkServer(listener, environment).serve()
        finally:
            if request is None:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()
    if request is not None:
        signal.signal(signal.SIGALRM, end_without_source)
        signal.alarm(SOURCE_WITHIN_S)
        runpy.run_module(become(request), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
