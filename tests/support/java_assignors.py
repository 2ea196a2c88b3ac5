"""Apache Kafka's own assignors, called through ``tests/support/programs/java/AssignorOracle.java``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assignors import Cluster, Member
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess

JavaPlan = dict[str, dict[str, list[int]]]


class JavaAssignors:
    """A JVM that returns the plans of Java's assignors."""

    def __init__(self, libs: Path, *, heap: str = "512m", warm: bool = False) -> None:
        tiers = () if warm else ("-XX:TieredStopAtLevel=1",)
        # The assignors log every plan in full at level info, and conflicting claims at level error.
        quiet = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.consumer=off"
        program = JavaProgram(libs, "AssignorOracle", jvm_arguments=(f"-Xmx{heap}", quiet, *tiers))
        self._process: LineProcess = program.start()

    def assign(self, assignor: str, cluster: Cluster, members: Mapping[str, Member]) -> JavaPlan:
        """Return Java's plan: member id -> topic -> sorted partitions; raise AssertionError if Java raises an exception."""
        answer = self._ask(question(assignor, cluster, members))
        return {
            member_id: {topic: sorted(partitions) for topic, partitions in topics.items()}
            for member_id, topics in answer["plan"].items()
        }

    def load(self, assignor: str, cluster: Cluster, members: Mapping[str, Member], deadline_s: float) -> JavaPlan:
        """Return Java's plan for a case that :meth:`time_again` will repeat."""
        plan: JavaPlan = self._ask(question(assignor, cluster, members), deadline_s)["plan"]
        return plan

    def time_again(self, deadline_s: float) -> Mapping[str, int]:
        """Repeat the last case and return its times in nanoseconds.

        Elapsed: ``assign_ns``, ``encode_ns`` (the bytes for SyncGroup). Processor time of the thread: ``assign_cpu_ns``,
        ``encode_cpu_ns``.
        """
        times: Mapping[str, int] = self._ask({"again": True, "quiet": True}, deadline_s)
        return times

    def user_data(self, assignor: str, assignment: Sequence[tuple[str, int]], generation: int) -> bytes:
        """Return the user data that a Java member sends after it has received an assignment."""
        case = {"assignor": assignor, "remember": [list(pair) for pair in assignment], "generation": generation}
        return base64.b64decode(self._ask(case)["user_data"])

    def close(self) -> None:
        """End the JVM."""
        self._process.close()

    def kill(self) -> None:
        """Kill the JVM, which may be busy."""
        self._process.kill()

    def _ask(self, case: Mapping[str, Any], deadline_s: float = 60.0) -> Any:
        answer = json.loads(self._process.request(json.dumps(case), deadline_s))
        assert "error" not in answer, f"{answer['error']} for {json.dumps(case)}"
        return answer


def question(assignor: str, cluster: Cluster, members: Mapping[str, Member]) -> dict[str, Any]:
    """Return a case in the format of the Java program."""
    return {
        "assignor": assignor,
        "partitions": dict(cluster.partitions),
        "racks": {topic: [sorted(racks) for racks in of_topic] for topic, of_topic in cluster.racks.items()},
        "members": {
            member_id: {
                "topics": list(member.topics),
                "owned": {topic: list(partitions) for topic, partitions in member.owned.items()},
                "generation": member.generation,
                "instance_id": member.instance_id,
                "rack": member.rack,
                "user_data": None if member.user_data is None else base64.b64encode(member.user_data).decode(),
            }
            for member_id, member in members.items()
        },
    }
