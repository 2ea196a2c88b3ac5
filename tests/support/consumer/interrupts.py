"""What the signal handlers of tests raise, and what Python makes of it inside a destructor."""

from __future__ import annotations

import sys

import pytest


class Interrupt(BaseException):
    """What a signal handler raises, as KeyboardInterrupt is raised."""


def keep_quiet_in_destructors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python can only tell of an :class:`Interrupt` inside a destructor; what else it tells of still fails the test."""
    tell = sys.unraisablehook

    def tell_of_others(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not Interrupt:
            tell(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", tell_of_others)
