"""List, describe and delete groups through their coordinators.

There are four kinds of groups: classic groups, groups of the consumer protocol (KIP-848), share groups (KIP-932), and groups of
Kafka Streams (KIP-1071).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs

from consumer_coord.admin.ask import all_brokers, ask_coordinator, check, patiently, refused, row_of, senseless_epoch
from consumer_coord.errors import (
    BrokerError,
    CoordinatorError,
    MalformedMessageError,
    UnsupportedVersionError,
)
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline, retrying
from consumer_coord.setting_names import did_you_mean
from consumer_coord.topic_partition import TopicPartition, flatten
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.embedded_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from consumer_coord.wire.messages.consumer_group import ConsumerGroupDescribeRequest
from consumer_coord.wire.messages.group import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from consumer_coord.wire.messages.share_group import ShareGroupDescribeRequest
from consumer_coord.wire.messages.streams_group import (
    StreamsGroupDescribeAssignment,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeTopology,
)

#: The states of a group without members. In these states, offsets may be changed.
INACTIVE = frozenset({"Empty", "Dead"})

T = TypeVar("T")

CLASSIC = "Classic"
CONSUMER = "Consumer"
SHARE = "Share"
STREAMS = "Streams"


@attrs.frozen
class Listing:
    """A line of a list of groups. Brokers before 2.6 report no ``state``, and brokers before 3.7 report no ``type``."""

    group_id: str
    type: str
    protocol_type: str
    state: str

    @property
    def is_consumer_group(self) -> bool:
        """True unless the group is a share group or a group of Kafka Streams."""
        return self.type not in (SHARE, STREAMS)


@attrs.frozen
class Subscribed:
    """A member's subscription. ``generation`` is -1 and ``owned`` is empty if the member does not report them.

    For a member of the consumer protocol, ``pattern`` may be set, and ``owned`` is always empty.
    """

    topics: tuple[str, ...]
    owned: Mapping[str, Sequence[int]]
    generation: int
    rack: str | None
    pattern: str | None = None


@attrs.frozen
class MemberDescription:
    """A member. ``assignment`` and ``target`` are topic -> partition numbers; without KIP-848, ``target`` is None.

    In a streams group the keys of ``assignment`` and ``target`` are subtopologies instead of topics.

    ``subscription`` is None if the coordinator does not report the subscription (during a rebalance), or if the subscription
    cannot be decoded.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Mapping[str, tuple[int, ...]]
    subscription: Subscribed | None
    epoch: int | None = None
    target: Mapping[str, tuple[int, ...]] | None = None

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions of the assignment."""
        return flatten(self.assignment)


@attrs.frozen
class GroupDescription(Listing):
    """A group. ``state`` has the broker's spelling (``Stable``, ``Empty``, ``PreparingRebalance``, …)."""

    assignor: str
    coordinator: Broker
    members: tuple[MemberDescription, ...]
    epoch: int | None = None
    target_epoch: int | None = None
    #: Of a streams group: subtopology -> the topics that its tasks read. Task n reads partition n of each.
    subtopologies: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)

    def reads(self, member: MemberDescription) -> frozenset[TopicPartition]:
        """Return the partitions that a member reads; of a streams group, perhaps also partitions that do not exist."""
        if self.type != STREAMS:
            return member.partitions
        return frozenset(
            TopicPartition(topic, number)
            for subtopology, numbers in member.assignment.items()
            for topic in self.subtopologies.get(subtopology, ())
            for number in numbers
        )

    @property
    def kind(self) -> str:
        """The type of the group: ``consumer group``, ``share group`` or ``streams group``."""
        return "consumer group" if self.is_consumer_group else f"{self.type.lower()} group"


def wrong_type(group: GroupDescription, command: str) -> BrokerError | None:
    """Return None for a consumer group; for any other group, the error that ``command`` supports only consumer groups."""
    if group.is_consumer_group:
        return None
    return BrokerError(
        f"group '{group.group_id}' is a {group.kind}, but {command} supports only consumer groups; use describe or lag",
        code=codes.INCONSISTENT_GROUP_PROTOCOL,
    )


@attrs.frozen
class Listings:
    """The groups of all brokers, sorted by name; ``unlisted`` has the brokers whose groups are unknown, with the reason."""

    groups: tuple[Listing, ...]
    unlisted: Mapping[Broker, CoordinatorError] = attrs.field(factory=dict)

    def complete(self) -> tuple[Listing, ...]:
        """Return the groups; raise the error of a broker whose groups are unknown."""
        for error in self.unlisted.values():
            raise error
        return self.groups


async def list_groups(
    cluster: ClusterClient, deadline: Deadline, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> Listings:
    """List the groups of all brokers: consumer groups, share groups and streams groups.

    ``states`` and ``types`` (in upper or lower case) restrict the list, also if an old broker ignores these filters. Raise the
    error of a broker only if no broker has listed its groups.
    """
    answers = await patiently(
        await all_brokers(cluster, deadline),
        lambda broker, limit: _list_on(cluster, broker, limit, states, types),
        deadline,
    )
    unlisted = {broker: answer for broker, answer in answers.items() if isinstance(answer, CoordinatorError)}
    if len(unlisted) == len(answers):
        Listings((), unlisted).complete()
    wanted_states, wanted_types = ({one.lower() for one in wanted} for wanted in (states, types))
    found = {
        listing.group_id: listing
        for answer in answers.values()
        if not isinstance(answer, CoordinatorError)
        for listing in answer
        if (listing.protocol_type in (PROTOCOL_TYPE, "") or not listing.is_consumer_group)
        and (not wanted_states or listing.state.lower() in wanted_states)
        and (not wanted_types or listing.type.lower() in wanted_types)
    }
    return Listings(tuple(found[group_id] for group_id in sorted(found)), unlisted)


async def _list_on(
    cluster: ClusterClient, broker: Broker, deadline: Deadline, states: Sequence[str], types: Sequence[str]
) -> list[Listing]:
    def build(version: int) -> ListGroupsRequest:
        return ListGroupsRequest(
            states_filter=tuple(states) if version >= 4 else (), types_filter=tuple(types) if version >= 5 else ()
        )

    async for attempt in retrying(cluster.backoff, deadline, what=f"ListGroups on {broker.address}"):
        with attempt:
            timeout_ms = max(1.0, deadline.within(cluster.config.request_timeout_ms))
            answer = await cluster.request(broker, Versioned(ListGroupsRequest, build), timeout_ms=timeout_ms)
            check(answer.error_code, "", f"ListGroups on {broker.address}")
            return [
                Listing(one.group_id, (one.group_type or CLASSIC).title(), one.protocol_type, one.group_state or "Unknown")
                for one in answer.groups
            ]
    raise AssertionError("unreachable: the retry loop returns or raises")


async def describe_groups(
    cluster: ClusterClient, group_ids: Iterable[str], deadline: Deadline
) -> Mapping[str, GroupDescription | CoordinatorError]:
    """Return for each group its description or an error (:class:`BrokerError` with code 69 if the group does not exist)."""
    found = await patiently(sorted(set(group_ids)), lambda group_id, limit: describe_group(cluster, group_id, limit), deadline)
    return await _with_suggestions(cluster, found, deadline)


async def _with_suggestions(
    cluster: ClusterClient, found: Mapping[str, T], deadline: Deadline
) -> Mapping[str, T | BrokerError]:
    """Add to each error about a missing group the name of the most similar existing group."""
    missing = {
        group_id: error
        for group_id, error in found.items()
        if isinstance(error, BrokerError) and error.code == codes.GROUP_ID_NOT_FOUND
    }
    if not missing:
        return found
    try:
        known = [listing.group_id for listing in (await list_groups(cluster, deadline)).groups]
    except CoordinatorError:
        # Without the list of groups, report the errors without a suggestion.
        return found
    suggested = {
        group_id: BrokerError(f"{error}{did_you_mean(group_id, known)}", code=error.code) for group_id, error in missing.items()
    }
    return {**found, **suggested}


async def describe_group(cluster: ClusterClient, group_id: str, deadline: Deadline) -> GroupDescription:
    """Describe one group of any type; raise :class:`BrokerError` with code 69 if no group has this name.

    As in Java's admin client, first request the description of a group of the consumer protocol.
    """
    attempts: tuple[tuple[str, Any, Callable[[Any, Broker], GroupDescription]], ...] = (
        ("ConsumerGroupDescribe", ConsumerGroupDescribeRequest(group_ids=[group_id]), partial(_read_group, kind=CONSUMER)),
        ("DescribeGroups", DescribeGroupsRequest(groups=[group_id]), _read_classic_group),
        ("ShareGroupDescribe", ShareGroupDescribeRequest(group_ids=[group_id]), partial(_read_group, kind=SHARE)),
        ("StreamsGroupDescribe", StreamsGroupDescribeRequest(group_ids=[group_id]), partial(_read_group, kind=STREAMS)),
    )
    for name, request, describe in attempts:

        def read(
            answer: Any,
            coordinator: Broker,
            name: str = name,
            describe: Callable[[Any, Broker], GroupDescription] = describe,
        ) -> GroupDescription:
            senseless = (lambda _: None) if describe is _read_classic_group else senseless_epoch
            row = row_of(cluster, name, coordinator, group_id, answer.groups, lambda group: group.group_id, senseless)
            check(row.error_code, group_id, name)
            return describe(row, coordinator)

        try:
            return await ask_coordinator(cluster, group_id, request, deadline, read)
        except UnsupportedVersionError:
            # The broker does not support this type of groups. (Brokers 3.8 and 3.9 advertise the request but refuse it.) Every
            # broker knows classic groups, so without that answer nothing is known.
            if describe is _read_classic_group:
                raise
        except BrokerError as error:
            if error.code != codes.GROUP_ID_NOT_FOUND:
                raise
    raise refused(codes.GROUP_ID_NOT_FOUND, group_id, "DescribeGroups")


def _read_group(group: Any, coordinator: Broker, *, kind: str) -> GroupDescription:
    """Describe a group whose assignments the broker makes; ``kind`` is the group's type."""
    return GroupDescription(
        group.group_id,
        kind,
        PROTOCOL_TYPE if kind == CONSUMER else kind.lower(),
        group.group_state,
        group.assignor_name or "",
        coordinator,
        _once(_member(member, kind) for member in group.members),
        group.group_epoch,
        group.assignment_epoch,
        _topics_of(group.topology) if kind == STREAMS and group.topology is not None else {},
    )


def _once(members: Iterable[MemberDescription]) -> tuple[MemberDescription, ...]:
    """Return each member once, even if a response repeats it."""
    return tuple({member.member_id: member for member in members}.values())


def _topics_of(topology: StreamsGroupDescribeTopology) -> dict[str, tuple[str, ...]]:
    """Return subtopology -> its source topics, including those that another subtopology writes."""
    return {
        one.subtopology_id: (*one.source_topics, *(topic.name for topic in one.repartition_source_topics))
        for one in topology.subtopologies or ()
    }


def _member(member: Any, kind: str) -> MemberDescription:
    assigned = _by_subtopology if kind == STREAMS else _by_name
    subscription = None
    if kind != STREAMS:
        pattern = member.subscribed_topic_regex or None if kind == CONSUMER else None
        subscription = Subscribed(tuple(sorted(member.subscribed_topic_names)), {}, -1, member.rack_id, pattern)
    return MemberDescription(
        member.member_id,
        None if kind == SHARE else member.instance_id,
        member.client_id,
        member.client_host,
        assigned(member.assignment),
        subscription,
        member.member_epoch,
        None if kind == SHARE else assigned(member.target_assignment),
    )


def _by_subtopology(assignment: StreamsGroupDescribeAssignment) -> dict[str, tuple[int, ...]]:
    """Return subtopology -> the partitions of its active tasks."""
    return {row.subtopology_id: tuple(sorted(row.partitions)) for row in assignment.active_tasks}


def _by_name(assignment: Any) -> dict[str, tuple[int, ...]]:
    rows = sorted((row.topic_name, tuple(sorted(row.partitions))) for row in assignment.topic_partitions)
    return dict(rows)


def _read_classic_group(group: DescribedGroup, coordinator: Broker) -> GroupDescription:
    if group.group_state == "Dead" and not group.members:
        # In versions up to 5 of the response, brokers report an unknown group in this form.
        raise refused(codes.GROUP_ID_NOT_FOUND, group.group_id, "DescribeGroups")
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.protocol_type,
        group.group_state,
        group.protocol_data,
        coordinator,
        _once(_classic_member(member, group.protocol_type) for member in group.members),
    )


def _classic_member(member: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    assignment: dict[str, tuple[int, ...]] = {}
    subscription = None
    # Other protocol types (such as Kafka Connect's) encode subscriptions and assignments differently.
    if protocol_type == PROTOCOL_TYPE:
        subscription = _subscribed(member.member_metadata)
        assignment = _assigned(member.member_assignment)
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, assignment, subscription
    )


def _subscribed(data: bytes) -> Subscribed | None:
    try:
        subscription = decode_subscription(data)
    except MalformedMessageError:
        return None
    return Subscribed(
        tuple(sorted(subscription.topics)),
        {topic: tuple(sorted(numbers)) for topic, numbers in sorted(subscription.owned_partitions.items())},
        subscription.generation_id,
        subscription.rack_id,
    )


def _assigned(data: bytes) -> dict[str, tuple[int, ...]]:
    try:
        partitions = decode_assignment(data).partitions
    except MalformedMessageError:
        return {}
    return {topic: tuple(sorted(numbers)) for topic, numbers in sorted(partitions.items())}


async def delete_groups(
    cluster: ClusterClient, group_ids: Iterable[str], deadline: Deadline
) -> Mapping[str, CoordinatorError | None]:
    """Delete empty groups with their offsets (KIP-229); return for each group None or its error."""

    async def delete(group_id: str) -> CoordinatorError | None:
        request = DeleteGroupsRequest(groups_names=[group_id])

        def read(answer: DeleteGroupsResponse, sender: Broker) -> None:
            row = row_of(cluster, "DeleteGroups", sender, group_id, answer.results, lambda result: result.group_id)
            check(row.error_code, group_id, "DeleteGroups")

        try:
            await ask_coordinator(cluster, group_id, request, deadline, read)
        except CoordinatorError as error:
            return await _of_its_type(cluster, group_id, error, deadline)
        return None

    wanted = sorted(set(group_ids))
    outcome = await asyncio.gather(*map(delete, wanted))
    return await _with_suggestions(cluster, dict(zip(wanted, outcome, strict=True)), deadline)


async def _of_its_type(cluster: ClusterClient, group_id: str, error: CoordinatorError, deadline: Deadline) -> CoordinatorError:
    """Return the error; for a group with members, replace "consumer group" in its text by the group's type."""
    if error.code != codes.NON_EMPTY_GROUP:
        return error
    try:
        group = await describe_group(cluster, group_id, deadline)
    except CoordinatorError:
        # The principal may be authorized to delete the group but not to describe it. Then the error remains unchanged.
        return error
    return BrokerError(str(error).replace("consumer group", group.kind, 1), code=error.code)
