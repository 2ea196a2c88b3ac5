"""Exceptions at the points where CPython may run a signal handler: after a call, at the start of a function, at a jump back.

A trace function observes every instruction of this package's frames on this thread, and raises at the chosen point.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import consumer_coord
from tests.support.consumer.interrupts import Interrupt

_PACKAGE = str(Path(consumer_coord.__file__).parent)
#: Instructions after which there is a point; BEFORE_WITH is none, because ``with lock`` begins without a point.
_AFTER = ("CALL", "RESUME")


def _is_point(instruction: str) -> bool:
    """Return whether CPython runs signal handlers after this instruction; an intrinsic is not a call."""
    return instruction.startswith(_AFTER) and not instruction.startswith("CALL_INTRINSIC")


_points: dict[Any, frozenset[int]] = {}


def _points_of(code: Any) -> frozenset[int]:
    """Return the offsets of the instructions that follow a point."""
    found = _points.get(code)
    if found is None:
        instructions = list(dis.get_instructions(code))
        targets = set()
        # The exception belongs to the call: if the next instruction raises it, the call's handler must still apply.
        table = dis._parse_exception_table(code)  # type: ignore[attr-defined]

        def handler(offset: int) -> int:
            return max((entry.target for entry in table if entry.start <= offset < entry.end), default=-1)

        for before, after in itertools.pairwise(instructions):
            if before.opname == "JUMP_BACKWARD":
                targets.add(before.argval)
            elif _is_point(before.opname) and handler(before.offset) == handler(after.offset):
                targets.add(after.offset)
        found = _points[code] = frozenset(targets)
    return found


class Interrupts:
    """Counts points, and raises once, at number ``at``."""

    def __init__(self, at: int) -> None:
        self.seen = 0
        self.raised_at: str | None = None
        self._at = at

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Trace a frame, as a function for ``sys.settrace``."""
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and frame.f_lasti in _points_of(frame.f_code):
            if self.seen == self._at:
                self.raised_at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
                raise Interrupt(self.raised_at)
            self.seen += 1
        return self.trace


@contextlib.contextmanager
def interrupted(at: int) -> Iterator[Interrupts]:
    """Raise :class:`Interrupt` at point number ``at`` inside the block; the exception does not leave the block."""
    interrupts = Interrupts(at)
    # CPython loses the trace function if it raises in a finalizer that garbage collection runs.
    gc.disable()
    sys.settrace(interrupts.trace)
    try:
        yield interrupts
    except Interrupt:
        sys.settrace(None)
    finally:
        sys.settrace(None)
        gc.enable()
