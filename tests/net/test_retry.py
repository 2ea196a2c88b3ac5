"""Retries end at their deadline, with the error that says most; in simulated time."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import pytest

from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, DisconnectedError, RetriableError
from consumer_coord.retry import Backoff, Deadline, retrying, timed_out
from consumer_coord.simulation.loop import run


def attempts(timeout_ms: float, *outcomes: tuple[float, CoordinatorError | None]) -> tuple[list[float], Exception | None]:
    """Retry with outcomes (seconds, error); return when each attempt began, and the error that was raised."""

    async def main() -> tuple[list[float], Exception | None]:
        began, left = [], list(outcomes)
        deadline = Deadline.after(timeout_ms)
        try:
            async for attempt in retrying(Backoff(100, 1_000, random.Random(1)), deadline, what="a request"):
                with attempt:
                    began.append(now())
                    seconds, error = left.pop(0)
                    await asyncio.sleep(min(seconds, deadline.remaining_ms / 1000))
                    if error is not None:
                        raise error
        except CoordinatorError as error:
            return began, error
        return began, None

    return run(main())


def test_no_attempt_begins_at_the_deadline() -> None:
    first, second = RetriableError("no leader"), RetriableError("still no leader")
    began, error = attempts(250, (0, first), (0, second), (0, None))
    assert len(began) == 2
    assert error is second


def test_an_attempt_that_the_deadline_ended_does_not_hide_the_error_of_the_attempt_before() -> None:
    first = RetriableError("no leader")
    began, error = attempts(1_000, (0, first), (5, timed_out("Metadata", 3)))
    assert len(began) == 2
    assert error is first


def test_the_only_error_is_raised_even_if_it_is_a_timeout() -> None:
    only = timed_out("Metadata", 1_000)
    assert attempts(1_000, (5, only))[1] is only


def test_the_last_error_is_raised_if_it_is_no_timeout() -> None:
    last = DisconnectedError("the broker closed the connection")
    assert attempts(1_000, (0, RetriableError("no leader")), (5, last))[1] is last


@pytest.mark.parametrize("timeout_ms", [0, 1])
def test_there_is_always_one_attempt(timeout_ms: float) -> None:
    assert attempts(timeout_ms, (0, None)) == ([0.0], None)


def test_tenacity_is_imported_after_the_first_failure() -> None:
    program = """
import random, sys
from consumer_coord.errors import RetriableError
from consumer_coord.retry import Backoff, retrying
from consumer_coord.simulation.loop import run

async def attempts(failures):
    async for attempt in retrying(Backoff(100, 1_000, random.Random(1)), None, what="a request"):
        with attempt:
            if failures:
                raise failures.pop()
    print("tenacity" in sys.modules)

run(attempts([]))
run(attempts([RetriableError("no leader")]))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True"]
