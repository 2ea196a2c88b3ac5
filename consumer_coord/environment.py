"""The core's environment: connections, randomness, wall clock, and a place for slow work.

The core is asyncio code that uses its loop's time (``loop.time()``, ``asyncio.sleep``, ``asyncio.timeout``), so the same code
runs on a background thread, on an application's loop, and on the virtual-time loop of the simulation. This module defines all
other differences between the three.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import attrs

from consumer_coord.errors import CoordinatorError

T = TypeVar("T")


class Receiver(Protocol):
    """Receives the frames of a connection; no method may be called after :meth:`connection_lost`."""

    def frame_received(self, frame: bytes | memoryview) -> None:
        """Process one whole frame, without its length.

        The memory of a memoryview is reused after the last view of it is gone.
        """

    def connection_lost(self, reason: CoordinatorError) -> None:
        """Process the end: a :class:`~consumer_coord.errors.DisconnectedError`, or the error that caused it."""


class Transport(Protocol):
    """One open connection to a broker that carries whole Kafka frames, without their four-byte length."""

    def send(self, frame: bytes) -> None:
        """Send one frame, without waiting; frames arrive in this order.

        Raise :class:`~consumer_coord.errors.DisconnectedError` if the connection is closed or does not drain.
        """

    def listen(self, receiver: Receiver) -> None:
        """Pass every frame to ``receiver`` from now on, in the turn of the loop in which it arrives; called once."""

    def close(self) -> None:
        """Close the connection at once; idempotent, and never waits."""


class Connector(Protocol):
    """Opens connections: over TCP or TLS, or in the simulation over its network."""

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection.

        Raise :class:`~consumer_coord.errors.DisconnectedError` if no host responds, and
        :class:`~consumer_coord.errors.AuthenticationError` if TLS cannot be negotiated.
        """


class RunBlocking(Protocol):
    """Runs slow, pure Python (an assignor) where it does not block the loop: in a thread, or inline in simulation."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@attrs.frozen
class Environment:
    """One environment of the core; ``wall_clock_ms`` (since 1970) is only for humans and retention.

    ``lease_clock`` returns seconds, in any thread, and includes the time during which the machine was suspended. None means the
    loop's time (in the simulation, where no other time passes).
    """

    connector: Connector
    random: random.Random
    wall_clock_ms: Callable[[], int]
    run_blocking: RunBlocking
    lease_clock: Callable[[], float] | None = None


def now() -> float:
    """Return the running loop's time in seconds: monotonic, virtual in simulation."""
    return asyncio.get_running_loop().time()
