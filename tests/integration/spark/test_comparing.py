"""What docs/spark.md says of queries next to Spark's own connector, for some cases of ``tests.support.spark.comparing``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.spark.comparing import (
    CLASSIC,
    CONNECTOR,
    CONSUMER,
    IDLE,
    NOW,
    ONCE,
    READING,
    TROUBLES,
    Case,
    Embedded,
    compare,
    is_right,
)

pytestmark = pytest.mark.spark

DELETED = "2 a topic is deleted while the query is stopped"

#: Trouble, trigger, protocol, failOnDataLoss -> how the connector ends.
KEPT = {
    ("1 new records", NOW, CLASSIC, True): "ends",
    (DELETED, READING, CONSUMER, True): "fails",
    (DELETED, ONCE, CLASSIC, False): "ends",
    ("2 a topic is deleted while the query runs", IDLE, CONSUMER, True): "fails",
    ("3 a topic is created again with fewer partitions", NOW, CONSUMER, False): "fails",
    ("4 ListOffsets takes 3 s", ONCE, CONSUMER, True): "ends",
    ("5 the interval is longer than max.poll.interval.ms", READING, CONSUMER, True): "runs",
    ("6 access is withdrawn", IDLE, CLASSIC, True): "fails",
    ("7 no such topic", ONCE, CONSUMER, True): "fails",
    ("7 no such topic", READING, CLASSIC, True): "fails",
}


@pytest.fixture
def kafka() -> Iterator[Embedded]:
    with Embedded() as found:
        yield found


@pytest.mark.parametrize(
    ("kept", "connector"), KEPT.items(), ids=lambda kept: ", ".join(map(str, kept)) if isinstance(kept, tuple) else ""
)
def test_a_query_ends_as_the_page_says(spark: Any, kafka: Embedded, kept: tuple[str, str, str, bool], connector: str) -> None:
    trouble, trigger, protocol, fail_on_data_loss = kept
    case = Case(trouble, trigger, protocol, fail_on_data_loss)
    outcome = compare(spark, kafka, case)
    assert is_right(case, outcome), f"{case}: {outcome}"
    theirs = compare(spark, kafka, Case(trouble, trigger, CONNECTOR, fail_on_data_loss))
    assert theirs.end == connector, theirs


def test_each_kind_of_trouble_is_kept() -> None:
    assert {trouble.partition(" ")[0] for trouble, *_ in KEPT} == {trouble.partition(" ")[0] for trouble in TROUBLES}
