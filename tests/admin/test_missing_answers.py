"""What a broker does not answer is unknown: not zero, not absent, and no reason to hide what the others answered."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import attrs
import pytest

from consumer_coord.admin.commands import (
    ExitCode,
    delete_command,
    delete_offsets_command,
    describe_command,
    list_command,
    reset_command,
)
from consumer_coord.cli import build_parser
from consumer_coord.errors import CoordinatorError, IncompleteResponseError, RetriableError
from consumer_coord.retry import Deadline
from consumer_coord.scaling.lag_export import lag_command
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from consumer_coord.wire.messages.group import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import DROP, SILENCE, FakeBrokers, Reply
from tests.support.group.ill_leaders import ILL, at_node, group_brokers
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time, now_ms

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LIMIT_MS = 30_000
#: An ill broker may take this part of the time limit from the others.
QUICK_MS = 8_000


def parsed(*arguments: str) -> argparse.Namespace:
    """Return the arguments as parsed by the command's parser."""
    return build_parser().parse_args([*arguments, "--bootstrap-server", "x:1", "--timeout", str(LIMIT_MS)])


async def run(brokers: FakeBrokers, command: Any, *arguments: str) -> ExitCode:
    """Run one command."""
    cluster = new_cluster(brokers)
    try:
        code: ExitCode = await command(cluster, parsed(*arguments), Deadline.after(LIMIT_MS))
        return code
    finally:
        await cluster.close()


ill = pytest.mark.parametrize("kind", ILL)


@ill
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("command", "name", "extra"),
    [(describe_command, "describe", ()), (lag_command, "lag", ()), (lag_command, "lag", ("--count", "1"))],
)
@in_virtual_time
async def test_one_ill_leader_costs_its_partitions_only(
    command: Any, name: str, extra: Sequence[str], as_json: bool, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = group_brokers()
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, ILL[kind](brokers)))
    began = now_ms()
    assert await run(brokers, command, name, "g", *extra, *(["--json"] if as_json else [])) is ExitCode.INCOMPLETE
    assert now_ms() - began < QUICK_MS
    out, err = capsys.readouterr()
    assert "t-1" in err, "the partition is named with the reason"
    if not as_json:
        assert ("unknown" in out) if name == "describe" else (">=95" in out)
    elif extra:
        assert [(row["lag"], row["unknown"]) for row in map(json.loads, out.splitlines())] == [(95, 1)]
    else:
        (group,) = json.loads(out)["groups"]
        assert [(row["partition"], row["lag"]) for row in group["partitions"]] == [(0, 95), (1, None)]
        assert [row["partition"] for row in group["left_out"]] == [1]


@ill
@pytest.mark.parametrize(("most", "code"), [("94", ExitCode.BEHIND), ("95", ExitCode.INCOMPLETE)])
@in_virtual_time
async def test_a_known_lag_counts_although_another_is_unknown(most: str, code: ExitCode, kind: str) -> None:
    brokers = group_brokers()
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, ILL[kind](brokers)))
    assert await run(brokers, lag_command, "lag", "g", "--max-lag", most) is code


@pytest.mark.parametrize("reply", [codes.COORDINATOR_LOAD_IN_PROGRESS, DROP, SILENCE])
@pytest.mark.parametrize("as_json", [False, True])
@in_virtual_time
async def test_one_ill_coordinator_costs_its_groups_in_the_list_only(
    reply: Reply, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = group_brokers()
    groups = (ListedGroup(group_id="g", protocol_type="consumer", group_state="Empty", group_type="classic"),)
    brokers.always(ListGroupsRequest, lambda _: reply if brokers.seen[-1].node == 1 else ListGroupsResponse(groups=groups))
    began = now_ms()
    assert await run(brokers, list_command, "list", *(["--json"] if as_json else [])) is ExitCode.INCOMPLETE
    assert now_ms() - began < QUICK_MS
    out, err = capsys.readouterr()
    assert "the groups of broker 1 (broker-1:9092) are unknown" in err
    if as_json:
        document = json.loads(out)
        assert [row["group"] for row in document["groups"]] == ["g"]
        assert [row["broker"] for row in document["unlisted"]] == [1]
    else:
        assert out.split() == ["g"]
    # A command that changes all groups must know all groups.
    for command, arguments in ((delete_command, ["delete"]), (reset_command, ["reset", "--to-earliest", "--topic", "t"])):
        with pytest.raises(RetriableError):
            await run(brokers, command, *arguments, "--all-groups")
    assert not brokers.all(DeleteGroupsRequest)


@pytest.mark.parametrize("kind", [DescribeGroupsRequest, OffsetFetchRequest])
@pytest.mark.parametrize(
    ("command", "name", "extra"),
    [(describe_command, "describe", ()), (lag_command, "lag", ()), (lag_command, "lag", ("--count", "1"))],
)
@in_virtual_time
async def test_a_group_whose_coordinator_loads_hides_no_other_group(
    command: Any, name: str, extra: Sequence[str], kind: type[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = group_brokers()
    usual = brokers.usual if kind is OffsetFetchRequest else brokers.scripted(kind)

    def loads(request: Any) -> Reply:
        named = request.groups[0] if kind is DescribeGroupsRequest else request.groups[0].group_id
        return codes.COORDINATOR_LOAD_IN_PROGRESS if named == "b" else usual(request)

    brokers.always(kind, loads)
    began = now_ms()
    assert await run(brokers, command, name, "a", "b", *extra) is ExitCode.INCOMPLETE
    assert now_ms() - began < 2 * QUICK_MS
    out, err = capsys.readouterr()
    assert "a " in out
    assert "group 'b'" in err
    assert "COORDINATOR_LOAD_IN_PROGRESS" in err
    if name != "describe":
        assert [line.split()[0] for line in out.splitlines() if "unknown" in line] == ["b"]
    # Without any answer, the command has used its time.
    with pytest.raises(RetriableError) if extra else nullcontext():
        assert await run(brokers, command, name, "b", *extra) is ExitCode.TIMED_OUT


@pytest.mark.parametrize(
    ("command", "name", "extra", "code"),
    [
        (describe_command, "describe", (), ExitCode.NOT_FOUND),
        (lag_command, "lag", (), ExitCode.NOT_FOUND),
        (lag_command, "lag", ("--count", "1"), ExitCode.DONE),
    ],
)
@in_virtual_time
async def test_a_topic_deleted_between_two_look_ups_is_shown_as_deleted(
    command: Any, name: str, extra: Sequence[str], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = TopicPartition("gone", 0)
    brokers = group_brokers(committed=(T0, gone))
    brokers.topics["gone"] = 1

    def delete(request: ListOffsetsRequest) -> Struct:
        brokers.topics.pop("gone", None)
        answer: ListOffsetsResponse = brokers.usual(request)
        topics = [
            attrs.evolve(
                topic,
                partitions=tuple(
                    attrs.evolve(row, error_code=codes.UNKNOWN_TOPIC_OR_PARTITION if topic.name == "gone" else 0, offset=100)
                    for row in topic.partitions
                ),
            )
            for topic in answer.topics
        ]
        return attrs.evolve(answer, topics=tuple(topics))

    brokers.always(ListOffsetsRequest, delete)
    assert await run(brokers, command, name, "g", *extra) is code
    out, err = capsys.readouterr()
    assert [line.split()[3 if extra else 1] for line in out.splitlines() if "deleted" in line] == ["gone"]
    assert "95" in out
    assert "gone-0 does not exist" in err


@pytest.mark.parametrize("as_json", [False, True])
@in_virtual_time
async def test_a_partition_without_a_commit_counts_from_the_beginning(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = group_brokers(assigned=True, committed=(T0,))
    arguments = ["--json"] if as_json else []
    assert await run(brokers, lag_command, "lag", "g", "--max-lag", "99", *arguments) is ExitCode.BEHIND
    out, err = capsys.readouterr()
    assert "no commit for t-1; this lag counts from the beginning of the log" in err
    if as_json:
        (group,) = json.loads(out)["groups"]
        assert group["lag"] == 195
        assert [(row["lag"], row["committed"]) for row in group["partitions"]] == [(95, True), (100, False)]
    else:
        assert out.splitlines()[1].split() == ["g", "t", "2", "195", "100", "Stable"]
    assert await run(brokers, describe_command, "describe", "g", "--json") is ExitCode.DONE
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert [(row["offset"], row["start"], row["lag"]) for row in group["partitions"]] == [(5, None, 95), (None, 0, 100)]


@in_virtual_time
async def test_a_commit_that_the_coordinator_does_not_tell_is_not_a_missing_commit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    brokers = group_brokers(assigned=True, committed=(T0,))

    def without_rows(request: OffsetFetchRequest) -> Struct:
        answer: OffsetFetchResponse = brokers.usual(request)
        if request.groups[0].topics is None:
            return answer  # All commits: the response cannot show that t-1 is missing.
        return attrs.evolve(answer, groups=tuple(attrs.evolve(group, topics=()) for group in answer.groups))

    brokers.always(OffsetFetchRequest, without_rows)
    began = now_ms()
    assert await run(brokers, lag_command, "lag", "g", "--max-lag", "1000") is ExitCode.INCOMPLETE
    assert now_ms() - began < QUICK_MS
    out, err = capsys.readouterr()
    assert ">=95" in out, "the other partition's lag is known"
    assert "t-1" in err
    for rule in (["--to-current"], ["--shift-by", "1"]):
        brokers = group_brokers(committed=(T0,))
        brokers.always(OffsetFetchRequest, without_rows)
        with pytest.raises(IncompleteResponseError, match="t-1"):
            await run(brokers, reset_command, "reset", "g", *rule, "--topic", "t", "--execute")
        assert not brokers.all(OffsetCommitRequest)


@ill
@pytest.mark.parametrize(
    "rule",
    [
        ["--to-earliest"],
        ["--to-latest"],
        ["--to-offset", "7"],
        ["--shift-by", "1"],
        ["--to-datetime", "2026-01-01T00:00:00.000"],
        ["--by-duration", "PT1H"],
    ],
)
@in_virtual_time
async def test_a_reset_plans_nothing_from_a_wrong_answer(
    rule: list[str], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = group_brokers()
    brokers.always(ListOffsetsRequest, at_node(brokers, 1, ILL[kind](brokers)))
    if kind == "-1" and rule[0] in ("--to-datetime", "--by-duration"):
        rule = ["--to-latest"]  # For a time, -1 has a meaning, and the end is looked up.
    with pytest.raises(CoordinatorError, match=r"t-1|broker-1"):
        await run(brokers, reset_command, "reset", "g", *rule, "--topic", "t", "--execute")
    assert not brokers.all(OffsetCommitRequest)
    assert "NEW-OFFSET" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "answer", "command", "arguments"),
    [
        (DeleteGroupsRequest, DeleteGroupsResponse(), delete_command, ["delete", "g"]),
        (OffsetDeleteRequest, OffsetDeleteResponse(), delete_offsets_command, ["delete-offsets", "g", "--topic", "t"]),
        (DescribeGroupsRequest, DescribeGroupsResponse(), describe_command, ["describe", "g"]),
        (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse(), describe_command, ["describe", "g"]),
    ],
)
@in_virtual_time
async def test_a_response_without_the_row_is_no_answer(
    kind: type[Any], answer: Struct, command: Any, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = group_brokers()
    brokers.always(kind, answer)
    if kind is OffsetDeleteRequest:
        with pytest.raises(IncompleteResponseError, match=r"t-[01]"):
            await run(brokers, command, *arguments)
        return
    assert await run(brokers, command, *arguments) is ExitCode.TIMED_OUT
    out, err = capsys.readouterr()
    assert "has no row for g" in err
    assert "successful" not in out
