"""Wrong answers of one leader to ListOffsets, while the other leaders answer rightly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.embedded_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from consumer_coord.wire.messages.group import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from consumer_coord.wire.messages.offsets import ListOffsetsRequest, ListOffsetsResponse, OffsetFetchResponseGroup
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import DROP, PASS, SILENCE, FakeBrokers, Reply

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def group_brokers(*, assigned: bool = False, committed: Sequence[TopicPartition] = (T0, T1)) -> FakeBrokers:
    """Return two brokers, each the leader of a partition of t, whose groups have commits at 5 or a member with t."""
    brokers = FakeBrokers({"t": 2}, brokers=2)
    brokers.committed = dict.fromkeys(committed, 5)

    def no_consumer_protocol(request: ConsumerGroupDescribeRequest) -> Struct:
        (name,) = request.group_ids
        row = ConsumerGroupDescribeGroup(error_code=codes.GROUP_ID_NOT_FOUND, group_id=name)
        return ConsumerGroupDescribeResponse(groups=(row,))

    def described(request: DescribeGroupsRequest) -> Struct:
        (name,) = request.groups
        member = DescribedGroupMember(
            member_id="m",
            client_id="c",
            client_host="/h",
            member_metadata=encode_subscription(Subscription(("t",))),
            member_assignment=encode_assignment(Assignment({"t": (0, 1)})),
        )
        row = DescribedGroup(
            group_id=name,
            group_state="Stable" if assigned else "Empty",
            protocol_type="consumer",
            members=(member,) if assigned else (),
        )
        return DescribeGroupsResponse(groups=(row,))

    brokers.always(ConsumerGroupDescribeRequest, no_consumer_protocol)
    brokers.always(DescribeGroupsRequest, described)
    return brokers


def at_node(brokers: FakeBrokers, node: int, reply: Reply) -> Callable[[Any], Reply]:
    """Return a reply that only one broker gives."""
    return lambda request: (reply(request) if callable(reply) else reply) if brokers.seen[-1].node == node else PASS


def changed(brokers: FakeBrokers, **row: Any) -> Callable[[Any], Struct]:
    """Return the usual response to ListOffsets, with a change in every row; without changes, it has no row."""

    def reply(request: ListOffsetsRequest) -> Struct:
        answer: ListOffsetsResponse = brokers.usual(request)
        if not row:
            return attrs.evolve(answer, topics=())
        topics = [
            attrs.evolve(topic, partitions=tuple(attrs.evolve(one, **row) for one in topic.partitions))
            for topic in answer.topics
        ]
        return attrs.evolve(answer, topics=tuple(topics))

    return reply


#: Ill answers to ListOffsets.
ILL: dict[str, Callable[[FakeBrokers], Reply]] = {
    "loading": lambda _: codes.LEADER_NOT_AVAILABLE,
    "closes": lambda _: DROP,
    "hangs": lambda _: SILENCE,
    "no row": lambda brokers: changed(brokers),
    "-1": lambda brokers: changed(brokers, offset=-1),
    "foreign": lambda brokers: changed(brokers, partition_index=7),
}


def without_partition(group: OffsetFetchResponseGroup, number: int) -> OffsetFetchResponseGroup:
    """Return a group's commits without the rows of one partition number."""
    topics = [
        attrs.evolve(topic, partitions=tuple(row for row in topic.partitions if row.partition_index != number))
        for topic in group.topics
    ]
    return attrs.evolve(group, topics=tuple(topics))
