"""The command under test."""

from __future__ import annotations

from tests.support.commands import run

__all__ = ["run"]
