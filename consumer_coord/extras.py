"""What an extra brings: told when it is missing."""

from __future__ import annotations


def missing(extra: str, error: ImportError) -> ImportError:
    """The error to raise from ``error``, which an import of this extra's package raised: it says what to install."""
    return ImportError(f"{error.name} is not installed: pip install 'consumer-coord[{extra}]'", name=error.name)
