"""Read the lags of groups at intervals, and keep the figure of each group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import attrs

from consumer_coord.admin.report import GroupReport, report_groups
from consumer_coord.environment import now
from consumer_coord.errors import AuthenticationError, ConfigurationError, CoordinatorError
from consumer_coord.lag.partition_lag import LagPolicy
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.scaling.reading import Membership, reading_of
from consumer_coord.scaling.wanted_replicas import Limits, Wanted, advance, hold


@attrs.frozen
class GroupFigures:
    """The figures of a group. ``report`` is its last report, None if the group's brokers did not answer the last time."""

    wanted: Wanted = attrs.field(factory=Wanted)
    report: GroupReport | None = None
    #: The membership in the last report.
    membership: Membership | None = None


class Scaler:
    """Reads groups every ``interval_s`` seconds; :attr:`figures` has the figures of each."""

    def __init__(
        self,
        cluster: ClusterClient,
        groups: Sequence[str],
        policy: LagPolicy,
        limits: Limits,
        *,
        interval_s: float,
        timeout_ms: float,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._interval_s = interval_s
        self._timeout_ms = timeout_ms
        self.limits = limits
        self.figures: Mapping[str, GroupFigures] = dict.fromkeys(groups, GroupFigures())

    async def first(self) -> None:
        """Read the groups once; raise an error about settings or credentials, with which no later reading would succeed."""
        found = await self._read()
        for one in found.values():
            if isinstance(one, (ConfigurationError, AuthenticationError)):
                raise one

    async def run(self) -> None:
        """Read the groups again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self._read()

    async def _read(self) -> Mapping[str, GroupReport | CoordinatorError]:
        found: Mapping[str, GroupReport | CoordinatorError]
        try:
            found = await report_groups(self._cluster, self.figures, Deadline.after(self._timeout_ms), self._policy)
        except CoordinatorError as error:
            found = dict.fromkeys(self.figures, error)
        self.figures = {group: self._next(self.figures[group], found[group]) for group in self.figures}
        return found

    def _next(self, before: GroupFigures, found: GroupReport | CoordinatorError) -> GroupFigures:
        if isinstance(found, CoordinatorError):
            # Without a membership, the next report counts as a change, so the wait after a change begins again.
            return GroupFigures(hold(before.wanted, str(found)))
        membership = Membership.of(found.group)
        if not found.rows:
            # Brokers omit topics that the principal may not describe, so there may be a lag.
            wanted = hold(before.wanted, "no partition with a commit or a member, among the topics that may be described")
        else:
            wanted = advance(before.wanted, reading_of(found, now(), before.membership), self.limits)
        return GroupFigures(wanted, found, membership)
