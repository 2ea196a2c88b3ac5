"""Ask a group's coordinator about the group, and all brokers about their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from consumer_coord.admin.ask import all_brokers, ask_coordinator, check, patiently, refused, row_of, senseless_epoch
from consumer_coord.admin.groups import CLASSIC, CONSUMER, SHARE, STREAMS, describe_group, wrong_type
from consumer_coord.errors import (
    AuthorizationError,
    BrokerError,
    MalformedMessageError,
    RetriableError,
    UnsupportedVersionError,
)
from consumer_coord.migration.group import (
    CLASSIC_PROTOCOL,
    CONSUMER_PROTOCOL,
    BrokerSettings,
    MigratingGroup,
    MigratingMember,
)
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline, retrying
from consumer_coord.topic_partition import TopicPartition, flatten
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.embedded_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from consumer_coord.wire.messages.admin import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from consumer_coord.wire.messages.group import DescribedGroupMember, DescribeGroupsRequest, DescribeGroupsResponse

#: The settings of brokers that decide about a migration, or that replace settings of members.
BROKER_SETTINGS = (
    "group.coordinator.rebalance.protocols",
    "group.consumer.migration.policy",
    "group.consumer.assignors",
    "group.consumer.session.timeout.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.max.size",
)
#: The settings of a group that override those of the brokers.
GROUP_SETTINGS = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")

_BROKER, _GROUP = 4, 32
#: ``DescribeConfigsResponse.ConfigSource``: a setting of the group itself (``GROUP_CONFIG``).
_OF_GROUP = 8
_PROTOCOLS = {0: CLASSIC_PROTOCOL, 1: CONSUMER_PROTOCOL}


async def read_group(cluster: ClusterClient, group_id: str, deadline: Deadline) -> MigratingGroup:
    """Return a classic or consumer group; raise :class:`BrokerError` for a group of another kind, or none (code 69)."""
    try:
        return await _read_consumer_group(cluster, group_id, deadline)
    except UnsupportedVersionError:
        knows = False
    except BrokerError as error:
        if error.code != codes.GROUP_ID_NOT_FOUND:
            raise
        knows = True
    try:
        return await _read_classic_group(cluster, group_id, deadline, knows=knows)
    except BrokerError as error:
        if error.code != codes.GROUP_ID_NOT_FOUND:
            raise
    # The error names the kind of a share or streams group, or says that there is no such group.
    described = await describe_group(cluster, group_id, deadline)
    if described.type in (SHARE, STREAMS):
        raise wrong_type(described, "migrate") or AssertionError("unreachable: it is no consumer group")
    raise RetriableError(f"group {group_id!r} was created or converted while it was read; run the command again")


async def _read_consumer_group(cluster: ClusterClient, group_id: str, deadline: Deadline) -> MigratingGroup:
    name = "ConsumerGroupDescribe"

    def read(answer: ConsumerGroupDescribeResponse, coordinator: Broker) -> MigratingGroup:
        row = row_of(cluster, name, coordinator, group_id, answer.groups, lambda group: group.group_id, senseless_epoch)
        check(row.error_code, group_id, name)
        members = _once(map(_modern_member, row.members))
        return MigratingGroup(
            group_id, CONSUMER, PROTOCOL_TYPE, row.group_state, row.assignor_name, coordinator, members, row.group_epoch
        )

    return await ask_coordinator(cluster, group_id, ConsumerGroupDescribeRequest(group_ids=[group_id]), deadline, read)


def _once(members: Iterable[MigratingMember]) -> tuple[MigratingMember, ...]:
    """Return each member once, even if a response repeats it."""
    return tuple({member.member_id: member for member in members}.values())


def _modern_member(member: ConsumerGroupDescribeMember) -> MigratingMember:
    return MigratingMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        _PROTOCOLS.get(member.member_type),
        assigned=_partitions(member.assignment),
        target=_partitions(member.target_assignment),
        epoch=member.member_epoch,
        topics=tuple(sorted(member.subscribed_topic_names)),
        pattern=member.subscribed_topic_regex or None,
    )


def _partitions(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(row.topic_name, number) for row in assignment.topic_partitions for number in row.partitions)


async def _read_classic_group(cluster: ClusterClient, group_id: str, deadline: Deadline, *, knows: bool) -> MigratingGroup:
    name = "DescribeGroups"

    def read(answer: DescribeGroupsResponse, coordinator: Broker) -> MigratingGroup:
        row = row_of(cluster, name, coordinator, group_id, answer.groups, lambda group: group.group_id)
        check(row.error_code, group_id, name)
        if row.group_state == "Dead" and not row.members:
            raise refused(codes.GROUP_ID_NOT_FOUND, group_id, name)
        members = _once(_classic_member(member, row.protocol_type) for member in row.members)
        return MigratingGroup(
            group_id,
            CLASSIC,
            row.protocol_type,
            row.group_state,
            row.protocol_data,
            coordinator,
            members,
            knows_kip848=knows,
        )

    return await ask_coordinator(cluster, group_id, DescribeGroupsRequest(groups=[group_id]), deadline, read)


def _classic_member(member: DescribedGroupMember, protocol_type: str) -> MigratingMember:
    known: dict[str, Any] = {}
    if protocol_type == PROTOCOL_TYPE:
        known = {**_subscription(member.member_metadata), **_assignment(member.member_assignment)}
    return MigratingMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        CLASSIC_PROTOCOL,
        **known,
    )


def _subscription(data: bytes) -> dict[str, Any]:
    """Return what a subscription tells; nothing while the group rebalances, or if it cannot be decoded."""
    try:
        subscription = decode_subscription(data)
    except MalformedMessageError:
        return {}
    return {
        "topics": tuple(sorted(subscription.topics)),
        "version": int.from_bytes(data[:2], "big", signed=True),
        "owned": flatten(subscription.owned_partitions),
        "user_data": len(subscription.user_data or b""),
    }


def _assignment(data: bytes) -> dict[str, Any]:
    try:
        assignment = decode_assignment(data)
    except MalformedMessageError:
        return {}
    return {"assigned": flatten(assignment.partitions), "assignment_data": len(assignment.user_data or b"")}


async def read_settings(cluster: ClusterClient, group: MigratingGroup, deadline: Deadline) -> BrokerSettings:
    """Return the settings of all brokers, because any of them may become the group's coordinator, and of the group."""
    brokers = await all_brokers(cluster, deadline)
    asked = await patiently(brokers, lambda broker, limit: _settings_of(cluster, broker, group, limit), deadline)
    found = {broker: one[0] if isinstance(one, tuple) else one for broker, one in asked.items()}
    of_group: dict[str, str] = {}
    for one in asked.values():
        if isinstance(one, tuple):
            of_group.update(one[1])
    return BrokerSettings(found, of_group)


async def _settings_of(
    cluster: ClusterClient, broker: Broker, group: MigratingGroup, deadline: Deadline
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return a broker's settings, and those of the group, which every broker knows."""
    resources = [
        DescribeConfigsResource(resource_type=_BROKER, resource_name=str(broker.id), configuration_keys=BROKER_SETTINGS)
    ]
    if group.knows_kip848:
        # Earlier brokers do not know the type of the resource.
        resources.append(
            DescribeConfigsResource(resource_type=_GROUP, resource_name=group.group_id, configuration_keys=GROUP_SETTINGS)
        )
    async for attempt in retrying(cluster.backoff, deadline, what=f"DescribeConfigs on {broker.address}"):
        with attempt:
            timeout_ms = max(1.0, deadline.within(cluster.config.request_timeout_ms))
            answer = await cluster.request(broker, DescribeConfigsRequest(resources=resources), timeout_ms=timeout_ms)
            return _read_settings(cluster, broker, group, answer)
    raise AssertionError("unreachable: the retry loop returns or raises")


def _read_settings(
    cluster: ClusterClient, broker: Broker, group: MigratingGroup, answer: DescribeConfigsResponse
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    rows = {(row.resource_type, row.resource_name): row for row in answer.results}
    of_broker = rows.get((_BROKER, str(broker.id)))
    if of_broker is None:
        raise RetriableError(f"DescribeConfigs on {broker.address}: the response has no row for the broker")
    if of_broker.error_code in (codes.CLUSTER_AUTHORIZATION_FAILED, codes.TOPIC_AUTHORIZATION_FAILED):
        raise AuthorizationError(
            "the settings of brokers are unknown: the principal needs DESCRIBE_CONFIGS on the cluster",
            code=of_broker.error_code,
        )
    check(of_broker.error_code, group.group_id, f"DescribeConfigs on {broker.address}")
    of_group = rows.get((_GROUP, group.group_id))
    own = {}
    if of_group is not None and of_group.error_code == codes.NONE:
        own = {one.name: one.value for one in of_group.configs if one.value is not None and one.config_source == _OF_GROUP}
    return {one.name: one.value for one in of_broker.configs if one.value is not None}, own
