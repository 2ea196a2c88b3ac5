"""The assignors to compare: ours, franz-go's and Java's. Each loads a case, and then assigns it repeatedly."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from assignors import (
    Assignor,
    Cluster,
    CooperativeStickyAssignor,
    Member,
    Plan,
    RangeAssignor,
    StickyAssignor,
    verify,
)
from assignors.balancing import sticky_user_data
from benchmarks.assignors.cases import JOINS, LEAVES, Case
from consumer_coord.testing.jars import cache_directory
from consumer_coord.wire.embedded_protocol import Assignment, encode_assignment
from tests.support.java_assignors import JavaAssignors
from tests.support.line_process import LineProcess, LineProcessError

_FRANZ_SOURCE = Path(__file__).parent / "franz"
_R = TypeVar("_R")
#: Time limit for one call of a peer, in seconds. A call that exceeds the limit counts as never finished.
DEADLINE_S = 120.0


@attrs.frozen
class Time:
    """Milliseconds for making a plan and for encoding it for SyncGroup, measured with one clock."""

    assign_ms: float
    encode_ms: float

    @property
    def total_ms(self) -> float:
        """The time for the plan and its encoding, because a leader needs both."""
        return self.assign_ms + self.encode_ms


@attrs.frozen
class Times:
    """The wall-clock time of one run, and the processor time of the thread that ran it."""

    wall: Time
    cpu: Time


class PeerTimedOutError(Exception):
    """Raised if a peer failed, or took longer than the deadline; the message says which of the two."""


class Peer(ABC):
    """An assignor to measure."""

    name: str

    @abstractmethod
    def load(self, assignor: str, case: Case) -> None:
        """Load a case. ``assignor`` is "range", "sticky" or "cooperative-sticky"."""

    @abstractmethod
    def change(self) -> None:
        """Let one member leave and one join; the others own the partitions of this peer's own plan."""

    @abstractmethod
    def run(self) -> Times:
        """Assign the partitions once."""

    def close(self) -> None:
        """End the peer's process, if it has one."""
        return


def _after_change(assignor: str, case: Case, members: Mapping[str, Member], plan: Plan, generation: int) -> dict[str, Member]:
    """Return the members as a leader decodes them: tuples, separate strings per member, user data in the eager protocol."""
    group = {
        member_id: attrs.evolve(
            member,
            owned={str(topic.encode(), "ascii"): tuple(partitions) for topic, partitions in plan[member_id].items()},
            generation=generation,
        )
        for member_id, member in members.items()
        if member_id != LEAVES
    }
    if assignor == "sticky":
        group = {
            member_id: attrs.evolve(
                member, owned={}, generation=-1, user_data=sticky_user_data.encode(member.owned, generation)
            )
            for member_id, member in group.items()
        }
    group[JOINS] = case.newcomer()
    return group


class Ours(Peer):
    """Our assignors, in this process."""

    name = "consumer-coord"

    def load(self, assignor: str, case: Case) -> None:
        ours: Sequence[Assignor] = (RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor())
        self._assignor = next(one for one in ours if one.name == assignor)
        self._case = case
        self._cluster: Cluster = case.cluster()
        self._members: dict[str, Member] = case.group()

    def change(self) -> None:
        plan = self._assignor.assign(self._cluster, self._members)
        verify(self._cluster, self._members, plan)
        self._members = _after_change(self._assignor.name, self._case, self._members, plan, 1)

    def run(self) -> Times:
        clocks = time.perf_counter, time.thread_time
        start = [clock() for clock in clocks]
        plan = self._assignor.assign(self._cluster, self._members)
        assigned = [clock() for clock in clocks]
        for topics in plan.values():
            encode_assignment(Assignment(topics))
        wall, cpu = (
            Time((half - first) * 1000, (clock() - half) * 1000)
            for clock, first, half in zip(clocks, start, assigned, strict=True)
        )
        return Times(wall, cpu)


class Franz(Peer):
    """franz-go's balancers, in a small Go program."""

    name = "franz-go"

    def __init__(self) -> None:
        go = shutil.which("go")
        if go is None:
            raise PeerTimedOutError("`go` is not on the path")
        binary = cache_directory() / "benchmarks" / "franz"
        binary.parent.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(
            [go, "build", "-o", str(binary), "."], cwd=_FRANZ_SOURCE, capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            raise PeerTimedOutError(f"its program does not build: {built.stderr.strip()[-300:]}")
        self._process = LineProcess([str(binary)], name=self.name)

    def load(self, assignor: str, case: Case) -> None:
        self._case = case
        members = [{"id": member_id, "topics": list(member.topics)} for member_id, member in case.group().items()]
        self._ask({"balancer": assignor, "partitions": dict(case.cluster().partitions), "members": members})

    def change(self) -> None:
        self._ask({"leave": LEAVES, "join": {"id": JOINS, "topics": list(self._case.newcomer().topics)}})

    def run(self) -> Times:
        answer = self._ask({"run": True})
        return Times(
            Time(answer["balance_ns"] / 1e6, answer["encode_ns"] / 1e6),
            Time(answer["balance_cpu_ns"] / 1e6, answer["encode_cpu_ns"] / 1e6),
        )

    def close(self) -> None:
        self._process.close()

    def _ask(self, question: Mapping[str, object]) -> dict[str, int]:
        try:
            answer: dict[str, int] = json.loads(self._process.request(json.dumps(question), DEADLINE_S))
        except LineProcessError as error:
            raise PeerTimedOutError(str(error).splitlines()[0]) from error
        return answer


class Java(Peer):
    """Apache Kafka's assignors, in one JVM that has warmed up on each case before the measurement."""

    name = "Java (warm)"
    _WARM_UP = 3

    def __init__(self, libs: Path) -> None:
        self._libs = libs
        self._java: JavaAssignors | None = None

    def load(self, assignor: str, case: Case) -> None:
        self._assignor, self._case = assignor, case
        self._members: Mapping[str, Member] = case.group()
        self._load()

    def change(self) -> None:
        self._members = _after_change(self._assignor, self._case, self._members, self._plan, 1)
        self._load()

    def run(self) -> Times:
        if self._java is None:
            raise PeerTimedOutError("this case has timed out before")
        answer = self._guard(self._java.time_again, DEADLINE_S)
        return Times(
            Time(answer["assign_ns"] / 1e6, answer["encode_ns"] / 1e6),
            Time(answer["assign_cpu_ns"] / 1e6, answer["encode_cpu_ns"] / 1e6),
        )

    def close(self) -> None:
        if self._java is not None:
            self._java.close()

    def _load(self) -> None:
        if self._java is None:
            self._java = JavaAssignors(self._libs, heap="3g", warm=True)
        self._plan = self._guard(self._java.load, self._assignor, self._case.cluster(), self._members, DEADLINE_S)
        for _ in range(self._WARM_UP):
            self.run()

    def _guard(self, call: Callable[..., _R], *arguments: object) -> _R:
        try:
            return call(*arguments)
        except LineProcessError as error:
            # The JVM is still busy with this case, so the next case starts a new JVM.
            assert self._java is not None
            self._java.kill()
            self._java = None
            raise PeerTimedOutError(str(error).splitlines()[0]) from error


def python_peer(peer: str, assignor: str, case_number: int, deadline_s: float) -> Sequence[float | None]:
    """Return the milliseconds of both assignments of a Python peer; None for an assignment that exceeded the deadline."""
    command = [sys.executable, "-m", "benchmarks.assignors.python_peers", peer, assignor, str(case_number)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
        output = ran.stdout
    except subprocess.TimeoutExpired as expired:
        output = (expired.stdout or b"").decode() if isinstance(expired.stdout, bytes) else (expired.stdout or "")
    times: list[float | None] = [float(line) for line in output.split()]
    return [*times, None, None][:2]
