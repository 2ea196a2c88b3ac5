"""A child process that reads lines from its standard input and answers with one or many lines on its standard output."""

from __future__ import annotations

import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from consumer_coord.testing.processes import end, spawn

DEFAULT_DEADLINE_S = 180.0
#: Processes start in the project's root, so that Python programs can import ``tests`` and the packages.
_ROOT = Path(__file__).parents[2]


class LineProcessError(Exception):
    """Raised if the process ended, or was silent for too long; the message ends with its standard error."""


class LineProcess:
    """A process that answers lines with lines; it ends with this process.

    A daemon thread reads standard output all the time, so the process never blocks on a full pipe.  Subclasses may
    override :meth:`on_line`, which runs on that thread.
    """

    def __init__(self, command: Sequence[str], *, name: str, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._last_words = ""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _release
        self.process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=env, cwd=_ROOT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin: IO[bytes] = self.process.stdin
        self._stdout: IO[bytes] = self.process.stdout
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"reader of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def send(self, line: str) -> None:
        """Write one line; raise `LineProcessError` if the process has ended."""
        try:
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()
        except OSError as error:
            raise self._problem(f"cannot be written to ({error})") from error

    def receive(self, deadline_s: float = DEFAULT_DEADLINE_S) -> str:
        """Return the next line of the process, without its end; raise `LineProcessError` at the end or at the deadline."""
        try:
            line = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            raise self._problem(f"was silent for {deadline_s:g} s") from None
        if line is None:
            self._lines.put(None)  # for the next caller
            raise self._problem("has closed its output")
        return line

    def request(self, line: str, deadline_s: float = DEFAULT_DEADLINE_S) -> str:
        """Send one line and return the next line of the process."""
        self.send(line)
        return self.receive(deadline_s)

    def on_line(self, line: str) -> None:
        """Handle a line of the process: here it waits for :meth:`receive`."""
        self._lines.put(line)

    def on_end(self) -> None:
        """Handle the end of the standard output of the process."""
        self._lines.put(None)

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process with SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        end(self.process)
        self._release()

    def wait(self, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        """Wait for the end of the process, and return its exit code."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise self._problem(f"did not end within {deadline_s:g} s") from None
        self._release()
        return code

    def close(self, grace_s: float = 20.0) -> None:
        """Close the standard input, at which every program here ends; kill the process if it does not end."""
        if self.process.poll() is None:
            self.resume()
        self._close_stdin()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            end(self.process)
        self._release()

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def stderr_tail(self, lines: int = 30) -> str:
        """Return the last lines of the standard error of the process."""
        if self._stderr.closed:
            return self._last_words
        self._stderr.seek(0)
        return "\n".join(self._stderr.read().decode(errors="replace").splitlines()[-lines:])

    def _problem(self, what: str) -> LineProcessError:
        code = self.process.poll()
        if code is not None:
            what += f"; it ended with code {code}"
        return LineProcessError(f"{self.name} {what}:\n{self.stderr_tail()}")

    def _read(self) -> None:
        for line in self._stdout:
            self.on_line(line.decode().rstrip("\n"))
        self.on_end()

    def _close_stdin(self) -> None:
        try:
            self._stdin.close()
        except BrokenPipeError:
            return  # the process ended and had not read a line

    def _release(self) -> None:
        """Close this end of the pipes; the standard error remains readable."""
        self._close_stdin()
        self._reader.join(DEFAULT_DEADLINE_S)
        self._stdout.close()
        if not self._stderr.closed:
            self._last_words = self.stderr_tail()
            self._stderr.close()
