"""The version of this package, as ApiVersions tells it to brokers (KIP-511)."""

from __future__ import annotations

__version__ = "0.1.0"
