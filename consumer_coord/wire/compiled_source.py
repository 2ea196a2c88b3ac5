"""Generate and compile Python source, and keep the source for tracebacks."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Iterator
from typing import Any


class Source:
    """The source lines of a function that is being generated, and the function's global names."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._indent = 0

    def line(self, text: str) -> None:
        """Add one line with the current indentation."""
        self._lines.append("    " * self._indent + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add the head of a compound statement; lines that are added inside the ``with`` block become its body."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    @contextlib.contextmanager
    def same_block(self) -> Iterator[None]:
        """Keep the current indentation; use this instead of :meth:`block` if no condition is needed."""
        yield

    def constant(self, value: object) -> str:
        """Return an expression for ``value``: a literal, or a global name that has this value."""
        if value is None or isinstance(value, (bool, int, str, bytes)) or value == ():
            return repr(value)
        name = f"constant{len(self.names)}"
        self.names[name] = value
        return name

    def compile(self, function: str, filename: str) -> Callable[..., Any]:
        """Compile the source and return ``function``; register the source so that tracebacks can show its lines."""
        text = "\n".join(self._lines) + "\n"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.names)
        result: Callable[..., Any] = self.names[function]
        return result
