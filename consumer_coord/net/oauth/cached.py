"""A cache that provides one token for all connections of a process with the same settings."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.net.sasl import REFRESH_AFTER
from consumer_coord.runtime.locks import Lock

#: Result of ``oauth_cb``: token, expiry in seconds since 1970, principal, extensions.
Returned = tuple[str, float, str, dict[str, str]]


@attrs.frozen
class Issued:
    """A token, which was created here or issued by a provider."""

    value: str = attrs.field(repr=False)
    expires_at_s: float
    principal: str
    extensions: Mapping[str, str] = attrs.field(factory=dict, repr=False)


class CachedTokens:
    """An ``oauth_cb`` that caches its token for most of the token's lifetime; thread-safe, with one fetch at a time."""

    def __init__(
        self,
        settings: tuple[tuple[str, Any], ...],
        fetch: Callable[[], Issued],
        described_as: str,
        made_by: Callable[[tuple[tuple[str, str], ...]], CachedTokens],
    ) -> None:
        """Prepare the cache. When a copy is unpickled in another process, ``made_by`` returns that process's cache instead."""
        self._settings = settings
        self._made_by = made_by
        self._fetch = fetch
        #: The settings that the user should check after a failure or a refusal, for error texts.
        self.described_as = described_as
        self._lock = Lock()
        self._held: Issued | None = None
        self._renew_at_s = 0.0

    def __call__(self, config: str | None = None) -> Returned:
        """Return the token in the form of an ``oauth_cb``'s result; raise the error of a failed fetch."""
        with self._lock:
            held = self._held
            if held is None or time.time() >= self._renew_at_s:
                asked_at_s = time.time()
                held = self._held = self._fetch()
                self._renew_at_s = asked_at_s + REFRESH_AFTER * (held.expires_at_s - asked_at_s)
        return held.value, held.expires_at_s, held.principal, dict(held.extensions)

    def forget(self, value: str) -> None:
        """Drop a token that a broker refused, so that the next call fetches another token."""
        with self._lock:
            if self._held is not None and self._held.value == value:
                self._held = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings instead of the token, so that each worker process of Spark fetches its own token."""
        return self._made_by, (self._settings,)


_of_settings: weakref.WeakValueDictionary[tuple[tuple[str, Any], ...], CachedTokens] = weakref.WeakValueDictionary()
_registering = Lock()


def shared(settings: tuple[tuple[str, Any], ...], make: Callable[[], CachedTokens]) -> CachedTokens:
    """Return this process's cache for these settings; the first call creates the cache with ``make``."""
    with _registering:
        found = _of_settings.get(settings)
        if found is None:
            found = _of_settings[settings] = make()
        return found


def _after_fork() -> None:
    # Another thread of the parent process may have held a lock at the fork. That thread does not exist in this process, and so
    # will never release the lock.
    global _registering
    _registering = Lock()
    _of_settings.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
