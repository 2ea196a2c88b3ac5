"""Consumers as the sources of probes: a failed call is an answer, too."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from consumer_coord.errors import CoordinatorError
from consumer_coord.health.values import Health


class HasHealth(Protocol):
    """A consumer with a health: a ``GroupConsumer`` or an ``AsyncGroupConsumer``."""

    def health(self, limit: float = 60.0) -> Health | Awaitable[Health]:
        """Return the health; ``limit`` is in seconds."""


#: What a closed consumer, or one in a forked child, raises.
UNANSWERED = (CoordinatorError, RuntimeError)


def unanswered(problem: object) -> Health:
    """Return the health of a consumer that cannot answer: only a restart can help."""
    return Health(healthy=False, live=False, state="unknown", joined=False, lease_s=None, problems=(str(problem),))
