"""Run a group with a custom assignor, which assigns more partitions to members with more capacity.

    python -m examples.custom_assignor localhost:9092 orders billing 3

The class below is the assignor. The end of the file runs it in a group, here with a capacity of 3.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from assignors import Assignor, Cluster, Member, Plan
from consumer_coord import GroupConsumer, TopicPartition


class CapacityAssignor(Assignor):
    """Assign partitions in proportion to the capacity that each member sends in its user data."""

    name = "capacity"

    def __init__(self, capacity: int = 1) -> None:
        self.capacity = capacity

    def user_data(self, topics: Sequence[str]) -> bytes:
        """Return the capacity, which JoinGroup sends to the leader."""
        return str(self.capacity).encode()

    def assign(self, cluster: Cluster, members: Mapping[str, Member]) -> Plan:
        """Assign each partition to the subscriber with the lowest load relative to its capacity."""
        plan: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
        capacity = {member_id: self._capacity_of(member) for member_id, member in members.items()}
        load = dict.fromkeys(sorted(members), 0)
        for topic, count in sorted(cluster.partitions.items()):
            takers = [member_id for member_id in load if topic in members[member_id].topics]
            for partition in range(count if takers else 0):
                taker = min(takers, key=lambda member_id: (load[member_id] + 1) / capacity[member_id])
                plan[taker].setdefault(topic, []).append(partition)
                load[taker] += 1
        return plan

    def _capacity_of(self, member: Member) -> int:
        data = member.user_data or b""
        # A member without valid user data has capacity 1.
        return max(1, int(data)) if data.isdigit() and len(data) < 9 else 1


def main(servers: str, topic: str, group: str, capacity: str = "1") -> None:
    """Join the group, and print this member's partitions and records."""
    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}

    def print_assigned(_: object, partitions: Sequence[TopicPartition]) -> None:
        print("capacity", capacity, "gets", sorted(one.partition for one in partitions), flush=True)

    with GroupConsumer(config, assignors=[CapacityAssignor(int(capacity))]) as consumer:
        consumer.subscribe([topic], on_assign=print_assigned)
        while True:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                print(message.topic(), message.partition(), message.offset(), message.value(), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:5])
    except KeyboardInterrupt:
        sys.exit(130)
