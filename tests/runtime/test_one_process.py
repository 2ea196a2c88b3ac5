"""The loop that all members of a process share: threads, forks, interrupts, and the exit of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, Message
from consumer_coord.errors import ClosedError, ConcurrentUseError, ForkedError, RequestTimedOutError, WakeupError
from consumer_coord.threads.background import Runtime
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from tests.support.consumer.embedded import BROKER, DEADLINE_S, GROUP, consumer, held, produce, row, take
from tests.support.waiting import eventually
from tests.support.white_box import is_in_call, open_clusters


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}, config=BROKER) as running:
        yield running


def _run_program(program: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=180, check=False)


def _in_thread(work: Callable[[], Any]) -> Any:
    """Run a function in another thread; return the exception it raised, or its result."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - the test checks it
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE_S)
    return outcome[0]


def test_fifty_members_cost_one_thread(kafka: EmbeddedKafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP, "session.timeout.ms": 30_000}
    before = set(threading.enumerate())
    members = [BlockingCoordinator(settings) for _ in range(50)]
    try:
        for member in members:
            member.subscribe(["orders"])
        for member in members:
            member.ensure_coordinator_ready(10_000)
        new = [thread for thread in set(threading.enumerate()) - before if thread.name != "consumer-coord-work"]
        assert [thread.name for thread in new] in ([], ["consumer-coord"])
        assert len({id(member.cluster) for member in members}) == 1, "members with one configuration share connections"
    finally:
        for member in members:
            member.close(1_000)


def test_calls_of_other_threads_wait_for_their_turn_and_are_carried_out(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
        take(one, 3)
        polling = threading.Thread(target=lambda: _raised(lambda: one.poll(30)))
        polling.start()
        eventually(lambda: is_in_call(one))
        # The other thread's poll continues for half a minute.
        assert held(one) == [0, 1, 2, 3]
        assert one.position([row(0)])[0].offset == 3
        committed = one.commit(asynchronous=False)
        assert committed is not None
        assert [each.offset for each in committed] == [3]
        one.pause([row(0)])
        one.resume([row(0)])
        one.seek(row(0, 1))
        polling.join(DEADLINE_S)
        assert not polling.is_alive(), "messages arrive after the seek"


@pytest.mark.behaviour(24)
def test_closing_from_another_thread_ends_a_poll_that_waits(kafka: EmbeddedKafka) -> None:
    one = consumer(kafka)
    one.subscribe(["orders"])
    eventually(lambda: held(one) == [0, 1, 2, 3], step=one.poll_and_keep)
    outcome: list[Any] = []
    polling = threading.Thread(target=lambda: outcome.append(_raised(lambda: one.poll(30))))
    polling.start()
    eventually(lambda: is_in_call(one))
    one.close()
    polling.join(DEADLINE_S)
    assert isinstance(outcome[0], ClosedError)
    assert kafka.group_state("billing") == "Empty"


def _raised(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the test checks it
        return error


@pytest.mark.behaviour(24)
def test_a_wakeup_ends_one_poll_and_nothing_else(kafka: EmbeddedKafka) -> None:
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        messages: list[Message] = []
        for _ in range(3):
            # The wake-up works at any step of the join.
            one.wakeup()
            with pytest.raises(WakeupError):
                one.poll(30)
            messages += one.consume(1, 0.002)
        messages += take(one, 3 - len(messages))
        assert [message.offset() for message in messages] == [0, 1, 2]
        one.wakeup()
        with pytest.raises(WakeupError):
            one.consume(1, 30)
        assert one.poll(0) is None


@pytest.mark.behaviour(24)
@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch"])
def test_ctrl_c_while_each_step_waits_leaves_a_usable_consumer(kafka: EmbeddedKafka, api: str) -> None:
    produce(kafka, "orders", {0: range(3)})
    asked, answered = threading.Event(), threading.Event()

    def hold() -> bool:
        asked.set()
        return answered.is_set()

    def hold_up(name: str) -> None:
        asked.clear()
        answered.clear()
        # librdkafka looks up the coordinator, too.
        kafka.add_fault(name, Fault(wait_until=hold), times=2 if name == "FindCoordinator" else 1)

    with consumer(kafka) as one:

        def interrupt(*_: Any) -> None:
            if asked.is_set():
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        def interrupted(call: Callable[[], Any]) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                answered.set()

        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            hold_up(api)
            one.subscribe(["orders"])
            with pytest.raises(KeyboardInterrupt):
                interrupted(lambda: one.poll(DEADLINE_S))
            assert len(take(one, 3)) == 3
            # The same holds in a call that waits for the background loop.
            hold_up("OffsetCommit")
            with pytest.raises(KeyboardInterrupt):
                interrupted(lambda: one.commit(asynchronous=False))
            rows = one.commit(asynchronous=False)
            assert rows is not None
            assert all(row.error is None for row in rows)
        finally:
            signal.signal(signal.SIGALRM, former)


def test_a_close_in_a_signal_handler_that_interrupts_a_poll_is_refused(kafka: EmbeddedKafka) -> None:
    with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP}) as one:
        found: list[Any] = []

        def close(*_: object) -> None:
            found.append(_raised(one.close))
            one.wakeup()

        def interrupt() -> None:
            eventually(lambda: is_in_call(one))
            os.kill(os.getpid(), signal.SIGALRM)

        former = signal.signal(signal.SIGALRM, close)
        try:
            threading.Thread(target=interrupt, daemon=True).start()
            with pytest.raises(WakeupError):
                one.poll(DEADLINE_S)
        finally:
            signal.signal(signal.SIGALRM, former)
        assert isinstance(found[0], ConcurrentUseError)
        assert "interrupts another call of the same thread" in str(found[0])
        # The consumer is still open.
        assert one.poll(0) is None


def test_a_blocking_call_on_the_loops_own_thread_is_refused(kafka: EmbeddedKafka) -> None:
    with BlockingCoordinator({"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP}) as coordinator:
        found: list[Any] = []
        done = threading.Event()

        def on_the_loop() -> None:
            found.append(_raised(lambda: coordinator.ensure_coordinator_ready(1_000)))
            done.set()

        coordinator.on_loop(on_the_loop)
        assert done.wait(DEADLINE_S)
        assert isinstance(found[0], ConcurrentUseError)
        assert "await the coroutine" in str(found[0])


def test_a_blocking_call_ends_at_its_time_limit() -> None:
    with BlockingCoordinator({"bootstrap.servers": "127.0.0.1:1", "group.id": GROUP}) as coordinator:
        coordinator.subscribe(["orders"])

        def why() -> str:
            with pytest.raises(RequestTimedOutError, match="not joined in time") as caught:
                coordinator.join_group_if_needed(300)
            return str(caught.value)

        # The first call may end before a connection was attempted.
        eventually(lambda: "127.0.0.1:1" in why(), "a reason in the error", within_s=DEADLINE_S)
        coordinator.close(100)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_a_clear_error_and_ends_nobodys_membership(kafka: EmbeddedKafka) -> None:
    program = textwrap.dedent(
        f"""
        import os, sys
        from consumer_coord import GroupConsumer
        from consumer_coord.errors import ForkedError

        settings = {{"bootstrap.servers": {kafka.bootstrap_servers!r}, "group.id": {GROUP!r}, "session.timeout.ms": 30000}}
        one = GroupConsumer(settings)
        one.subscribe(["orders"])
        while len(one.assignment()) < 4:
            one.poll(0.01)
        child = os.fork()
        if child == 0:
            refused = 0
            calls = [
                lambda: one.poll(0),
                lambda: one.consume(1, 0),
                lambda: one.commit(asynchronous=False),
                lambda: one.subscribe(["orders"]),
                one.assignment,
                one.metrics,
                one.close,
            ]
            for call in calls:
                try:
                    call()
                except ForkedError as error:
                    refused += "create a new consumer in the child" in str(error)
            sys.exit(refused)  # an orderly exit: hooks run
        _, status = os.waitpid(child, 0)
        one.poll(0.01)
        print(os.waitstatus_to_exitcode(status), len(one.assignment()), one.generation())
        one.close()
        """
    )
    ended = _run_program(program)
    assert ended.stdout.split() == ["7", "4", "1"], ended.stderr
    assert kafka.group_state(GROUP) == "Empty"


def test_every_handle_checks_its_process(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with consumer(kafka) as one:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            calls: list[Callable[[], Any]] = [
                lambda: one.subscribe(["orders"]),
                lambda: one.commit(asynchronous=False),
                one.consumer_group_metadata,
                one.metrics,
            ]
            for call in calls:
                with pytest.raises((ForkedError, KafkaException)):
                    call()
        assert Runtime.shared().thread.is_alive()


def test_at_exit_a_member_that_was_not_closed_leaves(kafka: EmbeddedKafka) -> None:
    program = textwrap.dedent(
        f"""
        from consumer_coord import GroupConsumer

        one = GroupConsumer({{"bootstrap.servers": {kafka.bootstrap_servers!r}, "group.id": {GROUP!r}}})
        one.subscribe(["orders"])
        while len(one.assignment()) < 4:
            one.poll(0.01)
        """
    )
    ended = _run_program(program)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert kafka.group_state(GROUP) == "Empty"


def test_a_consumer_that_cannot_be_made_leaves_nothing_behind(kafka: EmbeddedKafka) -> None:
    before = open_clusters()
    with pytest.raises(KafkaException):
        GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP, "no.such.setting": 1})
    assert open_clusters() == before


def test_no_call_imports_a_module_of_confluent_kafka(kafka: EmbeddedKafka) -> None:
    """The C code of confluent-kafka would turn Ctrl-C during the import into an ImportError."""
    program = textwrap.dedent(
        f"""
        import sys
        from consumer_coord import GroupConsumer

        one = GroupConsumer({{"bootstrap.servers": {kafka.bootstrap_servers!r}, "group.id": {GROUP!r}}})
        before = set(sys.modules)
        one.subscribe(["orders"])
        while len(one.assignment()) < 4:
            one.poll(0.01)
        one.poll(0.1)
        one.list_topics("orders", timeout=60)
        one.close()
        print(sorted(name for name in set(sys.modules) - before if name.startswith("confluent_kafka")))
        """
    )
    ended = _run_program(program)
    assert ended.stdout.strip() == "[]", ended.stderr


def test_a_close_while_the_interpreter_destroys_its_objects_does_not_wait_for_ever(kafka: EmbeddedKafka) -> None:
    """At this time the background thread has ended. The member left the group before, when the exit began."""
    done = _run_program(
        textwrap.dedent(
            f"""
            from tests.support.consumer.embedded import consumer
            from types import SimpleNamespace as Kafka

            class Service:
                def __init__(self):
                    self.consumer = consumer(Kafka(bootstrap_servers={kafka.bootstrap_servers!r}))

                def __del__(self):
                    self.consumer.close()

            service = Service()
            service.consumer.subscribe(["orders"])
            while not service.consumer.assignment():
                service.consumer.poll_and_keep()
            """
        )
    )
    assert done.returncode == 0, done.stderr
    assert "the Python interpreter is shutting down" in done.stderr
    eventually(lambda: kafka.group_state(GROUP) == "Empty")
