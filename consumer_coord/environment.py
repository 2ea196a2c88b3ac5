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

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError

T = TypeVar("T")


class Receiver(Protocol):
    """Receives the frames of a connection; no method may be called after :meth:`connection_lost`."""

    def frame_received(self, frame: bytes | memoryview) -> None:
        """Process one whole frame, without its length.

        If ``frame`` is a memoryview, its memory is reused after the last view of the memory is gone.
        """

    def connection_lost(self, reason: CoordinatorError) -> None:
        """Process the end of the connection. ``reason`` is a ``DisconnectedError``, or the error that ended the connection."""


class Transport(Protocol):
    """An open connection to a broker that carries whole Kafka frames, without their four-byte length."""

    def send(self, frame: bytes) -> None:
        """Send one frame without waiting. The frames arrive in the order of the calls.

        Raise :class:`~consumer_coord.errors.DisconnectedError` if the connection is closed or does not drain.
        """

    def listen(self, receiver: Receiver) -> None:
        """Pass every frame to ``receiver`` from now on, immediately after the frame arrives. Call this method only once."""

    def close(self) -> None:
        """Close the connection at once; idempotent, and never waits."""


class Connector(Protocol):
    """Opens connections: over TCP or TLS, or over the simulated network."""

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection.

        Raise :class:`~consumer_coord.errors.DisconnectedError` if no host responds, and
        :class:`~consumer_coord.errors.AuthenticationError` if TLS cannot be negotiated.
        """


class RunBlocking(Protocol):
    """Runs slow Python code, such as an assignor: in a thread that does not block the loop, or inline in the simulation."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@attrs.frozen
class Environment:
    """What the core receives from outside: connections, randomness, clocks, and threads for slow code.

    ``wall_clock_ms`` returns milliseconds since 1970, only for display and retention.

    ``lease_clock`` returns seconds, in any thread, and includes the time during which the machine was suspended. If
    ``lease_clock`` is None, the loop's time is used (in the simulation, which has no other time).
    """

    connector: Connector
    random: random.Random
    wall_clock_ms: Callable[[], int]
    run_blocking: RunBlocking
    lease_clock: Callable[[], float] | None = None


def of_running_loop() -> Environment | None:
    """Return the environment that the running loop gives to its programs; None for an ordinary loop.

    A loop has it as the attribute ``consumer_coord_environment``. So in the simulation, every consumer of a process connects to
    the simulated brokers, whatever its settings say about addresses and security.
    """
    given: Environment | None = getattr(asyncio.get_running_loop(), "consumer_coord_environment", None)
    return given


def now() -> float:
    """Return the running loop's time in seconds. This time is monotonic, and in the simulation virtual."""
    return asyncio.get_running_loop().time()
