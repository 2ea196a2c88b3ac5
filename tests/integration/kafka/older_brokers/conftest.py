"""Older brokers, each there as long as tests of this folder run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumer_coord.testing.jars import KAFKA_3_9, KAFKA_4_3
from consumer_coord.testing.real_kafka import RealKafka
from tests.conftest import fetched
from tests.support.jar_sets import KAFKA_2_4
from tests.support.kafka.zookeeper_kafka import ZooKeeperKafka


@pytest.fixture(scope="package")
def kafka_4_3() -> Iterator[RealKafka]:
    """A broker of the version before the one that all other tests use."""
    with RealKafka(fetched(KAFKA_4_3)) as kafka:
        yield kafka


@pytest.fixture(scope="package")
def kafka_3_9() -> Iterator[RealKafka]:
    """A broker of 3.9, which lists ConsumerGroupDescribe and refuses it."""
    with RealKafka(fetched(KAFKA_3_9)) as kafka:
        yield kafka


@pytest.fixture(scope="package")
def kafka_2_4() -> Iterator[RealKafka]:
    """The oldest broker that this library is meant for, with its ZooKeeper."""
    with ZooKeeperKafka(fetched(KAFKA_2_4)) as kafka:
        yield kafka
