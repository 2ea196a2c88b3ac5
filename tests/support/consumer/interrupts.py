"""The exception that signal handlers of tests raise, and its reports from destructors."""

from __future__ import annotations

import sys

import pytest


class Interrupt(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


def keep_quiet_in_destructors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore an :class:`Interrupt` in a destructor, which Python can only report; other exceptions still fail the test."""
    report = sys.unraisablehook

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not Interrupt:
            report(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", report_others)
