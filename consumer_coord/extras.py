"""The error for a missing extra of this package."""

from __future__ import annotations


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error to raise from ``error``, the import error of an extra's package; its text names the remedy."""
    return ImportError(f"{error.name} is not installed: pip install 'consumer-coord[{extra}]'", name=error.name)
