"""Faults for tests: delay, drop or fail the n-th request of an API, or simulate a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs

from consumer_coord.broker.errors import ConnectionDroppedError
from consumer_coord.wire.codec import Request


@attrs.frozen
class Fault:
    """A fault that a broker applies to a request.

    The request first waits for ``delay_ms``, and then until ``wait_until()`` returns True, which the broker's thread calls
    every 10 ms. With ``error_code``, the response has this error, and the request has no other effect. With ``drop``, the
    connection ends instead of a response: before the request is handled (``"request"``), or after it was handled
    (``"response"``).
    """

    delay_ms: int = 0
    error_code: int = 0
    drop: str = ""
    wait_until: Callable[[], bool] | None = None

    def __attrs_post_init__(self) -> None:
        if self.drop not in ("", "request", "response"):
            raise ValueError(f"a fault drops 'request' or 'response', not {self.drop!r}")


_LOOK_S = 0.01

#: A function that receives a broker's id and a request, and may return a fault for the request.
FaultHook = Callable[[int, Request], Fault | None]


@attrs.define
class _Plan:
    api_key: int
    nth: int
    times: int
    broker_id: int | None
    fault: Fault
    seen: int = 0


class Faults:
    """The faults of one cluster. Call all methods on its loop."""

    def __init__(self) -> None:
        self.is_full: bool = False
        self._plans: list[_Plan] = []
        self._hooks: list[FaultHook] = []

    def add(self, api_key: int, fault: Fault, *, nth: int = 1, times: int = 1, broker_id: int | None = None) -> None:
        """Apply ``fault`` to the ``nth`` request of an API from now on, and to the ``times`` - 1 requests after it."""
        if nth < 1 or times < 1:
            raise ValueError("nth and times must be at least 1")
        self._plans.append(_Plan(api_key, nth, times, broker_id, fault))

    def add_hook(self, hook: FaultHook) -> None:
        """Call ``hook`` for every request. If several hooks return a fault, the fault of the first hook applies."""
        self._hooks.append(hook)

    def clear(self) -> None:
        """Remove all faults."""
        self._plans.clear()
        self._hooks.clear()
        self.is_full = False

    def for_request(self, broker_id: int, request: Request) -> Fault | None:
        """Return the fault for a request, or None; count the request towards the ``nth`` request of planned faults."""
        if not self._plans and not self._hooks:
            return None
        found = None
        for plan in tuple(self._plans):
            if plan.api_key != request.api_key or plan.broker_id not in (None, broker_id):
                continue
            plan.seen += 1
            if plan.seen >= plan.nth and found is None:
                found = plan.fault
            if plan.seen >= plan.nth + plan.times - 1:
                self._plans.remove(plan)
        for hook in self._hooks:
            if found is None:
                found = hook(broker_id, request)
        return found


async def before(fault: Fault) -> None:
    """Apply the part of a fault that happens before the request is handled."""
    if fault.delay_ms:
        await asyncio.sleep(fault.delay_ms / 1000)
    while fault.wait_until is not None and not fault.wait_until():
        await asyncio.sleep(_LOOK_S)
    if fault.drop == "request":
        raise ConnectionDroppedError("a fault dropped this request")


def after(fault: Fault) -> None:
    """Apply the part of a fault that happens after the request was handled."""
    if fault.drop == "response":
        raise ConnectionDroppedError("a fault dropped this response")
