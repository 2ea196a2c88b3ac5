"""Checks of the matrix of brokers, with three versions: the oldest, 3.9 and 4.3. By hand, it runs with many versions."""

from __future__ import annotations

import pytest

from consumer_coord.testing.real_kafka import RealKafka
from tests.support.kafka.brokers_matrix import play

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: Checks that need a separate JVM, and checks of features that Kafka 4.0 added.
BY_HAND = ("spark", "consumer protocol")

#: Assignors that send the same requests as the others.
SAME_REQUESTS = ("roundrobin", "sticky", "load", "own assignor")


def not_ok(outcome: dict[str, str]) -> dict[str, str]:
    """The checks that failed."""
    return {name: what for name, what in outcome.items() if what != "ok"}


def test_both_protocols_and_commands_on_4_3(kafka_4_3: RealKafka) -> None:
    assert not_ok(play(kafka_4_3.bootstrap_servers, without=("spark", *SAME_REQUESTS))) == {}


def test_members_assignors_and_commands_on_3_9(kafka_3_9: RealKafka) -> None:
    assert not_ok(play(kafka_3_9.bootstrap_servers, without=BY_HAND)) == {}


def test_members_and_commands_on_the_oldest_broker(kafka_2_4: RealKafka) -> None:
    """One eager and one cooperative assignor."""
    assert not_ok(play(kafka_2_4.bootstrap_servers, without=(*BY_HAND, *SAME_REQUESTS))) == {}


def test_the_consumer_protocol_says_which_broker_it_needs(kafka_2_4: RealKafka) -> None:
    (told,) = play(kafka_2_4.bootstrap_servers, only="consumer protocol").values()
    assert "the brokers must run Kafka 4.0 or later" in told
