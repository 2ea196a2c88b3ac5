"""The records that a query has promised to read, as one table: partition and topic id -> :class:`Entry`. No I/O, no clock.

Three things promise records. The *checkpoint* names the partitions that the query owned, and how far Spark has finished them.
A run of Trigger.AvailableNow has *targets*: the end offsets when the run began. A *holding* is a partition that the query owns
now. All of them concern one topic, identified by its id (KIP-516), so a topic that was deleted and created again under the same
name has entries of its own.

Each entry ends in one of three ways: the query has *read* the records, the partition has *moved* to another member, or the
topic is *gone*. :data:`TRANSITIONS` is the whole table ``event -> state -> next state``. :func:`absent` alone decides from the
cluster's metadata that a topic is gone; whoever carries out that decision applies ``failOnDataLoss``.

Two rules make commits safe. First, a range is committed only when Spark has finished its batch *and* the query has owned the
partition without interruption since it planned the batch, or since it took up the partition where the checkpoint ends. Second,
only planning changes a position: successive batches read a partition without gap or overlap, so every offset is in exactly one
batch.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.net.metadata import NO_TOPIC_ID, is_other
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.subscribed_topics import View
from consumer_coord.topic_partition import TopicPartition

#: No offset: no commit, no finished batch, or no target.
NONE = -1


class Key(NamedTuple):
    """One partition of one topic, which its id distinguishes from other topics of the same name."""

    partition: TopicPartition
    topic_id: uuid.UUID


class State(enum.Enum):
    """What became of the promised records of one partition."""

    #: The query does not own the partition, and does not know yet whether another member reads on or the topic is gone.
    OPEN = "open"
    #: The query owns the partition.
    HELD = "held"
    #: Another member of the group reads on.
    MOVED = "moved"
    #: The topic was deleted, and its unread records with it.
    GONE = "gone"


class Event(enum.Enum):
    """The events of one entry."""

    PROMISE = "named by the checkpoint or a target"
    TAKE_UP = "taken up"
    RELEASE = "revoked or lost"
    SEEN = "the topic exists"
    MISSED = "the topic is gone"


#: Event -> state -> next state; an event has no effect in the other states. A new entry begins as OPEN, or as HELD if it is
#: taken up. "Read" is no state, because it follows from the numbers: :attr:`Entry.unread`.
TRANSITIONS: Mapping[Event, Mapping[State, State]] = {
    Event.PROMISE: {State.MOVED: State.OPEN},
    # If all brokers were out of date, a topic can reappear.
    Event.TAKE_UP: dict.fromkeys(State, State.HELD),
    Event.RELEASE: {State.HELD: State.OPEN},
    Event.SEEN: {State.OPEN: State.MOVED},
    # If a topic is deleted after its owner was killed, nobody else can report the loss.
    Event.MISSED: {State.OPEN: State.GONE, State.HELD: State.GONE, State.MOVED: State.GONE},
}


@attrs.frozen
class Holding:
    """An owned partition: the start of the next batch, and the group's commit (:data:`NONE`: its start is not committed yet).

    ``confirmed``: the end of the last finished batch that may be committed under this ownership.
    """

    topic_id: uuid.UUID
    ownership: int
    position: int
    committed: int
    confirmed: int = NONE


@attrs.frozen
class Entry:
    """One promise. ``finished``: the end offset in the checkpoint. ``target``: the end offset of a Trigger.AvailableNow run."""

    state: State = State.OPEN
    finished: int = NONE
    target: int = NONE
    holding: Holding | None = None

    @property
    def ended(self) -> bool:
        """Return whether nothing of this promise is left to do."""
        return self.state in (State.MOVED, State.GONE)

    @property
    def unread(self) -> bool:
        """Return whether records below the target are not planned yet."""
        read = self.finished if self.holding is None else self.holding.position
        return self.target > max(read, 0)

    def after(self, event: Event, **changes: Any) -> Entry:
        """Return the entry after ``event``."""
        state = TRANSITIONS[event].get(self.state, self.state)
        return attrs.evolve(self, state=state, **(changes if state is State.HELD else {**changes, "holding": None}))


@attrs.frozen
class PlannedCommit:
    """An offset to commit, with the ownership number and the topic id at planning."""

    offset: int
    ownership: int
    topic_id: uuid.UUID


@attrs.frozen
class PlannedBatch:
    """The last planned batch, until Spark reports that it is finished: its end, and the ownership of each partition."""

    end: Offsets
    ownerships: Mapping[TopicPartition, int]


Entries: TypeAlias = Mapping[Key, Entry]


@attrs.frozen
class Ledger:
    """What one query has promised to read, for each topic and partition.

    ``began``: the checkpoint has some batch of this query. ``bounded``: a run reads up to its targets, and no further.
    ``cuts``: partition -> (planned end, actual end of its log) of a batch that ran again after logs were truncated.
    """

    group: str
    entries: Entries = attrs.field(factory=dict)
    batch: PlannedBatch | None = None
    began: bool = False
    bounded: bool = False
    #: The entries of subscribed topics that the checkpoint names. As long as it does, this query reports their loss.
    named: frozenset[Key] = frozenset()
    cuts: Mapping[TopicPartition, tuple[int, int]] = attrs.field(factory=dict)
    #: The partition that gets the next record that a limit leaves over, as an index; and the time of the last batch with
    #: records.
    turn: int = 0
    last_batch_ms: float | None = None
    #: Cache of :attr:`held` and :attr:`ready`, because an idle query reads them often.
    _computed: dict[str, Mapping[TopicPartition, Holding]] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    # -- what is known ----------------------------------------------------------------------------------------------

    @property
    def held(self) -> Mapping[TopicPartition, Holding]:
        """The owned partitions."""
        found = self._computed.get("held")
        if found is None:
            rows = self.entries.items()
            found = self._computed["held"] = {key.partition: one.holding for key, one in rows if one.holding is not None}
        return found

    @property
    def ready(self) -> Mapping[TopicPartition, Holding]:
        """The owned partitions whose start is committed, so that batches may read them."""
        found = self._computed.get("ready")
        if found is None:
            rows = self.held.items()
            found = self._computed["ready"] = {partition: one for partition, one in rows if one.committed != NONE}
        return found

    @property
    def open(self) -> frozenset[Key]:
        """The entries of which it is not known who reads on."""
        return frozenset(key for key, entry in self.entries.items() if entry.state is State.OPEN)

    @property
    def live(self) -> frozenset[Key]:
        """The entries whose loss this query reports: those that have not ended, and those that the checkpoint names."""
        unfinished = (State.OPEN, State.HELD)
        return frozenset(
            key
            for key, one in self.entries.items()
            if one.state in unfinished or (one.state is State.MOVED and key in self.named)
        )

    @property
    def topics(self) -> frozenset[str]:
        """The topics of :attr:`live` entries."""
        return frozenset(key.partition.topic for key in self.live)

    @property
    def targets(self) -> Mapping[TopicPartition, int]:
        """The targets of the run that are not gone."""
        rows = self.entries.items()
        return {key.partition: one.target for key, one in rows if one.target != NONE and one.state is not State.GONE}

    @property
    def unread(self) -> frozenset[TopicPartition]:
        """The owned partitions with records below the target that are not planned yet."""
        return frozenset(key.partition for key, one in self.entries.items() if one.state is State.HELD and one.unread)

    def end(self, partition: TopicPartition, topic_id: uuid.UUID) -> int | None:
        """Return the end offset up to which Spark has finished the partition; None if it is unknown or for another topic id."""
        entry = self.entries.get(Key(partition, topic_id))
        return entry.finished if entry is not None and entry.finished != NONE else None

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the topic id of the last finished range of ``topic``, or None."""
        rows = ((key, one) for key, one in self.entries.items() if key.partition.topic == topic)
        return next((key.topic_id for key, one in reversed([*rows]) if one.finished != NONE), None)

    # -- finishing --------------------------------------------------------------------------------------------------

    def finish(self, finished: Offsets, subscribed: Collection[str]) -> Ledger:
        """Record that Spark has finished everything up to ``finished``; a repeated call has no effect.

        At the first call after a start, ``finished`` is the checkpoint's last offset, which promises the partitions that it
        names, if their topics are among ``subscribed``, the topics that the query still reads.
        """
        batch = self.batch
        ledger = attrs.evolve(self, batch=None)
        if batch is not None and finished != batch.end:
            # Spark did not run the planned batch, so plan its offsets again instead of skipping them.
            ledger = ledger._rolled_back(batch)
            batch = None
        # The ended entries of a deleted topic are of no use once the checkpoint names the new topic.
        entries = {key: one for key, one in ledger.entries.items() if not (one.ended and _is_replaced(key, finished))}
        restarted = not self.began and finished.cluster is not None
        named = []
        for partition, span in finished.spans():
            key = Key(partition, finished.topics[partition.topic].id)
            if partition.topic in subscribed:
                named.append(key)
            planned, left = self.cuts.get(partition, (NONE, NONE))
            end = left if planned == span.end else span.end
            entry = entries.get(key)
            if entry is None:
                entry = Entry(State.OPEN if restarted and partition.topic in subscribed else State.MOVED)
            entry = attrs.evolve(entry, finished=max(entry.finished, end))
            holding = entry.holding
            if holding is not None and batch is not None and holding.ownership == batch.ownerships.get(partition):
                entry = attrs.evolve(entry, holding=attrs.evolve(holding, confirmed=span.end))
            entries[key] = entry
        return attrs.evolve(ledger, entries=entries, named=frozenset(named), began=self.began or finished.cluster is not None)

    def _rolled_back(self, batch: PlannedBatch) -> Ledger:
        positions = {
            partition: span.start
            for partition, span in batch.end.spans()
            if (holding := self.held.get(partition)) is not None
            and holding.ownership == batch.ownerships.get(partition)
            and holding.topic_id == batch.end.topics[partition.topic].id
        }
        return self.moved_to(positions)

    def uncommitted(self) -> Mapping[TopicPartition, PlannedCommit]:
        """Return the offsets to commit: start offsets, and finished offsets above the group's commit."""
        found: dict[TopicPartition, PlannedCommit] = {}
        for partition, holding in self.held.items():
            offset = holding.position if holding.committed == NONE else holding.confirmed
            if offset > holding.committed:
                found[partition] = PlannedCommit(offset, holding.ownership, holding.topic_id)
        return found

    def committed(self, partition: TopicPartition, commit: PlannedCommit) -> Ledger:
        """Record that the group's coordinator has accepted ``commit``."""
        holding = self.held.get(partition)
        if holding is None or (holding.ownership, holding.topic_id) != (commit.ownership, commit.topic_id):
            return self
        return self._with(partition, attrs.evolve(holding, committed=max(holding.committed, commit.offset)))

    def cut(self, partition: TopicPartition, planned: int, end: int) -> Ledger:
        """Record that a log ends at ``end``, before ``planned``, the planned end of a batch that is read again."""
        return attrs.evolve(self, cuts={**self.cuts, partition: (planned, end)})

    # -- owning -----------------------------------------------------------------------------------------------------

    def promise(self, ends: Mapping[TopicPartition, int], view: View) -> Ledger:
        """Begin a run that reads up to ``ends``, the end offsets of the topics in ``view``."""
        entries = dict(self.entries)
        for partition, end in ends.items():
            key = Key(partition, view.topics[partition.topic].id)
            entries[key] = attrs.evolve(entries.get(key, Entry()).after(Event.PROMISE), target=end)
        return attrs.evolve(self, entries=entries, bounded=True)

    def accept(self, partition: TopicPartition, holding: Holding) -> Ledger:
        """Add a partition that the query now owns."""
        key = Key(partition, holding.topic_id)
        released = self.release([partition])
        entry = released.entries.get(key, Entry()).after(Event.TAKE_UP, holding=holding)
        return attrs.evolve(released, entries={**released.entries, key: entry})

    def release(self, partitions: Iterable[TopicPartition]) -> Ledger:
        """Remove partitions that were revoked or lost. They stay open until it is known that their topics exist."""
        keys = [Key(partition, self.held[partition].topic_id) for partition in partitions if partition in self.held]
        return self._after(Event.RELEASE, keys)

    def moved_to(self, positions: Mapping[TopicPartition, int]) -> Ledger:
        """Change positions: after a loss of data, or because Spark did not run a batch."""
        changed = {one: attrs.evolve(self.held[one], position=position) for one, position in positions.items()}
        entries = {
            key: attrs.evolve(one, holding=changed[key.partition])
            if one.holding is not None and key.partition in changed
            else one
            for key, one in self.entries.items()
        }
        return attrs.evolve(self, entries=entries)

    def seen(self, keys: Iterable[Key]) -> Ledger:
        """Record that the topics of open entries exist, so other members read their records."""
        return self._after(Event.SEEN, [key for key in keys if not self.entries[key].unread])

    def missed(self, keys: Iterable[Key]) -> Ledger:
        """Record that the topics of these entries are gone."""
        return self._after(Event.MISSED, keys)

    def _after(self, event: Event, keys: Iterable[Key]) -> Ledger:
        changed = {key: self.entries[key].after(event) for key in keys}
        return attrs.evolve(self, entries={**self.entries, **changed}) if changed else self

    def _with(self, partition: TopicPartition, holding: Holding) -> Ledger:
        key = Key(partition, holding.topic_id)
        return attrs.evolve(self, entries={**self.entries, key: attrs.evolve(self.entries[key], holding=holding)})


def _is_replaced(key: Key, finished: Offsets) -> bool:
    part = finished.topics.get(key.partition.topic)
    return part is not None and is_other(key.topic_id, part.id)


def absent(entries: Collection[Key], view: View) -> Mapping[Key, str]:
    """Return the entries whose topic is gone according to ``view``, each with the reason.

    ``view`` must come from metadata that was requested after the event that made the entries doubtful. An entry whose topic the
    metadata does not show clearly is not returned.
    """
    found: dict[Key, str] = {}
    for key in entries:
        name, number = key.partition
        topic = view.topics.get(name)
        if topic is None:
            if name not in view.unclear:
                found[key] = "the topic was deleted"
        elif is_other(key.topic_id, topic.id):
            found[key] = f"the topic was deleted and created again (topic id {key.topic_id}, now {topic.id})"
        elif number >= topic.count and topic.id == NO_TOPIC_ID:
            # Topics do not lose partitions. Without topic ids (brokers before 2.8), this alone tells of a new topic.
            found[key] = f"the topic was deleted and created again with {topic.count} partitions"
    return found
