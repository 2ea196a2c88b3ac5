"""The lines of some files that a history or a test executes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Set
from types import CodeType, FrameType
from typing import Any


class ExecutedLines:
    """A watcher of the lines of some files, in all threads that start while it runs.

    The tracer is called for the lines of a function until all of these lines were executed since the last :meth:`take`.
    """

    def __init__(self, files: Set[str]) -> None:
        self._files = files
        self._lines: dict[CodeType, frozenset[int]] = {}
        self._left: dict[CodeType, set[int]] = {}

    def watch(self) -> None:
        """Begin to watch; call again after another tracer has replaced this tracer in this thread."""
        sys.settrace(self._call)
        threading.settrace(self._call)

    def take(self) -> set[tuple[str, int]]:
        """Return file and line of each line that was executed since the last call."""
        left, self._left = self._left, {}
        return {(code.co_filename, line) for code, rest in left.items() for line in self._lines[code] - rest}

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            if code.co_filename not in self._files:
                return None
            lines = self._lines.get(code)
            if lines is None:
                lines = self._lines[code] = frozenset(line for _, _, line in code.co_lines() if line)
            left = self._left[code] = set(lines)
        if not left:
            return None

        def line(frame: FrameType, event: str, arg: object, left: set[int] = left) -> Any:
            left.discard(frame.f_lineno)
            return line if left else None

        return line
