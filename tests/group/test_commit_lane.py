"""The commit lane: any thread submits tickets; each is merged once, and completed once, for its own partitions."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from consumer_coord.errors import ClosedError, CommitFailedError, RequestTimedOutError
from consumer_coord.group.commits import Entry, Ticket
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.fake import SILENCE, FakeBrokers, commit_answer, held_until, offsets_of
from tests.support.group.member import TestMember, at, member, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FORMER, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def ticket(
    one: TestMember,
    offsets: dict[TopicPartition, int],
    *,
    timeout_ms: float = 9_000,
    topic_id: uuid.UUID | None = None,
    ownership: int | None = None,
    wake: Callable[[], object] | None = None,
) -> Ticket:
    """Return a commit as a consumer makes it."""
    owned = one.coordinator.assignment.ownerships(offsets)
    entries = {
        partition: Entry(OffsetAndMetadata(offset), owned[partition] if ownership is None else ownership, topic_id)
        for partition, offset in offsets.items()
    }
    made_at = one.coordinator.application.clock()
    return Ticket(entries, made_at, made_at + timeout_ms / 1000, wake)


def sent(brokers: FakeBrokers) -> list[dict[TopicPartition, int]]:
    """Return the offsets of each OffsetCommit, in order."""
    return [offsets_of(request) for request in brokers.all(OffsetCommitRequest)]


@in_virtual_time
async def test_each_ticket_is_answered_for_its_own_partitions() -> None:
    brokers = FakeBrokers()
    refused = {T1: codes.OFFSET_METADATA_TOO_LARGE}
    brokers.answer(OffsetCommitRequest, lambda request: commit_answer(request, refused))
    async with member(brokers) as one:
        await one.join()
        tickets = [ticket(one, {T0: 1}), ticket(one, {T0: 2, T1: 2}), ticket(one, {T0: 3})]
        for each in tickets:
            one.coordinator.commits.submit(each)
        await eventually_async(lambda: all(each.done for each in tickets))
        assert sent(brokers) == [{T0: 3, T1: 2}]
        assert tickets[0].answers == tickets[2].answers == {T0: None}
        assert tickets[1].answers[T0] is None
        assert isinstance(tickets[1].answers[T1], CommitFailedError)


@in_virtual_time
async def test_tickets_that_are_answered_together_wake_their_waiter_once() -> None:
    brokers = FakeBrokers()
    go = asyncio.Event()
    brokers.answer(OffsetCommitRequest, held_until(go))
    woken: list[str] = []

    def application() -> None:
        woken.append("application")

    async with member(brokers) as one:
        await one.join()
        for offset in range(100):
            one.coordinator.commits.submit(ticket(one, {T0: offset}, wake=application))
        one.coordinator.commits.submit(ticket(one, {T1: 7}, wake=lambda: woken.append("other")))
        await pause(100)
        assert not woken
        go.set()
        await eventually_async(lambda: woken)
        await pause(100)
        assert sorted(woken) == ["application", "other"]
        assert brokers.committed == {T0: 99, T1: 7}


@in_virtual_time
async def test_an_offset_of_a_deleted_topic_is_not_answered_by_a_commit_of_its_successor() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        former = [ticket(one, {T0: offset, T1: 7}, topic_id=FORMER) for offset in (40, 41)]
        new = ticket(one, {T0: 3}, topic_id=NEW)
        for each in (*former, new):
            one.coordinator.commits.submit(each)
        await eventually_async(lambda: all(each.done for each in (*former, new)))
        [request] = brokers.all(OffsetCommitRequest)
        offsets = {
            (topic.topic_id, row.partition_index): row.committed_offset for topic in request.topics for row in topic.partitions
        }
        assert offsets == {(NEW, 0): 3, (FORMER, 1): 7}
        assert new.answers == {T0: None}
        for each in former:
            error = each.answers[T0]
            assert isinstance(error, CommitFailedError)
            assert error.code == codes.UNKNOWN_TOPIC_ID
            assert each.answers[T1] is None


@in_virtual_time
async def test_a_commit_never_crosses_a_change_of_ownership() -> None:
    """The first commit waits for the coordinator while its partition is lost and assigned again."""
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        ended = one.coordinator.assignment.ownership(T0)
        assert ended is not None
        one.coordinator.enforce_rebalance()
        one.coordinator.assignment.lose()
        await eventually_async(lambda: one.coordinator.assignment.ownership(T0) not in (None, ended) and one.stable)
        before = ticket(one, {T0: 50, T1: 9}, ownership=ended)
        now = ticket(one, {T0: 3})
        one.coordinator.commits.submit(before)
        one.coordinator.commits.submit(now)
        await eventually_async(lambda: before.done and now.done)
        assert sent(brokers) == [{T0: 3}]
        assert now.answers == {T0: None}
        assert all(isinstance(error, CommitFailedError) for error in before.answers.values())
        assert "lost or revoked" in str(before.answers[T0])


@in_virtual_time
async def test_tickets_of_two_ownerships_are_two_requests() -> None:
    """An offset of a partition that the member does not own, and one with an ownership."""
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        made_at = one.coordinator.application.clock()
        unowned = Ticket({T0: Entry(OffsetAndMetadata(50))}, made_at, made_at + 9)
        owned = ticket(one, {T0: 3})
        for each in (unowned, owned):
            one.coordinator.commits.submit(each)
        await eventually_async(lambda: unowned.done and owned.done)
        assert sent(brokers) == [{T0: 50}, {T0: 3}]


@in_virtual_time
async def test_no_ticket_waits_longer_than_its_deadline_and_keeps_the_answers_it_has() -> None:
    brokers = FakeBrokers()
    brokers.always(OffsetCommitRequest, lambda request: commit_answer(request, {T1: codes.REQUEST_TIMED_OUT}))
    async with member(brokers) as one:
        await one.join()
        began = now_ms()
        patient = ticket(one, {T0: 5, T1: 5}, timeout_ms=30_000)
        one.coordinator.commits.submit(patient)
        await eventually_async(lambda: T0 in patient.answers)
        brokers.always(OffsetCommitRequest, SILENCE)
        hasty = ticket(one, {T1: 6}, timeout_ms=1_000)
        one.coordinator.commits.submit(hasty)
        await eventually_async(lambda: hasty.done)
        assert now_ms() - began < 1_100
        assert isinstance(hasty.answers[T1], RequestTimedOutError)
        assert not patient.done
        await eventually_async(lambda: patient.done)
        assert 29_900 < now_ms() - began < 30_100
        assert patient.answers[T0] is None
        assert isinstance(patient.answers[T1], RequestTimedOutError)
        brokers.always(OffsetCommitRequest, None)


@in_virtual_time
async def test_a_ticket_whose_hand_in_was_interrupted_before_the_wake_up_is_sent_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        loop: Any = asyncio.get_running_loop()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        first, second = ticket(one, {T0: 1}), ticket(one, {T1: 2})
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.coordinator.commits.submit(first)
        await pause(100)
        assert not first.done
        one.coordinator.commits.submit(second)
        await eventually_async(lambda: all(each.done for each in (first, second)))
        assert sent(brokers) == [{T0: 1, T1: 2}]


@in_virtual_time
async def test_a_ticket_after_close_fails() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    await one.stop()
    one.coordinator.release(one.held)
    await one.coordinator.close(5_000)
    for late in (ticket(one, {T0: 1}), ticket(one, {T0: 2})):
        one.coordinator.commits.submit(late)
        await pause(10)
        assert isinstance(late.failure, ClosedError)
    await one.cluster.close()


@in_virtual_time
async def test_a_cancelled_call_is_not_sent_later() -> None:
    brokers = FakeBrokers()
    go = asyncio.Event()
    brokers.answer(OffsetCommitRequest, held_until(go))
    async with member(brokers) as one:
        await one.join()
        first = one.coordinator.start_commit(at("t", 0, 1))
        await pause(10)
        second = asyncio.ensure_future(one.coordinator.commit(at("t", 1, 2)))
        await pause(10)
        second.cancel()
        await pause(10)
        go.set()
        assert await first == {T0: None}
        await pause(100)
    assert sent(brokers) == [{T0: 1}]


def test_threads_hand_in_tickets_while_the_lane_sends() -> None:
    """Every ticket completes, its waiter wakes after that, and the last offset of each thread is committed."""
    threads, each = 4, 300
    answered: list[bool] = []

    async def story() -> None:
        brokers = FakeBrokers()
        async with member(brokers) as one:
            await one.join()

            def use(number: int) -> None:
                partition = TopicPartition("t", number)
                for offset in range(1, each + 1):
                    rung = threading.Event()
                    made = ticket(one, {partition: offset}, timeout_ms=60_000, wake=rung.set)
                    one.coordinator.commits.submit(made)
                    if offset % 3 == 0:
                        assert rung.wait(60)
                        answered.append(made.done and made.answers == {partition: None})

            await asyncio.gather(*(asyncio.to_thread(use, number) for number in range(threads)))
            await one.coordinator.commit(at("t", 0, each))
            assert brokers.committed == {TopicPartition("t", number): each for number in range(threads)}

    asyncio.run(story())
    assert answered == [True] * (threads * each // 3)
