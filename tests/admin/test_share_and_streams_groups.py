"""Share groups and groups of Kafka Streams: where their offsets come from, and what missing rows mean."""

from __future__ import annotations

import argparse
import json
from typing import Any

import attrs
import pytest

from consumer_coord.admin.commands import ExitCode, reset_command
from consumer_coord.admin.groups import CONSUMER, STREAMS, GroupDescription, MemberDescription
from consumer_coord.cli import build_parser
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.scaling.lag_export import lag_command
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import DescribeGroupsRequest
from consumer_coord.wire.messages.offsets import ListOffsetsRequest
from consumer_coord.wire.messages.share_group import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupDescribeAssignment,
    ShareGroupDescribeGroup,
    ShareGroupDescribeMember,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeTopicPartitions,
)
from tests.support.group.fake import DROP, FakeBrokers
from tests.support.group.ill_leaders import at_node, group_brokers
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time

MEMBER = ShareGroupDescribeMember(
    member_id="m",
    client_id="c",
    client_host="/h",
    assignment=ShareGroupDescribeAssignment(
        topic_partitions=(ShareGroupDescribeTopicPartitions(topic_name="t", partitions=(0, 1)),)
    ),
)


def share_brokers(starts: dict[int, tuple[int, int]], *, members: bool = True) -> FakeBrokers:
    """Return brokers with a share group that reads t; partition -> (start offset, lag), without a row for other partitions."""
    brokers = group_brokers()
    brokers.always(DescribeGroupsRequest, codes.GROUP_ID_NOT_FOUND)
    group = ShareGroupDescribeGroup(
        group_id="g", group_state="Stable" if members else "Empty", members=(MEMBER,) if members else ()
    )
    brokers.always(ShareGroupDescribeRequest, ShareGroupDescribeResponse(groups=(group,)))
    rows = tuple(
        DescribeShareGroupOffsetsResponsePartition(partition_index=number, start_offset=start, leader_epoch=0, lag=lag)
        for number, (start, lag) in starts.items()
    )
    topic = DescribeShareGroupOffsetsResponseTopic(topic_name="t", partitions=rows)
    answer = DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=(topic,))
    brokers.always(DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse(groups=(answer,)))
    return brokers


async def run(brokers: FakeBrokers, command: Any, *arguments: str) -> ExitCode:
    parsed: argparse.Namespace = build_parser().parse_args([*arguments, "--bootstrap-server", "x:1"])
    cluster = new_cluster(brokers)
    try:
        code: ExitCode = await command(cluster, parsed, Deadline.after(20_000))
        return code
    finally:
        await cluster.close()


def lags(out: str) -> dict[int, int | None]:
    (group,) = json.loads(out)["groups"]
    return {row["partition"]: row["lag"] for row in group["partitions"]}


@in_virtual_time
async def test_the_lag_of_a_share_group_is_the_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    # Seven records after the start offset were finished out of order.
    brokers = share_brokers({0: (90, 3), 1: (-1, -1)})
    assert await run(brokers, lag_command, "lag", "g", "--json") is ExitCode.DONE
    assert lags(capsys.readouterr().out) == {0: 3, 1: 100}, "partition 1 has no start offset yet"
    assert await run(brokers, lag_command, "lag", "g", "--json", "--without-commit", "unknown") is ExitCode.INCOMPLETE
    assert lags(capsys.readouterr().out) == {0: 3, 1: None}


@in_virtual_time
async def test_the_lag_of_an_older_broker_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = share_brokers({0: (90, -1), 1: (100, -1)})
    assert await run(brokers, lag_command, "lag", "g", "--json") is ExitCode.DONE
    assert lags(capsys.readouterr().out) == {0: 10, 1: 0}


@in_virtual_time
async def test_a_start_offset_without_a_row_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = share_brokers({0: (90, 3)})
    assert await run(brokers, lag_command, "lag", "g", "--json", "--max-lag", "3") is ExitCode.INCOMPLETE
    out, err = capsys.readouterr()
    assert lags(out) == {0: 3, 1: None}
    assert "DescribeShareGroupOffsets has no row for t-1" in err


@in_virtual_time
async def test_a_lag_that_the_coordinator_told_needs_no_leader(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = share_brokers({0: (90, 3), 1: (90, 4)})
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, DROP))
    assert await run(brokers, lag_command, "lag", "g", "--json") is ExitCode.DONE
    assert lags(capsys.readouterr().out) == {0: 3, 1: 4}
    assert await run(brokers, lag_command, "lag", "g", "--json", "--seconds") is ExitCode.INCOMPLETE
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert [(row["topic"], row["partition"]) for row in group["seconds_left_out"]] == [("t", 1)]


@pytest.mark.parametrize("code", [codes.NONE, codes.TOPIC_AUTHORIZATION_FAILED])
@in_virtual_time
async def test_a_reset_of_a_share_group_sets_start_offsets(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    brokers = share_brokers({0: (90, 3), 1: (95, 2)}, members=False)

    def altered(request: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
        rows = [
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                partitions=tuple(
                    AlterShareGroupOffsetsResponsePartition(one.partition_index, code if one.partition_index else 0)
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ]
        return AlterShareGroupOffsetsResponse(responses=tuple(rows))

    brokers.always(AlterShareGroupOffsetsRequest, altered)
    done = await run(brokers, reset_command, "reset", "g", "--shift-by", "-5", "--all-topics", "--execute", "--json")
    assert done is (ExitCode.NOT_ALLOWED if code else ExitCode.DONE)
    document = json.loads(capsys.readouterr().out)
    told = [(row["old_offset"], row["new_offset"]) for row in document["groups"][0]["partitions"]]
    assert told == ([(90, 85)] if code else [(90, 85), (95, 90)])
    (request,) = brokers.all(AlterShareGroupOffsetsRequest)
    assert [(one.partition_index, one.start_offset) for one in request.topics[0].partitions] == [(0, 85), (1, 90)]


def test_a_task_reads_its_partition_of_each_topic_of_its_subtopology() -> None:
    member = MemberDescription("m", None, "c", "/h", {"0": (1, 2), "1": (0,)}, None)
    group = GroupDescription(
        "g", STREAMS, "streams", "Stable", "", Broker(0, "h", 1), (member,), subtopologies={"0": ("a", "b"), "1": ("c",)}
    )
    wanted = {("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 0)}
    assert group.reads(member) == {TopicPartition(*one) for one in wanted}
    assert attrs.evolve(group, type=CONSUMER).reads(member) == member.partitions


@in_virtual_time
async def test_a_share_group_that_may_not_be_described_is_an_error_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = share_brokers({})
    brokers.always(DescribeShareGroupOffsetsRequest, codes.GROUP_AUTHORIZATION_FAILED)
    assert await run(brokers, lag_command, "lag", "g") is ExitCode.NOT_ALLOWED
    assert "is not authorized for this operation on group 'g'" in capsys.readouterr().err
