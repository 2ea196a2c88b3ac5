"""The assignor ``range``: each subscriber gets a range of each topic, so partitions with equal numbers stay together."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping

from consumer_coord.broker.consumer_group.assignors.spec import GroupSpec, MemberSpec
from consumer_coord.broker.consumer_group.member import Partitions


class RangeAssignor:
    """Kafka's server-side ``RangeAssignor``. The previous assignment has no effect on the new assignment."""

    name = "range"

    def assign(self, spec: GroupSpec) -> Mapping[str, Partitions]:
        """Assign in the order of instance ids, then of member ids; the first members get an additional partition.

        As in Kafka, the first member's topics are used for all members of a homogeneous group. While a new member's regular
        expression is unresolved, the target may contain partitions that the member does not subscribe to. The member never
        receives such partitions, and the next target corrects the assignment.
        """
        members = sorted(spec.members.items(), key=_order)
        topics_of = {member_id: members[0][1].topics if spec.homogeneous else member.topics for member_id, member in members}
        subscribers = Counter(topic_id for topics in topics_of.values() for topic_id in topics)
        dealt: Counter[uuid.UUID] = Counter()
        next_of: Counter[uuid.UUID] = Counter()
        plan: dict[str, Partitions] = {}
        for member_id, topics in topics_of.items():
            mine: dict[uuid.UUID, frozenset[int]] = {}
            for topic_id in topics:
                quota, extra = divmod(spec.partitions[topic_id], subscribers[topic_id])
                count = quota + (dealt[topic_id] < extra)
                if count:
                    mine[topic_id] = frozenset(range(next_of[topic_id], next_of[topic_id] + count))
                dealt[topic_id] += 1
                next_of[topic_id] += count
            plan[member_id] = mine
        return plan


def _order(entry: tuple[str, MemberSpec]) -> tuple[bool, bytes]:
    """Return a sort key that puts static members first, and orders ids as Java orders strings (by UTF-16 code units)."""
    member_id, member = entry
    text = member_id if member.instance_id is None else member.instance_id
    return member.instance_id is None, text.encode("utf-16-be", "surrogatepass")
