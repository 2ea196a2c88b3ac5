"""What the matrix of brokers checks by hand on many versions: on the oldest one, on 3.9 and on 4.3 in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import fetched
from tests.support.kafka.brokers_matrix import play
from tests.support.kafka_jars import KAFKA_2_4, KAFKA_3_9, KAFKA_4_3
from tests.support.real_kafka import RealKafka
from tests.support.zookeeper_kafka import ZooKeeperKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: What takes a JVM of its own, and what came with 4.0.
BY_HAND = ("spark", "consumer protocol")

#: Assignors that send the same requests as the others.
SAME_REQUESTS = ("roundrobin", "sticky", "load", "own assignor")


@pytest.fixture(scope="module")
def kafka_4_3() -> Iterator[RealKafka]:
    """One broker of the version before the one that all other tests use."""
    with RealKafka(fetched(KAFKA_4_3)) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def kafka_3_9() -> Iterator[RealKafka]:
    """One broker of 3.9, which lists ConsumerGroupDescribe and refuses it."""
    with RealKafka(fetched(KAFKA_3_9)) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def kafka_2_4() -> Iterator[RealKafka]:
    """The oldest broker that this library is meant for, with its ZooKeeper."""
    with ZooKeeperKafka(fetched(KAFKA_2_4)) as kafka:
        yield kafka


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
    assert "the brokers must be of Kafka 4.0 or later" in told
