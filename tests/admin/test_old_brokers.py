"""The commands on brokers that lack their requests; an embedded broker refuses the requests as old brokers do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer_coord.admin.commands import ExitCode
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.cli import main
from consumer_coord.wire import error_codes as codes


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Start a broker with a group that has commits."""
    with EmbeddedKafka({"t": 2}) as kafka:
        assert main(["reset", "g", "--to-earliest", "--topic", "t", "--execute", *at(kafka)]) == 0
        yield kafka


def at(kafka: EmbeddedKafka) -> list[str]:
    """Return the arguments with the broker's address."""
    return ["--bootstrap-server", kafka.bootstrap_servers]


@pytest.mark.parametrize(
    "arguments",
    [["describe", "g"], ["lag", "g"], ["lag", "g", "--count", "1"], ["reset", "g", "--to-latest", "--all-topics"]],
    ids=lambda arguments: arguments[0],
)
def test_a_broker_that_lists_consumer_group_describe_and_refuses_it(
    kafka: EmbeddedKafka, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers 3.8 and 3.9 do this unless the new protocol is enabled: the response has UNSUPPORTED_VERSION."""
    kafka.add_fault("ConsumerGroupDescribe", Fault(error_code=codes.UNSUPPORTED_VERSION), times=100)
    assert main([*arguments, *at(kafka)]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert "g " in out
    assert "UNSUPPORTED" not in err
