"""Compare a consumer's table of partitions with its group's assignment: a pure function, in which the order is the rule.

:func:`look` moves partitions to their next phases, until something must be done that the table alone cannot do, and returns
this :data:`Request`. The engine does it, and looks again with new facts. So every look is a comparison that may be repeated,
and an interrupt between two looks loses nothing. The order:

1. End what on_revoke was called for: the last commit, then the release.
2. Report lost partitions: they belong to other members already.
3. Call on_revoke for partitions that can no longer be kept.
4. Stop, commit and revoke what the group takes away; keep what it gives back meanwhile.
5. Accept the group's assignment, and report the added partitions.

No step begins before those above it have ended, so the group sees a revocation before this member takes anything on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.callback_types import Partitions
from consumer_coord.consumer.partitions import ABSENT, Partition, PartitionEvent, Phase, Read, after, moved, read_of
from consumer_coord.group.assignment import Change
from consumer_coord.topic_partition import TopicPartition

Table: TypeAlias = Mapping[TopicPartition, Partition]

_NONE: Partitions = frozenset()


@attrs.frozen
class Facts:
    """What a look compares the table with. None of it changes while the look runs."""

    change: Change
    #: The partitions that this member owns, without lost ones.
    held: Partitions
    #: What the data plane fetches; None while that is not certain.
    applied: Mapping[TopicPartition, Read] | None
    #: Revoke everything, because the member is about to leave.
    leaving: bool = False
    #: The partitions whose last commit is awaited.
    committing: Partitions = _NONE
    #: The partitions whose stored positions are final.
    sealed: Partitions = _NONE


@attrs.frozen
class Steps:
    """What was done since the first of several looks."""

    #: The answer to :class:`AskTracker`; None before it.
    may_release: bool | None = None
    #: Whether :class:`Accept` was done; and whether the application has reached a new assignment by it.
    accepted: bool = False
    first: bool = False


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


Request: TypeAlias = "Release | LastCommit | AskTracker | Accept | Drop | Add | Call"


def look(table: Table, facts: Facts, steps: Steps) -> tuple[Table, Request | None]:
    """Return the table after as many steps as the facts allow, and what must be done before the next; None: nothing now."""
    table, request, over = _end_releases(table, facts)
    if request is not None or not over:
        return table, request
    if unseen := facts.change.lost - table.keys():
        return table, Release(unseen)
    table = applied(table, PartitionEvent.LOSE, (facts.change.lost & table.keys()) - in_phase(table, Phase.LOST))
    for phase in (Phase.LOST, Phase.REVOKED):
        if ended := in_phase(table, phase):
            return _due(table, phase, ended)
    revoked = facts.held if facts.leaving else facts.change.revoked
    ending = in_phase(table, Phase.STOPPING, Phase.COMMITTING)
    table = applied(table, PartitionEvent.REVOKE, (revoked & table.keys()) - ending)
    table = applied(table, PartitionEvent.KEEP, ending - revoked)
    if ending := in_phase(table, Phase.STOPPING, Phase.COMMITTING):
        return _revoke(table, facts, steps.may_release, ending)
    if facts.leaving:
        return table, None
    return _take(table, facts, steps)


def _end_releases(table: Table, facts: Facts) -> tuple[Table, Request | None, bool]:
    """Release the partitions for which on_revoke was called; the last value says whether none is left."""
    releasing = in_phase(table, Phase.RELEASING)
    if fresh := releasing - facts.sealed:
        return table, LastCommit(fresh, called=True), False
    # A lost partition belongs to another member already, so its commit cannot succeed.
    released = releasing & facts.change.lost if releasing & facts.committing else releasing
    if released:
        return applied(table, PartitionEvent.COMMIT_ENDED, released), Release(released), False
    return table, None, not releasing


def _revoke(table: Table, facts: Facts, may_release: bool | None, ending: Partitions) -> tuple[Table, Request | None]:
    if facts.applied != reads(table):
        return table, None
    if may_release is None:
        return table, AskTracker(in_phase(table, Phase.STOPPING))
    if not may_release:
        return table, None
    if stopping := in_phase(table, Phase.STOPPING):
        return applied(table, PartitionEvent.STOPPED, stopping), LastCommit(stopping, called=False)
    if ending & facts.committing:
        return table, None
    return _due(applied(table, PartitionEvent.COMMIT_ENDED, ending), Phase.REVOKED, ending)


def _take(table: Table, facts: Facts, steps: Steps) -> tuple[Table, Request | None]:
    if not steps.accepted:
        return table, Accept(facts.change)
    if both := frozenset(one for one in facts.held & table.keys() if table[one].ownership is None):
        return table, Drop(both)
    if untaken := facts.held - table.keys():
        return table, Add(untaken)
    taken = frozenset(one for one in in_phase(table, Phase.TAKEN) if table[one].awaits is None)
    return _due(table, Phase.TAKEN, taken) if taken or steps.first else (table, None)


def _due(table: Table, phase: Phase, partitions: Partitions) -> tuple[Table, Request]:
    """Let partitions wait for a callback. Only what on_assign was called for is reported by on_revoke and on_lost."""
    call, taken = Call(phase), phase is Phase.TAKEN
    waiting = {one: attrs.evolve(table[one], awaits=call, notified=taken or table[one].notified) for one in partitions}
    return {**table, **waiting}, call


def in_phase(table: Table, *phases: Phase) -> Partitions:
    """Return the partitions in one of these phases."""
    return frozenset(partition for partition, one in table.items() if one.phase in phases)


def reads(table: Table) -> dict[TopicPartition, Read]:
    """Return what the data plane should read."""
    return {partition: read_of(one) for partition, one in table.items()}


def applied(table: Table, event: PartitionEvent, partitions: Partitions) -> Table:
    """Apply an event to partitions; those for which it is outdated do not change."""
    if not partitions:
        return table
    changed = dict(table)
    for partition in partitions:
        before = table[partition]
        to = after(event, before.phase)
        if to is ABSENT:
            del changed[partition]
        elif isinstance(to, Phase):
            changed[partition] = moved(before, to)
    return changed
