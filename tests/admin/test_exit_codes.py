"""A command's output names what it could not look up or set, and its exit code is not success."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord.admin.commands import ExitCode, reset_command
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.cli import build_parser, main
from consumer_coord.retry import Deadline
from consumer_coord.scaling.lag_export import lag_command
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from consumer_coord.wire.messages.group import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from consumer_coord.wire.schema import Struct
from tests.support.group.fake import FakeBrokers, commit_answer
from tests.support.group.member import new_cluster
from tests.support.group.virtual import in_virtual_time


def with_group(*committed: TopicPartition) -> FakeBrokers:
    """Return brokers that know an empty classic group with commits for these partitions."""
    brokers = FakeBrokers({"t": 2, "secret": 1})
    brokers.committed = dict.fromkeys(committed, 5)
    unknown = ConsumerGroupDescribeGroup(error_code=codes.GROUP_ID_NOT_FOUND, group_id="g")
    brokers.always(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse(groups=(unknown,)))
    empty = DescribedGroup(group_id="g", group_state="Empty", protocol_type="consumer")
    brokers.always(DescribeGroupsRequest, DescribeGroupsResponse(groups=(empty,)))
    return brokers


def parsed(*arguments: str) -> argparse.Namespace:
    """Return the arguments as parsed by the command's parser."""
    return build_parser().parse_args([*arguments, "--bootstrap-server", "x:1"])


async def run(brokers: FakeBrokers, command: Any, arguments: Sequence[str]) -> ExitCode:
    """Run one command."""
    cluster = new_cluster(brokers)
    try:
        code: ExitCode = await command(cluster, parsed(*arguments), Deadline.after(10_000))
        return code
    finally:
        await cluster.close()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("error", "code"),
    [(codes.TOPIC_AUTHORIZATION_FAILED, ExitCode.NOT_ALLOWED), (codes.UNKNOWN_TOPIC_OR_PARTITION, ExitCode.NOT_FOUND)],
)
@in_virtual_time
async def test_a_lag_without_some_partitions_is_not_healthy(
    as_json: bool, error: int, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = with_group(TopicPartition("t", 0), TopicPartition("secret", 0))
    brokers.topic_errors["secret"] = error
    arguments = ["lag", "g", "--max-lag", "1000", *(["--json"] if as_json else [])]
    assert await run(brokers, lag_command, arguments) is code
    out, err = capsys.readouterr()
    assert "secret-0 is not included in the lag of group 'g'" in err
    if as_json:
        (group,) = json.loads(out)["groups"]
        assert [(row["topic"], row["partition"], row["code"]) for row in group["left_out"]] == [("secret", 0, error)]
        assert {row["topic"]: row["lag"] for row in group["partitions"]} == {"t": 95, "secret": None}


@in_virtual_time
async def test_a_lag_of_nothing_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers silently leave out commits of a group that the principal may not see."""
    assert await run(with_group(), lag_command, ["lag", "g", "--max-lag", "1000"]) is ExitCode.NOT_FOUND
    assert (
        "group 'g' has no assigned partitions, and no committed offsets that this principal may describe"
        in capsys.readouterr().err
    )


@in_virtual_time
async def test_a_topic_that_may_not_be_seen_is_not_called_missing(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = with_group()
    brokers.topic_errors["secret"] = codes.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(Exception, match="may not see topic secret") as refused:
        await run(brokers, reset_command, ["reset", "g", "--to-earliest", "--topic", "secret"])
    assert refused.value.code == codes.TOPIC_AUTHORIZATION_FAILED  # type: ignore[attr-defined]


@pytest.mark.parametrize("as_json", [False, True])
@in_virtual_time
async def test_a_reset_that_the_broker_takes_in_part_says_which_part(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    brokers = with_group(TopicPartition("t", 0), TopicPartition("secret", 0))

    def in_part(request: OffsetCommitRequest) -> Struct:
        errors = {TopicPartition("secret", 0): codes.TOPIC_AUTHORIZATION_FAILED}
        return commit_answer(request, errors)

    brokers.always(OffsetCommitRequest, in_part)
    arguments = ["reset", "g", "--to-latest", "--all-topics", "--execute", *(["--json"] if as_json else [])]
    assert await run(brokers, reset_command, arguments) is ExitCode.NOT_ALLOWED
    out, err = capsys.readouterr()
    assert "secret-0 of group 'g' was not reset" in err
    if as_json:
        document = json.loads(out)
        assert [row["topic"] for group in document["groups"] for row in group["partitions"]] == ["t"]
        assert [(error["group"], error["exit_code"]) for error in document["errors"]] == [("g: secret-0", 5)]
    else:
        assert "secret" not in out


def test_no_group_is_reset_if_the_plan_of_another_group_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("t", b"a record")
        producer.flush()
        assert main(["reset", "a", "--to-offset", "0", "--topic", "t", "--execute", *address]) == ExitCode.DONE
        assert main(["reset", "a", "b", "--shift-by", "1", "--topic", "t", "--execute", *address]) == ExitCode.USAGE
        assert "group 'b' has no committed offset for t-0" in capsys.readouterr().err
        assert main(["lag", "a", "--json", *address]) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["groups"][0]["lag"] == 1


@in_virtual_time
async def test_a_group_that_was_reset_is_reported_although_a_later_group_fails(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = with_group(TopicPartition("t", 0))

    def for_one_group(request: OffsetCommitRequest) -> Struct:
        code = codes.NONE if request.group_id == "a" else codes.COORDINATOR_LOAD_IN_PROGRESS
        return commit_answer(request, {TopicPartition("t", 0): code})

    brokers.always(OffsetCommitRequest, for_one_group)
    unknown = [ConsumerGroupDescribeGroup(error_code=codes.GROUP_ID_NOT_FOUND, group_id=group) for group in "ab"]
    brokers.always(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse(groups=tuple(unknown)))
    empty = [DescribedGroup(group_id=group, group_state="Empty", protocol_type="consumer") for group in "ab"]
    brokers.always(DescribeGroupsRequest, DescribeGroupsResponse(groups=tuple(empty)))
    arguments = ["reset", "a", "b", "--to-latest", "--topic", "t:0", "--execute", "--json"]
    assert await run(brokers, reset_command, arguments) is ExitCode.TIMED_OUT
    document = json.loads(capsys.readouterr().out)
    assert [group["group"] for group in document["groups"] if group["partitions"]] == ["a"]
    assert [error["exit_code"] for error in document["errors"]] == [6]


def test_a_reset_prints_the_error_of_each_group(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        assert main(["reset", "one", "two", "--to-latest", "--all-topics", *address]) == ExitCode.NOT_FOUND
    err = capsys.readouterr().err
    assert ("'one' does not exist" in err, "'two' does not exist" in err) == (True, True)


@pytest.mark.parametrize("arguments", [["--execute"], [], ["--execute", "--json"]])
def test_resetting_all_topics_of_a_group_that_does_not_exist(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        assert main(["reset", "TYPO", "--to-latest", "--all-topics", *arguments, *address]) == ExitCode.NOT_FOUND
        out, err = capsys.readouterr()
        assert "'TYPO' does not exist" in err
        if "--json" in arguments:
            assert [error["exit_code"] for error in json.loads(out)["errors"]] == [3]
        # With topics, the command may create the group.
        assert main(["reset", "TYPO", "--to-latest", "--topic", "t", "--execute", *address]) == ExitCode.DONE


@pytest.mark.parametrize(
    "command", [["describe"], ["lag"], ["delete"], ["lag", "--count", "1"], ["reset", "--to-latest", "--all-topics"]]
)
def test_the_error_of_a_misspelled_group_suggests_the_right_name(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        assert main(["reset", "billing", "--to-latest", "--topic", "t", "--execute", *address]) == ExitCode.DONE
        capsys.readouterr()
        assert main([command[0], "biling", *command[1:], *address]) == ExitCode.NOT_FOUND
        assert "consumer group 'biling' does not exist; did you mean 'billing'?" in capsys.readouterr().err
        # A name that resembles no group gets no suggestion.
        assert main([command[0], "zzz", *command[1:], *address]) == ExitCode.NOT_FOUND
        assert "consumer group 'zzz' does not exist\n" in capsys.readouterr().err


def test_an_assignor_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from assignors import RangeAssignor\nclass Mine(RangeAssignor):\n    name = 'mine'\n"
    (tmp_path / "assignor_of_this_directory.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["--members", "2", "--topics", "t:2", "--assignor", "assignor_of_this_directory:Mine"]
    assert main(["simulate", *arguments]) == ExitCode.DONE
    assert "assignor_of_this_directory:Mine" in capsys.readouterr().out
