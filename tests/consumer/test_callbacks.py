"""GroupConsumer: rebalance callbacks, positions and fetching around them (behaviours 35 to 45 and 51 to 54)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.config import CoordinatorConfig
from consumer_coord.consumer import thread_turns
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Origin, Plan
from consumer_coord.consumer.start_offsets import ResetPolicy, Start, Starts
from consumer_coord.errors import ClosedError, ConcurrentUseError, NotAssignedError
from consumer_coord.group.apply_changes import Holder, apply_changes, run_through
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.net.answers import Results
from consumer_coord.net.metadata import Metadata
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from tests.support.consumer.embedded import (
    BROKER,
    DEADLINE_S,
    CallbackLog,
    KeepingConsumer,
    consumer,
    held,
    poll_each,
    produce,
    row,
    take,
)
from tests.support.group.member import parts
from tests.support.waiting import eventually
from tests.support.white_box import coordinator_of


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4, "other": 1}, config=BROKER) as running:
        yield running


def _share(one: KeepingConsumer, two: KeepingConsumer) -> None:
    eventually(
        lambda: len(held(one)) == 2 and len(held(two)) == 2 and one.generation() == two.generation(), step=poll_each(one, two)
    )


@pytest.mark.behaviour(35, 38)
def test_eager_revokes_everything_before_it_joins(kafka: EmbeddedKafka) -> None:
    calls = CallbackLog()
    seen: list[tuple[list[int], str | None]] = []
    callbacks = calls.callbacks()
    keep = callbacks["on_revoke"]

    def on_revoke(who: GroupConsumer, rows: Any) -> None:
        seen.append((held(who), kafka.group_state("billing")))
        keep(who, rows)

    with consumer(kafka, "range") as one, consumer(kafka, "range") as two:
        one.subscribe(["orders"], **{**callbacks, "on_revoke": on_revoke})
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        two.subscribe(["orders"])
        _share(one, two)
        assert calls.kinds == ["assigned", "revoked", "assigned"]
        assert calls.events[0] == ("assigned", [0, 1, 2, 3])
        assert ("revoked", [0, 1, 2, 3]) in calls.events
        # The callback ran before any change, while the group was still waiting for this member's join.
        assert seen == [([0, 1, 2, 3], "PreparingRebalance")]


@pytest.mark.behaviour(36, 38, 39)
def test_cooperative_revokes_and_adds_only_the_difference(kafka: EmbeddedKafka) -> None:
    calls, others = CallbackLog(), CallbackLog()
    with consumer(kafka) as one, consumer(kafka) as two:
        one.subscribe(["orders"], **calls.callbacks())
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        two.subscribe(["orders"], **others.callbacks())
        _share(one, two)
        assert calls.kinds == ["assigned", "revoked"]
        moved = next(numbers for kind, numbers in calls.events if kind == "revoked")
        assert len(moved) == 2
        assert sorted(held(one) + moved) == [0, 1, 2, 3]
        assert others.kinds == ["assigned"]
        assert held(two) == moved
    assert calls.kinds == ["assigned", "revoked", "revoked"], "close revokes what is owned"


@pytest.mark.behaviour(40, 41)
@pytest.mark.parametrize("kinds", [("on_assign", "on_revoke", "on_lost"), ("on_assign", "on_revoke")])
def test_partitions_are_lost_when_the_generation_is_gone(kafka: EmbeddedKafka, kinds: tuple[str, ...]) -> None:
    calls = CallbackLog()
    # The broker keeps the membership that it denies; a short session ends it soon.
    with consumer(kafka, session_timeout_ms=500) as one:
        one.subscribe(["orders"], **calls.callbacks(*kinds))
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        kafka.add_fault("Heartbeat", Fault(error_code=codes.UNKNOWN_MEMBER_ID))
        eventually(lambda: len(calls.kinds) == 3 and held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
    expected = "lost" if "on_lost" in kinds else "revoked"
    assert calls.kinds == ["assigned", expected, "assigned", "revoked"]


@pytest.mark.behaviour(42, 43)
def test_an_exception_of_a_callback_leaves_poll_after_the_state_is_right(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {number: range(3) for number in range(4)})

    def on_assign(*_: Any) -> None:
        raise ZeroDivisionError("a bug of the application")

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        with pytest.raises(ZeroDivisionError, match="a bug of the application"):
            eventually(lambda: False, step=one.poll_and_keep)
        assert held(one) == [0, 1, 2, 3]
        assert len(take(one, 12)) == 12


@pytest.mark.behaviour(42)
def test_a_holder_that_raises_releases_its_partitions_and_is_called_for_the_rest() -> None:
    """The methods for lost, revoked and added partitions, without a consumer."""
    state = AssignmentState()
    ran: list[str] = []

    class Timed:
        """The part of the application's side that the test needs."""

        def clock(self) -> float:
            return 0.0

        def called_back(self, kind: str, began: float) -> None:
            ran.append(f"timed {kind}")

    class Member:
        """The part of the coordinator that the test needs."""

        assignment = state
        application = Timed()

        def release(self, partitions: Any) -> None:
            state.release(partitions)

    class Raises(Holder):
        """An application whose methods raise."""

        async def lost(self, partitions: Any) -> None:
            ran.append(f"lost {len(partitions)}")
            raise RuntimeError("in lost")

        async def revoked(self, partitions: Any) -> None:
            ran.append(f"revoked {len(partitions)}")
            assert partitions <= state.held, "the application still holds the partitions to release"
            raise RuntimeError("in revoked")

        async def assigned(self, partitions: Any) -> None:
            ran.append(f"assigned {len(partitions)}")
            raise RuntimeError("in assigned")

    def carried_out(holder: Holder) -> bool:
        return run_through(apply_changes(Member(), holder))  # type: ignore[arg-type]  # a partial coordinator

    state.publish(1, parts("t", 0))
    assert carried_out(Holder())
    ran.clear()
    state.lose()
    state.publish(2, parts("t", 0, 1))
    with pytest.raises(RuntimeError, match="in lost"):
        carried_out(Raises())
    with pytest.raises(RuntimeError, match="in assigned"):
        carried_out(Raises())
    # Callbacks that raise are timed, too.
    assert ran == ["lost 1", "timed lost", "assigned 2", "timed assigned"]
    assert carried_out(Raises()), "no callback is left"
    ran.clear()
    state.publish(3, parts("t", 1, 2))
    with pytest.raises(RuntimeError, match="in revoked"):
        carried_out(Raises())
    assert state.held == parts("t", 1), "released despite the exceptions"
    with pytest.raises(RuntimeError, match="in assigned"):
        carried_out(Raises())
    assert ran == ["revoked 1", "timed revoked", "assigned 1", "timed assigned"]
    assert state.held == parts("t", 1, 2)


@pytest.mark.behaviour(44)
def test_metadata_and_committed_offsets_can_be_had_inside_a_callback(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(5)})
    found: dict[str, Any] = {}

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        found["topics"] = set(who.list_topics(timeout=60).topics)
        found["watermarks"] = who.get_watermark_offsets(row(0), timeout=60)
        found["committed"] = [each.offset for each in who.committed(rows, timeout=60)]
        who.commit(offsets=[row(1, 7)], asynchronous=False)
        found["generation"] = who.generation()

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        eventually(lambda: "generation" in found, step=one.poll_and_keep)
        assert {"orders", "other"} <= found["topics"]
        assert found["watermarks"] == (0, 5)
        assert found["committed"] == [-1001] * 4
        assert one.committed([row(1)])[0].offset == 7
        assert found["generation"] == one.generation() > 0


@pytest.mark.parametrize("call", ["poll", "consume", "subscribe", "unsubscribe", "close"])
def test_a_callback_may_call_everything(kafka: EmbeddedKafka, call: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"poll": (0,), "consume": (1, 0), "subscribe": (["other"],)}
    results: list[object] = []

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        if not results:
            results.append(getattr(GroupConsumer, call)(who, *arguments.get(call, ())))

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        if call in ("poll", "consume"):
            eventually(lambda: results, step=one.poll_and_keep)
            assert results in ([None], [[]]), "a record of a partition that the callback gets"
            assert held(one) == [0, 1, 2, 3]
        elif call == "subscribe":
            eventually(lambda: {each.topic for each in one.assignment()} == {"other"}, step=one.poll_and_keep)
        elif call == "unsubscribe":
            eventually(lambda: results, step=one.poll_and_keep)
            assert one.assignment() == []
            assert kafka.group_state("billing") in ("Empty", "Dead", None)
        else:
            with pytest.raises(ClosedError, match="Consumer closed"):
                eventually(lambda: False, step=one.poll_and_keep)
            assert kafka.group_state("billing") in ("Empty", "Dead", None)


def test_a_callback_that_waits_for_another_thread_of_its_consumer_does_not_wait_for_ever(kafka: EmbeddedKafka) -> None:
    """The thread waits for the callback to end, and the callback waits for the thread."""
    found: list[BaseException] = []

    def other(who: GroupConsumer, rows: Any) -> None:
        try:
            who.position(rows)
        except ConcurrentUseError as error:
            found.append(error)

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        thread = threading.Thread(target=other, args=(who, rows))
        thread.start()
        thread.join()

    with consumer(kafka, max_poll_interval_ms=1_000) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        # A poll may report that max.poll.interval.ms has passed.
        eventually(lambda: found, step=lambda: one.poll(0.1))
    assert "call the consumer in the callback itself" in str(found[0])


class _JumpingClock:
    """The module ``time`` of a process that freezes: :meth:`jump` adds the seconds that pass until the process continues."""

    def __init__(self) -> None:
        self.looks = 0
        self._frozen_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._frozen_s

    def sleep(self, seconds: float) -> None:
        self.looks += 1
        time.sleep(seconds)

    def jump(self, seconds: float) -> None:
        self._frozen_s += seconds


def test_a_process_that_freezes_inside_a_callback_fails_no_call_of_another_thread(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _JumpingClock()
    found: list[Any] = []

    def other(who: GroupConsumer, rows: Any) -> None:
        try:
            found.append(who.position(rows))
        except ConcurrentUseError as error:
            found.append(error)

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        thread = threading.Thread(target=other, args=(who, rows))
        monkeypatch.setattr(thread_turns, "time", clock)
        thread.start()
        eventually(lambda: clock.looks, "the other thread waits for its turn")
        looks = clock.looks
        clock.jump(3_600.0)
        eventually(lambda: found or clock.looks > looks + 1, "the other thread checks again")

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        eventually(lambda: found, step=lambda: one.poll(0.1))
    assert not isinstance(found[0], ConcurrentUseError), found[0]


def test_another_thread_stores_offsets_during_a_callback(kafka: EmbeddedKafka) -> None:
    def on_assign(who: GroupConsumer, rows: Any) -> None:
        stored = [TopicPartition(row.topic, row.partition, 1) for row in rows]
        thread = threading.Thread(target=who.store_offsets, kwargs={"offsets": stored})
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()

    with consumer(kafka, enable_auto_offset_store=False, enable_auto_commit=False) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        eventually(one.assignment, step=lambda: one.poll(0.1))
        committed = one.commit(asynchronous=False)
    assert {row.offset for row in committed or ()} == {1}


@pytest.mark.behaviour(45)
@pytest.mark.parametrize("gone", [False, True])
def test_close_revokes_what_is_owned_or_loses_it(kafka: EmbeddedKafka, gone: bool) -> None:
    calls = CallbackLog()
    one = consumer(kafka)
    one.subscribe(["orders"], **calls.callbacks())
    eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
    if gone:
        kafka.add_fault("Heartbeat", Fault(error_code=codes.UNKNOWN_MEMBER_ID), times=1)
        # The background is notified without a poll of the application.
        eventually(lambda: coordinator_of(one).assignment.any_lost)
    one.close()
    # Partitions that were lost and assigned again in between were never added.
    assert calls.events[1:] == [("lost" if gone else "revoked", [0, 1, 2, 3])]
    if not gone:
        assert kafka.group_state("billing") == "Empty"


@pytest.mark.behaviour(51, 52)
def test_paused_and_position_survive_a_rebalance_that_keeps_the_partition(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {number: range(10) for number in range(4)})
    with consumer(kafka) as one, consumer(kafka) as two:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        assert len(take(one, 40)) == 40
        one.pause([row(number) for number in range(4)])
        two.subscribe(["orders"])
        _share(one, two)
        kept = held(one)
        assert [each.offset for each in one.position([row(number) for number in kept])] == [10, 10]
        produce(kafka, "orders", {number: ["new"] for number in range(4)})
        got = take(two, 2)
        assert {message.partition() for message in got} == set(held(two)), "a partition that moved is not paused"
        assert one.poll(0.2) is None, "a rebalance resumed a paused partition"
        one.resume([row(number) for number in kept])
        assert sorted((message.partition(), message.offset()) for message in take(one, 2)) == [(number, 10) for number in kept]


def test_an_eager_rebalance_ends_a_pause_unless_on_assign_pauses_again(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {number: range(10) for number in range(4)})
    again = False

    def on_assign(who: GroupConsumer, partitions: list[Any]) -> None:
        if again:
            who.pause(partitions)

    with consumer(kafka, "range") as one, consumer(kafka, "range") as two, consumer(kafka, "range") as three:
        one.subscribe(["orders"], on_assign=on_assign)
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        one.pause([row(number) for number in range(4)])
        assert len(one.paused()) == 4
        two.subscribe(["orders"])
        _share(one, two)
        assert not one.paused()
        again = True
        three.subscribe(["orders"])
        eventually(
            lambda: held(one) and held(three) and one.generation() == three.generation(), step=poll_each(one, two, three)
        )
        assert sorted(partition.partition for partition in one.paused()) == held(one)


@pytest.mark.behaviour(53)
def test_nothing_comes_out_of_a_partition_that_waits_to_be_revoked(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {number: range(2000) for number in range(4)})
    calls = CallbackLog()
    with consumer(kafka) as one, consumer(kafka) as two:
        one.subscribe(["orders"], **calls.callbacks())
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        take(one, 10)  # librdkafka has fetched records of all of them in advance
        two.subscribe(["orders"])
        # The application is busy; the group has decided which partitions move.
        eventually(lambda: coordinator_of(one).assignment.to_revoke, step=two.poll_and_keep)
        moving = {partition.partition for partition in coordinator_of(one).assignment.to_revoke}
        first = one.consume(500, 0.5)
        assert first
        assert not moving & {message.partition() for message in first}
        eventually(lambda: "revoked" in calls.kinds, step=one.poll_and_keep)
        assert next(event for event in calls.events[1:] if event[1]) == ("revoked", sorted(moving))


@pytest.mark.behaviour(54)
def test_nothing_comes_out_of_a_partition_before_its_assigned_callback_has_run(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {number: range(100) for number in range(4)})
    assigned: set[int] = set()

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        # Start at positions of the application: the first records must be those at these positions.
        who.incremental_assign([row(each.partition, 90 + each.partition) for each in rows if each.partition != 3])
        if any(each.partition == 3 for each in rows):
            who.seek(row(3, 99))
        assigned.update(each.partition for each in rows)

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        eventually(lambda: assigned == {0, 1, 2, 3}, step=one.poll_and_keep)
        messages = take(one, 10 + 9 + 8 + 1)
        first: dict[int, int] = {}
        for message in messages:
            assert message.partition() in assigned
            first.setdefault(message.partition(), message.offset())
        assert first == {0: 90, 1: 91, 2: 92, 3: 99}


def test_positions_for_partitions_of_others_are_refused_inside_on_assign(kafka: EmbeddedKafka) -> None:
    def on_assign(who: GroupConsumer, rows: Any) -> None:
        who.assign([row(0, 0, "other")])

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        with pytest.raises(NotAssignedError, match="other-0"):
            eventually(lambda: False, step=one.poll_and_keep)


class _LookUp:
    """A pending look-up; done when ``found`` is set."""

    def __init__(self) -> None:
        self.found: Starts | None = None

    def done(self) -> bool:
        return self.found is not None

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def result(self) -> Starts | None:
        return self.found

    def add_done_callback(self, function: object) -> None:
        """Do nothing: no task waits for the look-up here."""


def test_a_lookup_that_began_before_a_loss_is_not_used_after_it() -> None:
    """The partition belonged to another member between the two look-ups, and that member may have committed."""
    state = AssignmentState()
    looked_up: list[_LookUp] = []
    assigned: dict[TopicPartition, OffsetAndMetadata] = {}

    def start(work: object) -> _LookUp:
        looked_up.append(_LookUp())
        return looked_up[-1]

    class Starts:
        """A reader that only notes where partitions start."""

        applied = Plan()
        out_of_range: Mapping[TopicPartition, Any] = {}

        def apply(self, plan: Plan) -> None:
            self.applied = plan
            assigned.update({one: read.start for one, read in plan.reads.items() if read.on and read.start is not None})

        def heard(self, table: object) -> frozenset[TopicPartition]:
            return frozenset()

    async def nothing() -> None:
        """Yield no events, as without a callback in progress."""

    member: Any = SimpleNamespace(
        assignment=state,
        application=SimpleNamespace(
            wake=lambda: None, look=lambda: False, waited=lambda: None, news=1, seen=0, clock=lambda: 0.0
        ),
        config=CoordinatorConfig(group_id="g"),
        cluster=SimpleNamespace(metadata=Metadata(), backoff=SimpleNamespace(ms=float)),
        release=state.release,
        look_up=start,
    )
    home: Any = SimpleNamespace(now=lambda: 0.0, wait_idle=nothing, abandoned=list)
    unused: Any = None
    reset = ResetPolicy("earliest", read_committed=True)
    engine = Engine(member, cast("Any", Starts()), home, reset=reset, call=unused, events=nothing)
    partition = TopicPartition("t", 0)

    state.publish(1, {partition})
    run_through(engine.attend())
    assert engine.waiting_for_start == {partition}
    state.lose()
    state.publish(2, {partition})
    run_through(engine.attend())
    looked_up[0].found = Results({partition: Start(Origin.COMMIT, OffsetAndMetadata(1))})
    run_through(engine.attend())
    assert assigned == {}
    looked_up[1].found = Results({partition: Start(Origin.COMMIT, OffsetAndMetadata(2))})
    run_through(engine.attend())
    assert assigned == {partition: OffsetAndMetadata(2)}
    assert not engine.waiting_for_start


@pytest.mark.parametrize("unassign", [GroupConsumer.unassign, GroupConsumer.incremental_unassign])
def test_unassign_inside_on_revoke_leaves_the_kept_partitions_assigned(kafka: EmbeddedKafka, unassign: Any) -> None:
    def on_revoke(who: GroupConsumer, rows: Any) -> None:
        unassign(who, *([rows] if unassign is GroupConsumer.incremental_unassign else []))

    with consumer(kafka) as one, consumer(kafka) as two:
        one.subscribe(["orders"], on_revoke=on_revoke)
        eventually(lambda: len(held(one)) == 4, step=one.poll_and_keep)
        two.subscribe(["orders"])
        _share(one, two)


@pytest.mark.parametrize("assign", [GroupConsumer.assign, GroupConsumer.incremental_assign])
def test_a_part_that_on_assign_selects_is_a_part_of_the_added_partitions(kafka: EmbeddedKafka, assign: Any) -> None:
    added: list[list[int]] = []

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        added.append([each.partition for each in rows])
        assign(who, [row(1), row(2)])

    with consumer(kafka) as one:
        one.subscribe(["other"])
        eventually(one.assignment, step=one.poll_and_keep)
        one.subscribe(["other", "orders"], on_assign=on_assign)
        eventually(lambda: added, step=one.poll_and_keep)
        assert added == [[0, 1, 2, 3]]
        assert [(each.topic, each.partition) for each in one.assignment()] == [("orders", 1), ("orders", 2), ("other", 0)]


@pytest.mark.parametrize("then", ["subscribe", "assign"])
def test_a_callback_may_unsubscribe_and_then_read_other_partitions(kafka: EmbeddedKafka, then: str) -> None:
    produce(kafka, "other", {0: range(1)})
    called: list[object] = []

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        if not called:
            called.append(rows)
            who.unsubscribe()
            if then == "subscribe":
                who.subscribe(["other"])
            else:
                who.assign([row(0, 0, "other")])

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        (message,) = take(one, 1)
        assert message.topic() == "other"
        assert [(each.topic, each.partition) for each in one.assignment()] == [("other", 0)]


def test_a_close_inside_on_revoke_takes_effect_although_unsubscribe_called_it(kafka: EmbeddedKafka) -> None:
    one = consumer(kafka)
    one.subscribe(["orders"], on_revoke=lambda who, rows: who.close())
    eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
    one.unsubscribe()
    assert held(one) == [0, 1, 2, 3]
    one.poll_and_keep()
    with pytest.raises(ClosedError, match="Consumer closed"):
        one.poll_and_keep()


@pytest.mark.parametrize("then", ["poll", "consume", "subscribe", "assign", "unassign", "close", "unsubscribe"])
def test_unsubscribe_calls_on_revoke_in_the_next_call(kafka: EmbeddedKafka, then: str) -> None:
    """Such an order is confluent-kafka's, and the tests of Arroyo expect it."""
    log = CallbackLog()
    produce(kafka, "orders", {0: range(5)})
    with consumer(kafka) as one:
        one.subscribe(["orders"], **log.callbacks("on_revoke"))
        (first,) = take(one, 1)
        one.unsubscribe()
        assert log.events == []
        calls: dict[str, Callable[[], object]] = {
            "poll": lambda: one.poll(0.1),
            "consume": lambda: one.consume(10, 0.1) or None,
            "subscribe": lambda: one.subscribe(["other"]),
            "assign": lambda: one.assign([row(0, 0, "other")]),
            "unassign": lambda: one.unassign(),
            "close": lambda: one.close(),
            "unsubscribe": lambda: one.unsubscribe() or one.poll(0.1),  # type: ignore[func-returns-value]
        }
        assert calls[then]() is None
        assert log.events == [("revoked", [0, 1, 2, 3])]
        if then != "close":
            assert not [each for each in one.assignment() if each.topic == "orders"]
    with consumer(kafka) as two:
        assert two.committed([row(0)], DEADLINE_S)[0].offset == first.offset() + 1


def test_on_revoke_is_called_although_on_commit_raises_before_it(kafka: EmbeddedKafka) -> None:
    log = CallbackLog()

    def on_commit(error: Any, rows: Any) -> None:
        raise ZeroDivisionError

    with consumer(kafka, on_commit=on_commit, enable_auto_commit=False) as one:
        one.subscribe(["orders"], **log.callbacks("on_revoke"))
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        one.commit(offsets=[row(0, 0)])
        # Commits are sent in the order of the calls, so the outcome of the first commit is known after the second.
        one.commit(offsets=[row(1, 0)], asynchronous=False)
        one.unsubscribe()
        with pytest.raises(ZeroDivisionError):
            one.poll(0.1)
    assert log.events == [("revoked", [0, 1, 2, 3])]


def test_a_subscription_that_on_revoke_makes_outlives_the_unsubscribe_that_called_it(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"], on_revoke=lambda who, rows: who.subscribe(["other"]))
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        one.unsubscribe()
        eventually(lambda: {each.topic for each in one.assignment()} == {"other"}, step=one.poll_and_keep)


def test_an_iteration_goes_on_after_a_callback_subscribed_again(kafka: EmbeddedKafka) -> None:
    produce(kafka, "other", {0: range(1)})

    def on_assign(who: GroupConsumer, rows: Any) -> None:
        if who.subscription() == {"orders"}:
            who.unsubscribe()
            who.subscribe(["other"])

    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=on_assign)
        assert next(one).topic() == "other"
