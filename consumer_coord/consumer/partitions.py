"""A partition of one consumer as an immutable value, and the table of its states.

The engine keeps one dictionary from :class:`TopicPartition` to :class:`Partition`, and replaces it as a whole. An event moves
a partition from one :class:`Phase` to the next by :data:`TRANSITIONS`, as in ``group/classic_protocol/membership.py``.
Whether a partition is fetched, looked up or committed follows from its value (:func:`read_of` and the properties), so no
second attribute can contradict the value. A partition is dropped by removing its key.

A *reading* is one uninterrupted pass through a partition's log, with a serial number. A new ownership, a seek, a reset by
``auto.offset.reset`` and a recreated topic begin a new reading; a pause does not. A fetched record belongs to the reading that
fetched it.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.callback_types import Partitions
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.group.commits import Ticket
from consumer_coord.offsets import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    OFFSET_TAIL_BASE,
    OffsetAndMetadata,
)
from consumer_coord.topic_partition import TopicPartition

Positions = Mapping[TopicPartition, OffsetAndMetadata]


class Phase(enum.Enum):
    """The state of an assigned partition between its assignment and its revocation."""

    TAKEN = "taken"  # owned; on_assign is due, or runs
    LOCATING = "locating"  # the offset to start from is being looked up
    UNLOCATED = "unlocated"  # the look-up was refused, or auto.offset.reset is none; the application must receive the error
    READING = "reading"
    STOPPING = "stopping"  # the group revokes the partition; the reader must stop fetching the partition first
    COMMITTING = "committing"  # the last commit is in flight; on_revoke follows
    REVOKED = "revoked"  # on_revoke is due, or runs; the partition can no longer be kept
    RELEASING = "releasing"  # on_revoke was called; the positions stored since the last commit are being committed
    LOST = "lost"  # on_lost is due, or runs


class PartitionEvent(enum.Enum):
    """An event that concerns a partition, caused by the group, the broker, the reader or the application."""

    ADD = "add"
    REVOKE = "revoke"
    KEEP = "keep"
    LOSE = "lose"
    LOCATED = "located"
    UNLOCATED = "unlocated"
    RETRY = "retry"
    STOPPED = "stopped"
    OUT_OF_RANGE = "out of range"
    CALLED = "called"
    COMMIT_ENDED = "commit ended"
    RECREATED = "recreated"
    SEEK = "seek"
    LOOK_UP = "look up"
    PAUSE = "pause"
    RESUME = "resume"
    DECLINE = "decline"
    ACCEPT = "accept"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


class Refused(enum.Enum):
    """The reason why an event does not change a partition."""

    STALE = "stale"  # the event's cause is no longer current: ignore the event
    NOT_ASSIGNED = "not assigned"  # the application's call raises NotAssignedError
    ILLEGAL = "illegal"  # a bug of this library


class IllegalTransitionError(AssertionError):
    """A bug of this library: an event that must not happen in a partition's phase."""


#: The partition is not assigned, so it has no value.
ABSENT = None

_S, _E, _X = Refused.STALE, Refused.NOT_ASSIGNED, Refused.ILLEGAL
_T, _L, _U, _R, _P, _C, _V, _F, _O = Phase
_COLUMNS = (ABSENT, *Phase)
_ROWS: Mapping[PartitionEvent, tuple[Phase | Refused | None, ...]] = {
    #                   absent taken locat unloc readi stopp commi revok relea lost
    PartitionEvent.ADD: (_T, _X, _X, _X, _X, _X, _X, _X, _X, _X),
    PartitionEvent.REVOKE: (_X, _P, _P, _P, _P, _X, _X, _X, _X, _X),
    PartitionEvent.KEEP: (_X, _X, _X, _X, _X, _L, _L, _X, _X, _X),
    PartitionEvent.LOSE: (_X, _O, _O, _O, _O, _O, _O, _V, _F, _X),
    PartitionEvent.LOCATED: (_S, _S, _R, _S, _S, _S, _S, _S, _S, _S),
    PartitionEvent.UNLOCATED: (_S, _S, _U, _S, _S, _S, _S, _S, _S, _S),
    PartitionEvent.RETRY: (_S, _S, _S, _L, _S, _S, _S, _S, _S, _S),
    PartitionEvent.STOPPED: (_S, _S, _S, _S, _S, _C, _S, _S, _S, _S),
    PartitionEvent.OUT_OF_RANGE: (_S, _S, _S, _S, _L, _S, _S, _S, _S, _S),
    PartitionEvent.CALLED: (_S, _L, _X, _X, _X, _X, _X, _F, _X, ABSENT),
    PartitionEvent.COMMIT_ENDED: (_S, _S, _S, _S, _S, _S, _V, _S, ABSENT, _S),
    PartitionEvent.RECREATED: (_S, _T, _L, _L, _L, _P, _C, _V, _F, _O),
    PartitionEvent.SEEK: (_E, _T, _R, _R, _R, _P, _C, _V, _E, _E),
    PartitionEvent.LOOK_UP: (_E, _T, _L, _L, _L, _P, _C, _V, _E, _E),
    PartitionEvent.PAUSE: (_S, _T, _L, _U, _R, _P, _C, _V, _S, _S),
    PartitionEvent.RESUME: (_S, _T, _L, _U, _R, _P, _C, _V, _S, _S),
    PartitionEvent.DECLINE: (_E, _T, _L, _L, _L, _P, _C, _V, _E, _E),
    PartitionEvent.ACCEPT: (_E, _T, _L, _L, _R, _P, _C, _V, _E, _E),
    PartitionEvent.ASSIGN: (_L, _X, _E, _E, _E, _X, _X, _X, _X, _X),
    PartitionEvent.UNASSIGN: (_E, _X, ABSENT, ABSENT, ABSENT, _X, _X, _X, _X, _X),
}
#: event -> phase (None: not assigned) -> the next phase (None: no longer assigned), or the reason why nothing changes.
TRANSITIONS: Mapping[PartitionEvent, Mapping[Phase | None, Phase | Refused | None]] = {
    event: dict(zip(_COLUMNS, row, strict=True)) for event, row in _ROWS.items()
}


class Origin(enum.Enum):
    """The source of a start offset, which decides whether the start may be committed before a record was delivered."""

    COMMIT = "commit"  # the group's committed offset
    RESET = "reset"  # chosen by auto.offset.reset; committed before any delivery, so that the next owner skips no records
    CHOSEN = "chosen"  # the application's choice: seek, assign
    FIRST = "first"  # the first record of the log, or a logical offset; committed only after a record was delivered


@attrs.frozen
class Retry:
    """The look-ups of a start that have failed one after another."""

    #: Number of failed look-ups, which determines the back-off before the next one.
    failures: int
    #: The loop time of the first failure since the application received the error, in seconds.
    since: float
    #: Earliest loop time of the next look-up, in seconds.
    at: float
    #: The last failure.
    error: CoordinatorError


@attrs.frozen(kw_only=True)
class Partition:
    """An assigned partition. ``ownership`` is None for a manual assignment."""

    phase: Phase
    ownership: int | None
    #: The serial number of the reading (see the module's docstring).
    serial: int
    #: The topic id; None until the brokers have reported it.
    topic_id: uuid.UUID | None = None
    #: The id of the deleted topic of the same name, until the application receives a record of the current topic.
    former_topic_id: uuid.UUID | None = None
    #: The position where the reading begins, as a number; None while unknown.
    start: OffsetAndMetadata | None = None
    origin: Origin | None = None
    #: The logical offset that the application chose, for example ``OFFSET_END``; None if another rule determines the start.
    logical: int | None = None
    #: Why the last offset is not in the log, if ``auto.offset.reset`` must therefore determine a new start.
    out_of_range: str | None = None
    #: How many starts in a row were found in the log and were then out of range.
    resets_in_vain: int = 0
    #: The look-ups of the start that have failed; None after a success, and for a new reading. In phase ``UNLOCATED``, its
    #: error is due to the application.
    retry: Retry | None = None
    #: The look-up, commit or callback that the phase waits for; a change of the phase clears this attribute.
    awaits: object | None = None
    #: The offset in the last automatic commit; before the first automatic commit, the group's committed offset.
    committed: OffsetAndMetadata | None = None
    #: The last automatic commit that includes the partition.
    commit: Ticket | None = None
    paused: bool = False
    #: Owned, but the application selected other partitions of its assignment.
    declined: bool = False
    #: Whether on_assign was called.
    notified: bool = False

    @property
    def fetched(self) -> bool:
        """Whether the data plane fetches the partition."""
        return self.phase is Phase.READING and not self.paused and not self.declined

    @property
    def needs_look_up(self) -> bool:
        """Whether a look-up of the start must begin."""
        return self.phase is Phase.LOCATING and self.start is None and not self.declined and self.awaits is None

    @property
    def waits_for_start(self) -> bool:
        """Whether the start is still unknown although the application wants to read the partition."""
        return self.phase in (Phase.LOCATING, Phase.UNLOCATED) and not self.declined

    @property
    def releasing(self) -> bool:
        """Whether the group revokes the partition, and may still give it back."""
        return self.phase in (Phase.STOPPING, Phase.COMMITTING)

    @property
    def read_or_releasing(self) -> bool:
        """Whether the partition is read, or was read until the group revoked it."""
        return self.phase is Phase.READING or self.releasing

    @property
    def settled(self) -> bool:
        """Whether nothing is pending for the partition.

        A start whose look-up has failed may stay unknown for hours, and must not slow the other partitions down.
        """
        return self.phase is Phase.READING or (self.phase is Phase.LOCATING and (self.declined or self.retry is not None))


Table: TypeAlias = Mapping[TopicPartition, Partition]


@attrs.frozen
class Read:
    """The reader's view of one partition; ``on`` is false while the partition must not be fetched."""

    serial: int
    start: OffsetAndMetadata | None
    on: bool


@attrs.frozen(eq=False)
class Plan:
    """The target state of the data plane; replaced as a whole, compared by identity."""

    reads: Mapping[TopicPartition, Read] = attrs.field(factory=dict)


def read_of(partition: Partition) -> Read:
    """Return the plan for one partition: its serial number, its start, and whether to fetch the partition."""
    return Read(partition.serial, partition.start, partition.fetched)


def after(event: PartitionEvent, phase: Phase | None) -> Phase | Refused | None:
    """Return the next phase, or the reason why nothing changes; raise :class:`IllegalTransitionError` for an illegal event."""
    to = TRANSITIONS[event][phase]
    if to is Refused.ILLEGAL:
        raise IllegalTransitionError(f"{event.value!r} in phase {phase.value if phase else 'absent'!r}")
    return to


def moved(partition: Partition, to: Phase, **changes: Any) -> Partition:
    """Return the value in its next phase, without the look-up or commit of the former phase, or of a former reading."""
    if "serial" in changes:
        changes.setdefault("retry", None)
    if "awaits" not in changes and (to is not partition.phase or (to is Phase.LOCATING and "serial" in changes)):
        changes["awaits"] = None
    return attrs.evolve(partition, phase=to, **changes)


def in_phase(table: Table, *phases: Phase) -> Partitions:
    """Return the partitions in one of these phases."""
    return frozenset(partition for partition, one in table.items() if one.phase in phases)


def reads(table: Table) -> dict[TopicPartition, Read]:
    """Return what the data plane should read."""
    return {partition: read_of(one) for partition, one in table.items()}


def last_serial(table: Table, before: int) -> int:
    """Return the greatest serial number so far; ``before`` is that of earlier partitions."""
    return max([before, *(one.serial for one in table.values())])


def not_assigned(table: Table, event: PartitionEvent, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that must be assigned for this call of the application, and are not."""
    phases = {one: table[one].phase if one in table else None for one in partitions}
    return [one for one, phase in phases.items() if after(event, phase) is Refused.NOT_ASSIGNED]


def applied(table: Table, event: PartitionEvent, partitions: Collection[TopicPartition], **changes: Any) -> Table:
    """Apply an event to partitions; those for which it is outdated do not change."""
    if not partitions:
        return table
    changed = dict(table)
    for partition in partitions:
        before = table.get(partition)
        to = after(event, None if before is None else before.phase)
        if before is not None and to is ABSENT:
            del changed[partition]
        elif before is not None and isinstance(to, Phase):
            changed[partition] = moved(before, to, **changes)
    return changed


def begun(table: Table, positions: Positions, known: Partitions, serial: int) -> Table:
    """Begin readings at positions that the application chose, with the serial numbers after ``serial``.

    ``known`` are the partitions of whose current topic a record, or the error that it has no start, has reached the
    application.
    """
    for number, (partition, at) in enumerate(positions.items(), start=serial + 1):
        event = PartitionEvent.SEEK if at.offset >= 0 else PartitionEvent.LOOK_UP
        former = {"former_topic_id": None} if partition in known else {}
        start = start_at(partition, at)
        table = applied(table, event, [partition], serial=number, declined=False, out_of_range=None, **start, **former)
    return table


def start_at(partition: TopicPartition, at: OffsetAndMetadata) -> dict[str, Any]:
    """Return the attributes of a :class:`Partition` for a start that the application chose.

    Without an offset, the group's commit is the start. Raise :class:`ConfigurationError` for a negative number that is not a
    logical offset.
    """
    if at.offset >= 0:
        return {"start": at, "origin": Origin.CHOSEN, "logical": None}
    if at.offset in (OFFSET_INVALID, OFFSET_STORED):
        return {"start": None, "origin": None, "logical": None}
    if at.offset not in (OFFSET_BEGINNING, OFFSET_END) and at.offset > OFFSET_TAIL_BASE:
        raise ConfigurationError(
            f"{partition}: {at.offset} is not an offset; use OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, or a number that is 0"
            " or greater"
        )
    return {"start": None, "origin": None, "logical": at.offset}
