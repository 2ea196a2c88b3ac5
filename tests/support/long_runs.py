"""Tests of minutes whose like runs shorter in every run: ``LONG_RUNS=1`` runs them, too."""

from __future__ import annotations

import os


def long_runs() -> bool:
    """Whether they were asked for."""
    return os.environ.get("LONG_RUNS") == "1"
