"""What a poll may take without a look: only its thread's own offer, and only until something happens."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any

import pytest

from consumer_coord.columns import kernel

pytestmark = pytest.mark.usefixtures("kernel_name")

ME = get_ident()


class Now:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.time = 0.0
        self.on_read: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        self.on_read()
        return self.time


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def at_hand(now: Now, kernel_name: str) -> Any:
    return kernel.kernel.AtHand(now, -1)


def offer(at_hand: Any, messages: deque[Any], *, until: float = 10.0) -> dict[int, Any]:
    """Offer messages in the turn of this thread; return the dictionary of last deliveries."""
    last: dict[int, Any] = {}
    at_hand.user, at_hand.ready = ME, messages
    at_hand.offer(last, until, at_hand.changes)
    at_hand.user = 0
    return last


def taken(at_hand: Any) -> Any:
    """Take a message."""
    return at_hand.message


def test_an_offer_is_taken_in_order_and_each_message_counts_as_a_poll_and_a_delivery(at_hand: Any) -> None:
    messages = deque(["first", "second"])
    last = offer(at_hand, messages)
    at_hand.polls = 7
    assert (taken(at_hand), last, messages, at_hand.polls) == ("first", {ME: "first"}, deque(["second"]), 8)
    assert (taken(at_hand), last, messages, at_hand.polls) == ("second", {ME: "second"}, deque(), 9)
    assert taken(at_hand) is None
    messages.append("third")
    assert (taken(at_hand), at_hand.polls) == ("third", 10)


def test_nothing_is_offered_at_first_and_while_a_thread_has_the_turn(at_hand: Any) -> None:
    assert taken(at_hand) is None
    at_hand.user = ME
    at_hand.ready = deque("a")
    at_hand.offer({}, 10.0, at_hand.changes)
    assert (at_hand.user, taken(at_hand)) == (ME, None)
    at_hand.user = 0
    assert (at_hand.user, taken(at_hand)) == (0, "a")


def test_a_call_ends_the_offer(at_hand: Any) -> None:
    last = offer(at_hand, deque("ab"))
    at_hand.messages = None
    assert (taken(at_hand), last) == (None, {})


def test_another_queue_ends_the_offer(at_hand: Any) -> None:
    """So what a call took with the former queue is not taken again."""
    offer(at_hand, deque("ab"))
    at_hand.ready = deque("cd")
    assert taken(at_hand) is None


def test_an_event_ends_the_offer_also_if_it_came_after_the_look_and_before_the_offer(at_hand: Any) -> None:
    offer(at_hand, deque("ab"))
    at_hand.expire()
    assert taken(at_hand) is None
    changes = at_hand.changes
    at_hand.expire()
    at_hand.user = ME
    at_hand.ready = deque("ab")
    at_hand.offer({}, 10.0, changes)
    at_hand.user = 0
    assert taken(at_hand) is None


def test_nothing_is_delivered_from_the_end_of_the_lease_on(at_hand: Any, now: Now) -> None:
    messages = deque("abc")
    offer(at_hand, messages, until=5.0)
    now.time = math.nextafter(5.0, 0)
    assert taken(at_hand) == "a"
    now.time = 5.0
    assert (taken(at_hand), messages) == (None, deque("bc"))
    offer(at_hand, messages, until=-math.inf)
    assert taken(at_hand) is None
    offer(at_hand, messages, until=math.inf)
    assert taken(at_hand) == "b"


def test_the_clock_may_be_a_clock_of_the_system(kernel_name: str) -> None:
    def fails() -> float:
        raise AssertionError("the kernel reads the system's clock itself")

    at_hand = kernel.kernel.AtHand(fails if kernel_name == "c" else time.monotonic, time.CLOCK_MONOTONIC)
    messages = deque("ab")
    offer(at_hand, messages, until=time.monotonic() + 1_000)
    assert taken(at_hand) == "a"
    offer(at_hand, messages, until=time.monotonic())
    assert taken(at_hand) is None
    at_hand.use_clock(lambda: 0.0, -1)
    assert taken(at_hand) == "b"


def test_what_a_receiver_takes_is_its_last_delivery(at_hand: Any) -> None:
    last: dict[Any, Any] = {}
    at_hand.user = ME
    at_hand.ready = deque("ab")
    at_hand.offer(last, 10.0, at_hand.changes, "a task")
    at_hand.user = 0
    assert (taken(at_hand), last) == ("a", {"a task": "a"})


def test_another_thread_takes_nothing_of_an_offer(at_hand: Any) -> None:
    messages = deque("ab")
    offer(at_hand, messages)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: at_hand.message).result() is None
    assert taken(at_hand) == "a"


def test_a_call_or_an_event_while_the_clock_is_read_ends_the_offer(at_hand: Any, now: Now) -> None:
    def call() -> None:
        at_hand.messages = None

    for event in (call, at_hand.expire):
        messages = deque("ab")
        offer(at_hand, messages)
        now.on_read = event
        assert (taken(at_hand), messages) == (None, deque("ab"))


def test_a_clock_that_raises_delivers_nothing(at_hand: Any, now: Now) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    messages = deque("ab")
    last = offer(at_hand, messages)
    now.on_read = interrupt
    with pytest.raises(KeyboardInterrupt):
        taken(at_hand)
    assert (messages, last) == (deque("ab"), {})
    now.on_read = lambda: None
    assert taken(at_hand) == "a"


def test_a_message_that_is_released_may_use_the_consumer(at_hand: Any) -> None:
    seen: list[Any] = []

    class Releases:
        def __del__(self) -> None:
            seen.append(at_hand.message)

    messages: deque[Any] = deque([Releases(), "second", "third"])
    last = offer(at_hand, messages)
    assert isinstance(taken(at_hand), Releases)
    assert (taken(at_hand), seen, last, messages) == ("second", ["third"], {ME: "third"}, deque())


def test_an_offer_that_refers_to_itself_is_collected(kernel_name: str) -> None:
    class Held:
        pass

    at_hand, held = kernel.kernel.AtHand(time.monotonic, -1), Held()
    offer(at_hand, deque([at_hand, held]))
    gone = weakref.ref(held)
    del at_hand, held
    gc.collect()
    assert gone() is None
