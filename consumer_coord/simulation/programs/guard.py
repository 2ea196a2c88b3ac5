"""Reject what a program may not do in virtual time: threads, sockets, ``time.sleep`` and the wall clock.

Only calls of a simulated process are rejected, and clock reads only if the line of the program reads the clock itself: packages
that it uses may measure what they like.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
import socket
import subprocess
import sys
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator
from typing import Any, Final

from consumer_coord.simulation.programs.process import ProgramProcess
from consumer_coord.simulation.programs.where import is_program, program_modules
from consumer_coord.threads.background import Runtime

#: Stands for "the class had no such attribute of its own", so that restoring it means deleting the patch.
_INHERITED: Final = object()
_CLOCKS: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
_USE_THE_LOOP: Final = (
    "Use asyncio.get_running_loop().time() for durations and message.timestamp() for calendar times, or let the program receive"
    " its clock as an argument."
)
_NO_THREAD: Final = (
    "Use a task, and AsyncGroupConsumer in place of GroupConsumer; replace a blocking client with world.external(...)."
)
#: Classes of confluent-kafka that connect to real brokers, in threads of librdkafka. Producers are simulated.
_OF_LIBRDKAFKA: Final = (
    ("confluent_kafka", "Consumer"),
    ("confluent_kafka", "DeserializingConsumer"),
    ("confluent_kafka", "SerializingProducer"),
    ("confluent_kafka.aio", "AIOConsumer"),
    ("confluent_kafka.admin", "AdminClient"),
)
_NO_LIBRDKAFKA: Final = "Use AsyncGroupConsumer to read, and Producer or AIOProducer to write."
_NO_SOCKET: Final = "Replace the service that it connects to with world.external(...)."


class Patches:
    """Attributes that are replaced until :meth:`undo`."""

    def __init__(self) -> None:
        self._former: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class."""
        # As stored, because reading a static method from a class returns the function in it.
        self._former.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)

    def everywhere(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module, and the same object wherever a module of the program has imported it by name."""
        former = getattr(owner, name)
        for module in program_modules():
            for alias in [alias for alias, held in vars(module).items() if held is former]:
                self.set(module, alias, value)
        self.set(owner, name, value)

    def undo(self) -> None:
        """Restore all attributes, the last one first."""
        while self._former:
            owner, name, former = self._former.pop()
            if former is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, former)


def current_process() -> ProgramProcess | None:
    """Return the process of the program whose code is being executed; None outside a run."""
    loop = events._get_running_loop()
    return loop if isinstance(loop, ProgramProcess) else None


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Reject, inside the processes of a run, what is not possible there."""
    patches = Patches()
    try:
        patches.everywhere(time, "sleep", _rejecting(time.sleep, "time.sleep()", "Use await asyncio.sleep(...)."))
        for name in _CLOCKS:
            patches.everywhere(time, name, _clock(getattr(time, name), f"time.{name}()"))
        patches.everywhere(datetime, "datetime", _datetime())
        patches.everywhere(datetime, "date", _date())
        patches.set(threading.Thread, "start", _rejecting(threading.Thread.start, "a thread", _NO_THREAD))
        # The thread of blocking consumers may run already, because another test used one.
        patches.set(Runtime, "submit", _rejecting(Runtime.submit, "a thread", _NO_THREAD))
        for name in ("connect", "connect_ex", "bind"):
            patches.set(socket.socket, name, _rejecting(getattr(socket.socket, name), f"socket.{name}()", _NO_SOCKET))
        patches.everywhere(socket, "getaddrinfo", _rejecting(socket.getaddrinfo, "a look-up of a host", _NO_SOCKET))
        patches.set(subprocess.Popen, "__init__", _rejecting(subprocess.Popen.__init__, "a subprocess", _NO_SOCKET))
        patches.everywhere(signal, "signal", _signal)
        for module, name in _OF_LIBRDKAFKA:
            if module in sys.modules:
                real = getattr(sys.modules[module], name)
                patches.everywhere(sys.modules[module], name, _rejecting(real, f"{module}.{name}", _NO_LIBRDKAFKA))
        yield
    finally:
        patches.undo()


def _rejecting(real: Callable[..., Any], what: str, remedy: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        process = current_process()
        if process is not None:
            process.forbid(what, remedy)
        return real(*args, **kwargs)

    return call


def _clock(real: Callable[[], Any], what: str) -> Callable[[], Any]:
    def call() -> Any:
        process = current_process()
        if process is not None and is_program(sys._getframe(1).f_code.co_filename):
            process.forbid(what, _USE_THE_LOOP)
        return real()

    return call


_signal_for_real = signal.signal


def _signal(sig: int, handler: Any) -> Any:
    """Register a handler of a simulated process, as ``signal.signal`` does."""
    process = current_process()
    if process is None:
        return _signal_for_real(sig, handler)
    if callable(handler):
        process.add_signal_handler(sig, handler, sig, None)
    else:
        process.remove_signal_handler(sig)
    return signal.SIG_DFL


class _LikeReal(type):
    """The type of a subclass whose instances are those of its base, so that ``isinstance`` is as before."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__bases__[0])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__bases__[0])


def _reject_clock(what: str) -> None:
    process = current_process()
    if process is not None and is_program(sys._getframe(2).f_code.co_filename):
        process.forbid(what, _USE_THE_LOOP)


def _datetime() -> type[datetime.datetime]:
    real = datetime.datetime

    class Datetime(real, metaclass=_LikeReal):  # type: ignore[misc, valid-type]  # the base is a variable
        """``datetime.datetime`` whose clock a simulated program may not read."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            _reject_clock("datetime.now()")
            return real.now(tz)

        @classmethod
        def utcnow(cls) -> datetime.datetime:
            _reject_clock("datetime.utcnow()")
            return real.now(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> datetime.datetime:
            _reject_clock("datetime.today()")
            return real.today()

    return Datetime


def _date() -> type[datetime.date]:
    real = datetime.date

    class Date(real, metaclass=_LikeReal):  # type: ignore[misc, valid-type]  # the base is a variable
        """``datetime.date`` whose clock a simulated program may not read."""

        @classmethod
        def today(cls) -> datetime.date:
            _reject_clock("date.today()")
            return real.today()

    return Date
