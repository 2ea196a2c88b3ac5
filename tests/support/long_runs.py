"""Long versions of tests that also run in a short version: ``LONG_RUNS=1`` runs them."""

from __future__ import annotations

import os


def long_runs() -> bool:
    """Return whether the long versions run."""
    return os.environ.get("LONG_RUNS") == "1"
