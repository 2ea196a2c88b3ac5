"""The table of programs: each runs on both consumers and one broker, and the outcomes are compared."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import cimpl

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.confluent_kafka import arguments, groups, reading
from tests.support.confluent_kafka.explained import EXPLAINED
from tests.support.confluent_kafka.settings import OLDER
from tests.support.confluent_kafka.world import World, alike

PROGRAMS: dict[str, Callable[[World], Any]] = {**arguments.PROGRAMS, **reading.PROGRAMS, **groups.PROGRAMS}

#: Number of programs that run at the same time, because most of their time is waiting.
_AT_A_TIME = 6

_DOCS = Path(__file__).parents[3] / "docs" / "confluent-kafka.md"


@attrs.frozen
class Outcomes:
    """The observations of one program with each consumer."""

    theirs: Any
    ours: Any


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Outcomes]]:
    """Of all programs."""

    def run(name: str, kind: Callable[..., Any]) -> Any:
        with World(kind, kafka).opened() as world:
            return PROGRAMS[name](world)

    with (
        EmbeddedKafka(config={"group.min.session.timeout.ms": 100}) as kafka,
        concurrent.futures.ThreadPoolExecutor(_AT_A_TIME) as pool,
    ):
        running = {name: [pool.submit(run, name, kind) for kind in (cimpl.Consumer, GroupConsumer)] for name in PROGRAMS}
        yield {name: Outcomes(*[each.result() for each in both]) for name, both in running.items()}


@pytest.mark.slow
@pytest.mark.skipif(OLDER, reason="older versions of confluent-kafka lack methods, and crash in calls after close")
def test_every_program_sees_the_same_unless_it_is_explained(outcomes: dict[str, Outcomes]) -> None:
    different = {name: seen for name, seen in outcomes.items() if not alike(seen.theirs, seen.ours)}
    unexplained = {name: seen for name, seen in different.items() if name not in EXPLAINED}
    assert not unexplained, "\n".join(
        f"{name}:\n  confluent-kafka: {seen.theirs}\n  ours: {seen.ours}" for name, seen in unexplained.items()
    )
    assert different.keys() == EXPLAINED.keys(), "an explanation of a difference that no longer exists"
    assert len(PROGRAMS) >= 190


def test_the_docs_have_the_counts_and_the_explanations() -> None:
    text = _DOCS.read_text()
    same = len(PROGRAMS) - len(EXPLAINED)
    assert f"{len(PROGRAMS)} programs, {same} with the same outcome, {len(EXPLAINED)} explained" in text
    for name, why in EXPLAINED.items():
        assert f"| {name} | {why} |" in text
