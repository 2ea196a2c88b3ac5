"""Whether a group is stable: its members agree with the coordinator, and have read and committed what they must."""

from __future__ import annotations

from collections.abc import Callable

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.simulation.application import MemberProcess
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.holdings import Holding
from consumer_coord.simulation.member_spec import fresh_within_s
from consumer_coord.simulation.scenario import Fetching
from consumer_coord.simulation.world import World
from consumer_coord.topic_partition import TopicPartition, flatten, listed
from consumer_coord.wire.embedded_protocol import decode_assignment


class Stability:
    """Judges whether the group of a simulation run is stable."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stage = world.stage
        self._cluster = world.cluster
        self._checkers = world.checkers

    def disquiet(self) -> str | None:
        """Return the reason why the group does not count as stable, or None."""
        group = self._cluster.consumer_group(self._stage.group_id) or self._cluster.group(self._stage.group_id)
        if group is None:
            return "the group has no coordinator"
        live = [member for member in self._world.lives if member.alive]
        if not live and group.state.value in ("Empty", "Dead"):
            # All members were stopped, killed or fenced.
            return None
        if group.state.value != "Stable":
            return f"the group is {group.state.value}"
        ids = {member.member_id for member in live}
        if ids != set(group.members) or len(ids) != len(live):
            return f"members {sorted(ids)} are running, but the group has {sorted(group.members)}"
        for member in live:
            coordinator = member.coordinator
            assert coordinator is not None
            generation, assigned = self._known(group, member.member_id)
            held = coordinator.assignment.held
            target = coordinator.assignment.target.partitions if isinstance(group, GroupMetadata) else assigned
            if coordinator.generation != generation:
                return f"{member.name} is in generation {coordinator.generation}, but in {generation} for the group"
            if not held == target == assigned:
                return f"{member.name} owns {listed(held, 1000)}, but the group assigned {listed(assigned, 1000)}"
            if isinstance(group, GroupMetadata) and not self._agrees_on_leader(member, group):
                return f"{member.name} and the group disagree on whether it is the leader, {group.leader_id}"
        return self.unread(committed=True) or self._unread_by_hand()

    def _unread_by_hand(self) -> str | None:
        return next((why for reader in self._world.readers if (why := reader.unread()) is not None), None)

    def _agrees_on_leader(self, member: MemberProcess, group: GroupMetadata) -> bool:
        leads = group.leader_id == member.member_id
        return member.leads == leads or (leads and group.generation_id == self._checkers.unled_generation)

    def _known(self, group: GroupMetadata | ConsumerGroup, member_id: str) -> tuple[int, frozenset[TopicPartition]]:
        """Return the generation (or member epoch) and the partitions of a member, as the coordinator stores them."""
        if isinstance(group, GroupMetadata):
            assignment = group.members[member_id].assignment
            # The leader gave nothing to a member that an edited response had left out.
            return group.generation_id, flatten(decode_assignment(assignment).partitions) if assignment else frozenset()
        member, topics = group.members[member_id], self._cluster.kafka.topics.by_id
        assigned = {topics[topic_id].name: numbers for topic_id, numbers in member.assigned.items() if topic_id in topics}
        return member.member_epoch, flatten(assigned)

    def unread(self, *, spared: Callable[[int], bool] = lambda _: True, committed: bool = False) -> str | None:
        """Return why a subscribed partition has no owner that has read it to its end, or None.

        ``spared`` selects partitions by their numbers. ``committed``: the owner must also have committed the end.
        """
        live = [member for member in self._world.lives if member.alive]
        wanted = {topic for member in live for topic in self._world.topics_of(member)}
        for partition in self._cluster.partitions():
            if partition.topic not in wanted or not spared(partition.partition):
                continue
            holders = [holding for holding in self._checkers.holders(partition) if holding.owner.alive]
            if len(holders) != 1:
                return f"{partition} has {len(holders)} owners"
            rules = self._stage.handlers or self._stage.exactly_once
            if rules is not None:
                undone = rules.left(partition, committed=committed)
                if undone is not None:
                    return undone
                continue
            owner = holders[0].owner
            assert isinstance(owner, MemberProcess)
            if self._may_stay_unread(holders[0]) or (not committed and owner.in_bounded_read):
                # A bounded read waits for the end of every partition before the application reads on in any.
                continue
            left = self._left_to_read(holders[0]) or (self._left_to_commit(holders[0]) if committed else None)
            if left is not None:
                return left
        return None

    def _may_stay_unread(self, holding: Holding) -> bool:
        checkers, partition = self._checkers, holding.partition
        end, next_offset = self._end_of(partition), checkers.next_offset(holding)
        return (
            # All remaining records were deleted, or no record exists yet, so the owner has nothing to read or to commit.
            self.emptied(partition, next_offset)
            or self.begins_at_the_end(holding)
            # The application chose a position at the end of the new topic, so it need not read the records before it.
            or (checkers.sought_anew(holding) and next_offset == end)
            or checkers.waits_at_lost_commit(holding, end)
        )

    def _left_to_read(self, holding: Holding) -> str | None:
        partition = holding.partition
        end, covered, next_offset = (
            self._end_of(partition),
            self._checkers.covered(partition),
            self._checkers.next_offset(holding),
        )
        # An application may seek to an offset that a truncation removed, which is after the end of the log.
        # Of a recreated topic without a record that is committed, an application has heard nothing.
        unheard = self._checkers.first_record(partition, self._cluster.log_start(partition)) == end < next_offset
        if covered < end or (end and next_offset != end and not unheard):
            return f"{partition} was processed up to {covered} of {end} (next offset {next_offset})"
        return None

    def look_for_late_records(self, healed: float) -> None:
        """Check that each owner delivers its next record in time, counted from the end of the faults, or from its begin.

        An application that takes its records slowly delivers something all the time. No record arrives meanwhile. Members that
        call ``process`` or have transactions deliver when their handlers allow it.
        """
        if self._stage.handlers is not None or self._stage.exactly_once is not None:
            return
        for partition in self._cluster.partitions():
            holders = [holding for holding in self._checkers.holders(partition) if holding.owner.alive]
            if len(holders) == 1:
                self._must_be_fresh(holders[0], healed)

    def _must_be_fresh(self, holding: Holding, healed: float) -> None:
        member, end = holding.owner, self._end_of(holding.partition)
        assert isinstance(member, MemberProcess)
        since = max(healed, holding.began, *(one.delivered_at for one in member.holdings))
        late_s, bound_s = (
            self._stage.loop.time() - since,
            fresh_within_s(member.spec, (self._stage.scenario.fetching or Fetching()).settings),
        )
        if late_s <= bound_s or member.in_bounded_read or self._may_stay_unread(holding):
            return
        next_offset = self._checkers.next_offset(holding)
        if next_offset < end:
            raise Violation(
                "freshness",
                f"{member.name} has delivered {holding.partition} only up to {next_offset} of {end}, and"
                f" nothing for {late_s:.0f} s after the last fault and the begin of its ownership; {bound_s:.0f} s suffice",
            )

    def _left_to_commit(self, holding: Holding) -> str | None:
        member, partition = holding.owner, holding.partition
        assert isinstance(member, MemberProcess)
        end = self._end_of(partition)
        committed = self._checkers.first_record(partition, self._checkers.committed_now(partition))
        late = member.spec.commit == "revoke" or self._checkers.went_back(partition)
        excused = late or self._checkers.is_adrift_at(partition, end)
        # The application has committed records itself that were removed: the consumer does not go back behind its commit.
        excused = excused or (member.spec.auto and self._checkers.is_committed_past(partition, end))
        if not excused and end and committed != end and not self.emptied(partition, committed):
            return f"{partition} is committed up to {committed} of {end}"
        return None

    def _end_of(self, partition: TopicPartition) -> int:
        end = self._cluster.end_offset(partition)
        assert end is not None
        return end

    def emptied(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether retention deleted all records from ``offset`` on, so that nothing remains to be read or committed."""
        return offset < self._cluster.log_start(partition) == self._cluster.end_offset(partition)

    def begins_at_the_end(self, holding: Holding) -> bool:
        """Return whether a member that starts at the end of a log has nothing to read and nothing to commit."""
        owner = holding.owner
        assert isinstance(owner, MemberProcess)
        log_start, end = self._cluster.log_start(holding.partition), self._end_of(holding.partition)
        position = self._checkers.position(holding)
        if owner.reset not in ("earliest", "none") and (0 <= position < log_start or position > end):
            # Retention removed the position or the commit to start from, or the offset belongs to a deleted topic of the same
            # name. The member continues at the end or with the first remaining record, and no record remains yet.
            return True
        return holding.start is None and owner.reset != "earliest" and owner.spec.commit != "auto"
