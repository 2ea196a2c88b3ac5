"""Exceptions at the points where CPython may run a signal handler: after a call, at the start of a function, at a jump back.

A callback sees every instruction of this package's frames on this thread, and raises at the chosen point. On Python 3.11 it is
a trace function. From 3.12 on it belongs to ``sys.monitoring`` (PEP 669), because 3.13.0 loses most of the instructions that a
trace function asks for.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import consumer_coord
from tests.support.consumer.interrupts import Interrupt

_PACKAGE = str(Path(consumer_coord.__file__).parent)
#: Instructions after which there is a point; BEFORE_WITH is none, because ``with lock`` begins without a point.
_AFTER = ("CALL", "RESUME")


def _is_point(instruction: str) -> bool:
    """Return whether CPython runs signal handlers after this instruction; an intrinsic is not a call."""
    return instruction.startswith(_AFTER) and not instruction.startswith("CALL_INTRINSIC")


#: What makes ``sys.monitoring`` skip an instruction from now on.
_NEVER_AGAIN: object = None
if sys.version_info >= (3, 12):
    _NEVER_AGAIN = sys.monitoring.DISABLE
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
        self._thread = threading.get_ident()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Trace a frame, as a function for ``sys.settrace``."""
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self._reached(frame, frame.f_code, frame.f_lasti)
        return self.trace

    def instruction(self, code: CodeType, offset: int) -> Any:
        """See an instruction, as a callback for ``sys.monitoring``, which calls it for all code on all threads."""
        if not code.co_filename.startswith(_PACKAGE):
            return _NEVER_AGAIN
        if threading.get_ident() == self._thread and self.raised_at is None:
            self._reached(sys._getframe(1), code, offset)
        return None

    def _reached(self, frame: FrameType, code: CodeType, offset: int) -> None:
        if offset in _points_of(code):
            if self.seen == self._at:
                self.raised_at = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}"
                raise Interrupt(self.raised_at)
            self.seen += 1


@contextlib.contextmanager
def _watched(interrupts: Interrupts) -> Iterator[None]:
    """Call ``interrupts`` at each instruction of this package's frames."""
    if sys.version_info >= (3, 12):
        tool, instruction = sys.monitoring.DEBUGGER_ID, sys.monitoring.events.INSTRUCTION
        sys.monitoring.use_tool_id(tool, "interrupts")
        sys.monitoring.register_callback(tool, instruction, interrupts.instruction)
        sys.monitoring.set_events(tool, instruction)
        try:
            yield
        finally:
            sys.monitoring.set_events(tool, sys.monitoring.events.NO_EVENTS)
            sys.monitoring.register_callback(tool, instruction, None)
            sys.monitoring.free_tool_id(tool)
    else:
        sys.settrace(interrupts.trace)
        try:
            yield
        finally:
            sys.settrace(None)


@contextlib.contextmanager
def interrupted(at: int) -> Iterator[Interrupts]:
    """Raise :class:`Interrupt` at point number ``at`` inside the block; the exception does not leave the block."""
    interrupts = Interrupts(at)
    # CPython loses the trace function if it raises in a finalizer that garbage collection runs.
    gc.disable()
    try:
        with contextlib.suppress(Interrupt), _watched(interrupts):
            yield interrupts
    finally:
        gc.enable()
