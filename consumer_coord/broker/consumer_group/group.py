"""A group of the consumer protocol (``ConsumerGroup``): its epochs, its members and their targets.

Only records change the group (see :mod:`.records`). A request creates records from the current state. The broker first writes
the records to ``__consumer_offsets``, and then applies them to the group. So a restart restores the same state from the log.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs

from consumer_coord.broker.committed import GroupOffsets
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, EpochPartitions, MemberState, Partitions
from consumer_coord.broker.java_hash import hash_map_order, timeline_map_order

#: The assignment epoch of a group whose target was deleted. A new group has an empty target with epoch 1, its first epoch.
NO_ASSIGNMENT_EPOCH = -1
_FIRST_EPOCH = 1
_NO_PARTITIONS: Partitions = {}


class ConsumerGroupState(enum.Enum):
    """The five states of a consumer group (``ConsumerGroupState``); the values are those of ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _ASSIGNING = ConsumerGroupState.EMPTY, ConsumerGroupState.ASSIGNING
_RECONCILING, _STABLE, _DEAD = ConsumerGroupState.RECONCILING, ConsumerGroupState.STABLE, ConsumerGroupState.DEAD

#: Every legal transition with its cause. One request may skip states, for example if the first member joins and at once
#: receives all partitions of its target. The picture in ``docs/embedded-kafka.md`` is drawn from this table.
TRANSITIONS: Mapping[tuple[ConsumerGroupState, ConsumerGroupState], str] = {
    (_EMPTY, _ASSIGNING): "a first member joins; its topics are not known yet",
    (_EMPTY, _RECONCILING): "a classic group with members is converted",
    (_EMPTY, _STABLE): "a first member joins and has its target at once",
    (_ASSIGNING, _RECONCILING): "the target is computed",
    (_ASSIGNING, _STABLE): "the target is computed, and nothing has to move",
    (_RECONCILING, _ASSIGNING): "the group epoch rises",
    (_RECONCILING, _STABLE): "the last member has its target",
    (_STABLE, _ASSIGNING): "the group epoch rises: a member leaves or fails, topics change",
    (_STABLE, _RECONCILING): "the group epoch rises and the target is computed: a member joins",
    (_ASSIGNING, _EMPTY): "the last member leaves or fails",
    (_RECONCILING, _EMPTY): "the last member leaves or fails",
    (_STABLE, _EMPTY): "the last member leaves or fails",
    (_EMPTY, _DEAD): "deleted, expired, converted to a classic group, or unloaded",
    (_ASSIGNING, _DEAD): "converted to a classic group, or unloaded",
    (_RECONCILING, _DEAD): "converted to a classic group, or unloaded",
    (_STABLE, _DEAD): "converted to a classic group, or unloaded",
}


@attrs.frozen
class ResolvedRegex:
    """The topics that match a regular expression (``ResolvedRegularExpression``).

    ``version`` is the version of the cluster's metadata, ``timestamp_ms`` the time of the look-up.
    """

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@attrs.define(eq=False)
class ConsumerGroup:
    """A group. The dictionaries keep insertion order, so that all runs with the same seed are equal."""

    group_id: str
    epoch: int = _FIRST_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = _FIRST_EPOCH
    #: The time at which the target was computed, 0 if unknown (KIP-1263).
    assignment_timestamp_ms: int = 0
    members: dict[str, ConsumerGroupMember] = attrs.field(factory=dict)
    #: instance id -> member id
    static_members: dict[str, str] = attrs.field(factory=dict)
    #: member id -> the partitions in the member's target
    target: dict[str, Partitions] = attrs.field(factory=dict)
    resolved_regexes: dict[str, ResolvedRegex] = attrs.field(factory=dict)
    #: Whether the log has a record of the topics' partition metadata, which brokers before 4.1 wrote.
    has_partition_metadata: bool = False
    #: The version of the cluster's metadata at the last check of the topics' hash; -1 if no check was made since loading.
    metadata_version: int = -1
    #: Whether the resolution of the group's regular expressions is in progress.
    resolving: bool = False
    offsets: GroupOffsets = attrs.field(factory=GroupOffsets)
    #: topic id -> partition -> the epoch of the member that has the partition, or must still revoke it
    _partition_epochs: dict[uuid.UUID, dict[int, int]] = attrs.field(factory=dict)
    #: regular expression -> number of members that subscribe to it
    _regex_subscribers: Counter[str] = attrs.field(factory=Counter)
    #: assignor -> number of members that name it
    _assignors: Counter[str] = attrs.field(factory=Counter)
    #: Members that do not have their target of ``assignment_epoch`` yet; None if the members must be counted again.
    _unreconciled: set[str] | None = None

    # -- states

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state, which follows from its epochs and members; never ``Dead``, which means that no group exists."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if self._unreconciled is None:
            self._unreconciled = {
                member.member_id for member in self.members.values() if not member.is_reconciled_to(self.assignment_epoch)
            }
        return ConsumerGroupState.RECONCILING if self._unreconciled else ConsumerGroupState.STABLE

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    # -- members

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """Return the member with this instance id; None if no member has it."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def update_member(self, member: ConsumerGroupMember) -> None:
        """Add or replace a member."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._forget(old)
            if old.instance_id != member.instance_id:
                self._free_instance(old)
        self.members[member.member_id] = member
        if member.subscribed_regex:
            self._regex_subscribers[member.subscribed_regex] += 1
        if member.server_assignor is not None:
            self._assignors[member.server_assignor] += 1
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._note_partitions(member)
        if self._unreconciled is not None:
            if member.is_reconciled_to(self.assignment_epoch):
                self._unreconciled.discard(member.member_id)
            else:
                self._unreconciled.add(member.member_id)

    def _note_partitions(self, member: ConsumerGroupMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                epochs = self._partition_epochs.setdefault(topic_id, {})
                for number in numbers:
                    epochs[number] = max(member.member_epoch, epochs.get(number, member.member_epoch))

    def remove_member(self, member_id: str) -> None:
        """Remove a member, if it exists."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._forget(member)
        self._free_instance(member)
        if self._unreconciled is not None:
            self._unreconciled.discard(member_id)

    def _free_instance(self, member: ConsumerGroupMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _forget(self, member: ConsumerGroupMember) -> None:
        if member.subscribed_regex:
            self._regex_subscribers[member.subscribed_regex] -= 1
            if not self._regex_subscribers[member.subscribed_regex]:
                del self._regex_subscribers[member.subscribed_regex]
        if member.server_assignor is not None:
            self._assignors[member.server_assignor] -= 1
            if not self._assignors[member.server_assignor]:
                del self._assignors[member.server_assignor]
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, numbers in partitions.items():
                epochs = self._partition_epochs.get(topic_id, {})
                for number in numbers:
                    # An entry with another epoch belongs to another member, which got the partition in an earlier record.
                    if epochs.get(number) == member.member_epoch:
                        del epochs[number]
                if not epochs:
                    self._partition_epochs.pop(topic_id, None)

    def partition_epoch(self, topic_id: uuid.UUID, partition: int) -> int:
        """Return the epoch of the member that has a partition; -1 if no member has it."""
        return self._partition_epochs.get(topic_id, {}).get(partition, -1)

    def recount_partitions(self) -> None:
        """Compute the partitions' epochs again, only from the members.

        Called after a log was read, because compaction may have kept any subset of its records.
        """
        self._partition_epochs.clear()
        for member in self.members.values():
            self._note_partitions(member)

    def waits_for_partitions(self, member: ConsumerGroupMember) -> bool:
        """Return whether another member still has partitions of this member's target."""
        return member.state is MemberState.UNRELEASED_PARTITIONS and any(
            number not in member.assigned.get(topic_id, ()) and self.partition_epoch(topic_id, number) != -1
            for topic_id, numbers in self.target_of(member.member_id).items()
            for number in numbers
        )

    # -- epochs and targets

    def set_assignment_epoch(self, epoch: int, timestamp_ms: int) -> None:
        """Set the epoch and the time of the target."""
        self.assignment_epoch = epoch
        self.assignment_timestamp_ms = timestamp_ms
        self._unreconciled = None

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's target."""
        return self.target.get(member_id, _NO_PARTITIONS)

    # -- subscriptions

    def subscribed_topics(self) -> frozenset[str]:
        """Return all topics that members subscribe to, by name or by a resolved regular expression."""
        return subscribed_topics(self.members.values(), self.resolved_regexes)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return topic in self.subscribed_topics()

    def subscribers_of(self, regex: str) -> int:
        """Return the number of members that subscribe to a regular expression."""
        return self._regex_subscribers[regex]

    @property
    def has_regexes(self) -> bool:
        """Whether a member subscribes to a regular expression."""
        return bool(self._regex_subscribers)

    def regexes_with(self, member: ConsumerGroupMember, updated: ConsumerGroupMember) -> tuple[str, ...]:
        """Return the regular expressions of all members after ``member`` becomes ``updated``."""
        counts = Counter(self._regex_subscribers)
        if member.subscribed_regex and counts[member.subscribed_regex]:
            counts[member.subscribed_regex] -= 1
        if updated.subscribed_regex:
            counts[updated.subscribed_regex] += 1
        return tuple(regex for regex, count in counts.items() if count)

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the topics of one member; an unresolved regular expression matches no topic."""
        resolved = self.resolved_regexes.get(member.subscribed_regex) if member.subscribed_regex else None
        return member.subscribed_topics if resolved is None else member.subscribed_topics | resolved.topics

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members name (in a tie, the first in Kafka's map), or ``default`` if none is named."""
        named = self._assignors
        return max(timeline_map_order(named), key=named.__getitem__) if named else default

    def assignor_for(self, updated: ConsumerGroupMember, default: str) -> str:
        """Return the assignor that :meth:`preferred_assignor` will return when ``updated`` has replaced the former member.

        In a tie, return the first assignor in the order of the copy that Kafka makes of its map.
        """
        counts = Counter(self._assignors)
        order, copied = timeline_map_order(counts), len(counts)
        # A static member replaces the former owner of its instance id, even if its own member id was already in the group.
        before = self.static_member(updated.instance_id) or self.members.get(updated.member_id)
        if before is not None and before.server_assignor is not None:
            counts[before.server_assignor] -= 1
            if not counts[before.server_assignor]:
                order.remove(before.server_assignor)
        if updated.server_assignor is not None:
            counts[updated.server_assignor] += 1
            if updated.server_assignor not in order:
                # Java's HashMap.compute inserts a new key at the head of its bucket.
                order.insert(0, updated.server_assignor)
        return max(hash_map_order(order, copied), key=counts.__getitem__) if order else default

    def changes_assignor(self, updated: ConsumerGroupMember, default: str) -> bool:
        """Return whether the group's assignor changes when a member becomes ``updated``.

        Do what Kafka's ``hasPreferredServerAssignorChanged`` does. As in Kafka, the result for a tie may differ each time.
        """
        if not self._assignors and updated.server_assignor is None:
            return False
        return self.preferred_assignor(default) != self.assignor_for(updated, default)

    def metadata_was_looked_at(self, version: int) -> None:
        """Record the metadata version with which the topics' hash was checked; -1 makes the next heartbeat check again."""
        self.metadata_version = version

    # -- members of the classic protocol

    def classic_members(self) -> Iterator[ConsumerGroupMember]:
        """Iterate over the members that use the classic protocol."""
        return (member for member in self.members.values() if member.classic is not None)

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether one of these protocols is offered by all classic members."""
        if protocol_type != "consumer":
            return False
        offered = [
            {protocol.name for protocol in member.classic.supported_protocols}
            for member in self.classic_members()
            if member.classic is not None
        ]
        return any(all(name in one for one in offered) for name in names)

    def all_classic_but(self, leaving: Iterable[str]) -> bool:
        """Return whether all members except ``leaving`` use the classic protocol."""
        gone = frozenset(leaving)
        return all(member.classic is not None for member_id, member in self.members.items() if member_id not in gone)


def subscribed_topics(members: Iterable[ConsumerGroupMember], resolved: Mapping[str, ResolvedRegex]) -> frozenset[str]:
    """Return the topics that these members subscribe to, by name or by a resolved regular expression."""
    topics: set[str] = set()
    regexes: set[str] = set()
    for member in members:
        topics |= member.subscribed_topics
        if member.subscribed_regex:
            regexes.add(member.subscribed_regex)
    for regex in regexes:
        if regex in resolved:
            topics |= resolved[regex].topics
    return frozenset(topics)


def is_homogeneous(members: Iterable[ConsumerGroupMember]) -> bool:
    """Return whether all members subscribe to the same topics, by the rules of Kafka's ``subscriptionType``."""
    everyone = tuple(members)
    regexes = {member.subscribed_regex for member in everyone if member.subscribed_regex}
    if not regexes:
        return len({member.subscribed_topics for member in everyone}) <= 1
    # All members must have the same regular expression, and no member may also subscribe by name.
    return len(regexes) == 1 and all(member.subscribed_regex and not member.subscribed_topics for member in everyone)


def has_any(partitions: EpochPartitions, owned: Mapping[uuid.UUID, Iterable[int]]) -> bool:
    """Return whether ``owned`` contains one of these partitions."""
    return any(number in partitions.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers)
