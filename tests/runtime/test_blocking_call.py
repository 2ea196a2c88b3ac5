"""A blocking call: its coroutine on the loop, its functions on the calling thread."""

from __future__ import annotations

import threading

import pytest

from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.threads.background import Runtime


def raises(error: BaseException) -> object:
    raise error


def test_a_function_runs_on_the_calling_thread_and_its_result_returns_to_the_coroutine() -> None:
    async def work() -> tuple[int, int]:
        return await BlockingCall.on_caller(threading.get_ident), threading.get_ident()

    on_caller, on_loop = BlockingCall(Runtime.shared().loop).run(work)
    assert on_caller == threading.get_ident() != on_loop


@pytest.mark.parametrize("error", [ValueError("broken"), StopIteration("no more items")], ids=["ValueError", "StopIteration"])
def test_an_exception_of_a_function_is_raised_in_the_coroutine(error: Exception) -> None:
    """A future cannot carry StopIteration: as from a coroutine, it becomes a RuntimeError with that cause."""

    async def work() -> BaseException:
        try:
            await BlockingCall.on_caller(lambda: raises(error))
        except Exception as raised:  # noqa: BLE001 - the subject of this test
            return raised
        raise AssertionError("nothing was raised")

    raised = BlockingCall(Runtime.shared().loop).run(work)
    assert error in (raised, raised.__cause__)


def test_an_interrupt_of_a_function_ends_the_call_on_both_sides() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await BlockingCall.on_caller(lambda: raises(KeyboardInterrupt()))
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        BlockingCall(Runtime.shared().loop).run(work)
    assert ended.wait(60)
