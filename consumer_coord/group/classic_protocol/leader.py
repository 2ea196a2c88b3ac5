"""The leader's part of a rebalance: from the members' subscriptions to every member's encoded assignment.

:class:`Assigning` collects the assignor's input, runs the assignor off the loop, and limits its time. The computation in the
functions below it uses no I/O, because it may take seconds for a large group, and then runs in a worker thread
(``Environment.run_blocking``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import assignors
from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.verification import InvalidPlanError, verify
from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import AssignorError, CoordinatorError, MalformedMessageError, RetriableError
from consumer_coord.group.classic_protocol.partition_figures import Figures
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.member_context import MemberContext
from consumer_coord.group.metadata_watch import ClusterView
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import first_row
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from consumer_coord.wire.messages.group import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequestAssignment,
)

#: Up to these limits, the leader works on the loop, because switching to another thread would take longer than the work. The
#: limits are the size of the subscriptions to decode, in bytes, and the number of members plus partitions for a quick assignor.
_SMALL_BYTES = 64 * 1024
_SMALL_GROUP = 1_000
_STABLE = "Stable"
#: Version of the assignments in SyncGroup. Java sends version 1; versions 0 to 3 differ only in the version number.
_ASSIGNMENT_VERSION = 3
#: Maximum number of generations that a coordinator may have begun without writing them. Failed joins are at least 0.1 s apart,
#: so a coordinator needs hours to begin this number.
_MOST_AHEAD = 100_000


@attrs.frozen
class GroupView:
    """The group after the join, as the leader knows it."""

    members: Mapping[str, Member]
    #: Member with an unreadable subscription -> the reason. Such a member is treated as subscribed to no topic.
    unreadable: Mapping[str, str] = attrs.field(factory=dict)
    #: Member whose subscription names a generation that the group cannot have had -> that generation.
    implausible: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that at least one member subscribes to."""
        distinct = {tuple(member.topics) for member in self.members.values()}
        return frozenset(topic for topics in distinct for topic in topics)


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
            group = read_members(joined.members, joined.generation_id)
        else:
            group = await run_blocking(lambda: read_members(joined.members, joined.generation_id))
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
            assignments, self.withheld = assign(assignor, cluster, group)
            self._with.metrics.record("assign", (now() - started) * 1000)
            return assignments
        work = asyncio.ensure_future(run_blocking(lambda: assign(assignor, cluster, group)))
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

    async def _report(self, group: GroupView) -> None:
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

    async def _resume(self, view: ClusterView) -> None:
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
            assigned = assigned_partitions(member.member_assignment for member in group.members)
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


def read_members(answered: Sequence[JoinGroupResponseMember], generation: int) -> GroupView:
    """Decode every member's subscription, of any version (v0 to v3).

    An unreadable subscription is treated as empty, because one member must not stop the group. ``generation`` is the new
    generation. A member may name an even later generation: if a coordinator could not write its last generations to
    ``__consumer_offsets``, the next coordinator continues from the last written generation. No sync completed in the unwritten
    generations, so such a later generation is treated as the generation before this rebalance. A generation that is later by
    100,000 or more is ignored, because its member would otherwise be regarded as the owner before all others.
    """
    cache: dict[bytes, Subscription] = {}
    members: dict[str, Member] = {}
    unreadable: dict[str, str] = {}
    implausible: dict[str, int] = {}
    for entry in answered:
        subscription = cache.get(entry.metadata)
        if subscription is None:
            try:
                subscription = decode_subscription(entry.metadata)
            except MalformedMessageError as error:
                unreadable[entry.member_id] = str(error)
                members[entry.member_id] = Member(topics=(), instance_id=entry.group_instance_id)
                continue
            cache[entry.metadata] = subscription
        believed = subscription.generation_id < generation + _MOST_AHEAD
        if not believed:
            implausible[entry.member_id] = subscription.generation_id
        members[entry.member_id] = Member(
            topics=subscription.topics,
            owned=subscription.owned_partitions if believed else {},
            generation=min(subscription.generation_id, generation - 1) if believed else -1,
            instance_id=entry.group_instance_id,
            rack=subscription.rack_id,
            user_data=subscription.user_data,
        )
    return GroupView(members, unreadable, implausible)


def assigned_partitions(assignments: Iterable[bytes]) -> Mapping[str, int]:
    """Return topic -> the number of its partitions in these assignments.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`.
    """
    given: dict[str, set[int]] = {}
    for data in assignments:
        if data:
            for topic, numbers in decode_assignment(data).partitions.items():
                given.setdefault(topic, set()).update(numbers)
    return {topic: len(numbers) for topic, numbers in given.items()}


def assign(assignor: Assignor, cluster: Cluster, group: GroupView) -> tuple[tuple[SyncGroupRequestAssignment, ...], int]:
    """Call the assignor, check and encode its plan; return the encoded plan and the number of withheld partitions.

    If the assignor raises, raise :class:`~consumer_coord.errors.AssignorError` with the names of the assignor and the error.
    """
    try:
        plan = assignor.assign(cluster, group.members)
    except Exception as error:
        raise AssignorError(f"assignor {assignor.name!r} raised {type(error).__name__}: {error}") from error
    check_plan(assignor, cluster, group, plan)
    return encode_plan(plan), withheld(cluster, group, plan) if RebalanceProtocol.COOPERATIVE in assignor.protocols else 0


def withheld(cluster: Cluster, group: GroupView, plan: Plan) -> int:
    """Return the number of partitions that the plan assigns to no member until their owners revoke these partitions."""
    planned: dict[str, int] = {}
    for topics in plan.values():
        for topic, numbers in topics.items():
            planned[topic] = planned.get(topic, 0) + len(numbers)
    partitions = cluster.partitions
    short = {topic for topic in group.topics & partitions.keys() if planned.get(topic, 0) < partitions[topic]}
    waiting: set[tuple[str, int]] = set()
    for member in group.members.values() if short else ():
        for topic in short & member.owned.keys():
            waiting.update((topic, number) for number in member.owned[topic] if number < partitions[topic])
    for topics in plan.values() if waiting else ():
        for topic in short & topics.keys():
            waiting.difference_update((topic, number) for number in topics[topic])
    return len(waiting)


def check_plan(assignor: Assignor, cluster: Cluster, group: GroupView, plan: Plan) -> None:
    """Raise :class:`AssignorError` if ``plan``, which may be any object, is not a valid plan.

    The check depends on the protocols that the assignor supports, not on this member's protocol. In a rolling upgrade, an eager
    leader may assign to members that are cooperative already. Its plan then omits the partitions that these members must revoke
    first.
    """
    try:
        verify(cluster, group.members, plan, max(assignor.protocols))
    except InvalidPlanError as error:
        raise AssignorError(f"assignor {assignor.name!r} returned an invalid plan: {error}") from error
    except Exception as error:
        raise AssignorError(
            f"assignor {assignor.name!r} returned {type(plan).__name__!r}, which is not a plan (member -> topic -> partition"
            f" numbers): {error}"
        ) from error


def encode_plan(plan: Plan) -> tuple[SyncGroupRequestAssignment, ...]:
    """Return the assignments for SyncGroup; members without partitions get an empty assignment."""
    return tuple(
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=encode_assignment(
                Assignment({topic: numbers for topic, numbers in topics.items() if len(numbers)}), _ASSIGNMENT_VERSION
            ),
        )
        for member_id, topics in plan.items()
    )
