"""What all workers of one test run use together: the first that needs it starts it, and ends it after the last.

``pytest -n`` runs the tests in several worker processes.  Without it there is one process, and this makes no difference.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import attrs
import pytest

from tests.support.kafka_jars import exclusive


class Service(Protocol):
    """Something that runs in processes of its own, such as a broker."""

    @property
    def address(self) -> str:
        """What another process needs to use it."""

    def close(self) -> None:
        """End it."""


@attrs.define
class _Held:
    users: IO[str]
    service: Service | None  # what this process started


class Shared:
    """The services of a test run, as one worker sees them.

    ``directory`` is the run's own, the same for all its workers.  Each user of a service holds a lock on a file there
    until :meth:`close`; the kernel gives up the locks of a worker that was killed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[_Held] = []

    def use(self, name: str, start: Callable[[], Service]) -> str:
        """The address of the service of that name, started here unless another worker has done so."""
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
        """Use nothing any more, and end what was started here when no other worker uses it."""
        held, self._held = self._held, []
        # All locks go first: another worker may be waiting for this one in the same way.
        for one in held:
            fcntl.flock(one.users, fcntl.LOCK_UN)
        for one in held:
            with one.users:
                if one.service is not None:
                    fcntl.flock(one.users, fcntl.LOCK_EX)
                    one.service.close()


def directory_of_the_run(config: pytest.Config, base: Path) -> Path:
    """The parent of the workers' temporary directories, or ``base``, the only one, when there are no workers."""
    return base.parent if hasattr(config, "workerinput") else base
