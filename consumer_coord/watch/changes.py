"""Turn snapshots into messages with the changes of each group since the previous snapshot; no I/O, no clock.

A message is a dictionary for JSON (``docs/watch.md`` lists its fields). A message has only changes, so that a stable group of
500 members and 10,000 partitions costs a few hundred bytes for each snapshot. Members have numbers in the order of appearance;
a static member keeps its number when it restarts. The first message about a group has its complete state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from consumer_coord.topic_partition import TopicPartition
from consumer_coord.watch import reasons as why
from consumer_coord.watch.snapshots import GroupSnapshot, MemberSnapshot, OffsetsSnapshot

#: The owner number that means that a partition has no owner.
UNOWNED = -1
#: How long a reason (such as a topic that grew) waits for the rebalance that it causes, in seconds: as long as Kafka's default
#: of ``metadata.max.age.ms``.
_PENDING_S = 300.0
#: The number of partitions that a message lists with their lag: those with the largest lag.
_MOST_BEHIND = 5

Message = dict[str, Any]
Owners = dict[str, list[int]]


def runs(before: Sequence[int], after: Sequence[int]) -> list[list[int]]:
    """Return the differences between two lists of owners, as [first partition, last partition, new owner]."""
    found: list[list[int]] = []
    for number, owner in enumerate(after):
        if number < len(before) and before[number] == owner:
            continue
        if found and found[-1][1] == number - 1 and found[-1][2] == owner:
            found[-1][1] = number
        else:
            found.append([number, number, owner])
    return found


@attrs.define
class _Rebalance:
    """A rebalance in progress."""

    id: int
    began: float
    owners: Owners
    reasons: list[str] = attrs.field(factory=list)

    def add(self, found: Sequence[str]) -> bool:
        """Add reasons; return True if at least one reason is new."""
        fresh = [one for one in found if one not in self.reasons]
        self.reasons += fresh
        return bool(fresh)


class Tracker:
    """Compares the snapshots of all watched groups, each with a :class:`GroupTracker`."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupTracker] = {}

    def take(self, snapshots: Sequence[GroupSnapshot], offsets: Mapping[str, OffsetsSnapshot], at: float) -> Message:
        """Return the message for one snapshot of all groups; groups that are not in ``snapshots`` no longer exist.

        ``at`` is in seconds since 1970. ``offsets`` has offsets only for groups whose offsets were requested this time.
        """
        changes: dict[str, Any] = {}
        for snapshot in snapshots:
            tracker = self._groups.setdefault(snapshot.group_id, GroupTracker())
            change = tracker.take(snapshot, offsets.get(snapshot.group_id), at)
            if change:
                changes[snapshot.group_id] = change
        present = {snapshot.group_id for snapshot in snapshots}
        gone = [group_id for group_id in self._groups if group_id not in present]
        for group_id in gone:
            del self._groups[group_id]
        message: Message = {"at": round(at, 3)}
        if changes:
            message["groups"] = changes
        if gone:
            message["gone"] = gone
        return message


class GroupTracker:
    """Compares each snapshot of one group with the previous snapshot."""

    def __init__(self) -> None:
        self._snapshot: GroupSnapshot | None = None
        self._at = 0.0
        self._info: dict[str, Any] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._next_number = 0
        self._shown: dict[int, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self._owners: Owners = {}
        self._unowned_s = 0.0
        self._reported_unowned: list[float] | None = None
        self._rebalance: _Rebalance | None = None
        self._rebalances = 0
        self._pending: list[tuple[float, str]] = []
        self._offsets: tuple[float, OffsetsSnapshot] | None = None
        self._lags: dict[str, list[float | None]] = {}
        self._member_lags: dict[str, int | None] = {}
        self._untold: Mapping[str, int] = {}
        self._seconds: Mapping[str, float | None] = {}

    def take(self, snapshot: GroupSnapshot, offsets: OffsetsSnapshot | None, at: float) -> dict[str, Any]:
        """Return the changes since the previous snapshot; empty if there are no changes."""
        if snapshot.error is not None:
            return self._changed_info({"error": snapshot.error, **({"state": snapshot.state} if snapshot.state else {})})
        change: dict[str, Any] = {}
        before, owners_before = self._snapshot, self._owners
        if before is not None:
            self._unowned_s += _unowned_among(owners_before) * max(0.0, at - self._at)
        change |= self._changed_info(
            {
                "error": None,
                "state": snapshot.state,
                "type": snapshot.type,
                "assignor": snapshot.assignor or self._info.get("assignor", ""),
                "coordinator": snapshot.coordinator,
                "epoch": snapshot.epoch,
            }
        )
        change |= self._take_members(snapshot)
        change |= self._take_topics(snapshot, offsets, at)
        # Normally the group is stable. In that case the owners need not be compared.
        peace = (
            before is not None
            and snapshot.members == before.members
            and snapshot.state == before.state
            and "topics" not in change
        )
        changed_owners = {} if peace else self._take_owners(snapshot)
        if changed_owners:
            change["owners"] = changed_owners
        reported = self._take_rebalance(before, snapshot, owners_before, at)
        if reported:
            change["rebalances"] = reported
        unowned = [_unowned_among(self._owners), round(self._unowned_s, 1)]
        if unowned != self._reported_unowned:
            change["unowned"] = self._reported_unowned = unowned
        if offsets is not None:
            change.update(self._take_offsets(offsets, at))
        self._snapshot, self._at = snapshot, at
        return change

    # -- members and topics -----------------------------------------------------------------------------------------

    def _changed_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        changed = {name: value for name, value in info.items() if name not in self._info or self._info[name] != value}
        self._info.update(changed)
        return {"info": changed} if changed else {}

    def _take_members(self, snapshot: GroupSnapshot) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        present: dict[tuple[str, str], int] = {}
        for member in snapshot.members:
            number = self._numbers.get(member.key)
            if number is None:
                number, self._next_number = self._next_number, self._next_number + 1
            present[member.key] = number
            shown = self._show(member, self._shown.get(number))
            if shown != self._shown.get(number):
                changed[str(number)] = self._shown[number] = shown
        for key, number in self._numbers.items():
            if key not in present:
                changed[str(number)] = None
                del self._shown[number]
        self._numbers = present
        return {"members": changed} if changed else {}

    @staticmethod
    def _show(member: MemberSnapshot, before: Mapping[str, Any] | None) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": member.member_id,
            "label": member.label,
            "client": member.client_id,
            "host": member.host,
            "instance": member.instance_id,
            "generation": member.generation,
            "topics": None if member.topics is None else list(member.topics),
            "pattern": member.pattern,
        }
        # During a rebalance the coordinator does not report these values, so use the last reported values.
        for name in ("generation", "topics"):
            if shown[name] is None and before is not None:
                shown[name] = before[name]
        return shown

    def _take_topics(self, snapshot: GroupSnapshot, offsets: OffsetsSnapshot | None, at: float) -> dict[str, Any]:
        wanted = self._wanted_topics(snapshot, offsets)
        counts: dict[str, int] = {}
        for topic in sorted(wanted):
            least = max((max(member.owned.get(topic, ()), default=-1) + 1 for member in snapshot.members), default=0)
            reported = self._counts.get(topic, 0) if offsets is None else offsets.partitions.get(topic, 0)
            if count := max(least, reported):
                counts[topic] = count
        self._pending += [(at, reason) for reason in why.grown(self._counts, counts)]
        changed: dict[str, int | None] = {topic: count for topic, count in counts.items() if self._counts.get(topic) != count}
        changed.update(dict.fromkeys(self._counts.keys() - counts.keys()))
        self._counts = counts
        return {"topics": changed} if changed else {}

    def _wanted_topics(self, snapshot: GroupSnapshot, offsets: OffsetsSnapshot | None) -> set[str]:
        wanted = {topic for member in snapshot.members for topic, numbers in member.owned.items() if numbers}
        if not snapshot.reports_owners or not snapshot.members:
            wanted |= self._counts.keys()
        if not snapshot.members and not wanted and offsets is not None:
            wanted = {partition.topic for partition in offsets.positions}
        for member in snapshot.members:
            wanted |= set(member.topics or ())
        return wanted

    # -- owners -----------------------------------------------------------------------------------------------------

    def _take_owners(self, snapshot: GroupSnapshot) -> dict[str, list[list[int]]]:
        present = set(self._numbers.values())
        owners: Owners = {}
        for topic, count in self._counts.items():
            if snapshot.reports_owners:
                owners[topic] = [UNOWNED] * count
            else:
                known = [owner if owner in present else UNOWNED for owner in self._owners.get(topic, ())[:count]]
                owners[topic] = known + [UNOWNED] * (count - len(known))
        if snapshot.reports_owners:
            for member in snapshot.members:
                number = self._numbers[member.key]
                for topic, numbers in member.owned.items():
                    for partition in numbers:
                        owners[topic][partition] = number
        changed = {topic: found for topic, now in owners.items() if (found := runs(self._owners.get(topic, ()), now))}
        self._owners = owners
        return changed

    # -- rebalances -------------------------------------------------------------------------------------------------

    def _take_rebalance(
        self, before: GroupSnapshot | None, snapshot: GroupSnapshot, owners: Owners, at: float
    ) -> list[list[Any]]:
        """Return a row for a rebalance that began, ended or got another reason."""
        if before is None:
            if not snapshot.rebalancing:
                return []
            self._begin(at, self._owners, [why.UNDER_WAY])
            return [self._row(None)]
        found = why.reasons(before, snapshot)
        if self._rebalance is None:
            happened = self._happened(before, snapshot, owners)
            if not snapshot.rebalancing and not happened:
                # A snapshot may show a changed subscription before the next snapshot shows the rebalance, so keep the reasons.
                self._pending += [(at, reason) for reason in found]
                return []
            pending = [reason for since, reason in self._pending if at - since <= _PENDING_S]
            began = at if snapshot.rebalancing else self._at
            self._begin(began, owners, [*pending, *found])
            fresh = True
        else:
            fresh = self._rebalance.add(found)
        if snapshot.rebalancing:
            return [self._row(None)] if fresh else []
        rebalance = self._rebalance
        assert rebalance is not None
        rebalance.add([reason for since, reason in self._pending if at - since <= _PENDING_S])
        if not rebalance.reasons and _unowned_among(rebalance.owners) > _unowned_among(self._owners):
            rebalance.add([why.SECOND_ROUND])
        row = self._row(at)
        self._rebalance, self._pending = None, []
        return [row]

    def _begin(self, at: float, owners: Owners, found: Sequence[str]) -> None:
        self._rebalances += 1
        self._rebalance = _Rebalance(self._rebalances, at, owners)
        self._rebalance.add(found)

    def _happened(self, before: GroupSnapshot, snapshot: GroupSnapshot, owners: Owners) -> bool:
        """Return whether the group has rebalanced between two snapshots."""
        if {member.key for member in before.members} != {member.key for member in snapshot.members}:
            return True
        if before.epoch != snapshot.epoch or _generation(before) < _generation(snapshot):
            return True
        return snapshot.reports_owners and any(
            was != now for topic in owners for was, now in zip(owners[topic], self._owners.get(topic, ()), strict=False)
        )

    def _row(self, ended: float | None) -> list[Any]:
        """Return the rebalance as [id, begin, end or None, reasons, number of partitions that changed owners]."""
        rebalance = self._rebalance
        assert rebalance is not None
        moved = sum(
            was not in (UNOWNED, now)
            for topic, owners in rebalance.owners.items()
            for was, now in zip(owners, self._owners.get(topic, ()), strict=False)
        )
        at = None if ended is None else round(ended, 3)
        return [rebalance.id, round(rebalance.began, 3), at, list(rebalance.reasons), moved]

    # -- lag and rates -----------------------------------------------------------------------------------------------

    def _take_offsets(self, offsets: OffsetsSnapshot, at: float) -> dict[str, Any]:
        lags = {
            partition: lag.records
            for partition, lag in offsets.lags.items()
            if lag.records is not None and partition.partition < self._counts.get(partition.topic, 0)
        }
        change: dict[str, Any] = {}
        read, written = self._pace(offsets, at)
        sums = dict.fromkeys(self._counts, 0)
        members: dict[str, int | None] = {}
        for partition, lag in lags.items():
            sums[partition.topic] += lag
            owners = self._owners.get(partition.topic, ())
            if partition.partition < len(owners) and (owner := owners[partition.partition]) != UNOWNED:
                members[str(owner)] = (members.get(str(owner)) or 0) + lag
        # A lag that no broker has reported is not zero: the lag of its member is unknown, and that of its topic is higher.
        unknown = offsets.unknown
        for partition in unknown:
            owners = self._owners.get(partition.topic, ())
            if partition.partition < len(owners) and (owner := owners[partition.partition]) != UNOWNED:
                members[str(owner)] = None
        told = {partition.topic for partition in lags}
        untold = Counter(partition.topic for partition in unknown)
        rows: dict[str, list[float | None]] = {
            topic: [lag if topic in told or not untold[topic] else None, read.get(topic), written.get(topic)]
            for topic, lag in sums.items()
        }
        if offsets.seconds and (ages := self._ages(offsets)) != self._seconds:
            change["lag_seconds"] = self._seconds = ages
        if untold != self._untold:
            change["unknown"] = self._untold = untold
        if rows != self._lags:
            change["lag"] = self._lags = rows
            behind = sorted(((lag, partition) for partition, lag in lags.items() if lag), key=lambda one: (-one[0], one[1]))
            change["behind"] = [[one.topic, one.partition, lag] for lag, one in behind[:_MOST_BEHIND]]
        if changed := {number: lag for number, lag in members.items() if self._member_lags.get(number, -1) != lag}:
            change["member_lag"] = changed
        self._member_lags = members
        self._offsets = (at, offsets)
        return change

    def _ages(self, offsets: OffsetsSnapshot) -> Mapping[str, float | None]:
        """Return topic -> the age of its oldest first unread record in seconds; None if the age of a partition is unknown."""
        ages: dict[str, float | None] = dict.fromkeys(self._counts, 0.0)
        for partition, lag in offsets.lags.items():
            if (oldest := ages.get(partition.topic)) is not None:
                ages[partition.topic] = None if lag.seconds is None else max(oldest, lag.seconds)
        return ages | {partition.topic: None for partition in offsets.refused if partition.topic in ages}

    def _pace(self, offsets: OffsetsSnapshot, at: float) -> tuple[dict[str, float], dict[str, float]]:
        """Return topic -> committed records per second, and topic -> written records per second; at first both are empty."""
        if self._offsets is None or at <= self._offsets[0]:
            return {}, {}
        since, before = self._offsets
        read = _growth(before.positions, offsets.positions, at - since)
        return read, _growth(before.ends, offsets.ends, at - since)


def _growth(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], elapsed_s: float) -> dict[str, float]:
    """Return topic -> records per second, from partitions in both snapshots; at least 0, even after an offset reset."""
    grown: dict[str, int] = {}
    for partition, offset in after.items():
        if partition in before:
            grown[partition.topic] = grown.get(partition.topic, 0) + offset - before[partition]
    return {topic: round(max(0, count) / elapsed_s, 1) for topic, count in grown.items()}


def _generation(snapshot: GroupSnapshot) -> int:
    return max((member.generation for member in snapshot.members if member.generation is not None), default=-1)


def _unowned_among(owners: Owners) -> int:
    return sum(numbers.count(UNOWNED) for numbers in owners.values())
