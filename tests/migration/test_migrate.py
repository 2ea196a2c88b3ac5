"""``consumer-coord migrate`` on the embedded Kafka: its output, its exit codes, and a roll that it follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.admin.commands import ExitCode
from consumer_coord.broker import EmbeddedKafka, Fault
from tests.support.commands import Run, run_command
from tests.support.migrating import Watching
from tests.support.waiting import eventually


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 4}) as embedded:
        yield embedded


@pytest.fixture
def run(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return ``run("migrate", "g", …)``, which runs consumer-coord on the embedded Kafka."""
    return lambda *arguments: run_command(capsys, kafka.bootstrap_servers, *arguments, "--timeout", "20000")


def consumer(kafka: EmbeddedKafka, **settings: Any) -> GroupConsumer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    made = GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", **given})
    made.subscribe(["t"])
    return made


def settle(*consumers: GroupConsumer) -> None:
    """Poll until the consumers share the partitions."""

    def poll() -> None:
        for one in consumers:
            one.poll(0.02)

    share = 4 // len(consumers)
    eventually(lambda: all(len(one.assignment()) == share for one in consumers), step=poll)


def test_the_check_of_a_classic_group(kafka: EmbeddedKafka, run: Run) -> None:
    with consumer(kafka, client_id="billing", partition_assignment_strategy="load", group_instance_id="one") as member:
        settle(member)
        ran = run("migrate", "g", "--check")
        assert ran.code == ExitCode.DONE
        assert ran.lines[0] == f"Group g: Classic, Stable, assignor load, 1 members, coordinator 0 ({kafka.bootstrap_servers})"
        assert ran.lines[2].split()[:8] == ["1", "billing", "-", "classic", "3", ran.lines[2].split()[5], "one", "4"]
        assert "Move to the consumer protocol (KIP-848): possible" in ran.out
        assert "loses:  the assignor load" in ran.out
        assert "one is a static member" in ran.out
        assert "Going back: safe: no member has moved" in ran.out
        told = run("migrate", "g", "--json").json
        assert (told["possible"], told["to"], told["order"]) == (True, "consumer", [told["members"][0]["member_id"]])
        assert told["members"][0]["assigned"] == ["t-0", "t-1", "t-2", "t-3"]
        assert told["members"][0]["subscription_version"] == 3
        assert told["brokers"][0]["settings"]["group.consumer.migration.policy"] == "bidirectional"


def test_a_policy_that_forbids_the_move_and_one_that_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"group.consumer.migration.policy": "disabled"}
    with EmbeddedKafka({"t": 4}, config=config) as strict, consumer(strict) as member:
        settle(member)
        ran = run_command(capsys, strict.bootstrap_servers, "migrate", "g")
        assert (ran.code, "not possible yet" in ran.out) == (ExitCode.FAILED, True)
        assert "blocks: group.consumer.migration.policy of broker 0 is disabled" in ran.out
        strict.add_fault("DescribeConfigs", Fault(error_code=31), times=10_000)
        ran = run_command(capsys, strict.bootstrap_servers, "migrate", "g")
        assert ran.code == ExitCode.INCOMPLETE
        assert "needs DESCRIBE_CONFIGS on the cluster" in ran.out


def test_what_cannot_be_migrated(run: Run) -> None:
    ran = run("migrate", "never-there")
    assert (ran.code, "'never-there' does not exist" in ran.err) == (ExitCode.NOT_FOUND, True)
    ran = run("migrate", "g", "--duration-ms", "1000")
    assert (ran.code, "add --watch" in ran.err) == (ExitCode.USAGE, True)
    assert run("migrate", "g", "--to", "elsewhere").code == ExitCode.USAGE


@pytest.mark.slow
def test_a_roll_is_followed_until_it_is_complete(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    members = [consumer(kafka), consumer(kafka)]
    settle(*members)

    def poll() -> None:
        for one in members:
            one.poll(0.02)

    flags = ("--to", "consumer", "--interval-ms", "50", "--timeout", "2000")
    with Watching(tmp_path, kafka.bootstrap_servers, "g", *flags) as watching:
        try:
            watching.await_settled(0, 2, step=poll)
            kafka.add_fault("DescribeGroups", Fault(error_code=15), times=100_000)
            unknown = eventually(lambda: [one for one in watching.lines if "error" in one], step=poll)[0]
            assert (unknown["back"], "COORDINATOR_NOT_AVAILABLE" in unknown["wait"]) == (None, True)
            kafka.clear_faults()
            watching.await_settled(0, 2, step=poll)
            for number in range(2):
                members[number].close()
                members[number] = consumer(kafka, group_protocol="consumer")
                settle(*members)
                watching.await_settled(number + 1, 2, step=poll)
            assert watching.process.wait(120) == ExitCode.DONE
        finally:
            for one in members:
                one.close()
        lines = watching.answered
        assert [one["complete"] for one in lines].count(True) == 1
        assert {one["type"] for one in lines} == {"Classic", "Consumer"}
        assert all((one["back"] is None) == (one["wait"] is not None) for one in lines)
        assert any(one["joined"] for one in lines)
        assert any(one["left"] for one in lines)
