"""Members of a consumer group as separate processes, of any client, all driven in the same way.

A member reads commands and writes events, in lines of JSON.  It gets one argument, an object with ``config`` (Kafka's
dotted names, native values), ``topics`` or ``pattern``, ``report`` (whether to report records) and, for Python clients,
``client`` and ``assignors``.  Then it polls without pause.  Each *event* has ``at_ns`` of the monotonic clock, which all
processes of a machine share:
* ``ready``; ``assigned``, ``revoked``, ``lost`` with ``partitions`` (topic -> numbers) and ``generation``;
* ``records`` with ``ranges`` (topic -> partition -> [first offset, last offset, count]) and ``total``;
* ``error`` with ``error``: ``poll`` raised or delivered an error; the member continues;
* ``answer`` with the ``id`` of the command that it answers, and ``error`` if the command failed.

Commands are objects, one a line, with ``command`` and ``id``: ``commit`` (answer: ``offsets``), ``state`` (answer:
``owned``, ``total``, ``generation``, ``member_id``), ``subscribe`` (``topics`` or ``pattern``), ``stop_polling`` and
``start_polling`` (like an application at work), ``enforce_rebalance`` (``reason``), ``close``.  The end of the input
closes the consumer and ends the process.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from tests.support.go import go_program
from tests.support.java import JavaProgram
from tests.support.line_process import DEFAULT_DEADLINE_S, LineProcess
from tests.support.waiting import eventually

Client: TypeAlias = Literal["java", "confluent-kafka", "kafka-python", "aiokafka", "franz-go", "ours"]
Setting: TypeAlias = str | int | bool

_LOOK_AGAIN_S = 0.1

_JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


@attrs.frozen
class RecordRange:
    """Records of one partition from one poll: ``count`` records with the offsets ``first`` to ``last``."""

    topic: str
    partition: int
    first: int
    last: int
    count: int
    generation: int
    at_ns: int


class Member(LineProcess):
    """A member of a group; its callbacks determine which partitions it owns."""

    def __init__(self, command: Sequence[str], *, name: str, client: Client) -> None:
        self.client: Client = client
        self._changed = threading.Condition()  # its lock is re-entrant, so that conditions may use the properties
        self._events: list[Mapping[str, Any]] = []
        self._records: list[RecordRange] = []
        self._owned: dict[str, set[int]] = {}
        self._total = 0
        self._ended = False
        self._ids = itertools.count(1)
        super().__init__(command, name=name)

    @property
    def owned(self) -> Mapping[str, tuple[int, ...]]:
        """The partition numbers that were assigned, and neither revoked nor lost, by topic."""
        with self._changed:
            return {topic: tuple(sorted(numbers)) for topic, numbers in sorted(self._owned.items()) if numbers}

    @property
    def owned_count(self) -> int:
        """The number of owned partitions."""
        with self._changed:
            return sum(map(len, self._owned.values()))

    @property
    def total(self) -> int:
        """The number of reported records."""
        with self._changed:
            return self._total

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """All events so far, without records and answers."""
        with self._changed:
            return tuple(self._events)

    @property
    def records(self) -> Sequence[RecordRange]:
        """The records reported so far."""
        with self._changed:
            return tuple(self._records)

    def named(self, event: str) -> Sequence[Mapping[str, Any]]:
        """Return the events of one name, in order."""
        return [one for one in self.events if one["event"] == event]

    def command(self, name: str, *, deadline_s: float = DEFAULT_DEADLINE_S, **arguments: Any) -> Mapping[str, Any]:
        """Send a command and return the answer; raise AssertionError if the answer is an error."""
        answer = self.try_command(name, deadline_s=deadline_s, **arguments)
        assert "error" not in answer, f"{self.name} could not {name}: {answer['error']}"
        return answer

    def try_command(self, name: str, *, deadline_s: float = DEFAULT_DEADLINE_S, **arguments: Any) -> Mapping[str, Any]:
        """Send a command and return the answer, which may have an ``error``."""
        number = next(self._ids)
        self.send(json.dumps({"command": name, "id": number, **arguments}))
        while True:
            answer: Mapping[str, Any] = json.loads(self.receive(deadline_s))
            if answer["id"] == number:
                return answer

    def leave(self, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Close the consumer of the member, and wait for the end of the process."""
        self.command("close", deadline_s=deadline_s)
        self.wait(deadline_s)

    def story(self) -> str:
        """Return the last events, one per line."""
        return "\n".join(json.dumps(one) for one in self.events[-20:])

    def wait_for(self, event: str, *, count: int = 1, deadline_s: float = DEFAULT_DEADLINE_S) -> Mapping[str, Any]:
        """Wait until the member has reported an event ``count`` times, and return the last of these."""
        self.wait_until(lambda: len(self.named(event)) >= count, f"{count} x {event}", deadline_s=deadline_s)
        return self.named(event)[count - 1]

    def wait_for_total(self, records: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Wait until the member has reported at least this number of records."""
        self.wait_until(lambda: self._total >= records, f"{records} records", deadline_s=deadline_s)

    def wait_until(self, condition: Callable[[], bool], what: str, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Wait for a condition on the events; raise `LineProcessError` if the member ends, TimeoutError at the deadline."""

        def step() -> None:
            if self._ended:
                raise self._problem(f"ended before {what}; its last events:\n{self.story()}\nits standard error")
            # A condition may also depend on events of other members, which do not wake this wait.
            self._changed.wait(_LOOK_AGAIN_S)

        with self._changed:
            eventually(condition, f"{what} of {self.name}", within_s=deadline_s, step=step, shows=self.story)

    def on_line(self, line: str) -> None:
        """Record an event; pass an answer to the caller that waits for it."""
        event = json.loads(line)
        if event["event"] == "answer":
            super().on_line(line)
            return
        with self._changed:
            self._record(event)
            self._changed.notify_all()

    def on_end(self) -> None:
        """Wake the callers that wait; a member that ended owns nothing."""
        super().on_end()
        with self._changed:
            self._owned.clear()
            self._ended = True
            self._changed.notify_all()

    def _record(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "records":
            self._total = event["total"]
            for topic, partitions in event["ranges"].items():
                for partition, (first, last, count) in partitions.items():
                    self._records.append(
                        RecordRange(topic, int(partition), first, last, count, event["generation"], event["at_ns"])
                    )
            return
        self._events.append(event)
        for topic, numbers in event.get("partitions", {}).items():
            if event["event"] == "assigned":
                self._owned.setdefault(topic, set()).update(numbers)
            else:
                self._owned.setdefault(topic, set()).difference_update(numbers)


class Members:
    """Starts members on one cluster and ends them all; the fixture ``members`` is an instance."""

    def __init__(self, libs: Callable[[], Path], bootstrap_servers: Callable[[], str]) -> None:
        self._libs = libs
        self._bootstrap_servers = bootstrap_servers
        self._started: list[Member] = []

    def start(
        self,
        client: Client,
        group: str,
        topics: Sequence[str] = (),
        *,
        assignors: Sequence[str] = ("range",),
        pattern: str | None = None,
        instance_id: str | None = None,
        bootstrap_servers: str | None = None,
        config: Mapping[str, Setting] | None = None,
        report: bool = True,
    ) -> Member:
        """Start a member, and return when its consumer has subscribed and begins to poll.

        ``assignors`` are Kafka's names, in order of preference; ``pattern`` is a regular expression, instead of ``topics``.
        ``config``, under Kafka's dotted names, is added to the settings that every client gets: short timeouts, from the
        earliest offset, no automatic commit. With ``group.protocol=consumer``, the member has neither assignors nor timeouts.
        """
        settings: dict[str, Setting] = {
            "bootstrap.servers": bootstrap_servers or self._bootstrap_servers(),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "max.poll.interval.ms": 60_000,
        }
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        settings.update(config or {})
        modern = settings.get("group.protocol") == "consumer"
        if modern:  # the broker determines the heartbeat interval and the assignors
            del settings["session.timeout.ms"], settings["heartbeat.interval.ms"]
            assignors = ()
        setup: dict[str, Any] = {"config": settings, "topics": list(topics), "pattern": pattern, "report": report}
        if client == "java":
            if not modern:
                settings["partition.assignment.strategy"] = ",".join(_JAVA_ASSIGNORS.get(one, one) for one in assignors)
            command = JavaProgram(self._libs(), "GroupMember").command(json.dumps(setup))
        elif client == "franz-go":
            setup["assignors"] = list(assignors)
            command = [str(go_program("group_member")), json.dumps(setup)]
        else:
            setup.update(client=client, assignors=list(assignors), members=["1"], does="report" if report else "count")
            command = [sys.executable, "-m", "tests.support.driver", json.dumps(setup)]
        member = Member(command, name=f"{client} member {len(self._started) + 1} of {group}", client=client)
        self._started.append(member)
        member.wait_for("ready")
        return member

    def close(self) -> None:
        """Kill the members that still run; a test that needs a member to leave calls :meth:`Member.leave`."""
        for member in self._started:
            member.kill()


def partitions_of(topics: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return topic -> number of partitions as a set of partitions."""
    return {(topic, number) for topic, count in topics.items() for number in range(count)}


def owned_by(members: Sequence[Member]) -> list[tuple[str, int]]:
    """Return all partitions that the members own, one entry for each owner."""
    return [(topic, number) for one in members for topic, numbers in one.owned.items() for number in numbers]


def await_shared(
    members: Sequence[Member],
    topics: Mapping[str, int],
    *,
    at_least: int = 1,
    condition: Callable[[], bool] = lambda: True,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> None:
    """Wait until every partition of ``topics`` (topic -> number of partitions) has one owner among ``members``.

    Each member must own ``at_least`` this number of partitions, and ``condition`` must hold at the same time.
    """
    wanted = sorted(partitions_of(topics))

    def shared() -> bool:
        for one in members:
            assert one.process.poll() is None, f"{one.name} ended:\n{one.stderr_tail()}"
        return sorted(owned_by(members)) == wanted and all(one.owned_count >= at_least for one in members) and condition()

    def story() -> str:
        return "\n".join(f"{one.name}: {dict(one.owned)}\n{one.story()}" for one in members)

    eventually(shared, f"a group that shares {dict(topics)}", within_s=deadline_s, shows=story)
