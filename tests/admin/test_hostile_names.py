"""Names from clients and brokers reach a terminal only in escaped form: in tables, JSON, errors, and log lines."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import consumer_coord
from consumer_coord.admin.lag import COLUMNS, Row, Sample, _Live
from consumer_coord.admin.reset import export_plan, parse_plan
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.cli import main
from consumer_coord.errors import BrokerError
from consumer_coord.group.generation import Generation
from consumer_coord.group.member_log import MemberLog
from consumer_coord.log_text import get_logger, printable, printable_json
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.embedded_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from consumer_coord.wire.messages.group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.broker.test_embedded_kafka import Wire

#: Clears the screen, forges a row, reverses the writing direction, rings, and is C1's "control sequence introducer".
EVIL = "g\x1b[2J\nforged  row\r\u202eevil\x9b31m\x07\x7f\u2028\t\U000e0001"


def is_safe(text: str) -> bool:
    """Return whether lines contain only printable characters."""
    return all(line.isprintable() for line in text.split("\n"))


@given(st.text())
def test_only_unprintable_characters_are_escaped(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_reads_back_as_it_was_and_is_printable(value: object) -> None:
    for indent in (None, 2):
        document = printable_json(value, indent=indent)
        assert is_safe(document)
        assert json.loads(document) == value


def test_errors_are_one_printable_line() -> None:
    assert str(BrokerError(f"broker says {EVIL}", code=7)).isprintable()


def test_log_lines_escape_what_they_quote(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("consumer_coord.tests.hostile")
    logger.error("%s, %r, %d", EVIL, EVIL, 7)
    logger.error("%(who)s", {"who": EVIL})
    logger.error("%s", ValueError(EVIL))
    assert len(caplog.records) == 3
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_the_prefix_of_a_members_lines_is_escaped_and_may_hold_per_cent_signs(caplog: pytest.LogCaptureFixture) -> None:
    log = MemberLog(get_logger("consumer_coord.group.coordinator"), f"50%s off {EVIL}", None, lambda: Generation(3, EVIL))
    log.warning("%d of %s", 1, "two")
    log.error("100% done")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.isprintable()
    assert first.startswith("[group=50%s off g\\x1b[2J\\nforged")
    assert first.endswith("generation=3] 1 of two")
    assert second.endswith("100% done")
    assert caplog.records[0].filename == "test_hostile_names.py", "the log line names the caller's line"


def test_every_logger_of_the_package_escapes() -> None:
    """A module that creates its logger without the package's function would log names unescaped."""
    package = Path(consumer_coord.__file__).parent
    makes_its_own = [str(file) for file in package.rglob("*.py") if "logging.getLogger(" in file.read_text()]
    assert makes_its_own == [str(package / "log_text.py")]


def test_an_exported_plan_is_printable_and_reads_back() -> None:
    plans = {EVIL: {TopicPartition("t", 1): 5}, "h": {TopicPartition("t", 0): 7}}
    text = export_plan(plans)
    assert is_safe(text)
    assert parse_plan(text, plans) == plans


@pytest.fixture(scope="module")
def evil_kafka() -> Iterator[str]:
    """Start a broker with a group that has a member, both with evil names, and another group with evil user data."""
    with EmbeddedKafka({"t": 1}) as kafka:
        wire = Wire(kafka)
        data = encode_subscription(Subscription(["t", EVIL], rack_id=EVIL))
        join = JoinGroupRequest(
            group_id=EVIL,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name=EVIL, metadata=data),),
        )
        # Version 3 requires no member id first.
        joined = wire.call(join, 3)
        member_id = joined.member_id  # type: ignore[attr-defined]
        generation = joined.generation_id  # type: ignore[attr-defined]
        assignment = encode_assignment(Assignment({EVIL: [0], "t": [0]}))
        share = SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
        wire.call(SyncGroupRequest(group_id=EVIL, generation_id=generation, member_id=member_id, assignments=(share,)), 2)
        yield kafka.bootstrap_servers
        wire.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--state", "--type"],
        ["list", "--json"],
        ["describe", "--all-groups"],
        ["describe", "--all-groups", "--members", "--verbose"],
        ["describe", "--all-groups", "--state", "--verbose"],
        ["describe", "--all-groups", "--json"],
        ["describe", f"no such {EVIL}"],
        ["lag", "--all-groups"],
        ["lag", "--all-groups", "--json"],
        ["lag", "--all-groups", "--count", "1"],
        ["lag", "--all-groups", "--count", "1", "--json"],
        ["reset", EVIL, "--to-earliest", "--topic", "t"],
        ["reset", f"new {EVIL}", "--to-earliest", "--topic", "t"],
        ["reset", f"new {EVIL}", "--to-earliest", "--topic", "t", "--export"],
        ["reset", f"new {EVIL}", "--to-earliest", "--topic", "t", "--json"],
        ["reset", f"new {EVIL}", "--to-earliest", "--topic", EVIL],
        ["reset", f"new {EVIL}", "--to-earliest", "--topic", f"{EVIL}:x"],
        ["delete", EVIL],
        ["delete", EVIL, "--json"],
        ["delete-offsets", EVIL, "--topic", "t"],
        ["delete-offsets", EVIL, "--topic", EVIL],
    ],
    ids=lambda arguments: "-".join(each.strip("-") for each in arguments if each.isprintable()),
)
def test_every_command_escapes_what_it_prints(
    evil_kafka: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*arguments, "--bootstrap-server", evil_kafka])
    out, err = capsys.readouterr()
    assert out + err
    assert is_safe(out), ascii(out)
    assert is_safe(err), ascii(err)
    assert not any(line.startswith("forged") for line in (out + err).splitlines())


def test_a_deleted_group_is_named_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        assert main(["reset", EVIL, "--to-earliest", "--topic", "t", "--execute", *address]) == 0
        assert main(["delete", EVIL, *address]) == 0
    out, err = capsys.readouterr()
    assert "was successful" in out
    assert is_safe(out + err)


def test_the_live_table_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    live = _Live()
    sample = Sample(0.0, "[red]g[/red]" + EVIL, "Stable", 1, "[link=x]t", 1, 0, 0, 0)
    live([Row(sample, None, None)])
    console = __import__("rich.console").console.Console(width=400, force_terminal=False)
    with console.capture() as captured:
        console.print(live._live.renderable)
    shown = captured.get()
    assert "[red]g[/red]g\\x1b[2J\\nforged" in shown
    assert "[link=x]t" in shown
    assert COLUMNS[0] in shown
