"""The leader's step of a rebalance: collect the assignor's input, run the assignor off the loop, limit its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import assignors
from assignors.base import Assignor, Cluster
from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import AssignorError, CoordinatorError, MalformedMessageError, RetriableError
from consumer_coord.group.classic_protocol import leader
from consumer_coord.group.classic_protocol.partition_figures import Figures
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.member_context import MemberContext
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import first_row
from consumer_coord.wire.messages.group import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupResponse,
    SyncGroupRequestAssignment,
)

#: Up to these limits, the leader works on the loop, because switching to another thread would take longer than the work. The
#: limits are the size of the subscriptions to decode, in bytes, and the number of members plus partitions for a quick assignor.
_SMALL_BYTES = 64 * 1024
_SMALL_GROUP = 1_000
_STABLE = "Stable"


class Assigning:
    """Makes the group's assignments while this member is the leader, one at a time."""

    def __init__(self, context: MemberContext, offsets: CommittedOffsets, ask: Callable[[Any], Awaitable[Any]]) -> None:
        self._with = context
        self._config = context.config
        self._watch = context.watch
        self._log = context.log
        self._figures = Figures(context.cluster, offsets, context.config.auto_offset_reset, context.log)
        self._ask = ask
        self._stuck: asyncio.Future[Any] | None = None
        #: Number of partitions that the last assignment assigns to no member until their owners revoke these partitions.
        self.withheld: int = 0
        #: Members of the last assignment whose subscription was logged as invalid.
        self._reported: frozenset[str] = frozenset()

    @property
    def stuck(self) -> bool:
        """True while a timed-out assignor is still running."""
        return self._stuck is not None and not self._stuck.done()

    async def run(self, assignor: Assignor, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        """Return every member's assignment, encoded.

        Raise :class:`AssignorError` if the assignor raises, takes longer than ``assignor.timeout.ms``, or returns an invalid
        plan.
        """
        self.withheld = 0
        run_blocking = self._with.cluster.environment.run_blocking
        if sum(len(member.metadata) for member in joined.members) <= _SMALL_BYTES:
            group = leader.read_members(joined.members, joined.generation_id)
        else:
            group = await run_blocking(lambda: leader.read_members(joined.members, joined.generation_id))
        await self._report(group)
        self._watch.lead(group.topics, with_racks=any(member.rack for member in group.members.values()))
        if not group.topics <= self._with.cluster.metadata.topics.keys():
            try:
                patience_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
                await self._with.cluster.refresh(Deadline.after(patience_ms))
            except RetriableError as error:
                self._log.warning("could not refresh the metadata before assigning; using the current metadata: %s", error)
        view = self._watch.view()
        if joined.skip_assignment:
            # A static leader rejoined (KIP-814): the group keeps its assignment, so this member only compares it with the
            # metadata.
            await self._resume(view)
            return ()
        lag = await self._figures.lag(view) if "lag" in assignor.needs else {}
        weights = await self._figures.weights(view) if "weights" in assignor.needs else {}
        cluster = Cluster(view.partitions, view.racks, lag=lag, weights=weights, generation=joined.generation_id)
        started = now()
        if _is_quick(assignor) and len(group.members) + sum(view.partitions.values()) <= _SMALL_GROUP:
            assignments, self.withheld = leader.assign(assignor, cluster, group)
            self._with.metrics.record("assign", (now() - started) * 1000)
            return assignments
        work = asyncio.ensure_future(run_blocking(lambda: leader.assign(assignor, cluster, group)))
        done, _ = await asyncio.wait({work}, timeout=self._config.assignor_timeout_ms / 1000)
        if not done:
            work.add_done_callback(self._returned)
            self._stuck = work
            raise AssignorError(
                f"assignor {assignor.name!r} did not return within assignor.timeout.ms={self._config.assignor_timeout_ms};"
                " this member left the group, and joins again when the assignor returns"
            )
        self._with.metrics.record("assign", (now() - started) * 1000)
        assignments, self.withheld = work.result()
        return assignments

    async def _report(self, group: leader.GroupView) -> None:
        """Log once each member whose subscription cannot be read or names an impossible generation."""
        odd = {
            **{
                member: f"cannot be read, so the member is assigned no partitions: {why}"
                for member, why in group.unreadable.items()
            },
            **{member: f"claims generation {claimed}, which is ignored" for member, claimed in group.implausible.items()},
        }
        known, self._reported = self._reported, frozenset(odd)
        fresh = {member: what for member, what in odd.items() if member not in known}
        if not fresh:
            return
        whence = await self._whence(fresh)
        for member, what in fresh.items():
            self._log.warning("the subscription of member %s (%s) %s", member, whence.get(member, "client unknown"), what)

    async def _whence(self, members: Collection[str]) -> Mapping[str, str]:
        """Return member -> its client id and host, if the coordinator returns them."""
        try:
            answer: DescribeGroupsResponse = await self._ask(DescribeGroupsRequest(groups=[self._config.group_id]))
        except CoordinatorError as error:
            self._log.debug("the coordinator does not report the members: %s", error)
            return {}
        return {
            member.member_id: f"client {member.client_id}, host {member.client_host}"
            for group in answer.groups
            for member in group.members
            if member.member_id in members
        }

    async def _resume(self, view: leader.ClusterView) -> None:
        """Read the group's existing assignment, to notice topics that grew while the group had no leader.

        Java assumes that the assignment was made from the current metadata, and never notices the growth.
        """
        try:
            answer: DescribeGroupsResponse = await self._ask(DescribeGroupsRequest(groups=[self._config.group_id]))
            group = first_row(answer.groups, "DescribeGroups")
            if codes.is_retriable(group.error_code):
                raise RetriableError(f"DescribeGroups: {codes.error_name(group.error_code)}", code=group.error_code)
        except RetriableError as error:
            self._log.warning("the group's current assignment could not be read, so the group is assigned again: %s", error)
            self._watch.resume(attrs.evolve(view, partitions={}))
            return
        if group.error_code != codes.NONE or group.group_state != _STABLE:
            # If this member may not describe the group, assume like Java that the assignment is current. If the group is in a
            # rebalance, a new assignment follows anyway.
            found = codes.error_name(group.error_code) if group.error_code != codes.NONE else f"the state {group.group_state}"
            self._log.info("the group's current assignment was not compared with the topics: DescribeGroups returned %s", found)
            return
        try:
            assigned = leader.assigned_partitions(member.member_assignment for member in group.members)
        except MalformedMessageError as error:
            self._log.warning("the assignment of the group cannot be read: %s", error)
            return
        self._watch.resume(attrs.evolve(view, partitions={topic: assigned.get(topic, 0) for topic in view.partitions}))

    def _returned(self, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            self._log.warning("the assignor that exceeded assignor.timeout.ms has returned (%r)", work.exception())
        self._with.signal.fire()


def notify_assignor(
    assignors: Sequence[Assignor], name: str | None, assignment: Mapping[str, Sequence[int]], generation: int
) -> None:
    """Call ``on_assignment`` of the assignor that the group agreed on; raise :class:`AssignorError` if the call raises."""
    for assignor in assignors:
        if assignor.name == name:
            try:
                assignor.on_assignment(assignment, generation)
            except Exception as error:
                raise AssignorError(f"assignor {assignor.name!r} raised in on_assignment: {error!r}") from error


def _is_quick(assignor: Assignor) -> bool:
    """Return True for the built-in assignors except the load assignor, which compares single partitions."""
    return type(assignor) is assignors.BUILT_IN.get(assignor.name) and not assignor.needs
