"""Commits that name the id of their topic (OffsetCommit v10): not taken for another topic of the same name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import CommitFailedError
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.testing.kafka_cluster import KafkaCluster, unique_name
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes


@pytest.fixture(params=["embedded", pytest.param("Apache Kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Bootstrap servers, and a topic of two partitions."""
    name = unique_name("orders")
    if request.param == "embedded":
        with EmbeddedKafka(topics={name: 2}) as embedded:
            yield embedded.bootstrap_servers, name
    else:
        kafka: KafkaCluster = request.getfixturevalue("kafka")
        kafka.create_topic(name, 2)
        yield kafka.bootstrap_servers, name


def test_the_broker_takes_a_commit_for_the_topic_that_it_names(place: tuple[str, str], group: str) -> None:
    bootstrap_servers, name = place
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    with BlockingCoordinator({"bootstrap.servers": bootstrap_servers, "group.id": group}) as coordinator:
        coordinator.subscribe([name])
        coordinator.join_group_if_needed(30_000)
        coordinator.accept(coordinator.pending_change())
        current = coordinator.metadata.topics[name].id
        offsets = {first: OffsetAndMetadata(5), second: OffsetAndMetadata(7)}
        result = coordinator.commit(offsets, topic_ids={first: current, second: uuid.UUID(int=7)})
        assert result[first] is None
        refused = result[second]
        assert isinstance(refused, CommitFailedError)
        assert refused.code == codes.UNKNOWN_TOPIC_ID
        assert coordinator.committed([first, second]) == {first: OffsetAndMetadata(5), second: None}
        # Without ids the broker goes by the name, in an older version.
        assert coordinator.commit({second: OffsetAndMetadata(7)}) == {second: None}
        assert coordinator.committed([second]) == {second: OffsetAndMetadata(7)}
