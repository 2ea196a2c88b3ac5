"""Which code belongs to the program under test: not Python, nor an installed package, nor this package."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Final

import assignors
import consumer_coord

_PATHS: Final = ("stdlib", "platstdlib", "purelib", "platlib")
#: Directories whose code is not the program's.
_OTHERS: Final = tuple(
    {os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in _PATHS}
    | {os.path.join(os.path.dirname(os.path.realpath(str(module.__file__))), "") for module in (assignors, consumer_coord)}
)


@functools.cache
def is_program(filename: str) -> bool:
    """Return whether a file has code of the program."""
    return os.path.isabs(filename) and not os.path.realpath(filename).startswith(_OTHERS)


def program_modules() -> Iterator[ModuleType]:
    """Yield the modules of the program that are imported so far, in the order of their names."""
    for _, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and is_program(getattr(module, "__file__", None) or ""):
            yield module


def program_line() -> str:
    """Return the innermost line of the program that is being executed, as ``file:line``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_program(frame.f_code.co_filename):
            return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno} (in {frame.f_code.co_name})"
        frame = frame.f_back
    return "outside the program"
