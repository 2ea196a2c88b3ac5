"""Topics of a subscription that the cluster does not have are logged once, after a short delay."""

from __future__ import annotations

import re

import pytest

from consumer_coord.wire import error_codes as codes
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async

WATCH = "consumer_coord.group.metadata_watch"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about missing topics."""
    return [record.getMessage() for record in caplog.records if record.name == WATCH]


@pytest.mark.parametrize(
    ("code", "says"),
    [(codes.UNKNOWN_TOPIC_OR_PARTITION, "it does not exist"), (codes.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED")],
)
@in_virtual_time
async def test_a_topic_that_cannot_be_had(code: int, says: str, caplog: pytest.LogCaptureFixture) -> None:
    brokers = FakeBrokers()
    brokers.topic_errors["typo"] = code
    async with member(brokers, client={"metadata_max_age_ms": 1_000}) as one:
        one.coordinator.subscribe(["t", "typo"])
        one.start()
        await pause(1_000)
        assert told(caplog) == [], "it may only be late"
        await pause(8_000)
        (line,) = told(caplog)
        assert "topic typo" in line
        assert says in line
        await pause(60_000)
        assert len(told(caplog)) == 1
        # A topic that was there, and is missing again, is logged again.
        brokers.topics["typo"] = 1
        del brokers.topic_errors["typo"]
        await eventually_async(lambda: "typo" in one.cluster.metadata.topics)
        brokers.topic_errors["typo"] = code
        await pause(20_000)
        assert len(told(caplog)) == 2


@in_virtual_time
async def test_a_pattern_that_matches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        one.coordinator.subscribe_pattern(re.compile("orders-.*"))
        one.start()
        await pause(1_000)
        assert told(caplog) == []
        await pause(10_000)
        (line,) = told(caplog)
        assert "matches the pattern orders-.*" in line


@in_virtual_time
async def test_existing_topics_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with member(FakeBrokers(), client={"metadata_max_age_ms": 1_000}) as one:
        await one.join()
        await pause(30_000)
    assert told(caplog) == []
