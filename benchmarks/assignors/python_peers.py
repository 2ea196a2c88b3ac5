"""kafka-python's and aiokafka's assignors on one case: ``python -m benchmarks.assignors.python_peers PEER ASSIGNOR CASE``.

Print two lines: the milliseconds of the first assignment, and those of the assignment after one member left and one joined.
Each case runs in a separate process, because some cases take minutes, and the caller may end the process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.assignors.cases import CASES, JOINS, LEAVES, Case


class _Cluster:
    """The part of the cluster metadata of kafka-python and aiokafka that their assignors read."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = {topic: set(range(count)) for topic, count in partitions.items()}

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._partitions.get(topic)


_Assigned = Mapping[str, Sequence[Any]]
_Assign = Callable[[Mapping[str, tuple[Sequence[str], Sequence[Any]]], int], _Assigned]


def _kafka_python(assignor: str, cluster: _Cluster) -> _Assign:
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    def assign(group: Mapping[str, tuple[Sequence[str], Sequence[Any]]], generation: int) -> _Assigned:
        members = [
            SimpleNamespace(
                member_id=member_id,
                group_instance_id=None,
                metadata=RangePartitionAssignor.metadata(topics)
                if assignor == "range"
                else StickyPartitionAssignor._metadata(topics, owned or None, generation),
            )
            for member_id, (topics, owned) in group.items()
        ]
        chosen = RangePartitionAssignor if assignor == "range" else StickyPartitionAssignor()
        start = time.perf_counter()
        plan = chosen.assign(cluster, members)
        print((time.perf_counter() - start) * 1000, flush=True)
        return {member_id: assignment.partitions() for member_id, assignment in plan.items()}

    return assign


def _aiokafka(assignor: str, cluster: _Cluster) -> _Assign:
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    def assign(group: Mapping[str, tuple[Sequence[str], Sequence[Any]]], generation: int) -> _Assigned:
        members = {
            member_id: RangePartitionAssignor.metadata(topics)
            if assignor == "range"
            else StickyPartitionAssignor._metadata(topics, owned or None, generation)
            for member_id, (topics, owned) in group.items()
        }
        chosen = RangePartitionAssignor if assignor == "range" else StickyPartitionAssignor
        start = time.perf_counter()
        plan = chosen.assign(cluster, members)
        print((time.perf_counter() - start) * 1000, flush=True)
        return {member_id: assignment.partitions() for member_id, assignment in plan.items()}

    return assign


def run(peer: str, assignor: str, case: Case) -> None:
    """Assign a case twice, and print both times."""
    cluster = _Cluster(case.cluster().partitions)
    assign = (_kafka_python if peer == "kafka-python" else _aiokafka)(assignor, cluster)
    members = case.group()
    plan = assign({member_id: (member.topics, []) for member_id, member in members.items()}, -1)
    group = {member_id: (member.topics, list(plan[member_id])) for member_id, member in members.items()}
    del group[LEAVES]
    group[JOINS] = (case.newcomer().topics, [])
    assign(group, 1)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], CASES[int(sys.argv[3])])
