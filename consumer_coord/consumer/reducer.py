"""Decide what a consumer does next: a pure function of its table of partitions, in which the order is the rule.

:func:`look` compares the table with the group's assignment, the cluster's topics and the results of readings and look-ups. It
moves partitions to their next phases, until something must be done that the table alone cannot do, and returns this
:data:`Request`. The engine does it, and looks again. So every look is a comparison that may be repeated, and an interrupt
between two looks loses nothing. The order:

1. End the last callback: it was called, also if it was interrupted.
2. Begin the topics that were created again (``recreated_topics.py``), and find new starts for offsets that are out of range.
3. End what on_revoke was called for: the last commit, then the release.
4. Report lost partitions: they belong to other members already.
5. Call on_revoke for partitions that can no longer be kept.
6. Stop, commit and revoke what the group takes away; keep what it gives back meanwhile.
7. Accept the group's assignment, and report the added partitions.
8. Read the partitions whose start was found, and look up the other starts (``start_lookups.py``).

No step of 3 to 7 begins before those above it have ended, so the group sees a revocation before this member takes anything on.
If the application assigns partitions itself, there are no such steps.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.callback_types import Partitions
from consumer_coord.consumer.partitions import PartitionEvent, Phase, Read, Table, applied, in_phase, reads
from consumer_coord.consumer.recreated_topics import look_at_topics
from consumer_coord.consumer.start_lookups import (
    LookUp,
    LookUpResults,
    Rules,
    WakeAt,
    begin_readings,
    end_readings,
    next_look_up,
    take_results,
)
from consumer_coord.group.assignment import Change
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.consumer.reading.chunks import OutOfRange

_NONE: Partitions = frozenset()


@attrs.frozen
class Group:
    """What the group wants from this member, and how far the member is with it; a request may change it."""

    change: Change
    #: The partitions that this member owns, without lost ones.
    held: Partitions
    #: What the reader fetches.
    applied: Mapping[TopicPartition, Read]
    #: Revoke everything, because the member is about to leave.
    leaving: bool = False
    #: The partitions whose last commit is awaited.
    committing: Partitions = _NONE
    #: The partitions whose stored positions are final.
    sealed: Partitions = _NONE


@attrs.frozen(kw_only=True)
class Facts:
    """What else a look compares the table with. None of it changes between the looks of one :class:`Steps`."""

    rules: Rules
    #: The loop time, in seconds.
    moment: float
    #: The greatest serial number of a reading so far.
    serial: int
    #: The last callback that was called.
    called: Call | None = None
    #: The present topic ids, by partition.
    topics: Mapping[TopicPartition, uuid.UUID | None] = attrs.field(factory=dict)
    #: The partitions of whose present topic a record, or the error that it has no start, has reached the application.
    known: Partitions = _NONE
    #: The readings whose offset is out of range, with their serial numbers, after the last record was delivered.
    ended: Mapping[TopicPartition, tuple[OutOfRange, int]] = attrs.field(factory=dict)
    #: The look-ups that have ended.
    found: LookUpResults = attrs.field(factory=dict)


@attrs.frozen
class Steps:
    """What was done since the first of several looks."""

    #: The answer to :class:`AskTracker`; None before it.
    may_release: bool | None = None
    #: Whether :class:`Accept` was done; and whether the application has reached a new assignment by it.
    accepted: bool = False
    first: bool = False
    #: The loop time of the last :class:`~consumer_coord.consumer.start_lookups.WakeAt`.
    timer: float = 0.0


@attrs.frozen
class Release:
    """Tell the group that the application no longer holds these partitions."""

    partitions: Partitions


@attrs.frozen
class LastCommit:
    """Commit what is finished of these partitions, if commits are automatic; after on_revoke, accept no further positions."""

    partitions: Partitions
    called: bool


@attrs.frozen
class AskTracker:
    """Ask whether the records of these partitions may be given up."""

    partitions: Partitions


@attrs.frozen
class Accept:
    """Own the partitions that the group has added."""

    change: Change


@attrs.frozen
class Drop:
    """End the manual assignment of these partitions, which the group now assigns."""

    partitions: Partitions


@attrs.frozen
class Add:
    """Add these owned partitions to the table."""

    partitions: Partitions


@attrs.frozen(eq=False)
class Call:
    """Call the application; the table's partitions that wait for this object are its argument."""

    phase: Phase


@attrs.frozen
class Recreated:
    """Forget the stored positions of partitions whose topic was deleted and created again."""

    partitions: tuple[TopicPartition, ...]


@attrs.frozen
class Warn:
    """Log these warnings."""

    texts: list[str]


Request: TypeAlias = "Release | LastCommit | AskTracker | Accept | Drop | Add | Call | Recreated | Warn | LookUp | WakeAt"


def look(table: Table, group: Group | None, facts: Facts, steps: Steps) -> tuple[Table, Request | None]:
    """Return the table after as many steps as the facts allow, and what must be done before the next; None: nothing now.

    ``group`` is None while the application assigns partitions itself.
    """
    if called := frozenset(one for one, value in table.items() if value.awaits is facts.called is not None):
        lost = called & in_phase(table, Phase.LOST)
        table = applied(table, PartitionEvent.CALLED, called)
        if lost:
            return table, Release(lost)
    table, recreated = look_at_topics(table, facts.topics, facts.known, facts.serial)
    if recreated:
        return table, Recreated(recreated)
    table, texts = end_readings(table, facts.ended, facts.rules, facts.known, facts.serial, facts.moment)
    if texts:
        return table, Warn(texts)
    if group is not None:
        table, request = _look_at_group(table, group, steps)
        if request is not None:
            return table, request
    table, texts = take_results(table, facts.found, facts.rules, facts.known, facts.serial, facts.moment)
    if texts:
        return table, Warn(texts)
    return next_look_up(begin_readings(table), facts.rules, facts.moment, steps.timer)


def _look_at_group(table: Table, group: Group, steps: Steps) -> tuple[Table, Request | None]:
    table, request, over = _end_releases(table, group)
    if request is not None or not over:
        return table, request
    if unseen := group.change.lost - table.keys():
        return table, Release(unseen)
    table = applied(table, PartitionEvent.LOSE, (group.change.lost & table.keys()) - in_phase(table, Phase.LOST))
    for phase in (Phase.LOST, Phase.REVOKED):
        if ended := in_phase(table, phase):
            return _due(table, phase, ended)
    revoked = group.held if group.leaving else group.change.revoked
    ending = in_phase(table, Phase.STOPPING, Phase.COMMITTING)
    table = applied(table, PartitionEvent.REVOKE, (revoked & table.keys()) - ending)
    table = applied(table, PartitionEvent.KEEP, ending - revoked)
    if ending := in_phase(table, Phase.STOPPING, Phase.COMMITTING):
        return _revoke(table, group, steps.may_release, ending)
    if group.leaving:
        return table, None
    return _take(table, group, steps)


def _end_releases(table: Table, group: Group) -> tuple[Table, Request | None, bool]:
    """Release the partitions for which on_revoke was called; the last value says whether none is left."""
    releasing = in_phase(table, Phase.RELEASING)
    if fresh := releasing - group.sealed:
        return table, LastCommit(fresh, called=True), False
    # A lost partition belongs to another member already, so its commit cannot succeed.
    released = releasing & group.change.lost if releasing & group.committing else releasing
    if released:
        return applied(table, PartitionEvent.COMMIT_ENDED, released), Release(released), False
    return table, None, not releasing


def _revoke(table: Table, group: Group, may_release: bool | None, ending: Partitions) -> tuple[Table, Request | None]:
    if group.applied != reads(table):
        return table, None
    if may_release is None:
        return table, AskTracker(in_phase(table, Phase.STOPPING))
    if not may_release:
        return table, None
    if stopping := in_phase(table, Phase.STOPPING):
        return applied(table, PartitionEvent.STOPPED, stopping), LastCommit(stopping, called=False)
    if ending & group.committing:
        return table, None
    return _due(applied(table, PartitionEvent.COMMIT_ENDED, ending), Phase.REVOKED, ending)


def _take(table: Table, group: Group, steps: Steps) -> tuple[Table, Request | None]:
    if not steps.accepted:
        return table, Accept(group.change)
    if both := frozenset(one for one in group.held & table.keys() if table[one].ownership is None):
        return table, Drop(both)
    if untaken := group.held - table.keys():
        return table, Add(untaken)
    taken = frozenset(one for one in in_phase(table, Phase.TAKEN) if table[one].awaits is None)
    return _due(table, Phase.TAKEN, taken) if taken or steps.first else (table, None)


def _due(table: Table, phase: Phase, partitions: Partitions) -> tuple[Table, Request]:
    """Let partitions wait for a callback. Only what on_assign was called for is reported by on_revoke and on_lost."""
    call, taken = Call(phase), phase is Phase.TAKEN
    waiting = {one: attrs.evolve(table[one], awaits=call, notified=taken or table[one].notified) for one in partitions}
    return {**table, **waiting}, call
