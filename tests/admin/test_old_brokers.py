"""The commands on brokers that are older than what they ask for, as an embedded broker that refuses as those do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer_coord.admin.commands import ExitCode
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.cli import main
from consumer_coord.wire import error_codes as codes


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker with a group that has committed."""
    with EmbeddedKafka({"t": 2}) as kafka:
        assert main(["reset", "g", "--to-earliest", "--topic", "t", "--execute", *at(kafka)]) == 0
        yield kafka


def at(kafka: EmbeddedKafka) -> list[str]:
    """Where it is."""
    return ["--bootstrap-server", kafka.bootstrap_servers]


@pytest.mark.parametrize(
    "arguments",
    [["describe", "g"], ["lag", "g"], ["top", "g", "--count", "1"], ["reset", "g", "--to-latest", "--all-topics"]],
    ids=lambda arguments: arguments[0],
)
def test_a_broker_that_lists_consumer_group_describe_and_refuses_it(
    kafka: EmbeddedKafka, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """3.8 and 3.9 do, unless the new protocol is enabled: UNSUPPORTED_VERSION comes in the answer."""
    kafka.add_fault("ConsumerGroupDescribe", Fault(error_code=codes.UNSUPPORTED_VERSION), times=100)
    assert main([*arguments, *at(kafka)]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert "g " in out
    assert "UNSUPPORTED" not in err
