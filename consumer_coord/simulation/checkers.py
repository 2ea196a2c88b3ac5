"""The rules that must hold at every step.

The checkers trust only three sources: the records of ``__consumer_offsets`` (commits, and the members of each generation), the
JoinGroup responses of brokers (the participants of a generation), and the application (the partitions that the application
owns, delivered and processed records, and confirmed commits). A violated rule raises :class:`Violation` at the step that causes
the violation.

The rules, by the names under which they are reported:

``exclusive``     two live members of the group's current generation never both own a partition
``handover``      a partition gets a new owner only after the former owner revoked the partition, was fenced, or lost its
                  session
``fencing``       a commit is accepted only while no later owner has the partition
``rewind``        committed offsets never decrease, except if two commits of one owner overtake each other
``durability``    a commit confirmed to the application is in the log, and the next owner starts at this offset or later
``skipped``       no record is skipped: an owner starts at the end of the processed records or before, and continues with the
                  next record after any exception or cancellation; no commit covers a delivered record whose processing has not
                  ended, was cancelled or raised
``twice``         a record is processed again only after a loss of the partition, a kill, a commit that was not confirmed, or a
                  commit that an older commit of the same owner overtook
``again``         no record is delivered twice while a member owns the partition
``records``       an application receives exactly the committed records of the log, in order; after a truncation an owner
                  continues at the end of the records that both logs share
``identity``      a delivered record is the one that the log of its partition has at its offset; a record of a former topic of
                  the same name is delivered only until the member knows the later topic
``bounded``       a bounded read of columns ends by position, delivers no record at or after its ends, and skips none before
                  them
``lease``         after another owner has delivered a record of a partition, the former owner delivers no record of the
                  partition; while answers of the coordinator prove its membership, a member does deliver, and its lease is
                  as long as the proven session (see ``duties.py``)
``overdue``       without a fault, a member does in time what it owes to its coordinator (see ``duties.py``)
``callbacks``     only partitions that the member does not own are assigned; only owned partitions are revoked, lost, or deliver
                  records
``answered``      a commit of a partition that does not exist is refused at once, and the others of the same commit are made
                  (see ``odd_commits.py``)
``reported``      every asynchronous commit has exactly one outcome, even if the consumer closes
``late``          a call returns within its time limit; a close that no fault delays returns sooner than any session ends
``raised``        ``poll`` of a member in its group raises only errors that the application itself raised
``polling``       a member that waits inside ``poll`` or ``consume`` counts as polling; a member that does not poll for
                  ``max.poll.interval.ms`` leaves
``stranded``      an owned partition is fetched, is paused, or waits for its position
``health``        a member that has not delivered a record of the log for longer than a limit is unhealthy and names the
                  partition, unless its application is the reason; a member that has delivered everything does not say that
                  records are owed (see ``health.py``)
``generations``   generations only increase, and records of a generation do not change its members
``agreement``     when no event is left, members and coordinator agree on members, generation, assignment and positions
``plans``         no leader rejects a plan of a built-in assignor
``liveness``      after the last fault the group becomes stable within a time limit
``freshness``     after the last fault, an owner that has records to deliver delivers the next one within a bound that follows
                  from its settings (``fresh_within_s``), counted from the begin of the ownership if that is later; without a
                  fault, no record is delivered before a much older one of another partition of its owner
``leaks``         after the end no task, timer, or connection is left
``idle``          in an idle group, members send heartbeats and little else (see ``idle.py``)
``storms``        no member sends more than :data:`MOST_REQUESTS` requests in a second, or repeats a look-up more than
                  :data:`MOST_REPEATS` times, whatever the brokers respond
``farewell``      a member that closes while no fault interferes commits everything that it has processed
``metrics``       brokers that subscribe to metrics have no reason to refuse a push for good, and no push follows the last one
``transitions``   no event moves a partition in a way that the table of ``consumer/partitions.py`` forbids
``order``         ``process`` handles records of one key (or partition) one at a time, in order (see ``handlers.py``)
``undone``        no commit of ``process`` covers a record that is not done
``handled``       ``process`` handles a record again only if its owner died, lost the partition, or could not commit
``exactly-once``  a record is processed by one committed transaction, which commits the end of what it read (see
                  ``exactly_once.py`` for this rule and the next ones, which have the names of Jepsen's anomalies)
``lost-write``    a committed record is in its log, and no commit passes a record that no committed transaction has read
``G0``            of two transactions, of which one must follow the other, the later one writes later
``G1a``           no committed transaction has read a record of an aborted one
``G1b``           no committed transaction has read a record before the end of the record's transaction was decided
``G1c``           no two committed transactions have read from each other, directly or over others
``int-send-skip`` the records of a transaction in a log are those that the program sent there, in order, without a gap
``int-poll-skip`` the polls within a transaction skip no committed record, and do not go back
``crash``         no exception is swallowed, and no background task ends with an exception
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Container

from consumer_coord.simulation.consumer_group_truth import ConsumerGroupTruth
from consumer_coord.simulation.history import History
from consumer_coord.simulation.holdings import GroupTruth, Holding, Owner, PartitionTruth, Run, split
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import offsets_topic

#: Maximum number of requests of one member in a second. A member alone in its process sends about thirty in a rebalance.
MOST_REQUESTS = 100
#: Maximum number of equal look-ups of one member in a second. With the back-off of a client, there are about five.
MOST_REPEATS = 20


#: Age of metadata, in seconds, up to which a member may confuse a recreated topic with the deleted topic.
_OLD_METADATA_S = 30.0


class Violation(AssertionError):
    """A rule was violated. ``rule`` is the name of the rule."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Checkers:
    """All checks of one simulation run. ``serving()`` names the client whose request a broker is serving.

    ``topic_name`` returns the name of a topic, or None for a deleted topic. ``first_record`` returns the first offset, from a
    given offset on, that has a record for consumers; transactions leave gaps. ``agreed`` returns the end of the records that a
    log still shares with a reader at a given offset and leader epoch.
    """

    def __init__(
        self,
        group_id: str,
        clock: Callable[[], float],
        history: History,
        serving: Callable[[], str],
        topic_name: Callable[[uuid.UUID], str | None],
        first_record: Callable[[TopicPartition, int], int] = lambda partition, offset: offset,
        agreed: Callable[[TopicPartition, int, int], int] = lambda partition, offset, leader_epoch: offset,
    ) -> None:
        self.group_id = group_id
        self.group: GroupTruth = GroupTruth()
        self.consumer_group: ConsumerGroupTruth = ConsumerGroupTruth(group_id, topic_name, self._on_member)
        #: generation -> ids of the members whose JoinGroup response had this generation.
        self.joined: dict[int, set[str]] = {}
        #: generation -> the last coordinator that sent JoinGroup responses with this generation, and the member ids in those
        #: responses.
        self._joined_at: dict[int, tuple[str, frozenset[str]]] = {}
        #: Generation -> the members of which its leader was told by a wrong answer.
        self._told: dict[int, frozenset[str]] = {}
        self.rebalances: int = 0
        self.processed: int = 0
        self.processed_again: int = 0
        self.commits: int = 0
        self.overtaken: int = 0
        self._clock = clock
        self._history = history
        self._serving = serving
        self.first_record = first_record
        self.agreed = agreed
        self._truths: defaultdict[TopicPartition, PartitionTruth] = defaultdict(PartitionTruth)
        #: Producer id -> the commits of its open transaction.
        self._in_transactions: defaultdict[int, list[tuple[TopicPartition, offsets_topic.OffsetCommitValue, str, Holding]]] = (
            defaultdict(list)
        )
        self._deleted: set[TopicPartition] = set()
        self._recreated_at: dict[TopicPartition, float] = {}
        #: The true state of a partition when its topic, or its commit, was last deleted.
        self._former: dict[TopicPartition, PartitionTruth] = {}
        #: The time at which the group last became a classic group.
        self._became_classic_at = -math.inf
        #: The generation of the group when the group became a classic group. No member leads this generation, because no
        #: JoinGroup created it.
        self.unled_generation: int = -1
        #: ``unled_generation`` if a static member returned as a classic member, which ended the consumer protocol.
        self._unplanned_generation = -1
        #: The time at which the group, in the consumer protocol, last added a member, and that member's id.
        self._newest_member = (-math.inf, "")
        #: The time when a classic group with members was last deleted.
        self._deleted_at = -math.inf
        #: The first epoch of the group if a conversion to the consumer protocol deleted that classic group; otherwise None.
        self._converted_epoch: int | None = None
        self._holders: dict[TopicPartition, list[Holding]] = {}
        self._shared: dict[TopicPartition, None] = {}
        self._holdings = 0
        #: The current virtual second, and the number of each client's requests in this second.
        self._second = 0
        self._requests: dict[str, int] = {}
        self.most_requests: int = 0
        #: (client, request) -> the number of equal look-ups in the second ``_look_ups_in``.
        self._look_ups: dict[tuple[str, bytes], int] = {}
        self._look_ups_in = -1
        #: A violation that was found inside a broker's code. The next step raises the violation, because the broker would treat
        #: an exception as an error of the request.
        self.pending: Violation | None = None

    # -- records of the log -----------------------------------------------------------------------------------------

    def on_record(self, key: bytes, value: bytes | None, offset: int) -> None:
        """Check a record of ``__consumer_offsets``."""
        decoded = offsets_topic.decode_key(key)
        try:
            if isinstance(decoded, offsets_topic.OffsetCommitKey):
                if decoded.group == self.group_id:
                    self._on_commit(TopicPartition(decoded.topic, decoded.partition), value)
            elif isinstance(decoded, offsets_topic.GroupMetadataKey) and decoded.group == self.group_id:
                self._on_group(value)
            else:
                self._on_consumer_group(key, value)
        except Violation as breach:
            self.pending = self.pending or breach

    def _on_commit(self, partition: TopicPartition, value: bytes | None) -> None:
        if value is None:
            self._put_away(partition)
            return
        stored, client = offsets_topic.decode_offset_value(value), self._serving()
        self._takes_effect(partition, stored, client, self._accepted(partition, stored, client))

    def _accepted(self, partition: TopicPartition, stored: offsets_topic.OffsetCommitValue, client: str) -> Holding:
        """Check that a member may commit, and return its :class:`Holding`."""
        truth = self._truths[partition]
        self.commits += 1
        self._history.note("log", f"{partition} committed {stored.offset} by {client}")
        holding = self._committer(partition, truth, client, stored.offset)
        if holding is None:
            raise Violation("fencing", f"{client} committed {stored.offset} for {partition}, which it never owned")
        self._check_fenced(holding, truth, client, self._agreed(holding, stored))
        return holding

    def _agreed(self, holding: Holding, stored: offsets_topic.OffsetCommitValue) -> int:
        """Return where the next owner begins.

        If the owner committed without knowing about a truncation, the next owner starts at this commit and goes back.
        """
        offset = self.agreed(holding.partition, stored.offset, stored.leader_epoch)
        return offset if holding.resumes_at is None else min(offset, holding.resumes_at)

    def _takes_effect(
        self, partition: TopicPartition, stored: offsets_topic.OffsetCommitValue, client: str, holding: Holding
    ) -> None:
        truth, offset = self._truths[partition], self._agreed(holding, stored)
        if offset < truth.committed:
            self._goes_back(holding, truth, client, offset)
        if offset >= truth.highest:
            truth.went_back = False
        if holding.start is None and holding.owner.reset != "earliest":
            # The application committed the start offset before any record was read. Earlier records need not be read.
            truth.covered = max(truth.covered, offset)
        elif holding.owner.reset != "earliest" and holding.position < max(truth.log_starts) and offset > holding.position:
            # Retention deleted the next record, so the reset policy chose this offset. Earlier records need not be read.
            truth.covered = max(truth.covered, offset)
        truth.committed, truth.committed_epoch, truth.stored = offset, stored.leader_epoch, stored.offset
        truth.adrift = offset < stored.offset and stored.leader_epoch < 0
        truth.committed_by = holding
        truth.highest = max(truth.highest, offset)

    def on_transactional_commit(
        self, producer_id: int, partition: TopicPartition, stored: offsets_topic.OffsetCommitValue
    ) -> None:
        """Check a commit that takes effect if the producer's transaction commits; until then, no member reads the offset."""
        client = self._serving()
        try:
            holding = self._accepted(partition, stored, client)
        except Violation as breach:
            self.pending = self.pending or breach
        else:
            self._in_transactions[producer_id].append((partition, stored, client, holding))

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Let the commits of a producer's transaction take effect, or drop them."""
        try:
            for one in self._in_transactions.pop(producer_id, ()):
                if committed:
                    self._takes_effect(*one)
        except Violation as breach:
            self.pending = self.pending or breach

    def _put_away(self, partition: TopicPartition) -> None:
        """Begin anew with a partition whose topic was deleted, perhaps to be created again."""
        former = self._truths.pop(partition, None)
        if former is not None:
            self._former[partition] = former

    def _check_fenced(self, holding: Holding, truth: PartitionTruth, client: str, offset: int) -> None:
        """Check that a commit covers processed records only, and comes from the last owner."""
        partition = holding.partition
        if (
            holding.in_hand
            and holding.in_hand[0][0] is truth
            and max(self.first_record(partition, holding.processed), holding.furthest) < offset <= holding.position
        ):
            raise Violation("skipped", f"{client} committed {offset} of {partition}, but has not processed {holding.processed}")
        spared = not holding.forgotten and self._is_known(holding.owner, self.group.generation)
        for other in truth.holdings if spared else ():
            if other is not holding and other.rightful and (other.number > holding.number or self._is_current(other)):
                raise Violation(
                    "fencing",
                    f"{client} committed {offset} for {partition}, which {other.owner.name} has owned since {other.began:.4f}"
                    " s",
                )

    def _goes_back(self, holding: Holding, truth: PartitionTruth, client: str, offset: int) -> None:
        """Check why a commit is below the committed offset: the application went back, or a newer commit overtook this one."""
        partition, last = holding.partition, truth.committed_by
        forgotten = holding.forgotten or (last is not None and last.forgotten)
        # A commit that the owner sent after a seek may arrive after the owner has revoked the partition and owns it again.
        late = last is not None and last.owner is holding.owner and last.went_back and holding.start is None
        if last is not holding and not holding.went_back and not forgotten and not late:
            raise Violation("rewind", f"{client} moved {partition} from {truth.committed} back to {offset}")
        self.overtaken += 1
        truth.went_back = True
        self._history.note("log", f"{partition} went back from {truth.committed}: a commit of {client} was overtaken")

    def _committer(self, partition: TopicPartition, truth: PartitionTruth, client: str, offset: int) -> Holding | None:
        """Return the client's last :class:`Holding`, with which the client made a commit, even if the topic was recreated."""
        for holding in reversed(truth.holdings):
            if holding.owner.name == client:
                return holding
        for holding in [*self._holders.get(partition, []), *truth.ended]:
            if holding.owner.name == client and holding.may_begin and self._begins_anew(holding, truth, offset):
                truth.holdings.append(holding)
                return holding
        return None

    def _begins_anew(self, holding: Holding, truth: PartitionTruth, offset: int) -> bool:
        """Return whether an owner that has read no record of a recreated topic may commit ``offset`` as its start offset."""
        if self.sought_anew(holding):
            # The application sought to this offset in the recreated topic.
            truth.covered = max(truth.covered, offset)
            return True
        covered = self.first_record(holding.partition, truth.covered)
        return offset <= covered or (holding.start is None and holding.owner.reset != "earliest")

    def _on_group(self, value: bytes | None) -> None:
        if value is None:
            # The group changed to the consumer protocol. When that group is empty, a classic group begins again with generation
            # 1.
            self._history.note("log", "the group was deleted")
            # Members that have joined are converted, too, although their assignment is not stored yet.
            if self.group.members or self.group.generation + 1 in self._joined_at:
                self._deleted_at = self._clock()
            self.group = GroupTruth()
            return
        stored = offsets_topic.decode_group_value(value)
        members = {member.member_id: member.assignment for member in stored.members}
        before = self.group
        self._history.note(
            "log", f"generation {stored.generation} of {len(members)} members, {stored.protocol}, led by {stored.leader}"
        )
        epochs = [self.consumer_group.last_epochs.get(member_id, 0) for member_id in members]
        former = max([before.generation, *epochs])
        if stored.generation < former:
            raise Violation("generations", f"generation {former} is followed by {stored.generation}")
        if stored.generation > before.generation:
            self.rebalances += 1
        if self._became_classic_at == self._clock():
            self.unled_generation = stored.generation
            arrived_at, newest = self._newest_member
            self._unplanned_generation = stored.generation if arrived_at == self._clock() and newest in members else -1
        self.group = GroupTruth(stored.generation, members, stored.leader)

    def _on_consumer_group(self, key: bytes, value: bytes | None) -> None:
        before = self.consumer_group.epoch
        try:
            said = self.consumer_group.on_record(key, value)
        except ValueError as error:
            raise Violation("generations", str(error)) from error
        if said is not None:
            self._history.note("log", said)
        if self.consumer_group.epoch is not None and self.consumer_group.epoch != before:
            self.rebalances += 1
        if before is None and self.consumer_group.epoch is not None:
            self._converted_epoch = self.consumer_group.epoch if self._deleted_at == self._clock() else None
        if self.consumer_group.epoch is None and before is not None:
            self._became_classic_at = self._clock()

    @property
    def unplanned(self) -> bool:
        """Whether members that are not in the group may have partitions, and nothing causes another assignment.

        Either a wrong answer told the leader of such members. Or the group still uses the last assignment that preceded the
        change of its protocol, which a static member caused that returned with the other one. As in Kafka, no new assignment is
        computed. The assignment may belong to members that left, and a classic member is not notified of the assignment.
        """
        if self.consumer_group.epoch is not None:
            return self.consumer_group.epoch == self._converted_epoch
        foreign = self._told.get(self.group.generation, frozenset()) - self.group.members.keys()
        return bool(foreign) or self.group.generation == self._unplanned_generation

    def _on_member(self, member_id: str, epoch: int, assigned: Container[TopicPartition]) -> None:
        """Record a new member. If its classic group is converted at this moment, find the partitions that the member loses."""
        self._newest_member = (self._clock(), member_id)
        if self._deleted_at != self._clock():
            return
        for partition, truth in self._truths.items():
            for holding in dict.fromkeys([*self._holders.get(partition, ()), *truth.holdings[-1:]]):
                owner = holding.owner
                commits = holding.ended == "revoked" and holding.acknowledged < holding.position
                if owner.member_id != member_id or partition in assigned or not (commits or owner.holds(partition)):
                    continue
                holding.forgotten = not owner.was_assigned(partition, epoch)
                if holding.forgotten:
                    self._history.note("log", f"forgets that {owner.name} holds {partition}")

    def on_request(self, client: str) -> None:
        """Count a member's request."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._requests.clear()
        self._requests[client] = count = self._requests.get(client, 0) + 1
        self.most_requests = max(self.most_requests, count)
        if count > MOST_REQUESTS:
            raise Violation("storms", f"{client} sent more than {MOST_REQUESTS} requests within a second")

    def on_look_up(self, client: str, request: bytes) -> None:
        """Check that a member waits before it repeats a look-up. ``request``: the frame without its correlation id."""
        second = int(self._clock())
        if second != self._look_ups_in:
            self._look_ups_in = second
            self._look_ups.clear()
        self._look_ups[client, request] = count = self._look_ups.get((client, request), 0) + 1
        if count > MOST_REPEATS:
            raise Violation("storms", f"{client} repeated a look-up more than {MOST_REPEATS} times within a second")

    def on_progress(self, client: str) -> None:
        """Take one request off the count: one that returned records, or of a producer. An application may cause many."""
        self._requests[client] = self._requests.get(client, 0) - 1

    def on_joined(self, member_id: str, generation: int, coordinator: str, told: frozenset[str]) -> None:
        """Record the generation of a JoinGroup response, and the members in it if these are not the group's."""
        if told:
            self._told[generation] = told
        self.joined.setdefault(generation, set()).add(member_id)
        before, members = self._joined_at.get(generation, (coordinator, frozenset()))
        # A coordinator that fails before the sync has written nothing, so the next coordinator uses the generation again.
        members = members if before == coordinator else frozenset()
        self._joined_at[generation] = (coordinator, members | {member_id})

    # -- reports of the application ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Check the rules that any event may break."""
        if self.pending is not None:
            raise self.pending
        for partition in tuple(self._shared):
            current = [holding for holding in self._holders[partition] if self._is_current(holding)]
            if len(current) > 1:
                raise Violation(
                    "exclusive",
                    f"{partition} is owned in generation {self.group.generation} by "
                    + " and ".join(f"{holding.owner.name} (since {holding.began:.4f} s)" for holding in current),
                )

    def _in_group(self, owner: Owner) -> bool:
        """Return whether a member is in the current generation.

        A static member that was replaced is fenced, even if the former process knows the current generation.
        """
        if self.consumer_group.epoch is not None:
            return self.consumer_group.counts(owner.member_id, owner.generation)
        return owner.generation == self.group.generation and owner.member_id in self.group.members

    def _replaced(self, owner: Owner) -> bool:
        """Return whether another process joined with the same instance id.

        For the group, the new process is the same member. The group replaces the former process at once, but the process learns
        this only from its next response.
        """
        if owner.instance_id is None:
            return False
        return self.consumer_group.has_replaced(owner.member_id, owner.instance_id, owner.generation) or any(
            # The coordinator creates the member id: instance id, hyphen, UUID. If the group used the consumer protocol when the
            # member joined, the member id is only a UUID.
            member_id != owner.member_id and owner.instance_id in (member_id[:-37], self.consumer_group.instance_of(member_id))
            for generation, member_ids in self.joined.items()
            if generation >= owner.generation
            for member_id in member_ids
        )

    def _is_current(self, holding: Holding) -> bool:
        if holding.ended is not None or holding.forgotten or not holding.owner.alive:
            return False
        owner = holding.owner
        return owner.holds(holding.partition) and self._in_group(owner) and self._is_known(owner, self.group.generation)

    def _is_known(self, owner: Owner, generation: int) -> bool:
        """Return whether the leader was told of a member. Of one that a wrong answer left out, it spares nothing."""
        return owner.member_id in self._told.get(generation, (owner.member_id,))

    def taken_up(self, owner: Owner, partition: TopicPartition) -> Holding:
        """Check and record that a member becomes the owner of a partition."""
        holders = self._holders.setdefault(partition, [])
        if any(holding.owner is owner for holding in holders):
            raise Violation("callbacks", f"{owner.name} was assigned {partition} again, but still owned the partition")
        for holding in holders:
            other = holding.owner
            if not other.alive or not other.holds(partition) or holding.forgotten:
                continue
            if self.consumer_group.epoch is not None:
                if self._in_group(owner) and self._in_group(other):
                    raise Violation(
                        "handover",
                        f"{owner.name} became the owner of {partition} in epoch {owner.generation}, but {other.name} has"
                        f" owned the partition since {holding.began:.4f} s and has not revoked it",
                    )
                continue
            if owner.member_id not in self.group.members:
                continue
            _, joined = self._joined_at.get(owner.generation, ("", frozenset()))
            known = self._is_known(other, owner.generation)
            if other.member_id in self.group.members and other.member_id in joined and known:
                raise Violation(
                    "handover",
                    f"{owner.name} became the owner of {partition} in generation {owner.generation}, but {other.name} has"
                    f" owned the partition since the time {holding.began:.4f} s, joined that generation, and was not fenced",
                )
        self._holdings += 1
        before = self.committed_now(partition)
        holding = Holding(owner, partition, self._clock(), self._holdings, self._in_group(owner), before)
        if self._clock() < self._recreated_at.get(partition, -math.inf) + _OLD_METADATA_S:
            holding.may_begin = 1
        holding.adrift = self._truths[partition].adrift
        holders.append(holding)
        if len(holders) > 1:
            self._shared[partition] = None
        self._truths[partition].holdings.append(holding)
        self._history.note(owner.name, f"begins to hold {partition} in generation {owner.generation}")
        self.step()
        return holding

    def committed_now(self, partition: TopicPartition) -> int:
        """Return the group's committed offset in the log, or -1 without a commit."""
        return self._truths[partition].committed

    def starts(self, holding: Holding, offset: int, *, log_start: int) -> None:
        """Check the start offset of a member that begins to read."""
        self.step()
        partition = holding.partition
        truth = self._truths[partition]
        holding.start = holding.position = offset
        self._history.note(holding.owner.name, f"starts {partition} at {offset}")
        if partition in self._deleted:
            # The topic was deleted. The leader and the coordinator do not know about the deletion yet, so the commit still
            # exists.
            return
        if holding.owner.reset != "earliest" and holding.committed_before < log_start:
            # Earlier records need not be read.
            truth.covered = max(truth.covered, offset)
        if offset < holding.committed_before and holding.ended is None:
            raise Violation(
                "durability",
                f"{holding.owner.name} starts {partition} at {offset} although {holding.committed_before} was committed",
            )
        if offset > self.first_record(partition, truth.covered):
            raise Violation(
                "skipped", f"{holding.owner.name} starts {partition} at {offset}; only {truth.covered} records were processed"
            )
        for former in () if truth.went_back or holding.forgotten else truth.holdings:
            usurped = holding.number < former.number and self._same_instance(holding, former)
            if former is holding or former.forgotten or usurped or former.resumes_at is not None:
                continue
            if former.clean and former.start is not None and former.position > offset:
                raise Violation(
                    "twice",
                    f"{holding.owner.name} starts {partition} at {offset}; {former.owner.name} revoked the partition normally"
                    f" at {former.position}",
                )

    @staticmethod
    def _same_instance(holding: Holding, other: Holding) -> bool:
        """Return whether both owners have the same instance id.

        The earlier owner reads until it learns that it was replaced.
        """
        instance_id = holding.owner.instance_id
        return instance_id is not None and other.owner.instance_id == instance_id

    def sought(self, holding: Holding, offset: int) -> None:
        """Record a seek, by which the application chooses to skip records."""
        truth = self._truths[holding.partition]
        self._history.note(holding.owner.name, f"seeks {holding.partition} to {offset}")
        if holding.start is None:
            holding.start = offset
        holding.in_hand.clear()
        holding.sought_at = self._clock()
        holding.adrift = holding.adrift or holding.resumes_at is not None
        holding.resumes_at, holding.replaced_resumes = None, frozenset()
        holding.went_back = holding.went_back or offset < max(holding.position, truth.committed)
        holding.position = offset
        holding.sought_only = True
        if holding in truth.holdings:
            truth.covered = max(truth.covered, offset)

    def sought_anew(self, holding: Holding) -> bool:
        """Return whether the application chose its position after the topic was recreated."""
        return holding.sought_at > self._recreated_at.get(holding.partition, math.inf)

    def hands_out(self, holding: Holding, run: Run, *, log_start: int, leased: bool, finishes: bool) -> None:
        """Check a delivery.

        ``finishes``: the call finishes the records that the member delivered before. This is false if the same call delivered
        these records, or if another task makes the call.
        """
        start, end, present, cut_at = run.start, run.end, run.present, run.cut_at
        truth = self._truths[holding.partition]
        name, partition = holding.owner.name, holding.partition
        if holding.ended is not None:
            raise Violation("callbacks", f"{name} delivered {start} of {partition}, which it no longer owned ({holding.ended})")
        self._hands_over(holding, truth, start, leased=leased)
        if holding.may_begin:
            self._notices(holding, start, present=present)
        # Another truncation may remove the records to which the owner went back.
        if present and (cut_at >= end or start == holding.resumes_at):
            self._resumes(holding, start, log_start)
        elif present and start in holding.replaced_resumes:
            holding.position = start
        if holding.sought_only and self.sought_anew(holding) and truth.committed_by is holding and truth.committed == start:
            # The member sought to an offset that the new log does not have. So the reset policy chose this start, and the
            # member committed it.
            holding.position = start
        if holding.start is None and present and start > cut_at:
            # A truncation removed these records after they were fetched. The owner does not know about the truncation yet.
            holding.start = holding.position = start
        elif holding.start is None:
            self.starts(holding, start, log_start=log_start)
        elif start != holding.position and partition not in self._deleted:
            self._jumps(holding, truth, start, log_start)
        if finishes:
            holding.delivery = holding.position
        self._delivers(holding, end, cut_at if present else math.inf)

    def _resumes(self, holding: Holding, start: int, log_start: int) -> None:
        """Check the first delivery of an owner after a truncation, and move the owner's position back."""
        truth = self._truths[holding.partition]
        if holding.adrift:
            truth.covered = max(truth.covered, start)
            holding.start = holding.position = start
        elif holding.resumes_at is not None:
            if start == holding.position > holding.resumes_at >= log_start:
                raise Violation(
                    "records",
                    f"{holding.owner.name} continued {holding.partition} at {start}, but a truncation to {holding.resumes_at}"
                    " removed records that the owner had read",
                )
            holding.position = holding.resumes_at
        else:
            return
        holding.went_back = True
        holding.adrift, holding.resumes_at, holding.replaced_resumes = False, None, frozenset()

    def truncated(self, partition: TopicPartition, offset: int) -> None:
        """Record that an unclean leader election removed the records from ``offset`` on. New records get the same offsets."""
        truth = self._truths[partition]
        if truth.committed > offset and truth.committed_epoch < 0:
            truth.adrift = True
            for holding in truth.holdings:
                holding.adrift = holding.adrift or (holding.start is None and holding.committed_before > offset)
        truth.covered = min(truth.covered, offset)
        truth.committed = min(truth.committed, offset)
        truth.islands = [(start, min(end, offset)) for start, end in truth.islands if start < offset]
        for holding in truth.holdings:
            holding.cut(offset)

    def _hands_over(self, holding: Holding, truth: PartitionTruth, start: int, *, leased: bool) -> None:
        """Check that no later owner has begun to deliver the partition; record this owner as the latest owner."""
        if holding in truth.handed:
            later = [*truth.handed[truth.handed.index(holding) + 1 :], truth.handing]
            same = any(other is not None and self._same_instance(holding, other) for other in later)
            slack_over = self._clock() - truth.handing_since >= holding.owner.lease_slack_s
            if leased and slack_over and not same and not holding.forgotten and not self._replaced(holding.owner):
                assert truth.handing is not None
                raise Violation(
                    "lease",
                    f"{holding.owner.name} delivered {start} of {holding.partition} after {truth.handing.owner.name}, the"
                    " next owner, had delivered records",
                )
        elif truth.handing is not holding and not holding.forgotten and not self._replaced(holding.owner):
            if truth.handing is not None:
                truth.handed.append(truth.handing)
            truth.handing, truth.handing_since = holding, self._clock()

    def _jumps(self, holding: Holding, truth: PartitionTruth, start: int, log_start: int) -> None:
        """Check a delivery that does not start at the owner's position: the reset policy may choose a start after retention."""
        name, partition = holding.owner.name, holding.partition
        lapsed = holding.position < log_start
        if start < holding.position:
            raise Violation("again", f"{name} delivered {start} of {partition} again, after position {holding.position}")
        if not lapsed or (holding.owner.reset == "earliest" and start != log_start):
            raise Violation("skipped", f"{name} delivered {start} of {partition}, but its position was {holding.position}")
        if holding.owner.reset != "earliest":
            truth.covered = max(truth.covered, start)
        holding.position = start

    def _notices(self, holding: Holding, start: int, *, present: bool) -> None:
        """Detect the moment at which a member of a recreated topic starts to read the new topic.

        Until then the member keeps the old position.
        """
        truth = self._truths[holding.partition]
        looked_up = holding.start is None and holding.owner.reset != "earliest"
        if present and (looked_up or self.sought_anew(holding)) and holding not in truth.holdings:
            # The member chose a start after the topic was recreated. Earlier records need not be read. The offset may be out of
            # range.
            truth.covered = max(truth.covered, start)
            truth.holdings.append(holding)
            holding.start = holding.position = start
        # Compare with all log start offsets, because the fetch may have preceded a deletion by retention.
        is_first = present and start in truth.log_starts
        if is_first:
            # Count a start with the first record only if the member had a different position before.
            holding.may_begin -= holding.start is not None and start != holding.position
            holding.went_back = True
            if holding not in truth.holdings:
                truth.holdings.append(holding)
        if is_first or holding not in truth.holdings:
            holding.start = holding.position = start

    def trimmed(self, partition: TopicPartition, log_start: int) -> None:
        """Record that retention deleted the records before this offset."""
        truth = self._truths[partition]
        truth.covered = max(truth.covered, log_start)
        truth.log_starts.add(log_start)

    def _delivers(self, holding: Holding, end: int, cut_at: float) -> None:
        truth = self._truths[holding.partition]
        holding.sought_only, holding.delivered_at = False, self._clock()
        # If the holding is not in ``truth.holdings``, the member still reads the deleted topic: processing these records covers
        # no record of the new topic.
        current = truth if holding in truth.holdings else None
        holding.in_hand += split(current, holding.position, end, cut_at)
        holding.position = end
        if cut_at < end:
            holding.resumes_at = min(int(cut_at), end if holding.resumes_at is None else holding.resumes_at)
            holding.truncated_position = max(holding.truncated_position, end)

    def processes(self, holding: Holding, count: int) -> None:
        """Record that a member has processed ``count`` more of the delivered records."""
        while count and holding.in_hand:
            truth, start, last = holding.in_hand.pop(0)
            end = min(start + count, last)
            if end < last:
                holding.in_hand.insert(0, (truth, end, last))
            count -= end - start
            self.processed += end - start
            holding.furthest = max(holding.furthest, end)
            if truth is not None:
                self._covers(holding.partition, truth, start, end)

    def _covers(self, partition: TopicPartition, truth: PartitionTruth, start: int, end: int) -> None:
        if start < truth.covered:
            self.processed_again += min(end, truth.covered) - start
        if start <= truth.covered or start <= self.first_record(partition, truth.covered):
            truth.covered = max(truth.covered, end)
        else:
            truth.islands.append((start, end))
        for begin, finish in sorted(truth.islands):
            if begin <= self.first_record(partition, truth.covered):
                truth.covered = max(truth.covered, finish)
                truth.islands.remove((begin, finish))

    def committed_by(self, holding: Holding) -> int:
        """Return the offset of the owner's last commit in the log, or -1 if the owner has not committed."""
        truth = self._truths[holding.partition]
        return truth.committed if truth.committed_by is holding else -1

    def acknowledged(self, holding: Holding, offset: int) -> None:
        """Check a confirmed commit against the log."""
        self.step()
        truth = self._truths.get(holding.partition)
        # If the owner committed without knowing about a truncation, the commit covers only the records that the truncation
        # kept.
        shared = truth.committed if truth is not None and truth.committed_by is holding and not truth.went_back else offset
        holding.acknowledged = max(holding.acknowledged, min(offset, shared))
        # If the application seeks and commits again while an earlier commit waits, the request contains only the later commit.
        sought = holding.sought_at > self._recreated_at.get(holding.partition, holding.began)
        last = truth if truth is not None and truth.committed_by is holding else None
        # The application may choose a start that a truncation removed. Then the commit is stored, but covers fewer records.
        replaced = last is not None and (sought or last.stored == offset)
        replaced = replaced or holding.resumes_at is not None or offset <= holding.truncated_position
        # The topic was created again meanwhile: a commit for the former topic may be confirmed only now, because the response
        # to the first attempt lacked rows of other partitions.
        former = self._former.get(holding.partition)
        replaced = replaced or (former is not None and former.committed_by is holding and former.highest >= offset)
        if (
            truth is not None
            and self.first_record(holding.partition, truth.highest) < offset
            and holding in truth.holdings
            and not replaced
        ):
            raise Violation(
                "durability",
                f"{holding.owner.name} received the response that {offset} of {holding.partition} is committed, but the log"
                " has no such commit",
            )

    def ends(self, holding: Holding, how: str, *, beside: bool = False) -> None:
        """Record that a member no longer owns a partition. ``how`` is revoked, lost, closed or killed.

        ``beside``: the last delivery is not finished, see :meth:`farewell`.
        """
        if holding.ended is not None:
            raise Violation("callbacks", f"{holding.owner.name} lost {holding.partition} twice: {holding.ended}, then {how}")
        holding.ended = how
        holders = self._holders.get(holding.partition, [])
        if holding in holders:
            holders.remove(holding)
        truth = self._truths[holding.partition]
        truth.finished = min(holding.delivery, holding.processed) if beside else math.inf
        if holding.may_begin and holding not in truth.holdings:
            truth.ended.append(holding)
        if len(holders) < 2:
            self._shared.pop(holding.partition, None)
        self._history.note(
            holding.owner.name,
            f"ends {holding.partition} ({how}) at {holding.position}, confirmed {holding.acknowledged}",
        )

    def farewell(self, holding: Holding, log_start: int, generation: int, *, beside: bool) -> None:
        """Check the last commit of a member that revoked a partition in ``generation`` to close, if no fault interferes.

        ``beside``: the last delivery is not finished, because processing raised an exception, or because the task that closes
        the consumer is not the task that reads.
        """
        truth = self._truths[holding.partition]
        if holding.start is None or holding not in truth.holdings or truth.went_back:
            return
        if holding.resumes_at is not None or self._is_former(holding, generation):
            return
        finished = min(holding.delivery, holding.processed) if beside else holding.processed
        # Without a finished record, nothing has to be committed. The last commit may also be one of removed records, by the
        # application itself, behind which the consumer does not go back.
        if finished > max(log_start, holding.start, truth.stored) and truth.committed < finished:
            raise Violation(
                "farewell",
                f"{holding.owner.name} closed after it had processed {holding.partition} up to {holding.processed}, but only"
                f" {truth.committed} is committed",
            )

    # -- after the last event ---------------------------------------------------------------------------------------

    def finished(self, partition: TopicPartition) -> float:
        """Return the end of the records that the last owner had finished when it closed; infinite if it had finished all."""
        return self._truths[partition].finished

    def covered(self, partition: TopicPartition) -> int:
        """Return the offset of the first record that was not processed yet."""
        return self.first_record(partition, self._truths[partition].covered)

    def is_adrift_at(self, partition: TopicPartition, end: int) -> bool:
        """Return whether the last commit is one of removed records, without an epoch, and the log has grown to its offset.

        So it agrees with the end of the log, although the records that have grown there are not read.
        """
        truth = self._truths[partition]
        return truth.adrift and truth.stored == end

    def is_committed_past(self, partition: TopicPartition, end: int) -> bool:
        """Return whether the last commit, perhaps one of removed records, lies after the end of the log."""
        return self._truths[partition].stored > end

    def waits_at_lost_commit(self, holding: Holding, end: int) -> bool:
        """Return whether an owner began at the end of the log, because it does not notice that a truncation removed its commit.

        The new records, which have the offsets of the removed records, are not read.
        """
        return holding.adrift and holding.start is None and self._truths[holding.partition].stored == end

    def next_offset(self, holding: Holding) -> int:
        """Return the offset of the next record that an owner must deliver."""
        return self.first_record(holding.partition, self.position(holding))

    def position(self, holding: Holding) -> int:
        """Return an owner's position; before the first delivery, the committed offset."""
        if holding.start is None:
            return self.committed_now(holding.partition)
        return holding.position if holding.resumes_at is None else holding.resumes_at

    def forget(self, partition: TopicPartition) -> None:
        """Drop all state of a deleted partition."""
        self._deleted.add(partition)
        truth = self._truths.pop(partition, None)
        if truth is not None:
            # A member that still owns the partition revokes it, and no other member waits for this revocation.
            truth.holdings.clear()

    def recreated(self, partition: TopicPartition) -> None:
        """Start again with a recreated partition. All records from the first record on must be processed."""
        self._recreated_at[partition] = self._clock()
        self._put_away(partition)
        for holding in self._holders.get(partition, ()):
            holding.may_begin = 2
            holding.adrift, holding.resumes_at, holding.replaced_resumes = False, None, frozenset()
            holding.committed_before = holding.acknowledged = -1

    def went_back(self, partition: TopicPartition) -> bool:
        """Return whether the last commit was older than the commit that it replaced."""
        return self._truths[partition].went_back

    def _is_former(self, holding: Holding, generation: int) -> bool:
        """Return whether an owner has the epoch of before the moment at which the group became a classic group.

        After that, the group's epoch is the generation, and a member with an older epoch receives ILLEGAL_GENERATION, as in
        Kafka.
        """
        return holding.began <= self._became_classic_at and generation < self.unled_generation

    def lost_with_the_protocol(self, partition: TopicPartition, *, processing: bool = False) -> bool:
        """Return whether a reader beyond the committed offset lost the partition when the group became a classic group.

        See :meth:`_is_former`. ``processing``: the members call ``process``, so their positions are not known.
        """
        truth = self._truths[partition]
        return any(
            holding.ended == "lost"
            and holding.began <= self._became_classic_at
            and (processing or holding.position > truth.committed)
            for holding in truth.holdings
        )

    def holders(self, partition: TopicPartition) -> list[Holding]:
        """Return the :class:`Holding` of each current owner of a partition."""
        return list(self._holders.get(partition, ()))
