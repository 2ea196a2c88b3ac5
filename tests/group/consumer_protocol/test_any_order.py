"""A member's steps follow the table of its states in any order of events.

A member runs against a production broker that answers some requests with errors, or not at all. The application polls, stalls,
subscribes, leaves, commits and begins to leave, and another member comes and goes. After the faults end, the member becomes
stable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random

import pytest

from consumer_coord.errors import CoordinatorError
from consumer_coord.group.consumer_protocol.states import TRANSITIONS, Event, State
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.consumer_protocol import Broker, HeartbeatRequest, modern_member, state_of
from tests.support.group.fake import DROP, SILENCE, Reply
from tests.support.group.member import TestMember, at
from tests.support.group.virtual import in_virtual_time, pause

STEPS = 40

#: Wrong responses to a heartbeat; each fault ends after one response.
HEARTBEAT_ERRORS: tuple[Reply, ...] = (
    codes.FENCED_MEMBER_EPOCH,
    codes.FENCED_MEMBER_EPOCH,
    codes.UNKNOWN_MEMBER_ID,
    codes.GROUP_ID_NOT_FOUND,
    codes.NOT_COORDINATOR,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.UNRELEASED_INSTANCE_ID,
    codes.GROUP_MAX_SIZE_REACHED,
    codes.UNSUPPORTED_ASSIGNOR,
    codes.INVALID_REQUEST,
    12_345,
    DROP,
    SILENCE,
)
COMMIT_ERRORS: tuple[Reply, ...] = (codes.STALE_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID, codes.NOT_COORDINATOR, DROP)


class AnyOrder:
    """A sequence of events."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.broker = Broker({"t": 4, "u": 2})
        static = "till-1" if seed % 3 == 0 else None
        self.one = modern_member(self.broker, max_poll_interval_ms=4_000, group_instance_id=static)
        self.other: TestMember | None = None
        self.calls: list[asyncio.Task[None]] = []
        self.acts: list[Callable[[], None]] = [
            self.subscribes,
            self.subscribes,
            self.unsubscribes,
            self.leaves,
            self.stands_still,
            self.polls,
            self.polls,
            self.is_about_to_leave,
            self.commits,
            self.holds_its_epoch,
            self.asks_for_a_rebalance,
            self.is_refused,
            self.is_refused,
            self.is_refused,
            self.topic_grows,
            self.another_comes_or_goes,
        ]

    async def play(self) -> None:
        self.subscribes()
        self.polls()
        for _ in range(STEPS):
            self.random.choice(self.acts)()
            await pause(self.random.choice((0, 1, 3, 50, 400, 3_000, 9_000)))

    # -- events

    def call(self, work: object) -> None:
        async def run() -> None:
            with contextlib.suppress(CoordinatorError):
                await work  # type: ignore[misc]

        self.calls.append(asyncio.get_running_loop().create_task(run()))

    def subscribes(self) -> None:
        self.one.coordinator.subscribe(self.random.choice((["t"], ["u"], ["t", "u"])))

    def unsubscribes(self) -> None:
        self.one.coordinator.release(self.one.held)
        self.call(self.one.coordinator.unsubscribe(2_000))

    def leaves(self) -> None:
        self.one.coordinator.release(self.one.held)
        self.call(self.one.coordinator.leave_group("", 2_000))

    def stands_still(self) -> None:
        if self.one.application is not None:
            self.one.application.cancel()
            self.one.application = None

    def polls(self) -> None:
        if self.one.application is None:
            self.one.start(self.random.choice((50, 300)))

    def is_about_to_leave(self) -> None:
        self.one.coordinator.prepare_to_leave()

    def commits(self) -> None:
        if self.random.random() < 0.5:
            self.broker.answer(OffsetCommitRequest, self.random.choice(COMMIT_ERRORS))
        self.call(self.one.coordinator.commit(at("t", self.random.randrange(4), 7), timeout_ms=3_000))

    def holds_its_epoch(self) -> None:
        self.call(self.one.coordinator.hold_joins())

    def asks_for_a_rebalance(self) -> None:
        self.one.coordinator.enforce_rebalance()

    def is_refused(self) -> None:
        self.broker.answer(HeartbeatRequest, self.random.choice(HEARTBEAT_ERRORS))

    def topic_grows(self) -> None:
        count = len(self.broker.cluster.topics.by_name["t"].partitions)
        if count < 8:
            self.broker.cluster.grow_topic("t", count + 1)

    def another_comes_or_goes(self) -> None:
        if self.other is None:
            self.other = modern_member(self.broker)
            self.other.coordinator.subscribe(["t", "u"])
            self.other.start(100)
        else:
            self.call(self.other.close(2_000))
            self.other = None

    # -- after the faults

    async def ends_well(self) -> None:
        one, broker = self.one, self.broker
        await asyncio.wait_for(asyncio.gather(*self.calls), 60)
        broker.drop_answers()
        self.polls()
        one.coordinator.subscribe(["t"])
        for _ in range(600):
            if one.stable and self._is_what_the_group_says(one):
                break
            await pause(100)
        assert state_of(one) is State.STABLE
        assert self._is_what_the_group_says(one)
        crashes = [error for error in one.errors if "crashed" in str(error)]
        assert not crashes, crashes
        if self.other is not None:
            await self.other.close()
        member_id = one.coordinator.member_id
        # Requests without a response time out before the member closes.
        await pause(10_000)
        await one.close()
        left = broker.consumer_group.members.get(member_id)
        assert left is None or left.member_epoch < 0, "a static member stays in the group, and has reported that it is away"

    def _is_what_the_group_says(self, one: TestMember) -> bool:
        known = self.broker.consumer_group.members.get(one.coordinator.member_id)
        ids = self.broker.cluster.topics.by_id
        return known is not None and one.held == {
            (ids[topic_id].name, number) for topic_id, numbers in known.assigned.items() for number in numbers
        }


@pytest.mark.thorough
@pytest.mark.behaviour(134, 135)
@pytest.mark.parametrize("first", range(0, 20, 10))
def test_any_order_of_events_has_its_steps_and_ends_well(first: int) -> None:
    for seed in range(first, first + 10):

        @in_virtual_time
        async def play(seed: int = seed) -> None:
            sequence = AnyOrder(seed)
            await sequence.play()
            await sequence.ends_well()

        play()


def test_a_step_that_the_table_lacks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = dict(TRANSITIONS[Event.REFUSED])
    del refused[State.STABLE]
    monkeypatch.setitem(TRANSITIONS, Event.REFUSED, refused)
    with pytest.raises(AssertionError):
        test_any_order_of_events_has_its_steps_and_ends_well(0)
