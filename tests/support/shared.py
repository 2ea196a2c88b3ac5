"""Services that all workers of a test run share: the first worker that needs one starts it, and ends it after the last.

``pytest -n`` runs the tests in several worker processes.  Without ``-n`` there is one process, which shares with no other.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import attrs
import pytest

from consumer_coord.testing.jars import exclusive


class Service(Protocol):
    """A service in separate processes, such as a broker."""

    @property
    def address(self) -> str:
        """The data that another process needs to use the service."""

    def close(self) -> None:
        """End the service."""


@attrs.define
class _Held:
    users: IO[str]
    service: Service | None  # set if this process started the service


class Shared:
    """The services of a test run, from the view of one worker.

    ``directory`` belongs to the run, and all its workers have the same.  Each user of a service holds a lock on a file there
    until :meth:`close`; the kernel releases the locks of a worker that was killed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[_Held] = []

    def use(self, name: str, start: Callable[[], Service]) -> str:
        """Return the address of the service of that name, started here unless another worker has started it."""
        address = self._directory / f"{name}.address"
        with exclusive(self._directory / f"{name}.starting"):
            service = None
            if not address.exists():
                service = start()
                unfinished = address.with_suffix(".partial")
                unfinished.write_text(service.address)
                unfinished.rename(address)
            users = (self._directory / f"{name}.users").open("w")
            fcntl.flock(users, fcntl.LOCK_SH)
            self._held.append(_Held(users, service))
            return address.read_text()

    def close(self) -> None:
        """Stop using all services, and end those started here when no other worker uses them."""
        held, self._held = self._held, []
        # Release all locks first: another worker may be waiting for this one in the same way.
        for one in held:
            fcntl.flock(one.users, fcntl.LOCK_UN)
        for one in held:
            with one.users:
                if one.service is not None:
                    fcntl.flock(one.users, fcntl.LOCK_EX)
                    one.service.close()


def directory_of_the_run(config: pytest.Config, base: Path) -> Path:
    """Return the parent of the workers' temporary directories, or ``base``, the only directory, if there are no workers."""
    return base.parent if hasattr(config, "workerinput") else base
