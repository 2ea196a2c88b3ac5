"""Invalid flags are reported before any request is sent; every failure has its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from consumer_coord.admin.commands import ExitCode, exit_code
from consumer_coord.cli import main
from consumer_coord.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConfigurationError,
    CoordinatorError,
    RequestTimedOutError,
    UnknownTopicError,
)
from consumer_coord.testing.real_kafka import free_ports

#: The address of no broker: these tests send no request.
NO_BROKER = ["--bootstrap-server", "127.0.0.1:1"]
RESET = ["reset", "g", *NO_BROKER]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["describe", *NO_BROKER], "name a group"),
        (["describe", "g", "--all-groups", *NO_BROKER], "cannot be combined"),
        ([*RESET, "--all-topics"], "--to-earliest, --to-latest"),
        ([*RESET, "--to-earliest", "--to-latest", "--all-topics"], "choose one of these rules"),
        ([*RESET, "--to-earliest"], "--all-topics, or --topic"),
        ([*RESET, "--to-earliest", "--all-topics", "--topic", "t"], "--all-topics and --topic"),
        ([*RESET, "--to-earliest", "--all-topics", "--dry-run", "--execute"], "--execute and --dry-run"),
        ([*RESET, "--to-offset", "-1", "--all-topics"], "must be 0 or greater"),
        ([*RESET, "--to-datetime", "noon", "--all-topics"], "--to-datetime noon"),
        ([*RESET, "--by-duration", "1h", "--all-topics"], "--by-duration 1h"),
        ([*RESET, "--from-file", "/nowhere.csv"], "--from-file /nowhere.csv: No such file"),
        (
            [*RESET, "--from-file", "plan.csv", "--topic", "t:0"],
            "--from-file resets all partitions in the file: remove --topic",
        ),
        (["delete-offsets", "g", *NO_BROKER], "one or more --topic"),
        (["--describe", "--list", *NO_BROKER], "exactly one action"),
        (["list", *NO_BROKER, "--command-config", "/nowhere.properties"], "--command-config /nowhere.properties"),
        (["list", "--bootstrap-server", "no port:x"], "bootstrap.servers"),
        (["list", *NO_BROKER, "-X", "sesion.timeout.ms=1"], "unknown setting; did you mean 'session.timeout.ms'?"),
        (["list", *NO_BROKER, "-X", "nothing.like.it=1"], "-X nothing.like.it: unknown setting\n"),
        (["list", *NO_BROKER, "-X", "client.id"], "write -X key=value"),
        (["list", *NO_BROKER, "-X", "sasl.usrname=x", "-X", "security.protocol=sasl_ssl"], "did you mean sasl.username"),
    ],
)
def test_refused_as_usage(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--state", "empty,stabel"], "'stabel'; did you mean 'Stable'?"),
        (["--type", "clasic"], "'clasic'; did you mean 'Classic'?"),
        (["--type", "stable"], "known are Classic, Consumer, Share"),
    ],
)
def test_a_misspelled_state_or_type_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["list", *arguments, *NO_BROKER])
    assert ended.value.code == ExitCode.USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["list", "--bootstrap-servers", "127.0.0.1:1"],
            "list: error: unrecognized argument: --bootstrap-servers; did you mean '--bootstrap-server'?",
        ),
        (["--list", "--bootstrap-servers=127.0.0.1:1"], "did you mean '--bootstrap-server'?"),
        ([*RESET, "--to-earlyest", "--all-topics"], "--to-earlyest; did you mean '--to-earliest'?"),
        (["simulate", "--member", "4"], "simulate: error: unrecognized argument: --member; did you mean '--members'?"),
        (["describe", "g", *NO_BROKER, "--xyz"], "unrecognized argument: --xyz\n"),
    ],
)
def test_a_misspelled_flag_is_answered_with_the_one_that_is_meant(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ExitCode.USAGE
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["describe", "g"],
        ["none-such"],
        ["describe", "g", *NO_BROKER, "--members", "--state"],
        ["list", *NO_BROKER, "--timeout", "0"],
    ],
)
def test_refused_by_the_parser(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ExitCode.USAGE
    assert "usage: consumer-coord" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), ExitCode.USAGE),
        (AuthenticationError("x"), ExitCode.NOT_ALLOWED),
        (AuthorizationError("x", code=30), ExitCode.NOT_ALLOWED),
        (UnknownTopicError("x", code=3), ExitCode.NOT_FOUND),
        (BrokerError("x", code=69), ExitCode.NOT_FOUND),
        (BrokerError("x", code=68), ExitCode.IN_USE),
        (BrokerError("x", code=25), ExitCode.IN_USE),
        (RequestTimedOutError("x"), ExitCode.TIMED_OUT),
        (BrokerError("x", code=-1), ExitCode.FAILED),
    ],
)
def test_exit_codes(error: CoordinatorError, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    assert main(["list", "--bootstrap-server", address, "--timeout", "300"]) == ExitCode.TIMED_OUT
    assert address in capsys.readouterr().err


def test_as_a_module_and_with_its_version() -> None:
    ran = subprocess.run([sys.executable, "-m", "consumer_coord", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("consumer-coord ")
    ran = subprocess.run([sys.executable, "-m", "consumer_coord", "--help"], capture_output=True, text=True, check=True)
    assert "Exit codes: 0 done, 1 failed, 2 usage, 3 not found" in " ".join(ran.stdout.split())


def test_operators_need_neither_broker_nor_simulation_nor_rich() -> None:
    """Commands in other modules are imported only when they are used."""
    code = "import sys, consumer_coord.cli; print(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(ran.stdout.split())
    assert "consumer_coord.admin.commands" in imported
    assert not {one for one in imported if one.startswith(("rich", "consumer_coord.broker", "consumer_coord.simulation"))}


@pytest.mark.parametrize("number", ["0", "-1"])
def test_live_lag_without_a_query_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lag", "g", "--count", number, *NO_BROKER])
    assert ended.value.code == ExitCode.USAGE
    assert f"argument --count: {number} is not greater than 0" in capsys.readouterr().err
