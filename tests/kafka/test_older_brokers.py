"""What the matrix of brokers checks by hand on many versions, on Kafka 3.9 in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import fetched
from tests.kafka.brokers_matrix import play
from tests.support.kafka_jars import KAFKA_3_9
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def kafka_3_9() -> Iterator[RealKafka]:
    """One broker of 3.9, which lists ConsumerGroupDescribe and refuses it."""
    with RealKafka(fetched(KAFKA_3_9)) as kafka:
        yield kafka


def test_members_assignors_and_commands_on_3_9(kafka_3_9: RealKafka) -> None:
    outcome = play(kafka_3_9.bootstrap_servers)
    assert {name: what for name, what in outcome.items() if what != "ok"} == {}
