"""The assignor ``uniform``, Kafka's default: equal numbers of partitions, with as few moves as possible."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from itertools import islice

from consumer_coord.broker.consumer_group.assignors.mixed import assign_mixed
from consumer_coord.broker.consumer_group.assignors.spec import AssignorFailedError, GroupSpec, MemberSpec
from consumer_coord.broker.consumer_group.member import Partitions


class UniformAssignor:
    """Kafka's ``UniformAssignor``. Members and topics are processed in their given order."""

    name = "uniform"

    def assign(self, spec: GroupSpec) -> Mapping[str, Partitions]:
        """Assign in one pass over the members if all members subscribe to the same topics; otherwise balance topic by topic."""
        if not spec.members:
            return {}
        return _assign_alike(spec) if spec.homogeneous else assign_mixed(spec)


def _assign_alike(spec: GroupSpec) -> Mapping[str, Partitions]:
    """Move partitions from members above the quota to members below (``UniformHomogeneousAssignmentBuilder``)."""
    topics = next(iter(spec.members.values())).topics
    if not topics:
        return {}
    unassigned = [
        (topic_id, number)
        for topic_id in topics
        for number in range(spec.partitions[topic_id])
        if number not in spec.assigned.get(topic_id, ())
    ]
    quota, extra = divmod(sum(spec.partitions[topic_id] for topic_id in topics), len(spec.members))
    plan: dict[str, dict[uuid.UUID, frozenset[int]]] = {}
    room: list[tuple[str, int]] = []
    for place, (member_id, member) in enumerate(spec.members.items()):
        takes_extra = extra > 0
        plan[member_id], taken, left = _keep(member, topics, quota + takes_extra)
        unassigned += taken
        if left and takes_extra and len(spec.members) - place > extra:
            # The member does not own enough partitions to fill the quota with its extra partition, and there are fewer extra
            # partitions than remaining members. So leave the extra partition to a later member.
            left -= 1
            takes_extra = False
        if left:
            room.append((member_id, left))
        extra -= takes_extra
    rest = iter(unassigned)
    for member_id, left in room:
        for topic_id, number in islice(rest, left):
            plan[member_id][topic_id] = plan[member_id].get(topic_id, frozenset()) | {number}
    if next(rest, None) is not None:
        raise AssignorFailedError("some partitions have no owner, because all members have their quota")
    return plan


def _keep(
    member: MemberSpec, topics: Collection[uuid.UUID], quota: int
) -> tuple[dict[uuid.UUID, frozenset[int]], list[tuple[uuid.UUID, int]], int]:
    """Return the partitions that a member keeps, the partitions that it loses, and the number of partitions that it lacks."""
    kept: dict[uuid.UUID, frozenset[int]] = {}
    taken: list[tuple[uuid.UUID, int]] = []
    for topic_id, numbers in member.target.items():
        if topic_id not in topics:
            continue
        mine = sorted(numbers)[:quota]
        taken += [(topic_id, number) for number in sorted(numbers)[quota:]]
        quota -= len(mine)
        if mine:
            kept[topic_id] = frozenset(mine)
    return kept, taken, quota
