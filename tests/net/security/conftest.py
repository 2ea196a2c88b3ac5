"""A log with all messages, for the search for secrets."""

from __future__ import annotations

from tests.support.security.logs import log_everything

__all__ = ["log_everything"]
