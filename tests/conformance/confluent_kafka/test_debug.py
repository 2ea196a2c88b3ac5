"""``debug=cgrp`` shows the group's steps, as librdkafka's own consumer does."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.waiting import eventually, eventually_async

#: Messages that both group protocols log, each at least once: the coordinator, the states, the assignment, the end.
STEPS = {"CGRPCOORD", "CGRPJOINSTATE", "CGRP"}
PROTOCOLS = {"classic": {"JOINGROUP", "SYNCGROUP", "LEAVEGROUP"}, "consumer": {"CONSUMERGROUPHEARTBEAT"}}


class Lines:
    """A logger as confluent-kafka calls it."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def log(self, level: int, text: str, *arguments: object) -> None:
        self.lines.append((level, text, *arguments))

    def steps(self) -> set[object]:
        return {step for _, _, step, name, _ in self.lines if name == "me#coordinator"}


def settings(kafka: EmbeddedKafka, protocol: str, debug: str | None) -> dict[str, Any]:
    given = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "group.protocol": protocol}
    return given | {"client.id": "me"} | ({} if debug is None else {"debug": debug})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_consumers_logger_is_told_of_the_groups_steps(protocol: str) -> None:
    lines = Lines()
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        consumer = GroupConsumer(settings(kafka, protocol, "cgrp"), logger=lines)
        _take_part(consumer)
        assert lines.steps() >= STEPS | PROTOCOLS[protocol] - {"LEAVEGROUP"}
        assert all(line[0] == logging.DEBUG for line in lines.lines)
        texts = [line[-1] for line in lines.lines if line[2] == "CGRPJOINSTATE"]
        assert all(re.fullmatch(r'Group "billing": changed join state .+ -> .+', text) for text in texts)
        assert any("assigned orders" in line[-1] for line in lines.lines if line[2] == "CGRP")


def test_without_a_logger_the_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        _take_part(GroupConsumer(settings(kafka, "classic", "broker, all")))
    shown = capsys.readouterr().err
    assert re.search(r'^%7\|\d+\.\d{3}\|JOINGROUP\|me#coordinator\| Group "billing": JoinGroup response: ', shown, re.MULTILINE)


def test_without_debug_the_logger_is_not_told() -> None:
    lines = Lines()
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        _take_part(GroupConsumer(settings(kafka, "classic", None), logger=lines))
    assert not lines.steps()


def test_a_logger_that_raises_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def log(self, level: int, text: str, step: str, name: str, line: str) -> None:
            if name.endswith("#coordinator"):
                raise ZeroDivisionError

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        _take_part(GroupConsumer(settings(kafka, "classic", "cgrp"), logger=Broken()))
    assert "the consumer's logger raised" in caplog.text


def test_the_asyncio_consumer_tells_too() -> None:
    lines = Lines()

    async def take_part(kafka: EmbeddedKafka) -> None:
        async with AsyncGroupConsumer(settings(kafka, "classic", "cgrp"), logger=lines) as consumer:
            await consumer.subscribe(["orders"])
            await eventually_async(consumer.assignment, step=lambda: consumer.poll(0.1))

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        asyncio.run(take_part(kafka))
    assert lines.steps() >= STEPS | {"JOINGROUP", "SYNCGROUP"}


def _take_part(consumer: GroupConsumer) -> None:
    with consumer:
        consumer.subscribe(["orders"])
        eventually(consumer.assignment, step=lambda: consumer.poll(0.1))
