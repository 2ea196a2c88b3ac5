"""What the core needs from outside: connections, chance, the calendar and a place for slow work.

The core is asyncio code whose time is its loop's (``loop.time()``, ``asyncio.sleep``, ``asyncio.timeout``), so the same
code runs on a background thread, on an application's own loop, and on the virtual-time loop of the simulation.
Everything else that differs between those three homes is handed in here.
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
    """Takes what arrives on a connection.  Nothing may be called any more after :meth:`connection_lost`."""

    def frame_received(self, frame: bytes) -> None:
        """One whole frame, without its length."""

    def connection_lost(self, reason: CoordinatorError) -> None:
        """Nothing comes any more: a :class:`~consumer_coord.errors.DisconnectedError` at the end, or what is wrong."""


class Transport(Protocol):
    """One open connection to a broker that carries whole Kafka frames, without their four-byte length."""

    def send(self, frame: bytes) -> None:
        """Hand one frame over, without waiting; frames arrive in this order.

        Raises :class:`~consumer_coord.errors.DisconnectedError` when the connection is gone or does not drain.
        """

    def listen(self, receiver: Receiver) -> None:
        """Hand every frame to ``receiver`` from now on, in the turn of the loop in which it arrives; called once."""

    def close(self) -> None:
        """End the connection at once; idempotent, and never waits."""


class Connector(Protocol):
    """Opens connections.  The real one speaks TCP or TLS, the simulation's one has a network of its own."""

    async def connect(self, host: str, port: int) -> Transport:
        """Open a connection.

        Raises :class:`~consumer_coord.errors.DisconnectedError` when no host answers, and
        :class:`~consumer_coord.errors.AuthenticationError` when TLS cannot be agreed on.
        """


class RunBlocking(Protocol):
    """Runs slow, pure Python (an assignor) where it does not hold the loop up: in a thread, or inline in simulation."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@attrs.frozen
class Environment:
    """One home of the core.  ``wall_clock_ms`` gives milliseconds since 1970 and is for humans and retention only.

    ``lease_clock`` gives seconds, in any thread, and counts the time during which the machine was suspended; None: the
    loop's own time (simulation, where nothing else passes).
    """

    connector: Connector
    random: random.Random
    wall_clock_ms: Callable[[], int]
    run_blocking: RunBlocking
    lease_clock: Callable[[], float] | None = None


def now() -> float:
    """The running loop's time in seconds: monotonic, virtual in simulation."""
    return asyncio.get_running_loop().time()
