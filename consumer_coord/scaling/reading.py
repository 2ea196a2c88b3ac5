"""From a group's report to a reading for the formula."""

from __future__ import annotations

import attrs

from consumer_coord.admin.groups import SHARE, GroupDescription
from consumer_coord.admin.report import GroupReport
from consumer_coord.scaling.wanted_replicas import Reading

#: The states of a group that does not rebalance, for all four kinds of groups.
SETTLED = frozenset({"Stable", "Empty"})


@attrs.frozen
class Membership:
    """What a rebalance changes: another value in the next reading shows a rebalance that no reading saw."""

    members: frozenset[str]
    epoch: int | None

    @classmethod
    def of(cls, group: GroupDescription) -> Membership:
        """Return the membership of a group."""
        return cls(frozenset(member.member_id for member in group.members), group.epoch)


def reading_of(report: GroupReport, at: float, before: Membership | None) -> Reading:
    """Return the reading of a report. ``before`` is the membership at the last reading, None without one.

    The lag of a partition is 0 if only transaction markers and aborted records are unread. A deleted partition has no lag.
    """
    group = report.group
    lags = [row.lag for row in report.rows if not row.lag.deleted]
    known = [lag.records for lag in lags if lag.records is not None]
    return Reading(
        at=at,
        lag=sum(known),
        partitions_with_lag=sum(records > 0 for records in known),
        members=len(group.members),
        unknown=len(lags) - len(known),
        settled=group.state in SETTLED and before in (None, Membership.of(group)),
        shared=group.type == SHARE,
    )
